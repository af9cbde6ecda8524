"""What `python -m kvcore log` writes for one start-up log."""

from __future__ import annotations

from typing import Any

from kvcore.errors import Notice
from kvcore.evidence.log.reader import measured_from, request_from
from kvcore.evidence.log.startup import Failure, Reading, StartupLog


def log_result(log: StartupLog) -> dict[str, Any]:
    """Measured values and resolved flags as JSON: `request` is what `plan` accepts, `measured` goes into it.

    Example:
        >>> from kvcore.evidence.log.reader import read_log
        >>> log_result(read_log("Model loading took 15.27 GiB and 4.0 seconds"))["measured"]
        {'weights_gib': 15.27}
    """
    return {
        "status": "ok",
        "engine": log.engine,
        "engine_version": log.version,
        "v0": log.is_v0,
        "model": log.model,
        "request": request_from(log).as_request(),
        "measured": measured_from(log).values(),
        "figures": [_reading(reading) for reading in log.readings],
        "ranks": [
            {"rank": rank.rank, **{reading.figure: reading.value for reading in rank.readings}}
            for rank in log.ranks
        ],
        "spreads": [
            {"figure": spread.figure, "low": spread.low, "high": spread.high, "ranks": spread.ranks}
            for spread in log.spreads
        ],
        "missing": list(log.missing),
        "failure": None if log.failure is None else _failure(log.failure),
        "warnings": [_notice(notice) for notice in log.notices],
    }


def _reading(reading: Reading) -> dict[str, Any]:
    return {
        "figure": reading.figure,
        "value": reading.value,
        "unit": reading.unit,
        "rank": reading.rank,
        "line_number": reading.line_number,
        "line": reading.line,
    }


def _failure(failure: Failure) -> dict[str, Any]:
    change = failure.change
    return {
        "code": failure.code,
        "phase": failure.phase.value,
        "message": failure.notice.message,
        "next_step": failure.notice.next_step,
        "change": None if change is None else {"field": change.field, "value": change.value},
        "numbers": {number.name: number.value for number in failure.numbers},
        "line_number": failure.line_number,
        "line": failure.line,
    }


def _notice(notice: Notice) -> dict[str, str]:
    return {
        "code": notice.code,
        "field": notice.field,
        "message": notice.message,
        "next_step": notice.next_step,
    }
