"""A start-up log of vLLM, vllm-ascend or vllm-mindspore -> measured memory, flags, and causes of a failure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Final

from msgspec.structs import asdict, replace

from kvcore.base.errors import CatalogueError, LogError, Notice, checked_text, shorten
from kvcore.base.place import place
from kvcore.base.units import GIB, ceil_div
from kvcore.catalogue.accelerators import Vendor
from kvcore.catalogue.names import Recognition, recognized, recognized_notice, recognized_start
from kvcore.catalogue.siblings import bundled_model
from kvcore.engine.protocol import Engine
from kvcore.engines.registry import engines
from kvcore.evidence.log.arguments import LoggedArguments, read_flags
from kvcore.evidence.log.cards import Capabilities, capabilities_of, card_of, vendor_of
from kvcore.evidence.log.cleaned import LINE_BEGINNING_CHARACTERS, LogText, clean_log
from kvcore.evidence.log.failures import Failure, StartFacts, find_failures
from kvcore.evidence.log.figures import Figures, Reading, Spread, engine_figures, find_readings, rank_figures
from kvcore.evidence.log.line_formats import FORMATS, LoggedSurrounding, find_surroundings
from kvcore.evidence.log.npu_smi import Chip, chip_notices, fullest, read_chips
from kvcore.evidence.log.phases import milestones
from kvcore.scenario import Measured

LARGE_LOG_BYTES: Final = 4 << 20
"""A larger log takes a server's place for what takes much memory: 50 MiB of text take 240 MiB to read."""
PLACE_SECONDS: Final = 60.0
START_STEPS: Final = 1000
"""Steps of the search of one start for all formats."""
EXPECTED: Final = "Model loading took, Available KV cache memory, GPU KV cache size, non-default args"

MAX_MARKS: Final = 10_000

_EXPECTED_V0: Final = (
    "weights_gib", "peak_activation_gib", "non_torch_gib", "available_kv_gib", "num_gpu_blocks"
)  # fmt: skip
_GRAPHS_CHARGED: Final = ("CUDAgraphmemoryprofilingisenabled", "ACLgraphmemoryprofilingisenabled")
_GRAPHS_NOT_CHARGED: Final = "CUDAgraphmemoryprofilingisdisabled"
_SERVER_MARKS: Final = ("vLLMAPIserverversion", "vLLMserverversion", "vLLMbatchprocessingAPIversion")
_ENGINE_MARKS: Final = tuple(f"Initializing{one}LLMengine(v" for one in ("aV0", "aV1", "an"))
_VERSION: Final = re.compile(r"(\d{1,3}\.\d{1,4}[0-9A-Za-z.+]{0,60})")
_RELEASE: Final = re.compile(r"(\d{1,3})\.(\d{1,60})")
_ENGINE_VERSION: Final = re.compile(r"(\d{1,3}\.\d{1,4}[0-9A-Za-z.+\-]{0,60})\)")
_DATED: Final = re.compile(r"(?:INFO|WARNING|DEBUG)\d\d-\d\d\d\d:\d\d:\d\d")
_GENERATIONS: Final = (
    (False, ("InitializingaV1LLMengine", "AvailableKVcachememory", "KVcachesize:", "(EngineCore",
             "UsingV2ModelRunner")),
    (True, ("non_torch_memorytakes", "InitializingaV0LLMengine", "Memoryprofilingresults:", "#CPUblocks:")),
)  # fmt: skip
"""Whether it is V0, and texts that only that engine prints."""


_OF_ERRORS: Final[Mapping[str, Mapping[str, str]]] = {
    "start-context-too-long": {"available_kv_gib": "available_kv_gib", "max_model_len": "model_len"},
    "start-context-exceeds-cache": {"kv_tokens": "kv_tokens", "max_model_len": "model_len"},
}
"""Errors that name figures of the start: each of the error's numbers, and the figure that it is."""


