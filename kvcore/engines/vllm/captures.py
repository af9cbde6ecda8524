"""The batch sizes for which the engine captures CUDA graphs, in which modes, and what its flags make of both."""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache
from typing import Final, assert_never

from msgspec import Struct
from msgspec.structs import replace

from kvcore.base.errors import EngineRefusalError, Notice, notice, shorten
from kvcore.base.units import ceil_div
from kvcore.catalogue.accelerators import Vendor
from kvcore.engine.protocol import Resolved
from kvcore.engine.switches import (
    AttentionBackend,
    GraphModes,
    GraphRounding,
    GraphSizeFlag,
    GraphSizes,
    graph_mode,
)
from kvcore.engines.vllm.start import Start
from kvcore.flags import FLAGS
from kvcore.scenario import CudagraphMode, Runner, Scenario

LIMIT: Final = 512
"""The largest captured batch. Source: vllm/config/vllm.py:VllmConfig._set_cudagraph_sizes (0.11.2, 0.32.0)."""

XPU_VARIABLE: Final = "VLLM_XPU_ENABLE_XPU_GRAPH"

FINE_LIMIT: Final = 256
"""Steps of 8 below, of 16 from here on."""

V0_SIZES: Final = (1, 2, 4, *range(8, 8192 + 1, 8))
"""The sizes that V0 may capture, whatever max_num_seqs. Source: vllm/config.py:VllmConfig._set_cudagraph_sizes
(0.6.6, 0.9.2)."""

MOST_KEPT: Final = 256
"""Lists of sizes that are cached, of 8 KiB at most: visitors' links decide which numbers they are asked for."""


