"""Causes of failed starts: known errors of the engine, the phase of the start, and the smallest change that helps.

The text for each error is in `kvcore.base.errors.MESSAGES` under its code, so that they are translated.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Final

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from kvcore.base.errors import MESSAGES, Notice
from kvcore.base.numbers import log_number
from kvcore.evidence.log.arguments import LogFlags
from kvcore.evidence.log.cleaned import WINDOW, LogText, message_of
from kvcore.evidence.log.figures import Figures
from kvcore.evidence.log.line_formats import Hit, LineRow, find_lines
from kvcore.evidence.log.phases import Phase, milestones, phase_of_error
from kvcore.scenario import CudagraphMode
from kvcore.tables import Reviewed, TableFile

HIGHEST_ADVISED_UTILIZATION: Final = 0.95
"""Above it a desktop, a second process or the warm-up is enough to break the start."""
TOKENS_STEP: Final = 16
"""The smallest block size in use: lengths are rounded down to it."""
LARGEST_TENSOR_PARALLEL: Final = 64

FP8_SHARE: Final = 0.5
"""Share of a request's KV memory that an fp8 cache needs at least: one byte in place of two."""
SIXTEEN_BITS: Final = frozenset(("auto", "bfloat16", "float16"))
"""KV cache dtypes of twice the size of fp8."""

SOMETHING_FAILED: Final = 2
"""Rank of errors that say only that something failed, as in failures.toml."""
BEHIND_PROCESS: Final = 80
"""Characters at the beginning of a line that name its process."""

LINES_BACK: Final = 4000
"""Lines above the end of a failed start that are searched; every rank prints a traceback."""
LINE_CHARACTERS: Final = 600
"""Characters of a line that are searched: an error's name follows the process and the place."""
LINE_STEPS: Final = 8
GIVING_UP: Final = (
    "Enginecoreinitializationfailed",
    "Engineprocessfailedtostart",
    "WorkerProcinitializationfailed",
    "EngineCorefailedtostart",
    "WorkerProcfailedtostart",
    "AsyncLLMoutput_handlerfailed",
    "EngineDeadError",
)
"""The last two of a death in service.

Source: vllm/v1/engine/core.py, vllm/v1/engine/async_llm.py, vllm/v1/executor/multiproc_executor.py (0.11.0, 0.33.0).
"""

_ERROR: Final = re.compile(r"(?:^|[\])]:? )([A-Za-z_][\w.]{0,120}(?:Error|Exception)): {0,4}\S")
_WENT_ON: Final = re.compile(r"INFO\d\d-\d\d")
WENT_ON_CHARACTERS: Final = len("INFO01-01")
_RAISED: Final = ("Traceback(mostrecentcalllast)", "WorkerProchitanexception")
_VALIDATION: Final = "ValidationError"


_OOM_CODES: Final[Mapping[Phase, str]] = {
    Phase.LOADING: "start-oom-loading",
    Phase.PROFILING: "start-oom-profiling",
    Phase.GRAPH_CAPTURE: "start-oom-graphs",
    Phase.WARM_UP: "start-oom-warm-up",
    Phase.RUN_TIME: "start-oom-running",
}


class Change(Struct, frozen=True, kw_only=True):
    """The smallest single change that should fix a failure. `field` is a contract field."""

    field: str
    value: int | float | str | bool


class Failure(Struct, frozen=True, kw_only=True):
    """A known error of the engine, found in a log."""

    code: str
    phase: Phase
    line_number: int
    line: str
    rank: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Numbers in the error's text, by name."""
    change: Change | None = None
    fp8_suffices: bool = False
    """For a context that is too long: whether it may fit with an fp8 KV cache."""

    @property
    def device(self) -> int | None:
        """The number of the card on its machine: of the line itself, else the worker's rank; None where neither tells.

        Example:
            >>> found = Failure(code="start-oom", phase=Phase.WARM_UP, line_number=1, line="", rank="Worker_TP2")
            >>> found.device, replace(found, line="Free memory on device cuda:3 (1/79 GiB)").device
            (2, 3)
        """
        told = _DEVICE.search(self.line) or _RANK.search(self.rank)
        return None if told is None else int(told[1])

    def number(self, name: str) -> float | None:
        """A number of the error's text, or None."""
        return self.numbers.get(name)

    @property
    def notice(self) -> Notice:
        """The explanation and what to do."""
        params = {name: log_number(value) for name, value in self.numbers.items()}
        if self.code == _TOO_LONG and not self.fp8_suffices:
            return Notice(code="start-context-far-too-long", params=params)
        return Notice(code=self.code, params=params)