class StartupLog(LoggedArguments, frozen=True, kw_only=True):
    """One start of an engine, with its arguments: the last one of a log that has several."""

    engine: str
    version: str | None
    is_v0: bool | None
    """None where no line tells the V0 engine from V1."""
    vendor: Vendor | None
    """The card's, where the engine runs on one alone or a line tells it."""
    capability: Capabilities
    figures: Figures
    ranks: tuple[Figures, ...]
    worst_rank: Figures
    """The rank with the least KV memory, with figures of other ranks where it did not print its own."""
    spreads: tuple[Spread, ...]
    charges_graph_estimate: bool
    """Whether the graph estimate was taken off the budget."""
    failures: tuple[Failure, ...]
    """The root cause first."""
    surroundings: tuple[LoggedSurrounding, ...]
    """Facts about the machine, each once."""
    chips: tuple[Chip, ...]
    """Chips in `npu-smi info` before the start, or after it failed; empty without such a table."""
    missing: tuple[str, ...]
    """Figures that such logs usually have and this one does not."""

    @property
    def failure(self) -> Failure | None:
        """The root cause, or None for a start that the log does not show failing."""
        return self.failures[0] if self.failures else None

    @property
    def taken_gib(self) -> float | None:
        """Memory in use on the fullest chip before the start, beyond the driver's own, in GiB; None for none."""
        chip = fullest(self.chips)
        return None if chip is None else chip.taken_gib

    @property
    def readings(self) -> tuple[Reading, ...]:
        """Figures of the worst rank and of the engine."""
        return self.worst_rank.readings + self.figures.readings


def read_log(given: str | bytes) -> StartupLog:
    """The last start in a log. On a server one large log is read at a time.

    Raises LogError: `log-too-large` above 50 MiB, `log-not-text` for binary data, `log-not-recognized` when no line
    of an engine is in it, `log-busy` where others are read for too long.

    Example:
        >>> log = read_log("INFO 07-01 [gpu_worker.py:298] Available KV cache memory: 52.80 GiB")
        >>> log.worst_rank.available_kv_gib.value, log.worst_rank.available_kv_gib.line_number
        (52.8, 1)
    """
    given = given if isinstance(given, bytes) else checked_text("log", given)
    if len(given) <= LARGE_LOG_BYTES:
        return _read(given)
    with place(PLACE_SECONDS) as is_mine:
        if not is_mine:
            raise LogError("log-busy")
        return _read(given)


def _read(given: str | bytes) -> StartupLog:
    log = clean_log(given)
    starts = start_offsets(log)
    engine, card_name = engine_of(log), card_of(log)
    chosen: StartupLog | None = None
    for start, end in reversed(list(zip(starts, (*starts[1:], len(log.text)), strict=True))):
        if not log.steps.take(START_STEPS):
            break
        found, absurd = find_readings(log, start, end)
        read = _start(log, start, end, found, engine, card_name)
        says_something = bool(read.flag_lines or read.version or read.model or read.chips or absurd)
        if found or read.failures or (chosen is None and says_something):
            chosen = replace(read, notices=_notices(log, starts) + absurd + read.notices)
        if found or read.failures:
            break
    if chosen is None:
        raise LogError("log-not-recognized", lines=len(log.lines), expected=EXPECTED)
    return chosen


def _notices(log: LogText, starts: tuple[int, ...]) -> tuple[Notice, ...]:
    notices: list[Notice] = []
    if len(starts) > 1:
        notices.append(Notice(code="log-several-starts", params={"starts": str(len(starts))}))
    if log.cut_lines:
        notices.append(Notice(code="log-line-cut", params={"lines": str(log.cut_lines)}))
    if log.steps.are_spent:
        notices.append(Notice(code="log-read-in-part"))
    return tuple(notices)


