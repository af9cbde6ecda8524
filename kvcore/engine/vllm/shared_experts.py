"""Where a plug-in stores shared experts otherwise than the vLLM that it runs on: whole on each rank, or cut."""

from __future__ import annotations

from dataclasses import replace as rebuilt

from msgspec.structs import replace

from kvcore.engine.rooms import find_engine
from kvcore.engine.vllm.flashcomm import cuts_tokens
from kvcore.engine.vllm.versions import planned_release
from kvcore.kept import kept
from kvcore.model.architecture import Architecture, Layer, Linear, Module, Split
from kvcore.scenario import Scenario


def stored_architecture(scenario: Scenario, architecture: Architecture) -> Architecture:
    """`architecture` with its shared experts as the engine of `scenario` stores them.

    vLLM: whole where experts are sharded over tensor and data parallel ranks. vllm-ascend switches that off: whole with
    FlashComm alone, where their names have the piece that the release looks for, and cut otherwise.

    Source: vllm_ascend/platform.py:NPUPlatform.check_and_update_config (0.11.0, 0.23.0: all2all_backend),
    ops/linear_op.py:get_parallel_op, utils.py:shared_expert_dp_enabled (0.11.0, 0.18.0, 0.23.0).
    """
    if architecture.moe is None:
        return architecture
    version = planned_release(scenario).version
    piece = find_engine(scenario.engine).weights.at(version).whole_with_flashcomm
    return _stored(architecture, piece, cuts_tokens(scenario, version)) if piece else architecture


@kept
def _stored(architecture: Architecture, piece: str, is_whole: bool) -> Architecture:
    layers = dict[int, Layer]()

    def stored(layer: Layer) -> Layer:
        if id(layer) not in layers:
            modules = tuple(_module(module, piece, is_whole) for module in layer.modules)
            layers[id(layer)] = replace(layer, modules=modules)
        return layers[id(layer)]

    return rebuilt(
        architecture,
        layers=tuple(map(stored, architecture.layers)),
        draft_layers=tuple(map(stored, architecture.draft_layers)),
    )


def _module(module: Module, piece: str, is_whole: bool) -> Module:
    if not isinstance(module, Linear) or "shared_expert" not in module.name:
        return module
    split = Split.REPLICATED if is_whole and piece in module.name else module.split
    return replace(module, whole_with_expert_ranks=False, split=split)