@lru_cache(MOST_KEPT)
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

    1, 2, 4, then every 8th; from 0.11.1 every 16th above 256. At most twice max_num_seqs from 0.10.1 on. V0: up to the
    first that max_num_seqs requests fit into, and none above 8192.

    Source: vllm/config/vllm.py:VllmConfig._set_cudagraph_sizes (0.9.2, 0.10.1, 0.11.1, 0.13.0, 0.28.0, 0.32.0),
    vllm/config.py:VllmConfig._set_cudagraph_sizes without VLLM_USE_V1 (0.6.6, 0.9.2).

    Example:
        >>> sizes = capture_sizes(rule=GraphSizes.SIXTEENS, max_num_seqs=1024, max_num_batched_tokens=8192,
        ...                       limit=512, num_speculative_tokens=0)
        >>> len(sizes), sizes[-1]
        (51, 512)
    """
    if rule is None:
        return V0_SIZES[: bisect_left(V0_SIZES, max_num_seqs) + 1]
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
    tokens = max_num_batched_tokens
    sizes = {
        *sizes_up_to(largest, in_eights=False, max_num_batched_tokens=tokens, captures_batch=captures_batch)
    }
    if of_requests:
        requests = _sixteens(min(max_num_seqs, limit))
        sizes.update(count * query for count in (*requests, min(max_num_seqs, limit)))
    if of_widest:
        sizes.add(max_num_seqs)
    return tuple(sorted(size for size in sizes if size <= min(largest, tokens)))


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


LARGEST: Final = "max_cudagraph_capture_size"
HOPPER: Final = 90
GPT_OSS: Final = "gpt_oss"

MIXED_BACKENDS: Final[frozenset[str]] = frozenset({AttentionBackend.TRITON_ATTN})
"""Attention that full graphs of mixed batches can contain, on any card. Source:
vllm/v1/attention/backends/triton_attn.py:
TritonAttentionMetadataBuilder (0.10.1.1, 0.11.0, 0.19.0, 0.32.0: ALWAYS)."""

MIXED_ON_HOPPER: Final[frozenset[str]] = frozenset({AttentionBackend.FLASH_ATTN})
"""On Hopper, where it is version 3. Source: vllm/v1/attention/backends/flash_attn.py:FlashAttentionMetadataBuilder
(0.10.1.1, 0.11.0, 0.19.0, 0.32.0: ALWAYS for version 3, else UNIFORM_BATCH)."""

UNIFORM_BACKENDS: Final[frozenset[str]] = frozenset(
    {
        AttentionBackend.FLASH_ATTN,
        AttentionBackend.FLASH_ATTN_MLA,
        AttentionBackend.FLASHMLA,
        AttentionBackend.FLASHMLA_SPARSE,
        AttentionBackend.FLASHINFER_MLA,
        AttentionBackend.TRITON_ATTN,
    }
)
"""Attention whose drafts are decoded in full graphs. Source: vllm/v1/attention/backends/*.py:
get_cudagraph_support (0.12.0, 0.19.0, 0.32.0: UNIFORM_BATCH and above)."""

MODES: Final = {
    CudagraphMode.NONE: (),
    CudagraphMode.PIECEWISE: ("PIECEWISE",),
    CudagraphMode.FULL: ("FULL",),
    CudagraphMode.FULL_DECODE_ONLY: ("FULL",),
    CudagraphMode.FULL_AND_PIECEWISE: ("PIECEWISE", "FULL"),
}
"""The sets of graphs of each mode. Source: vllm/config/compilation.py:CUDAGraphMode (0.10.1.1, 0.32.0)."""


class Captures(Struct, frozen=True, kw_only=True):
    """The captured graphs; empty where none are."""

    sizes: tuple[int, ...] = ()
    modes: tuple[str, ...] = ()
    mixed_full: bool = False
    """Full graphs are of every size, not only of batches that decode."""
    notices: tuple[Notice, ...] = ()


def captures(start: Start, resolved: Resolved) -> Captures:
    """Sizes and modes of the captured graphs, with notices on flags that are not taken as they are.

    Raises EngineRefusalError `capture-sizes-inconsistent` or `capture-sizes-below-request`.

    Source: vllm/config/vllm.py:VllmConfig.__post_init__ and _set_cudagraph_sizes (0.11.1 to 0.33.0),
    vllm/config/__init__.py:VllmConfig._set_cudagraph_sizes (0.10.2, 0.11.0).
    """
    scenario, asked = start.scenario, start.scenario.cudagraph_mode
    if scenario.enforce_eager or (asked is CudagraphMode.NONE and not start.is_v0):
        return Captures(notices=_without_graphs(scenario))
    modes, mixed_full = start.engine.graph_modes(*_modes(asked, start, resolved), asked, start)
    if not _captures_on(start):
        modes, mixed_full = (), False
    if not modes:
        return Captures(notices=_unread_by_v0(scenario) if start.is_v0 else _not_kept(asked, modes))
    if "FULL" in modes and not _takes_drafts(start, resolved):
        modes, mixed_full = MODES[CudagraphMode.PIECEWISE], False
    notices: list[Notice] = []
    sizes = start.engine.divided_sizes(_sizes(start, resolved, notices), start)
    is_set = bool(_given(scenario, LARGEST, "cudagraph_capture_sizes"))
    is_set = is_set or start.engine.captures_requests(start.version)
    if is_set and "FULL" in modes:
        sizes = _rounded(sizes, start, resolved)
    if modes == MODES[CudagraphMode.PIECEWISE]:
        sizes = start.engine.limited_sizes(sizes, start, resolved)
    captured = Captures(sizes=sizes, modes=modes if sizes else (), mixed_full=mixed_full and bool(sizes))
    if start.is_v0:
        notices += _unread_by_v0(scenario)
    elif captured.modes:
        notices += _not_kept(asked, modes, mixed_full)
    return replace(captured, notices=tuple(notices))


def _captures_on(start: Start) -> bool:
    """Whether the platform captures graphs at all. Source: the switch `xpu_graphs`."""
    is_intel = start.card.vendor is Vendor.INTEL and not start.card.is_gaudi
    return not is_intel or start.switches.xpu_graphs or start.scenario.env.get(XPU_VARIABLE) == "1"


def _modes(asked: CudagraphMode | None, start: Start, resolved: Resolved) -> tuple[tuple[str, ...], bool]:
    """The sets of graphs, and whether full ones are of mixed batches too.

    A pooling runner has no full graphs, and a model with an encoder keeps its own mode. Full graphs of mixed batches
    need an attention that takes them; where it does not, mixed batches run piecewise.

    Source: vllm/config/vllm.py:VllmConfig.__post_init__ (0.11.1, 0.33.0), vllm/config/compilation.py:
    CompilationConfig.resolve_cudagraph_mode_and_sizes (0.20.2, 0.32.0), vllm/v1/worker/gpu_model_runner.py:
    GPUModelRunner._check_and_update_cudagraph_mode (0.11.1, 0.19.0).
    """
    is_hybrid, is_encoder_decoder = bool(start.traits.recurrent), start.traits.is_encoder_decoder
    is_pooling = start.runner is Runner.POOLING
    if asked is None or start.is_v0 or is_pooling or is_encoder_decoder:
        own = capture_modes(
            rule=start.switches.graph_modes,
            is_v0=start.is_v0,
            is_hybrid=is_hybrid,
            is_encoder_decoder=is_encoder_decoder,
            is_pooling=is_pooling,
        )
        return own, False
    if asked is not CudagraphMode.FULL:
        return MODES[asked], False
    takes_mixed = MIXED_BACKENDS | MIXED_ON_HOPPER if start.card.number == HOPPER else MIXED_BACKENDS
    if resolved.attention_backend in takes_mixed and not is_hybrid:
        return MODES[asked], True
    return MODES[CudagraphMode.FULL_AND_PIECEWISE], False


def _takes_drafts(start: Start, resolved: Resolved) -> bool:
    """Whether full graphs can contain the attention to a request's drafts; without, everything runs piecewise.

    Source: the switch `flashinfer_draft_graphs`.
    """
    is_flashinfer = resolved.attention_backend == AttentionBackend.FLASHINFER
    if start.is_v0 or not resolved.num_speculative_tokens or not is_flashinfer:
        return True
    return start.card.number // 10 in start.switches.flashinfer_draft_graphs


def _sizes(start: Start, resolved: Resolved, notices: list[Notice]) -> tuple[int, ...]:
    given, asked = start.scenario.cudagraph_capture_sizes, start.scenario.max_cudagraph_capture_size
    if given is not None:
        return _listed(given, asked, start, resolved, notices)
    switches, largest = start.switches, asked or start.engine.largest_graph(start, resolved)
    limit = switches.gpt_oss_graph_limit if start.architecture.model_type == GPT_OSS else 0
    if largest is None or start.is_v0:
        return _by_default(start, resolved, limit)
    is_former = switches.graph_size_flag is GraphSizeFlag.FORMER
    if is_former:
        facts = {"version": start.version, "flag": GraphSizeFlag.FORMER.value, "value": largest}
        notices.append(notice("capture-flag-former", LARGEST, **facts))
    if is_former and largest < limit:
        sizes = _by_default(start, resolved, limit)
    else:
        sizes = sizes_up_to(
            largest,
            in_eights=is_former,
            max_num_batched_tokens=resolved.max_num_batched_tokens,
            captures_batch=switches.captures_batch,
        )
    if asked and sizes[-1] != asked:
        notices.append(notice("capture-maximum-not-kept", LARGEST, asked=largest, used=sizes[-1]))
    return sizes


def _by_default(start: Start, resolved: Resolved, model_limit: int) -> tuple[int, ...]:
    switches = start.switches
    is_sm100 = start.card.number // 10 == 10
    return capture_sizes(
        rule=None if start.is_v0 else switches.graph_sizes,
        max_num_seqs=resolved.max_num_seqs,
        max_num_batched_tokens=resolved.max_num_batched_tokens,
        limit=switches.graph_limit_sm100 if is_sm100 else LIMIT,
        num_speculative_tokens=resolved.num_speculative_tokens,
        model_limit=model_limit,
        captures_batch=switches.captures_batch,
    )


def _listed(
    given: tuple[int, ...], largest: int | None, start: Start, resolved: Resolved, notices: list[Notice]
) -> tuple[int, ...]:
    """The sizes of a list that a batch can have; the largest of them has to be the maximum where both are given.

    Before 0.11.1 only the list counts then, and `--cuda-graph-sizes` with several sizes drops those above a batch.
    """
    limit = "max_num_seqs" if start.is_v0 else "max_num_batched_tokens"
    most = getattr(resolved, limit)
    kept = tuple(size for size in given if size <= most)
    if len(kept) < len(given):
        dropped = ", ".join(str(size) for size in given if size > most)
        facts = {"limit": limit, "value": most, "dropped": shorten(dropped, 60)}
        notices.append(notice("capture-sizes-dropped", "cudagraph_capture_sizes", **facts))
    used = kept[-1] if kept else 0
    if largest is None or start.is_v0 or largest == used:
        return kept
    if start.switches.graph_size_flag is GraphSizeFlag.FORMER:
        notices.append(notice("capture-maximum-not-kept", LARGEST, asked=largest, used=used))
        return kept
    raise EngineRefusalError("capture-sizes-inconsistent", field=LARGEST, value=largest, largest=used)


def _rounded(sizes: tuple[int, ...], start: Start, resolved: Resolved) -> tuple[int, ...]:
    """Multiples of a request's tokens where drafts are decoded in full graphs.

    Only sizes that a flag asks for: most of the engine's own are multiples, and the rates of graphs count them all.
    """
    query, rule = resolved.num_speculative_tokens + 1, start.switches.graph_rounding
    by_v2 = rule is GraphRounding.REFUSED_V1 and resolved.use_v2_model_runner
    rounds = rule is not GraphRounding.NONE and not start.is_v0 and not by_v2
    is_uniform_backend = resolved.attention_backend in UNIFORM_BACKENDS
    takes_drafts = is_uniform_backend or start.engine.captures_requests(start.version)
    is_uniform = takes_drafts and not start.traits.recurrent
    if query == 1 or not sizes or not rounds or not is_uniform:
        return sizes
    rounded = rounded_sizes(sizes, query, takes_smallest=rule is not GraphRounding.KEPT)
    if not rounded and rule is not GraphRounding.KEPT:
        raise EngineRefusalError(
            "capture-sizes-below-request", "cudagraph_capture_sizes", sizes[-1], tokens=query
        )
    return rounded or sizes


def _without_graphs(scenario: Scenario) -> tuple[Notice, ...]:
    """`capture-flags-without-effect` for flags that a start without graphs does not look at."""
    fields = [*_given(scenario, LARGEST, "cudagraph_capture_sizes")]
    if scenario.cudagraph_mode is not CudagraphMode.NONE:
        fields += _given(scenario, "cudagraph_mode")
    field = "enforce_eager" if scenario.enforce_eager else "cudagraph_mode"
    return (notice("capture-flags-without-effect", field, flags=_flags(fields)),) if fields else ()


def _not_kept(
    asked: CudagraphMode | None, modes: tuple[str, ...], mixed_full: bool = False
) -> tuple[Notice, ...]:
    used = graph_mode(modes, mixed_full)
    if asked in (None, used):
        return ()
    return (notice("cudagraph-mode-not-kept", "cudagraph_mode", asked=asked.value, used=used.value),)


def _unread_by_v0(scenario: Scenario) -> tuple[Notice, ...]:
    """V0 takes the sizes of a list, from the compilation config, and nothing else."""
    fields = _given(scenario, LARGEST, "cudagraph_mode")
    return (notice("capture-flags-need-v1", fields[0], flags=_flags(fields)),) if fields else ()


def _given(scenario: Scenario, *fields: str) -> list[str]:
    return [name for name in fields if getattr(scenario, name) is not None]


def _flags(fields: list[str]) -> str:
    return ", ".join(FLAGS[name].spelling for name in fields)