def _start(
    log: LogText, start: int, end: int, found: tuple[Reading, ...], engine: Engine, card_name: str | None
) -> StartupLog:
    """The start between two offsets."""
    arguments = read_flags(log, start, end)
    flags = arguments.flags
    v0 = is_v0(log, start, end)
    version = version_of(log, start, end) or arguments.image_version
    ranked = rank_figures(found, flags.ranks_per_replica)
    figures, engine_notices = engine_figures(found)
    utilization = flags.gpu_memory_utilization
    if utilization is None:
        utilization = value_of(figures.utilization)
    said = asdict(arguments)
    said["model"], of_model = _model(arguments.model or model_of(log, start, end), arguments.served_name)
    said["card_name"] = card_name or arguments.card_name
    chips = read_chips(log, 0, end)
    chip = fullest(chips)
    facts = StartFacts(
        flags=flags,
        rank=ranked.worst,
        utilization=utilization,
        embedding_gib=_embedding_gib(said["model"], flags.tensor_parallel_size or 1),
        batched_tokens=None if figures.batched_tokens is None else int(figures.batched_tokens.value),
        others_count=_others_count(engine, version),
        taken_gib=None if chip is None else chip.taken_gib,
    )
    failures = find_failures(log, start, end, facts)
    of_errors = _readings_of(failures, {**ranked.worst.known, **figures.known})
    figures, worst = (
        _with_readings(figures, of_errors, "engine"),
        _with_readings(ranked.worst, of_errors, "rank"),
    )
    known = {**worst.known, **figures.known}
    if not failures:
        chips = _chips(log, found, end)
    peak = ranked.worst.peak_used_gib
    of_prerun = () if peak is None else (Notice(code="log-of-prerun", params={"peak": f"{peak.value:.1f}"}),)
    said["notices"] = (
        arguments.notices + of_model + chip_notices(chips) + ranked.notices + engine_notices + of_prerun
    )
    read = StartupLog(
        **said,
        engine=engine.name,
        version=version,
        is_v0=v0,
        vendor=vendor_of(log, engine, card_name),
        capability=capabilities_of(log),
        figures=figures,
        ranks=ranked.ranks,
        worst_rank=worst,
        spreads=ranked.spreads,
        charges_graph_estimate=_charges_estimate(log, start, end, engine, version),
        failures=failures,
        chips=chips,
        surroundings=find_surroundings(log, start, end, flags.tensor_parallel_size or 1),
        missing=tuple(
            name for name in (_EXPECTED_V0 if v0 else engine.facts.log.figures) if name not in known
        ),
    )
    return replace(read, notices=read.notices + tuple(_warnings(log, start, end, read, facts)))


def _readings_of(failures: tuple[Failure, ...], known: Mapping[str, Reading]) -> tuple[Reading, ...]:
    """Figures that only the errors of a start name; `known` are those that its lines give."""
    found: dict[str, Reading] = {}
    for failure in failures:
        for number, name in _OF_ERRORS.get(failure.code, {}).items():
            value, rule = failure.number(number), FORMATS.load().figure[name]
            if value is not None and rule.low <= value <= rule.high and name not in known:
                found.setdefault(
                    name,
                    Reading(
                        figure=name,
                        value=value,
                        unit=rule.unit,
                        line_number=failure.line_number,
                        line=failure.line,
                        rank=failure.rank,
                    ),
                )
    return tuple(found.values())


def _with_readings(figures: Figures, found: tuple[Reading, ...], scope: str) -> Figures:
    own = {one.figure: one for one in found if FORMATS.load().figure[one.figure].scope == scope}
    return replace(figures, known={**figures.known, **own})


def _chips(log: LogText, found: tuple[Reading, ...], end: int) -> tuple[Chip, ...]:
    """The chips in `npu-smi info` as a start that did not fail finds them, not while its own engine runs."""
    first = min((reading.line_number for reading in found), default=0)
    return read_chips(log, 0, end if first == 0 else log.starts[first - 1])


def _model(given: str | None, served: str | None) -> tuple[str | None, tuple[Notice, ...]]:
    """The model as the log names it, by the name it is served under where only that is known; and what to say of it."""
    try:
        named = recognized_start(given, served)
    except CatalogueError:
        named = None
    if named is None or named.how is Recognition.ID or bundled_model(named.model) is None:
        return given, ()
    model = named.model if named.how is Recognition.SERVED else given
    return model, (recognized_notice(given or "", named),)