_DEVICE: Final = re.compile(r"(?:cuda:|npu:|\bGPU |\bNPU )(\d{1,3})\b")
_RANK: Final = re.compile(r"\AWorker(?:_TP)?_?(\d{1,3})(?:_EP\d{1,3})?\Z")
"""A worker of one machine without stages and replicas: its rank is its card's number.

Source: v1/executor/multiproc_executor.py:WorkerProc.setup_proc_title_and_log_prefix (0.23.0).
"""
_TOO_LONG: Final = "start-context-too-long"
_NO_MEMORY: Final = "start-no-kv-memory"
_SAMPLER: Final = "start-oom-sampler"
_COMPILING: Final = "start-oom-compiling"
SAME_TABLE_SHARE: Final = 0.01
"""Largest difference of an allocation, printed with two decimals, from the table that it is a copy of."""


class KnownError(LineRow, frozen=True, kw_only=True):
    """A row of failures.toml: one error of the engine."""

    code: str
    rank: Annotated[int, Meta(ge=0, le=SOMETHING_FAILED)]
    phase: Phase

    def __post_init__(self) -> None:
        if self.code not in MESSAGES:
            raise ValueError(f"{self.code} is no code of messages.toml")
        if not tuple(self.formats):
            raise ValueError("texts is empty")


class ErrorTables(Reviewed, frozen=True, kw_only=True):
    """failures.toml."""

    error: tuple[KnownError, ...]


ERRORS: Final = TableFile("kvcore.evidence.log", "failures.toml", ErrorTables)


class StartFacts(Struct, frozen=True, kw_only=True):
    """Figures of the start that sizes of changes are computed from."""

    flags: LogFlags
    rank: Figures
    utilization: float | None
    embedding_gib: float | None = None
    """The embedding table of one rank; None where the model is not known."""
    batched_tokens: int | None = None
    """Tokens of a step, where no flag but a line of the engine gives them."""
    others_count: bool = False
    """Whether this release takes what other processes hold on the card off its own budget."""
    taken_gib: float | None = None
    """What they hold, where the log shows it."""

    @property
    def budget_gib(self) -> float | None:
        """The utilization's share of the card."""
        total = self.rank.total_gib
        return None if total is None or self.utilization is None else self.utilization * total.value

    @property
    def weights_exceed_budget(self) -> bool:
        """Whether the weights of a rank alone are more than its budget: a start that gets further fails there."""
        weights = self.rank.weights_gib or self.rank.profiled_weights_gib
        return weights is not None and self.budget_gib is not None and weights.value >= self.budget_gib


def find_failures(log: LogText, start: int, end: int, facts: StartFacts) -> tuple[Failure, ...]:
    """The known errors between two offsets, one of each kind, the root cause first.

    The root cause is, in this order: the first error that says what is wrong, an allocation or a connection that
    failed, the last unknown error, the message that something failed.
    """
    found: list[tuple[int, int, Failure]] = []
    reached = milestones(log, start, end)
    for error in ERRORS.load().error:
        hit = _first(log, error, start, end)
        if hit is None:
            continue
        code, phase = _told_apart(error, facts, hit, phase_of_error(log, start, hit.offset, reached))
        failure = Failure(
            code=code,
            phase=phase,
            line_number=log.line_number(hit.offset),
            line=log.line(hit.offset),
            rank=log.process(hit.offset).name,
            numbers=dict(hit.numbers),
        )
        size = _CHANGES.get(code)
        change = size(failure, facts) if size is not None else None
        failure = replace(failure, change=change, fp8_suffices=_fp8_suffices(failure, facts))
        found.append((error.rank, hit.offset, failure))
    if all(rank == SOMETHING_FAILED for rank, _, _ in found):
        index = last_error(log, start, end)
        if index is not None:
            offset = log.starts[index]
            unknown = Failure(
                code="start-other-error",
                phase=phase_of_error(log, start, offset, reached),
                line_number=index + 1,
                line=log.line(offset),
                rank=log.process(min(offset + BEHIND_PROCESS, log.line_end(offset))).name,
            )
            found.append((SOMETHING_FAILED - 1, offset, unknown))
    return _with_numbers([failure for _, _, failure in sorted(found, key=lambda item: item[:2])])


