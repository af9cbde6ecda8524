"""A start-up log of vLLM, vllm-ascend or vllm-mindspore -> measured memory, flags, and why the start failed."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvcore.catalogue.accelerators import Vendor
from kvcore.engine.protocol import Engine, written_gb
from kvcore.engine.rooms import find_engine
from kvcore.engine.vllm.versions import first_without_v0
from kvcore.errors import LogError, Notice
from kvcore.evidence.log.arguments import LoggedArguments, read_flags
from kvcore.evidence.log.cleaned import LogText, clean_log
from kvcore.evidence.log.failures import StartFacts, find_failures
from kvcore.evidence.log.identity import (
    card_of,
    engine_of,
    is_v0,
    model_of,
    release_of,
    start_offsets,
    version_of,
)
from kvcore.evidence.log.ranks import Found, engine_figures, find_readings, rank_figures
from kvcore.evidence.log.startup import (
    EngineFigures,
    Failure,
    LogFlags,
    LogScenario,
    RankFigures,
    Reading,
    StartupLog,
)
from kvcore.scenario import Measured

START_STEPS: Final = 1000
"""Of a look at one start: all formats are looked for in it."""
EXPECTED: Final = "Model loading took, Available KV cache memory, GPU KV cache size, non-default args"

_EXPECTED_V0: Final = (
    "weights_gib",
    "peak_activation_gib",
    "non_torch_gib",
    "available_kv_gib",
    "num_gpu_blocks",
)
_GRAPHS_CHARGED: Final = "CUDAgraphmemoryprofilingisenabled"
_GRAPHS_NOT_CHARGED: Final = "CUDAgraphmemoryprofilingisdisabled"


def read_log(given: str | bytes) -> StartupLog:
    """What the last start in a log printed.

    Raises LogError: `log-too-large` above 50 MiB, `log-not-text` for binary data, `log-not-recognized` when no line
    of an engine is in it.

    Example:
        >>> log = read_log("INFO 07-01 [gpu_worker.py:298] Available KV cache memory: 52.80 GiB")
        >>> log.worst_rank.available_kv_gib.value, log.worst_rank.available_kv_gib.line_number
        (52.8, 1)
    """
    log = clean_log(given)
    starts = start_offsets(log)
    engine, card_name = engine_of(log), card_of(log)
    ends = (*starts[1:], len(log.text))
    chosen: StartupLog | None = None
    for start, end in reversed(list(zip(starts, ends, strict=True))):
        if not log.steps.take(START_STEPS):
            break
        found, absurd = find_readings(log, start, end)
        arguments = read_flags(log, start, end)
        read = _start(log, start, end, found, arguments, engine, card_name)
        if found or read.failures:
            chosen = replace(read, notices=_notices(log, starts) + absurd + read.notices)
            break
        if chosen is None and (arguments.lines or read.version or read.model or absurd):
            chosen = replace(read, notices=_notices(log, starts) + absurd + read.notices)
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
    log: LogText,
    start: int,
    end: int,
    found: tuple[Found, ...],
    arguments: LoggedArguments,
    engine: Engine,
    card_name: str | None,
) -> StartupLog:
    """The start between two offsets."""
    v0 = is_v0(log, start, end)
    version = version_of(log, start, end) or arguments.image_version
    ranked = rank_figures(found, arguments.flags.ranks_per_replica)
    figures, engine_notices = engine_figures(found)
    utilization = arguments.flags.gpu_memory_utilization
    if utilization is None and figures.utilization is not None:
        utilization = figures.utilization.value
    facts = StartFacts(flags=arguments.flags, rank=ranked.worst, utilization=utilization)
    return StartupLog(
        engine=engine.name,
        version=version,
        is_v0=v0,
        model=arguments.model or model_of(log, start, end),
        card_name=card_name,
        flags=arguments.flags,
        flag_lines=arguments.lines,
        env=arguments.env,
        resolved_quantization=arguments.resolved_quantization,
        graphs=arguments.graphs,
        figures=figures,
        ranks=ranked.ranks,
        worst_rank=ranked.worst,
        spreads=ranked.spreads,
        charges_graph_estimate=_charges_estimate(log, start, end, engine, version),
        failures=find_failures(log, start, end, facts),
        notices=arguments.notices + ranked.notices + engine_notices,
        missing=_missing(engine, v0, ranked.worst, figures),
    )


def _charges_estimate(log: LogText, start: int, end: int, engine: Engine, version: str | None) -> bool:
    since = engine.log.charges_graph_estimate_since
    if since is None or log.has(_GRAPHS_NOT_CHARGED, start, end):
        return False
    release = release_of(version)
    newer = release is not None and release >= since.release
    return newer or log.has(_GRAPHS_CHARGED, start, end)


def _missing(engine: Engine, v0: bool | None, rank: RankFigures, figures: EngineFigures) -> tuple[str, ...]:
    expected = _EXPECTED_V0 if v0 else engine.log.figures
    known = {reading.figure for reading in rank.readings + figures.readings}
    return tuple(name for name in expected if name not in known)


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
    rank = log.worst_rank
    weights = _value(rank.weights_gib)
    if weights is None:
        weights = _value(rank.profiled_weights_gib)
    graph, estimate = _value(rank.cuda_graph_gib), _value(rank.cuda_graph_estimate_gib)
    consumed, non_torch = _value(rank.consumed_gib), _value(rank.non_torch_gib)
    if non_torch is None:
        non_torch = _difference(consumed, weights)
    return Measured(
        weights_gib=weights,
        peak_activation_gib=_peak_activation_gib(log, weights, consumed, estimate),
        non_torch_gib=non_torch,
        cuda_graph_gib=estimate if graph is None else graph,
        system_gib=_difference(_value(rank.total_gib), _value(rank.free_gib)),
        available_kv_gib=_value(rank.available_kv_gib),
    )


def _peak_activation_gib(
    log: StartupLog, weights: float | None, consumed: float | None, estimate: float | None
) -> float | None:
    rank = log.worst_rank
    own, non_kv = _value(rank.peak_activation_gib), _value(rank.non_kv_gib)
    if own is not None:
        return own
    if non_kv is not None and consumed is not None:
        return _difference(non_kv, consumed)
    summary = _value(rank.summary_peak_gib)
    if summary is not None:
        return _difference(summary, estimate or 0.0) if log.charges_graph_estimate else summary
    return _difference(_value(rank.peak_torch_gib), weights)


def _value(reading: Reading | None) -> float | None:
    return None if reading is None else reading.value


def _difference(whole: float | None, part: float | None) -> float | None:
    """`whole - part` without the noise of binary fractions, not below zero; None where one is not known."""
    return None if whole is None or part is None else max(0.0, round(whole - part, 4))


def request_from(log: StartupLog, measured: Measured | None = None) -> LogScenario:
    """What to plan so that the plan can be compared with the log.

    Flags that the log shows only as resolved (the context length, the tokens of a step) are taken over as given.
    `measured` replaces predicted parts; without it everything is predicted.

    Example:
        >>> log = read_log("non-default args: {'model': 'Qwen/Qwen3-8B', 'max_model_len': 8192}")
        >>> request_from(log).as_request()
        {'model': 'Qwen/Qwen3-8B', 'engine': 'vllm', 'max_model_len': 8192}
    """
    flags, figures = log.flags, log.figures
    env = dict(log.env)
    release = release_of(log.version)
    if log.is_v0 and release is not None and release < first_without_v0().release[:2]:
        env["VLLM_USE_V1"] = "0"
    total = _value(log.worst_rank.total_gib)
    if total is None and log.failure is not None:
        total = log.failure.number("total_gib")
    variables = find_engine(log.engine).memory_variables
    if total is None and variables is not None:
        total = written_gb(env.get(variables.total, ""))
    return LogScenario(
        model=log.model,
        engine=log.engine,
        engine_version=log.version,
        accelerator_memory_gib=total,
        accelerator_name=log.card_name,
        accelerator_vendor=_vendor(log),
        flags=_completed(flags, figures),
        env=env,
        measured=measured or Measured(),
    )


def _vendor(log: StartupLog) -> str | None:
    vendors = find_engine(log.engine).vendors
    if len(vendors) == 1:
        return vendors[0]
    if (log.card_name or "").startswith("Ascend"):
        return Vendor.HUAWEI
    return "nvidia" if "NVIDIA" in (log.card_name or "") else None


def _completed(flags: LogFlags, figures: EngineFigures) -> LogFlags:
    """Flags, with what only the engine's figures tell."""
    length = flags.max_model_len or _whole(figures.model_len) or _whole(figures.concurrency_for_len)
    return flags.completed(
        max_model_len=length,
        gpu_memory_utilization=flags.gpu_memory_utilization or _value(figures.utilization) or None,
        max_num_batched_tokens=flags.max_num_batched_tokens or _whole(figures.batched_tokens),
        decode_context_parallel_size=flags.decode_context_parallel_size or _whole(figures.context_parallel),
    )


def _whole(reading: Reading | None) -> int | None:
    return None if reading is None else int(reading.value)


__all__ = ["Failure", "StartupLog", "measured_from", "read_log", "request_from"]
