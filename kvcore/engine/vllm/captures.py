"""The batch sizes for which the engine captures CUDA graphs, and in which modes."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, assert_never

from kvcore.engine.vllm.switches import GraphModes, GraphSizes
from kvcore.units import ceil_div

LIMIT: Final = 512
"""The largest captured batch. Source: vllm/config/vllm.py:VllmConfig._set_cudagraph_sizes (0.11.2, 0.32.0)."""

FINE_LIMIT: Final = 256
"""Steps of 8 below, of 16 from here on."""


@lru_cache(maxsize=1024)
def capture_sizes(
    *,
    rule: GraphSizes | None,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    limit: int,
    num_speculative_tokens: int,
    model_limit: int = 0,
    captures_batch: bool = True,
) -> tuple[int, ...]:
    """Batch sizes in tokens, ascending, where no flag asks for any. `rule` is the switch `graph_sizes`, None for V0;
    `model_limit` is a largest size that the model sets itself, whatever max_num_seqs; `captures_batch` is the
    switch of that name.

    1, 2, 4, then every 8th; from 0.11.1 every 16th above 256. At most twice max_num_seqs from 0.10.1 on.

    Source: vllm/config/vllm.py:VllmConfig._set_cudagraph_sizes (0.9.2, 0.10.1, 0.11.1, 0.13.0, 0.28.0, 0.32.0),
    vllm/worker/model_runner.py:_BATCH_SIZES_TO_CAPTURE (V0).

    Example:
        >>> sizes = capture_sizes(rule=GraphSizes.SIXTEENS, max_num_seqs=1024, max_num_batched_tokens=8192,
        ...                       limit=512, num_speculative_tokens=0)
        >>> len(sizes), sizes[-1]
        (51, 512)
    """
    if rule is None:
        return tuple(size for size in _eights(max_num_seqs) if size <= max_num_seqs)
    if model_limit:
        return _sixteens(min(model_limit, max_num_batched_tokens))
    query, of_requests, of_widest = num_speculative_tokens + 1, False, False
    match rule:
        case GraphSizes.EIGHTS:
            return tuple(size for size in _eights(limit) if size <= max_num_batched_tokens)
        case GraphSizes.EIGHTS_CAPPED:
            largest = min(2 * max_num_seqs, limit)
            return tuple(size for size in _eights(limit) if size <= min(largest, max_num_batched_tokens))
        case GraphSizes.SIXTEENS:
            query = 1
        case GraphSizes.SIXTEENS_SPECULATIVE:
            pass
        case GraphSizes.UNIFORM:
            of_requests = query > 1
        case GraphSizes.UNIFORM_AND_WIDEST:
            of_requests, of_widest = query > 1, query == 1
        case other:
            assert_never(other)
    largest = min(2 * max_num_seqs * query, limit)
    sizes = set(_sixteens(min(largest, max_num_batched_tokens)))
    if captures_batch and max_num_batched_tokens <= largest:
        sizes.add(max_num_batched_tokens)
    if of_requests:
        requests = _sixteens(min(max_num_seqs, limit))
        sizes.update(count * query for count in (*requests, min(max_num_seqs, limit)))
    if of_widest:
        sizes.add(max_num_seqs)
    return tuple(sorted(size for size in sizes if size <= min(largest, max_num_batched_tokens)))


def sizes_up_to(
    largest: int, *, in_eights: bool, max_num_batched_tokens: int, captures_batch: bool
) -> tuple[int, ...]:
    """Batch sizes in tokens, ascending, where a flag asks for the largest; `in_eights` before 0.11.1, which takes 1, 2
    and 4 whatever it says.

    Source: vllm/config/vllm.py:VllmConfig._set_cudagraph_sizes (0.9.2, 0.11.0, 0.11.1, 0.19.0, 0.20.2, 0.33.0).

    Example:
        >>> sizes_up_to(4, in_eights=False, max_num_batched_tokens=2048, captures_batch=True)
        (1, 2, 4)
        >>> sizes_up_to(1, in_eights=True, max_num_batched_tokens=2048, captures_batch=False)
        (1, 2, 4)
    """
    if in_eights:
        return tuple(size for size in _eights(largest) if size <= max_num_batched_tokens)
    sizes = set(_sixteens(min(largest, max_num_batched_tokens)))
    if captures_batch and max_num_batched_tokens <= largest:
        sizes.add(max_num_batched_tokens)
    return tuple(sorted(sizes))


def rounded_sizes(sizes: tuple[int, ...], query: int, takes_smallest: bool) -> tuple[int, ...]:
    """`sizes` as multiples of `query` tokens, none above the largest; empty where that leaves none.

    `takes_smallest`: `query` itself where rounding up leaves none and it is not above the largest.

    Source: vllm/config/compilation.py:CompilationConfig.adjust_cudagraph_sizes_for_spec_decode (0.11.1, 0.12.0,
    0.32.0).

    Example:
        >>> rounded_sizes((1, 2, 4, 8, 16), 3, True)
        (3, 6, 9)
    """
    largest = sizes[-1] if sizes else 0
    rounded = {ceil_div(size, query) * query for size in sizes}
    kept = tuple(sorted(size for size in rounded if size <= largest))
    if not kept and takes_smallest and query <= largest:
        return (query,)
    return kept


def _eights(largest: int) -> tuple[int, ...]:
    return (1, 2, 4, *range(8, largest + 1, 8))


def _sixteens(largest: int) -> tuple[int, ...]:
    sizes = (1, 2, 4, *range(8, FINE_LIMIT, 8), *range(FINE_LIMIT, largest + 1, 16))
    return tuple(size for size in sizes if size <= largest)


def capture_modes(
    *, rule: GraphModes, is_v0: bool, is_hybrid: bool, is_encoder_decoder: bool, is_pooling: bool = False
) -> tuple[str, ...]:
    """Which sets of graphs are captured. `rule` is the switch `graph_modes`. The pooling runner of V1 has no full ones.

    Source: vllm/config/compilation.py:CUDAGraphMode (0.10.2, 0.11.0, 0.32.0), vllm/config/vllm.py:
    VllmConfig.__post_init__ (0.12.0, 0.33.0), vllm/config/__init__.py (0.11.0).
    """
    if is_pooling and not is_v0:
        return ("PIECEWISE",)
    if is_v0:
        return ("FULL",)
    match rule:
        case GraphModes.FULL_AND_PIECEWISE:
            return ("FULL",) if is_encoder_decoder else ("PIECEWISE", "FULL")
        case GraphModes.FULL_FOR_HYBRIDS:
            return ("PIECEWISE", "FULL") if is_hybrid else ("PIECEWISE",)
        case GraphModes.PIECEWISE:
            return ("PIECEWISE",)
        case other:
            assert_never(other)