def _told_apart(error: KnownError, facts: StartFacts, hit: Hit, phase: Phase) -> tuple[str, Phase]:
    """The code and phase of an error whose cause depends on when it came, and on what else is known of the start."""
    if error.code == "start-oom":
        return _OOM_CODES.get(phase, error.code), phase
    if error.code == _SAMPLER and phase in (Phase.LOADING, Phase.PROFILING):
        return "start-oom-sampler-profile", Phase.PROFILING
    if error.code == _NO_MEMORY and facts.others_count:
        return "start-no-kv-memory-shared", error.phase
    if error.code == _COMPILING and facts.embedding_gib is not None:
        tried = dict(hit.numbers).get("tried_gib")
        if tried is not None and abs(tried - facts.embedding_gib) <= SAME_TABLE_SHARE * facts.embedding_gib:
            return "start-oom-embedding-copy", error.phase
    return error.code, phase if error.phase is Phase.UNKNOWN else error.phase


def _with_numbers(failures: list[Failure]) -> tuple[Failure, ...]:
    """Failures whose first, a sampler's, has the numbers of the allocation that it names in other words."""
    if failures and failures[0].code.startswith(_SAMPLER):
        first, numbers = failures[0], {}
        for failure in failures[1:]:
            if failure.number("tried_gib") is not None:
                numbers = dict(failure.numbers)
                break
        failures[0] = replace(first, numbers={**numbers, **first.numbers})
    return tuple(failures)


def _first(log: LogText, error: KnownError, start: int, end: int) -> Hit | None:
    """The first occurrence of an error, by the format that reads the most numbers."""
    firsts = (next(find_lines(log, line, start, end), None) for line in error.formats)
    return max(filter(None, firsts), key=lambda hit: (len(hit.numbers), -hit.offset), default=None)


def last_error(log: LogText, start: int, end: int) -> int | None:
    """Index of the line with the last error before the engine gave up, between two offsets of a log.

    Without a line about giving up: the last error after a traceback, where the log ends with it. Else None.

    Example:
        >>> from kvcore.evidence.log.cleaned import clean_log
        >>> log = clean_log("ImportError: libcudart.so.12\\nRuntimeError: Engine core initialization failed.")
        >>> last_error(log, 0, len(log.text))
        0
    """
    given_up = max((log.rfind(text, start, end) for text in GIVING_UP), default=-1)
    stop = given_up if given_up >= 0 else end - 1
    index = _last_error_above(log, start, stop)
    if index is None or given_up >= 0:
        return index
    offset = log.starts[index]
    is_raised = any(log.rfind(text, start, offset) >= 0 for text in _RAISED)
    return index if is_raised and not _went_on(log, offset + 1, end) else None


def _went_on(log: LogText, start: int, end: int) -> bool:
    windows = ((at, min(end, at + WINDOW + WENT_ON_CHARACTERS)) for at in range(start, end, WINDOW))
    return any(_WENT_ON.search(log.text, *window) is not None for window in windows)


def _last_error_above(log: LogText, start: int, stop: int) -> int | None:
    if stop < start:
        return None
    last, first = log.line_index(stop), log.line_index(start)
    for index in range(last, max(first, last - LINES_BACK) - 1, -1):
        if not log.steps.take(LINE_STEPS):
            break
        message = message_of(log.lines[index][:LINE_CHARACTERS])
        found = _ERROR.search(message)
        if found is None or any(text in "".join(message.split()) for text in GIVING_UP):
            continue
        says_it_below = found[1].endswith(_VALIDATION) and index + 1 < len(log.lines)
        return index + 1 if says_it_below and log.starts[index + 1] < len(log.text) else index
    return None


