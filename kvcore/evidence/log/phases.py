"""The phase of a start at which something happened: from the frames of a traceback, else from the lines before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from kvcore.evidence.log.cleaned import LogText

FRAMES_BACK: Final = 1 << 16
"""Characters above an error in which its traceback is looked for; the ranks of a start print theirs side by side."""


class Phase(StrEnum):
    """Phases of a start, at which it may fail."""

    CONFIGURATION = "configuration"
    """Before any memory is taken."""
    DEVICE = "device"
    """When a worker opens its card and holds what is free there against the budget."""
    LOADING = "loading"
    PROFILING = "profiling"
    KV_CACHE = "kv-cache"
    """The budget is known and too small."""
    GRAPH_CAPTURE = "graph-capture"
    """After the KV cache is allocated: graphs and buffers outside the budget."""
    WARM_UP = "warm-up"
    RUN_TIME = "run-time"
    """In service: the start succeeded."""
    UNKNOWN = "unknown"
    """The log shows too little before the error."""


Milestones = Sequence[tuple[Phase, int]]
"""Phases that were reached, the last first, each with the offset at which its first mark ends."""

_MILESTONES: Final[Mapping[Phase, tuple[str, ...]]] = {
    Phase.RUN_TIME: (
        "initengine(profile,createkvcache,warmupmodel)took", "Applicationstartupcomplete", "Uvicornrunningon",
        "Avgpromptthroughput:",
    ),
    Phase.WARM_UP: ("Graphcapturingfinished",),
    Phase.GRAPH_CAPTURE: ("AvailableKVcachememory", "reservedforKVCacheis", "KVcachesize:", "blocks:"),
    Phase.PROFILING: ("Modelloadingtook", "Loadingmodelweightstook"),
    Phase.LOADING: ("Startingtoloadmodel", "LLMengine(v", "Loadingsafetensorscheckpointshards"),
}  # fmt: skip
"""Source: v1/engine/core.py:EngineCore._initialize_kv_caches (0.8.5, 0.33.0: the first, after the warm-up),
v1/metrics/loggers.py:LoggingStatLogger.log."""
_FRAMES: Final[Mapping[str, Phase]] = {
    ",inload_model": Phase.LOADING,
    ",inprofile_run": Phase.PROFILING,
    ",indetermine_available_memory": Phase.PROFILING,
    ",indetermine_num_available_blocks": Phase.PROFILING,
    ",incapture_model": Phase.GRAPH_CAPTURE,
    ",incompile_or_warm_up_model": Phase.WARM_UP,
}
"""Functions of a worker in which a phase runs, as a traceback names them.

Source: v1/worker/gpu_worker.py:Worker (0.8.5, 0.33.0), worker/worker.py:Worker (V0),
vllm_ascend/worker/worker.py:NPUWorker (0.23.0).
"""
_SERVING: Final = (",in_process_engine_step", ",inexecute_model")
"""Functions of a step. A V0 profile runs the second too, inside of the ones above."""


def milestones(log: LogText, start: int, end: int) -> Milestones:
    """The phases that were reached between two offsets."""
    found = (
        (phase, [at + len(text) for text in said if (at := log.find(text, start, end)) >= 0])
        for phase, said in _MILESTONES.items()
    )
    return [(phase, min(ends)) for phase, ends in found if ends]


def phase_at(reached: Milestones, offset: int) -> Phase:
    """The phase of the start at `offset`, by the lines before it.

    Example:
        >>> phase_at([(Phase.PROFILING, 900), (Phase.LOADING, 100)], 500).value
        'loading'
    """
    return next((phase for phase, end in reached if end <= offset), Phase.UNKNOWN)


def phase_of_error(log: LogText, start: int, offset: int, reached: Milestones) -> Phase:
    """The phase of an error at `offset`: of the innermost function of its traceback that runs one, else `phase_at`.

    Ranks reach a phase one after another: the lines before an error may be another rank's.

    Example:
        >>> from kvcore.evidence.log.cleaned import clean_log
        >>> log = clean_log('Model loading took 9 GiB\\nFile "gpu_worker.py", line 7, in load_model\\nout of memory')
        >>> phase_of_error(log, 0, len(log.text), milestones(log, 0, len(log.text))).value
        'loading'
    """
    by_lines = phase_at(reached, offset)
    low = max(start, offset - FRAMES_BACK)
    if by_lines is Phase.RUN_TIME:
        low = max(low, next(end for phase, end in reached if phase is by_lines))
    frames = [(log.rfind(name, low, offset), phase) for name, phase in _FRAMES.items()]
    at, phase = max(frames, key=lambda frame: frame[0])
    if at >= 0:
        return phase
    if any(log.rfind(name, low, offset) >= 0 for name in _SERVING):
        return Phase.RUN_TIME
    return by_lines
