"""Graphs of a plug-in: the modes it keeps, the sizes that its streams and its ranks leave."""

from __future__ import annotations

from typing import Final

from kvcore.base.errors import EngineRefusalError
from kvcore.engine.graph_rules import (
    EXPANSION_VARIABLE,
    VECTOR_CORES,
    Recorded,
    most_sizes,
    sampled_sizes,
)
from kvcore.engine.protocol import Resolved
from kvcore.engine.switches import AttentionKind, GraphSizes
from kvcore.engines.vllm.additional import additional_of
from kvcore.engines.vllm.draft import draft_config, uses_checkpoint_drafts
from kvcore.engines.vllm.flashcomm import cuts_tokens
from kvcore.engines.vllm.start import Start
from kvcore.model.families import read_architecture
from kvcore.scenario import CudagraphMode

WITHOUT_DRAFT_MODEL: Final = frozenset({"suffix"})
"""Methods for which the engine has no config of a draft; for a look-up of n-grams it has the model's own.

Source: vllm/config/speculative.py:SpeculativeConfig.__post_init__ (0.11.0, 0.18.0).
"""
DESCENDING: Final = (GraphSizes.EIGHTS, GraphSizes.EIGHTS_CAPPED)
"""Rules under which the engine's list begins with the largest size. Source: vllm/config/compilation.py:
CompilationConfig.init_with_cudagraph_sizes (0.9.2, 0.11.0)."""


def plugin_modes(
    modes: tuple[str, ...], mixed_full: bool, asked: CudagraphMode | None, start: Start
) -> tuple[tuple[str, ...], bool]:
    """The sets of graphs, and whether full ones are of mixed batches too; as they are where no plug-in changes them.

    Source: vllm_ascend/platform.py:NPUPlatform.check_and_update_config (0.11.0, 0.13.0, 0.18.0, 0.20.2rc1, 0.21.0rc1,
    0.23.0), attention/attention_v1.py, mla_v1.py, sfa_v1.py, dsa_v1.py:get_cudagraph_support (0.13.0, 0.18.0, 0.23.0).
    """
    if start.is_v0:
        return (modes if start.graphs.captures_v0 else ()), False
    if start.engine.facts.attention is None:
        return modes, mixed_full
    if asked is None and not start.graphs.by_default:
        return (), False
    if asked is CudagraphMode.FULL and not start.is_pooling:
        if not start.graphs.takes_full:
            return (), False
        return ("FULL",), start.traits.attention is AttentionKind.PLAIN and not start.traits.recurrent
    if len(modes) > 1 and not start.graphs.joins_modes:
        return ("PIECEWISE",), False
    return modes, mixed_full


def own_largest(start: Start, resolved: Resolved) -> int | None:
    """The largest size that the plug-in asks for itself: min(max_num_seqs × tokens of a request, limit); None where it
    leaves that to the release that it runs on.

    Source: vllm_ascend/platform.py:NPUPlatform._get_default_max_cudagraph_capture_size (0.18.0, 0.23.0).
    """
    if start.is_v0 or not start.graphs.of_requests:
        return None
    return min(resolved.max_num_seqs * (1 + resolved.num_speculative_tokens), start.graphs.limit)


def parallel_sizes(sizes: tuple[int, ...], start: Start) -> tuple[int, ...]:
    """`sizes` that divide over the tensor parallel ranks, where those cut the tokens of a step (FlashComm).

    Raises EngineRefusalError `capture-sizes-below-ranks` where none does.

    Source: vllm_ascend/platform.py:NPUPlatform.check_and_update_config (0.11.0, 0.18.0, 0.23.0).
    """
    is_plugin = start.engine.facts.attention is not None
    if not is_plugin or start.is_v0 or not cuts_tokens(start.engine, start.scenario, start.version):
        return sizes
    ranks = start.scenario.parallel.tensor_parallel_size
    kept = tuple(size for size in sizes if size % ranks == 0)
    if sizes and not kept:
        raise EngineRefusalError(
            "capture-sizes-below-ranks", field="cudagraph_capture_sizes", value=sizes[-1], ranks=ranks
        )
    return kept


def limited_sizes(sizes: tuple[int, ...], start: Start, resolved: Resolved) -> tuple[int, ...]:
    """`sizes` that are captured piecewise with the streams of the card.

    Source: vllm_ascend/utils.py:update_aclgraph_sizes (0.9.1, 0.11.0, 0.13.0, 0.18.0, 0.20.2rc1).
    """
    rules, parallel = start.graphs, start.scenario.parallel
    if not rules.streams or start.is_v0 or not sizes:
        return sizes
    recorded = Recorded(
        layers=start.architecture.num_layers + 1 + (draft_streams(start) if rules.counts_drafts else 0),
        tensor_ranks=parallel.tensor_parallel_size,
        data_ranks=parallel.data_parallel_size,
        has_whole_experts=parallel.enable_expert_parallel,
        is_mixture=start.architecture.moe is not None,
        runs_on_vector_cores=_runs_on_vector_cores(start),
        overlaps_experts=additional_of(start.engine, start.scenario, start.version).overlaps_experts,
    )
    is_descending = start.switches.graph_sizes in DESCENDING
    kept = sampled_sizes(sizes, most_sizes(rules, recorded), is_descending=is_descending)
    query = 1 + resolved.num_speculative_tokens
    if rules.widens_for_drafts and query > 2 and kept[-1] < query * resolved.max_num_seqs:
        return tuple(query * size for size in kept)
    return kept


def _runs_on_vector_cores(start: Start) -> bool:
    """Whether collectives run there: as the variable says, else as the engine sets it for a type of model.

    Source: vllm_ascend/patch/platform/patch_minimax_m2_config.py:_patched_verify_cuda_graph (0.17.0rc1, 0.20.2rc1).
    """
    said = start.scenario.env.get(EXPANSION_VARIABLE)
    is_set_for = start.architecture.model_type == start.graphs.vector_cores_for
    return is_set_for if said is None else said == VECTOR_CORES


def draft_streams(start: Start) -> int:
    """Layers of the draft and one more; those of the model where the engine takes its config for the draft's."""
    speculative, model = start.scenario.speculative_config, start.architecture
    if speculative is None or speculative.method in WITHOUT_DRAFT_MODEL:
        return 0
    config = draft_config(speculative)
    if config is not None and not uses_checkpoint_drafts(speculative.method):
        return read_architecture(config).num_layers + 1
    if uses_checkpoint_drafts(speculative.method) and start.graphs.counts_own_drafts:
        return max(1, len(model.draft_layers)) + 1
    is_head = not uses_checkpoint_drafts(speculative.method) and "gram" not in speculative.method
    return 2 if is_head else model.num_layers + 1