def _embedding_gib(model: str | None, ranks: int) -> float | None:
    """The embedding table of one rank in 16 bits; None for a model that is not in the catalogue."""
    named = None
    with suppress(CatalogueError):
        named = None if model is None else recognized(model, any_owner=True)
    entry = None if named is None else bundled_model(named.model)
    raw = {} if entry is None else entry.config.raw
    inner = raw.get("text_config")
    config = {**raw, **(inner if isinstance(inner, Mapping) else {})}
    vocabulary, hidden = config.get("vocab_size"), config.get("hidden_size")
    if not isinstance(vocabulary, int) or not isinstance(hidden, int):
        return None
    return ceil_div(vocabulary, ranks) * hidden * 2 / GIB


def _others_count(engine: Engine, version: str | None) -> bool:
    """Whether what other processes hold comes off the budget; a start that names no release may be of such a one."""
    until, release = engine.facts.log.charges_others_until, release_of(version)
    return until is not None and (release is None or release <= until.release)


def _warnings(log: LogText, start: int, end: int, read: StartupLog, facts: StartFacts) -> Iterator[Notice]:
    """What else is wrong with a start: weights above the budget, or an end before the KV cache was sized."""
    weights = read.worst_rank.weights_gib or read.worst_rank.profiled_weights_gib
    if facts.weights_exceed_budget and read.failure is not None:
        params = {
            "weights": f"{weights.value:.2f}",
            "budget": f"{facts.budget_gib:.2f}",
            "utilization": f"{facts.utilization:g}",
            "total": f"{read.worst_rank.total_gib.value:.2f}",
        }
        yield Notice(code="log-weights-above-budget", params=params)
    sized = {"available_kv_gib", "kv_tokens", "num_gpu_blocks"} & {one.figure for one in read.readings}
    if read.failure is None and not sized and milestones(log, start, end) and weights is not None:
        yield Notice(code="log-ends-early")


def _charges_estimate(log: LogText, start: int, end: int, engine: Engine, version: str | None) -> bool:
    since = engine.facts.log.charges_graph_estimate_since
    if log.has(_GRAPHS_NOT_CHARGED, start, end):
        return False
    release = release_of(version)
    is_later = since is not None and release is not None and release >= since.release
    return is_later or any(log.has(text, start, end) for text in _GRAPHS_CHARGED)


def measured_from(log: StartupLog) -> Measured:
    """The measured parts of the worst rank, in GiB, each replacing the predicted one.

    The closing summary's activation peak contains the graph estimate where the engine charges it, and from 0.27.1
    on "consumed memory" is weights and non-torch together; both are taken apart here.
    system = total - free at the start.  activation = summary peak - graph estimate.  non-torch = consumed - weights.

    Source: v1/worker/gpu_worker.py:Worker.determine_available_memory, compile_or_warm_up_model (0.10.2 to 0.33.0).

    Example:
        >>> measured_from(read_log("Model loading took 15.27 GiB memory and 4.1 seconds")).weights_gib
        15.27
    """
    gib = {reading.figure: reading.value for reading in log.worst_rank.readings}
    weights = gib.get("weights_gib", gib.get("profiled_weights_gib"))
    return Measured(
        weights_gib=weights,
        peak_activation_gib=_peak_activation_gib(gib, weights, log.charges_graph_estimate),
        non_torch_gib=gib.get("non_torch_gib", _difference(gib.get("consumed_gib"), weights)),
        cuda_graph_gib=gib.get("cuda_graph_gib", gib.get("cuda_graph_estimate_gib")),
        system_gib=_difference(gib.get("total_gib"), gib.get("free_gib")),
        available_kv_gib=gib.get("available_kv_gib"),
        free_before_weights_gib=gib.get("free_before_weights_gib"),
        free_after_weights_gib=gib.get("free_after_weights_gib"),
    )


