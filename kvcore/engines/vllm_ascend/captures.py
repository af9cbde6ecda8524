"""Graphs of vllm-ascend: the sizes that the streams of a card and its ranks leave."""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from packaging.version import Version

from kvcore.base.errors import EngineRefusalError
from kvcore.engine.protocol import Resolved
from kvcore.engine.switches import GraphSizes
from kvcore.engines.vllm.draft import draft_config, uses_checkpoint_drafts
from kvcore.engines.vllm.start import Start
from kvcore.engines.vllm.versions import vllm_release
from kvcore.model.families import read_architecture

WITHOUT_DRAFT_MODEL: Final = frozenset({"suffix"})
"""Methods for which the engine has no config of a draft; for a look-up of n-grams it has the model's own.

Source: vllm/config/speculative.py:SpeculativeConfig.__post_init__ (0.11.0, 0.18.0).
"""
DESCENDING: Final = (GraphSizes.EIGHTS, GraphSizes.EIGHTS_CAPPED)
"""Rules under which the engine's list begins with the largest size. Source: vllm/config/compilation.py:
CompilationConfig.init_with_cudagraph_sizes (0.9.2, 0.11.0)."""
EXPANSION_VARIABLE: Final = "HCCL_OP_EXPANSION_MODE"
VECTOR_CORES: Final = "AIV"
"""Collectives run on the vector cores, and take no streams of their own."""
STREAMS: Final = (("0.21.0", 0), ("0.10.2", 1800), ("0.9.0", 1920))
"""Streams of a card that piecewise graphs may take, by the vLLM from which on; 0: as many sizes as there are.

Source: vllm_ascend/utils.py:update_aclgraph_sizes (0.9.1, 0.10.0rc1: MAX_CAPTURE_SIZE 1920; 0.10.2rc1 to 0.20.2rc1:
1800; not in 0.21.0rc1).
"""


class Recorded(Struct, frozen=True, kw_only=True):
    """Inputs of the streams that one graph takes."""

    streams: int
    """Streams of the card that piecewise graphs may take."""
    counts_collectives: bool
    """A collective takes two streams a graph and some at the start, but on the vector cores; else each kind of
    parallelism counts once."""
    layers: int
    """Layers of the model, and of its draft where those count, one more for each of both."""
    tensor_ranks: int
    data_ranks: int
    has_whole_experts: bool
    is_mixture: bool
    runs_on_vector_cores: bool
    overlaps_experts: bool = False
    """Shared experts have a stream of their own."""


RESERVED_STREAMS: Final = 40
"""Streams that each kind of collective reserves, where collectives take streams.

Source: vllm_ascend/utils.py:update_aclgraph_sizes (0.10.2rc1, 0.11.0, 0.20.2rc1).
"""


def most_sizes(recorded: Recorded) -> int:
    """How many sizes are captured piecewise at the most.

    streams / layers / kinds of parallelism; from 0.10.2 on (streams − 40 collectives) / layers / (1 + 2 collectives),
    or with AIV (streams − kinds × layers for a dense model) / layers / kinds, one of which is a stream for shared
    experts.

    Source: vllm_ascend/utils.py:update_aclgraph_sizes (0.9.1, 0.11.0, 0.13.0, 0.18.0, 0.20.2rc1; gone in 0.21.0rc1).

    Example:
        >>> most_sizes(Recorded(streams=1800, counts_collectives=True, layers=49, tensor_ranks=4, data_ranks=1,
        ...                     has_whole_experts=False, is_mixture=False, runs_on_vector_cores=False))
        11
    """
    collectives = (recorded.data_ranks > 1) + (recorded.tensor_ranks > 1)
    if not recorded.counts_collectives:
        experts = recorded.tensor_ranks * recorded.data_ranks > 1
        return recorded.streams // (recorded.layers * (1 + collectives + experts))
    if not recorded.runs_on_vector_cores:
        left = max(0, recorded.streams - RESERVED_STREAMS * collectives)
        return left // (recorded.layers * (1 + 2 * collectives))
    kinds = 1 + collectives + recorded.has_whole_experts + recorded.overlaps_experts
    if recorded.is_mixture:
        return recorded.streams // (recorded.layers * (kinds + (recorded.data_ranks > 1)))
    return max(0, recorded.streams - kinds * recorded.layers) // (recorded.layers * kinds)


