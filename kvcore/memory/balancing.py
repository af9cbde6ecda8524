"""Experts that move between ranks while an engine serves: the buffers that they pass through."""

from __future__ import annotations

from kvcore.engine.memory_rules import Balancing
from kvcore.engine.protocol import Setting
from kvcore.engines.vllm.additional import additional_of
from kvcore.memory.weights import Rank, expert_ranks
from kvcore.model.architecture import Experts


def balancing_of(setting: Setting) -> Balancing | None:
    """The engine's rule where experts of this model move; None where they stay."""
    rules = setting.engine.facts.memory.balancing
    if rules is None or setting.architecture.moe is None or expert_ranks(setting.parallel) == 1:
        return None
    return (
        rules if additional_of(setting.engine, setting.scenario, setting.resolved.version).balances else None
    )


def profiled_buffer_bytes(setting: Setting) -> int:
    """Bytes of the buffers where they are there before the profile run; 0 where they come later."""
    rules = balancing_of(setting)
    is_profiled = rules is not None and setting.resolved.version >= rules.profiled_since
    return buffer_bytes(setting) if is_profiled else 0


def later_buffer_bytes(setting: Setting) -> int:
    """Bytes of the buffers where they come once the KV cache is allocated; 0 where they were there before."""
    rules = balancing_of(setting)
    comes_later = rules is not None and setting.resolved.version < rules.profiled_since
    return buffer_bytes(setting) if comes_later else 0


def buffer_bytes(setting: Setting) -> int:
    """One expert for each that a rank has of a layer: weights and scales of its first mixture.

    Source: vllm_ascend/eplb/adaptor/vllm_adaptor.py:VllmEplbAdaptor.init_buffer_tensor (0.9.1, 0.13.0, 0.25.1rc1).
    """
    rank = Rank(
        quantization=setting.engine.storage(setting.scenario),
        parallel=setting.parallel,
        dtype_bytes=setting.element_bytes,
    )
    prefix = setting.architecture.layer_prefix
    mixtures = (
        rank.experts_tensors(module, f"{prefix}.{index}.{module.name}")
        for index, layer in enumerate(setting.architecture.layers)
        for module in layer.modules
        if isinstance(module, Experts)
    )
    return sum(next(mixtures, ()))
