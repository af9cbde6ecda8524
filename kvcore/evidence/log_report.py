"""The report of `python -m kvcore log`: the log's figures, the plan of the same scenario, and their differences."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from kvcore.base.errors import KvPlannerError
from kvcore.base.units import rounded
from kvcore.catalogue.accelerators import Accelerator
from kvcore.engines.registry import with_accelerator
from kvcore.evidence.calibration import Comparison, calibrated, compare, measured_values
from kvcore.evidence.card_guess import guessed_cards
from kvcore.evidence.log.failures import Failure
from kvcore.evidence.log.phases import Phase
from kvcore.evidence.log.reader import StartupLog, measured_from
from kvcore.evidence.recognized import find_logged_model, request_from, scenario_from_log, with_logged_graphs
from kvcore.planning import Plan, plan
from kvcore.scenario import Scenario
from kvcore.wire.request import scenario_from_request


def log_report(
    log: StartupLog, config: Mapping[str, Any] | None = None, card: Accelerator | None = None
) -> dict[str, Any]:
    """`log_result` with `comparison` and `calibrated`, the values of `measured` to plan from this start.

    `card_guess` has the cards that may be meant where the log names none. The model's config is `config`, or the
    catalogue's; `card` stands in place of what the log says of it. Where there is no config, or the flags cannot be
    planned, the first two are null and `prediction_error` is set.
    """
    result = log_result(log)
    result |= {"comparison": None, "calibrated": None, "prediction_error": None, "card_guess": None}
    try:
        planned = _planned(log, config, card)
    except KvPlannerError as error:
        result["card_guess"] = _guess(log, None)
        result["prediction_error"] = {
            "code": error.code,
            "field": error.field,
            "message": str(error),
            "next_step": error.next_step,
        }
        return result
    result["request"] = {**result["request"], "model": planned.scenario.model}
    if card is not None:
        result["request"]["accelerator"] = card.id
    else:
        result["card_guess"] = _guess(log, planned.scenario)
    result["comparison"] = _comparison(compare(log, planned))
    result["calibrated"] = measured_values(calibrated(log, planned))
    return result


def _guess(log: StartupLog, scenario: Scenario | None) -> dict[str, Any] | None:
    guess = guessed_cards(log, scenario)
    if guess is None:
        return None
    return {
        "memory_gib": guess.memory_gib,
        "cards": [card.id for card in guess.cards],
        "by_budget": guess.by_budget,
        **_fields(guess.notice, "message", "next_step"),
    }


def _planned(log: StartupLog, config: Mapping[str, Any] | None, card: Accelerator | None) -> Plan:
    if config is None:
        scenario = scenario_from_log(log).scenario
    else:
        entry = find_logged_model(log.model)
        scenario = with_logged_graphs(scenario_from_request({**request_from(log), "config": config}), log)
        scenario = replace(scenario, model=entry.id) if entry is not None else scenario
    return plan(scenario if card is None else with_accelerator(scenario, card))


def _comparison(comparison: Comparison) -> dict[str, Any]:
    """The comparison in GiB and in the engine's own figures."""
    return {
        "parts": [
            {
                "part": part.part,
                **_rounded(part, "predicted_gib", "measured_gib", "difference_gib"),
                "interval_gib": None
                if part.interval_gib is None
                else [rounded(gib) for gib in part.interval_gib],
                "inside": part.is_inside,
                "causes": [_fields(cause, "code", "message", "next_step") for cause in part.causes],
            }
            for part in comparison.parts
        ],
        "figures": [
            {"figure": figure.figure, **_rounded(figure, "predicted", "measured", "from_measured_kv")}
            for figure in comparison.figures
        ],
        "notices": [_fields(notice, "code", "message") for notice in comparison.notices],
    }


def _fields(item: object, *names: str) -> dict[str, Any]:
    return {name: getattr(item, name) for name in names}