def _fp8_suffices(failure: Failure, facts: StartFacts) -> bool:
    """Whether half of the memory of one request is available, with a cache that is not fp8 yet."""
    needed, available = failure.number("needed_gib"), failure.number("available_kv_gib")
    if failure.code != _TOO_LONG or needed is None or available is None:
        return False
    return (facts.flags.kv_cache_dtype or "auto") in SIXTEEN_BITS and needed * FP8_SHARE <= available


def _shorter_context(failure: Failure, facts: StartFacts) -> Change | None:
    """The engine's own estimate; without one, the length in proportion, rounded down to blocks."""
    estimate = failure.number("estimated_max_model_len")
    length, needed = failure.number("max_model_len"), failure.number("needed_gib")
    available = failure.number("available_kv_gib")
    if estimate is None:
        if not length or not needed or available is None or needed <= 0:
            return None
        estimate = length * max(0.0, available) / needed // TOKENS_STEP * TOKENS_STEP
    return (
        Change(field="max_model_len", value=int(estimate)) if estimate >= 1 else _more_ranks(failure, facts)
    )


def _context_in_cache(failure: Failure, facts: StartFacts) -> Change | None:
    tokens = failure.number("kv_tokens")
    return Change(field="max_model_len", value=int(tokens)) if tokens else _more_memory(failure, facts)


def _more_memory(failure: Failure, facts: StartFacts) -> Change | None:
    """The utilization that leaves memory for the KV cache, up to 0.95; above it the next tensor parallel size."""
    available, total = facts.rank.available_kv_gib, facts.rank.total_gib
    if available is None or total is None or facts.utilization is None or total.value <= 0:
        return None
    needed = facts.utilization + max(0.0, -available.value) / total.value
    rounded = math.floor(needed * 100 + 1) / 100
    if rounded <= HIGHEST_ADVISED_UTILIZATION:
        return Change(field="gpu_memory_utilization", value=rounded)
    return _more_ranks(failure, facts)


def _more_ranks(_failure: Failure, facts: StartFacts) -> Change | None:
    ranks = 2 * (facts.flags.tensor_parallel_size or 1)
    return Change(field="tensor_parallel_size", value=ranks) if ranks <= LARGEST_TENSOR_PARALLEL else None


def _utilization(share: float, most: float = HIGHEST_ADVISED_UTILIZATION) -> Change | None:
    return Change(field="gpu_memory_utilization", value=share) if 0.01 <= share <= most else None


def _what_is_free(failure: Failure, _facts: StartFacts) -> Change | None:
    """The free share of the card, rounded down."""
    free, total = failure.number("free_gib"), failure.number("total_gib")
    if free is None or not total or total <= 0:
        return None
    return _utilization(math.floor(free / total * 100) / 100, most=0.99)


def _with_external_weights(failure: Failure, _facts: StartFacts) -> Change | None:
    """The share of the card that external weights take, rounded up."""
    external, total = failure.number("external_gib"), failure.number("total_gib")
    if external is None or not total or total <= 0:
        return None
    return _utilization(math.floor(external / total * 100 + 1) / 100)


def _take_number(field: str, name: str) -> Callable[[Failure, StartFacts], Change | None]:
    def change(failure: Failure, _facts: StartFacts) -> Change | None:
        value = failure.number(name)
        return Change(field=field, value=int(value)) if value is not None and value >= 1 else None

    return change