def sampled_sizes(sizes: tuple[int, ...], most: int, *, is_descending: bool = False) -> tuple[int, ...]:
    """At most `most` of `sizes`, evenly spread, with the first and the last; `is_descending`: counted from the largest.

    Raises EngineRefusalError `capture-streams-too-few` where not even two are left: the engine divides by zero.

    Source: vllm_ascend/utils.py:update_aclgraph_sizes (0.9.1, 0.11.0, 0.18.0).

    Example:
        >>> sampled_sizes((1, 2, 4, 8, 16, 24, 32), 4)
        (1, 4, 16, 32)
    """
    if most >= len(sizes):
        return sizes
    if most < 2:
        raise EngineRefusalError("capture-streams-too-few", field="cudagraph_mode", value=most)
    ordered = sizes[::-1] if is_descending else sizes
    step = (len(ordered) - 1) / (most - 1)
    return tuple(sorted({ordered[round(index * step)] for index in range(most)}))


def streams_of(version: Version) -> int:
    """Streams of a card that piecewise graphs may take; 0 where there is no limit. Source: `STREAMS`."""
    return next((streams for since, streams in STREAMS if version >= vllm_release(since)), 0)


def limited_sizes(
    sizes: tuple[int, ...], start: Start, resolved: Resolved, *, overlaps_experts: bool
) -> tuple[int, ...]:
    """`sizes` that are captured piecewise with the streams of the card.

    Collectives count from 0.10.2 on, and so do the layers of a draft. In 0.11 sizes are multiplied by the tokens of a
    request where they would not reach the widest decode batch.

    Source: vllm_ascend/utils.py:update_aclgraph_sizes (0.9.1, 0.10.0rc1, 0.10.2rc1, 0.11.0, 0.12.0rc1, 0.13.0, 0.18.0,
    0.20.2rc1).
    """
    parallel, version, streams = start.scenario.parallel, start.version, streams_of(start.version)
    if not streams or start.is_v0 or not sizes:
        return sizes
    counts_collectives = version >= vllm_release("0.10.2")
    recorded = Recorded(
        streams=streams,
        counts_collectives=counts_collectives,
        layers=start.architecture.num_layers + 1 + (draft_streams(start) if counts_collectives else 0),
        tensor_ranks=parallel.tensor_parallel_size,
        data_ranks=parallel.data_parallel_size,
        has_whole_experts=parallel.enable_expert_parallel,
        is_mixture=start.architecture.moe is not None,
        runs_on_vector_cores=_runs_on_vector_cores(start),
        overlaps_experts=overlaps_experts,
    )
    kept = sampled_sizes(sizes, most_sizes(recorded), is_descending=start.switches.graph_sizes in DESCENDING)
    query = 1 + resolved.num_speculative_tokens
    widens = vllm_release("0.11.0") <= version < vllm_release("0.12.0")
    if widens and query > 2 and kept[-1] < query * resolved.max_num_seqs:
        return tuple(query * size for size in kept)
    return kept


def divided_sizes(sizes: tuple[int, ...], ranks: int) -> tuple[int, ...]:
    """`sizes` that divide over tensor parallel ranks which cut the tokens of a step (FlashComm).

    Raises EngineRefusalError `capture-sizes-below-ranks` where none does.

    Source: vllm_ascend/platform.py:NPUPlatform.check_and_update_config (0.11.0, 0.18.0, 0.23.0).
    """
    kept = tuple(size for size in sizes if size % ranks == 0)
    if sizes and not kept:
        raise EngineRefusalError(
            "capture-sizes-below-ranks", field="cudagraph_capture_sizes", value=sizes[-1], ranks=ranks
        )
    return kept


def _runs_on_vector_cores(start: Start) -> bool:
    """Whether collectives run there: as the variable says, else as the engine sets it for MiniMax-M2.

    Source: vllm_ascend/patch/platform/patch_minimax_m2_config.py:_patched_verify_cuda_graph (0.17.0rc1, 0.18.0,
    0.20.2rc1; not in 0.16.0rc1).
    """
    said = start.scenario.env.get(EXPANSION_VARIABLE)
    is_set = start.architecture.model_type == "minimax_m2" and start.version >= vllm_release("0.17.0")
    return is_set if said is None else said == VECTOR_CORES


def draft_streams(start: Start) -> int:
    """Layers of the draft and one more; those of the model where the engine takes its config for the
    draft's.

    Source: vllm_ascend/utils.py:update_aclgraph_sizes (0.15.0rc1: num_hidden_layers; 0.16.0rc1, 0.18.0:
    get_total_num_hidden_layers).
    """
    speculative, model = start.scenario.speculative_config, start.architecture
    if speculative is None or speculative.method in WITHOUT_DRAFT_MODEL:
        return 0
    config = draft_config(speculative)
    if config is not None and not uses_checkpoint_drafts(speculative.method):
        return read_architecture(config).num_layers + 1
    if uses_checkpoint_drafts(speculative.method) and start.version >= vllm_release("0.16.0"):
        return max(1, len(model.draft_layers)) + 1
    is_head = not uses_checkpoint_drafts(speculative.method) and "gram" not in speculative.method
    return 2 if is_head else model.num_layers + 1