def _rounded(item: object, *names: str) -> dict[str, float | None]:
    values = _fields(item, *names).items()
    return {name: None if value is None else rounded(value) for name, value in values}


def log_table(report: Mapping[str, Any]) -> str:
    """A report as lines for people."""
    name = " ".join(
        str(report[key]) for key in ("model", "engine", "engine_version") if report[key] is not None
    )
    lines = [name, ""]
    comparison = report["comparison"]
    if comparison is None:
        error = report["prediction_error"]
        lines += [f"not planned: {error['message']}; {error['next_step']}"]
    else:
        lines.append(f"  {'GiB of one GPU':<16}{'predicted':>10}{'measured':>10}{'difference':>12}")
        for part in comparison["parts"]:
            lines.append(_part_line(part))
            lines += [f"    {cause['message']}" for cause in part["causes"]]
        for figure in comparison["figures"]:
            numbers = "".join(
                f"{'-' if figure[key] is None else format(figure[key], ',.2f'):>18}"
                for key in ("predicted", "measured", "from_measured_kv")
            )
            lines.append(f"  {figure['figure']:<16}{numbers}")
        lines += [f"  {notice['message']}" for notice in comparison["notices"]]
        lines += ["", "to plan from these figures: " + json.dumps({"measured": report["calibrated"]})]
    lines += ["", *map(_figure_line, report["figures"])]
    failure = report["failure"]
    if failure is not None:
        what = "it died in service" if failure["phase"] == Phase.RUN_TIME else "the start failed"
        lines += ["", f"{what}: {failure['message']}", f"  {failure['next_step']}"]
        if failure["change"] is not None:
            lines.append(f"  {failure['change']['field']} = {failure['change']['value']}")
    if report["card_guess"] is not None:
        lines.append(f"  {report['card_guess']['message']}; {report['card_guess']['next_step']}")
    lines += [f"  {warning['message']}" for warning in report["warnings"]]
    return "\n".join(lines)


def _figure_line(figure: Mapping[str, Any]) -> str:
    """A figure, its unit, and the line and process that printed it."""
    value = f"{figure['value']:,.4f}".rstrip("0").rstrip(".")
    process = f", {figure['rank']}" if figure["rank"] else ""
    return f"  {figure['figure']:<24}{value:>14} {figure['unit']:<9} line {figure['line_number']}{process}"


def _part_line(part: Mapping[str, Any]) -> str:
    if part["measured_gib"] is None:
        return f"  {part['part']:<16}{part['predicted_gib']:>10.2f}{'-':>10}"
    inside = "" if part["inside"] else "  outside its interval" if part["interval_gib"] else "  differs"
    return (
        f"  {part['part']:<16}{part['predicted_gib']:>10.2f}{part['measured_gib']:>10.2f}"
        f"{part['difference_gib']:>+12.2f}{inside}"
    )


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
        "request": request_from(log),
        "measured": measured_from(log).values(),
        "figures": [
            _fields(reading, "figure", "value", "unit", "rank", "line_number", "line")
            for reading in log.readings
        ],
        "ranks": [
            {"rank": rank.rank, **{reading.figure: reading.value for reading in rank.readings}}
            for rank in log.ranks
        ],
        "surroundings": [_fields(said, "field", "cases", "line_number", "line") for said in log.surroundings],
        "spreads": [_fields(spread, "figure", "low", "high", "ranks") for spread in log.spreads],
        "missing": list(log.missing),
        "failure": None if log.failure is None else _failure(log.failure),
        "warnings": [_fields(notice, "code", "field", "message", "next_step") for notice in log.notices],
    }


def _failure(failure: Failure) -> dict[str, Any]:
    return {
        "code": failure.code,
        "phase": failure.phase.value,
        **_fields(failure.notice, "message", "next_step"),
        "change": None if failure.change is None else _fields(failure.change, "field", "value"),
        "numbers": dict(failure.numbers),
        **_fields(failure, "line_number", "line"),
    }
