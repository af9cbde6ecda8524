"""Where a plug-in captures other graphs than the vLLM release that it runs on, and how many sizes its card takes."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from kvcore.base.errors import EngineRefusalError
from kvcore.tables import Count, Record

EXPANSION_VARIABLE: Final = "HCCL_OP_EXPANSION_MODE"
VECTOR_CORES: Final = "AIV"
"""Collectives run on the vector cores, and take no streams of their own."""


class GraphRules(Record, frozen=True, kw_only=True):
    """Sizes and modes of captured graphs; each release of vLLM that the engine runs on has its own."""

    joins_modes: bool = True
    """Every size piecewise and decode batches in full; else piecewise alone where both are the default or asked."""
    of_requests: bool = False
    """The largest size is that of the widest batch that only decodes, not twice that."""
    limit: Count = 512
    """The most tokens of it."""
    streams: Count = 0
    """Streams of the card that piecewise graphs may take; 0: as many sizes as there are."""
    counts_collectives: bool = False
    """A collective takes two streams a graph and some at the start, but with `HCCL_OP_EXPANSION_MODE=AIV`; else each
    kind of parallelism counts once."""
    counts_drafts: bool = False
    """The layers of the draft count."""
    counts_own_drafts: bool = False
    """Of the model's own draft its own layers; else the layers of the whole model once more."""
    vector_cores_for: Annotated[str, Meta(pattern="^[a-z0-9_]*$")] = ""
    """A type of model for which the engine itself sets `HCCL_OP_EXPANSION_MODE=AIV` where nobody says a mode."""
    widens_for_drafts: bool = False
    """Sizes are multiplied by the tokens of a request where they would not reach the widest decode batch."""
    takes_full: bool = True
    """Mixed batches may be asked for in full; else nothing is captured then."""
    by_default: bool = True
    """Graphs are captured where nothing is said of them."""
    captures_v0: bool = True
    """The V0 runner captures graphs."""


class Recorded(Struct, frozen=True, kw_only=True):
    """What the streams of one graph follow from."""

    layers: int
    """Of the model, and of its draft where those count, one more for each of both."""
    tensor_ranks: int
    data_ranks: int
    has_whole_experts: bool
    is_mixture: bool
    runs_on_vector_cores: bool
    overlaps_experts: bool = False
    """Shared experts have a stream of their own."""


RESERVED_STREAMS: Final = 40
"""Of each kind of collective, where those take streams.

Source: vllm_ascend/utils.py:update_aclgraph_sizes (0.10.2rc1, 0.11.0, 0.20.2rc1).
"""


def most_sizes(rules: GraphRules, recorded: Recorded) -> int:
    """How many sizes are captured piecewise at the most.

    streams / layers / kinds of parallelism; from 0.10.2 on (streams − 40 collectives) / layers / (1 + 2 collectives),
    or with AIV (streams − kinds × layers for a dense model) / layers / kinds, one of which is a stream for shared
    experts.

    Source: vllm_ascend/utils.py:update_aclgraph_sizes (0.9.1, 0.11.0, 0.13.0, 0.18.0, 0.20.2rc1; gone in 0.21.0rc1).

    Example:
        >>> rules = GraphRules(streams=1800, counts_collectives=True)
        >>> most_sizes(rules, Recorded(layers=49, tensor_ranks=4, data_ranks=1, has_whole_experts=False,
        ...                            is_mixture=False, runs_on_vector_cores=False))
        11
    """
    collectives = (recorded.data_ranks > 1) + (recorded.tensor_ranks > 1)
    if not rules.counts_collectives:
        experts = recorded.tensor_ranks * recorded.data_ranks > 1
        return rules.streams // (recorded.layers * (1 + collectives + experts))
    if not recorded.runs_on_vector_cores:
        left = max(0, rules.streams - RESERVED_STREAMS * collectives)
        return left // (recorded.layers * (1 + 2 * collectives))
    kinds = 1 + collectives + recorded.has_whole_experts + recorded.overlaps_experts
    if recorded.is_mixture:
        return rules.streams // (recorded.layers * (kinds + (recorded.data_ranks > 1)))
    return max(0, rules.streams - kinds * recorded.layers) // (recorded.layers * kinds)


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