def _fewer_sequences(failure: Failure, facts: StartFacts) -> Change | None:
    """Half the sequences: the logits of the warm-up are in proportion."""
    now = failure.number("max_num_seqs") or facts.flags.max_num_seqs
    return Change(field="max_num_seqs", value=int(now) // 2) if now and now >= 2 else None


def _fewer_batched_tokens(failure: Failure, facts: StartFacts) -> Change | None:
    """Half the tokens of the profile run, or half its sequences where the log shows no more."""
    now = facts.flags.max_num_batched_tokens or facts.batched_tokens
    if now is not None and now >= 1024:
        return Change(field="max_num_batched_tokens", value=now // 2)
    return _fewer_sequences(failure, facts)


def _less_memory(failure: Failure, facts: StartFacts) -> Change | None:
    """The utilization less the share of the card that the failed allocation lacked, rounded down."""
    tried = failure.number("tried_gib")
    total = failure.number("total_gib") or (facts.rank.total_gib.value if facts.rank.total_gib else None)
    if tried is None or not total or facts.utilization is None:
        return None
    lacking = max(tried - (failure.number("free_gib") or 0.0), 0.0)
    share = math.floor((facts.utilization - lacking / total) * 100 - 1e-9) / 100
    return _utilization(share, most=1.0)


def _without_compiling(failure: Failure, facts: StartFacts) -> Change | None:
    """No graphs and nothing compiled; more ranks where the weights alone are more than the budget."""
    return (
        _more_ranks(failure, facts)
        if facts.weights_exceed_budget
        else Change(field="enforce_eager", value=True)
    )


def _room_for_graphs(failure: Failure, facts: StartFacts) -> Change | None:
    """`_less_memory`, or no graphs where the log does not show what was missing."""
    return _less_memory(failure, facts) or Change(field="enforce_eager", value=True)


def _fewer_streams(_failure: Failure, facts: StartFacts) -> Change | None:
    """One graph for the whole model in place of one for each piece of it; no graphs where it is that already."""
    if facts.flags.cudagraph_mode in (CudagraphMode.FULL, CudagraphMode.FULL_DECODE_ONLY):
        return Change(field="enforce_eager", value=True)
    return Change(field="cudagraph_mode", value=CudagraphMode.FULL_DECODE_ONLY.value)


def _share_beside_others(_failure: Failure, facts: StartFacts) -> Change | None:
    """The utilization plus the share of the card that others hold, rounded up."""
    total = facts.rank.total_gib
    if facts.taken_gib is None or total is None or facts.utilization is None:
        return None
    return _utilization(math.floor((facts.utilization + facts.taken_gib / total.value) * 100 + 1) / 100)


def _dividing_ranks(failure: Failure, _facts: StartFacts) -> Change | None:
    """The largest power of two that divides the heads, up to the tensor parallel size that was asked for."""
    heads, ranks = failure.number("heads"), failure.number("tensor_parallel_size")
    if not heads or not ranks:
        return None
    sizes = (1 << power for power in range(LARGEST_TENSOR_PARALLEL.bit_length()))
    largest = max(size for size in sizes if size == 1 or (size <= ranks and int(heads) % size == 0))
    return Change(field="tensor_parallel_size", value=largest)


_CHANGES: Final[Mapping[str, Callable[[Failure, StartFacts], Change | None]]] = {
    "start-context-too-long": _shorter_context,
    "start-context-exceeds-cache": _context_in_cache,
    "start-no-kv-memory": _more_memory,
    "start-auto-fit-failed": _more_memory,
    "start-memory-taken": _what_is_free,
    "start-external-weights": _with_external_weights,
    "start-too-few-state-blocks": _take_number("max_num_seqs", "blocks"),
    "start-oom-sampler": _fewer_sequences,
    "start-weights-do-not-fit": _more_ranks,
    "start-above-model-length": _take_number("max_model_len", "derived_max_model_len"),
    "start-batch-below-length": _take_number("max_num_batched_tokens", "max_model_len"),
    "start-batch-below-sequences": _take_number("max_num_seqs", "max_num_batched_tokens"),
    "start-hybrid-manager-needed": lambda _failure, _facts: Change(
        field="disable_hybrid_kv_cache_manager", value=False
    ),
    "start-block-above-batch": _take_number("max_num_batched_tokens", "block_size"),
    "start-heads-not-divisible": _dividing_ranks,
    "start-oom-loading": _more_ranks,
    "start-oom-profiling": _fewer_batched_tokens,
    "start-no-kv-memory-shared": _share_beside_others,
    "start-oom-sampler-profile": _fewer_sequences,
    "start-oom-compiling": _without_compiling,
    "start-oom-embedding-copy": _without_compiling,
    "start-npu-streams": _fewer_streams,
    "start-oom-graphs": _room_for_graphs,
    "start-oom-warm-up": _fewer_sequences,
    "start-oom-running": _less_memory,
}