def _peak_activation_gib(gib: Mapping[str, float], weights: float | None, charges: bool) -> float | None:
    if "peak_activation_gib" in gib:
        return gib["peak_activation_gib"]
    if "non_kv_gib" in gib and "consumed_gib" in gib:
        return _difference(gib["non_kv_gib"], gib["consumed_gib"])
    if "summary_peak_gib" in gib:
        summary = gib["summary_peak_gib"]
        return _difference(summary, gib.get("cuda_graph_estimate_gib", 0.0)) if charges else summary
    return _difference(gib.get("peak_torch_gib"), weights)


def value_of(reading: Reading | None) -> float | None:
    """The figure alone."""
    return None if reading is None else reading.value


def _difference(whole: float | None, part: float | None) -> float | None:
    """`whole - part` without the noise of binary fractions, not below zero; None where one is not known."""
    return None if whole is None or part is None else max(0.0, round(whole - part, 4))


def start_offsets(log: LogText) -> tuple[int, ...]:
    """Offsets of the starts: the server's version line, else where an engine process initialises again.

    Example:
        >>> from kvcore.evidence.log.cleaned import clean_log
        >>> start_offsets(clean_log("vLLM API server version 0.9.2"))
        (0,)
    """
    marks = (
        (at, anchors is _SERVER_MARKS)
        for anchors in (_SERVER_MARKS, _ENGINE_MARKS)
        for anchor in anchors
        for at in log.occurrences(anchor)
    )
    starts = [0]
    seen: dict[str, str] = {}
    server_seen = False
    for at, is_server in sorted(islice(marks, MAX_MARKS)):
        name, beginning = log.process(at).name, _dated_beginning(log, at)
        if (
            (server_seen and seen)
            if is_server
            else name in seen and (not beginning or seen[name] != beginning)
        ):
            starts.append(log.starts[log.line_index(at)])
            seen.clear()
        if is_server:
            server_seen = True
        else:
            seen[name] = beginning
    return tuple(dict.fromkeys(starts))


def _dated_beginning(log: LogText, at: int) -> str:
    """A line up to `at`, where it has a date: a line with the same beginning is the same one, printed twice."""
    first = max(log.starts[log.line_index(at)], at - LINE_BEGINNING_CHARACTERS)
    beginning = log.text[first:at]
    return beginning if _DATED.search(beginning) else ""


def engine_of(log: LogText) -> Engine:
    """The last engine whose marks are in the log; the first engine of all where none are."""
    known = engines()
    return next((one for one in reversed(known) if any(map(log.has, one.facts.log.marks))), known[0])


def is_v0(log: LogText, start: int, end: int) -> bool | None:
    """Whether the V0 engine wrote the log; None when no line tells."""
    found = (v0 for v0, marks in _GENERATIONS if any(log.has(mark, start, end) for mark in marks))
    return next(found, None)


def version_of(log: LogText, start: int, end: int) -> str | None:
    """The engine version of a start, as printed: `0.19.0`, `0.11.2.dev278+g55c6a5c`."""
    for mark in _ENGINE_MARKS:
        at = log.find(mark, start, end)
        match = _ENGINE_VERSION.match(log.text, at + len(mark), end) if at >= 0 else None
        if match is not None:
            return match[1]
    for mark, words in (*((mark, "version") for mark in _SERVER_MARKS), ("\u2588version", "version")):
        at = log.find(mark, start, end)
        if at < 0:
            continue
        line = log.lines[log.line_index(at)]
        position = line.find(words)
        match = _VERSION.search(line, position, position + 80) if position >= 0 else None
        if match is not None:
            return match[1].rstrip(".")
    return None


def model_of(log: LogText, start: int, end: int) -> str | None:
    """The model from "Starting to load model", where the arguments do not name it."""
    mark = "Startingtoloadmodel"
    at = log.find(mark, start, end)
    if at < 0:
        return None
    name = log.text[at + len(mark) : min(log.line_end(at), at + len(mark) + 400)].partition("...")[0]
    return shorten(name, 400) or None


def release_of(version: str | None) -> tuple[int, int] | None:
    """Major and minor number of a version, or None.

    Example:
        >>> release_of("0.20.0rc1"), release_of("main")
        ((0, 20), None)
    """
    match = _RELEASE.match(version or "")
    return None if match is None else (int(match[1]), int(match[2]))
