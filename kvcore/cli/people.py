"""Commands for people: a plan, a difference and the fewest GPUs as tables, the answer first."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from kvcore.base.errors import EngineRefusalError, KvPlannerError, ScenarioError, defect, shorten
from kvcore.base.numbers import MINUS, concurrency_text, count, gib_text, signed_gib, significant
from kvcore.base.parts import PARTS
from kvcore.base.quantity import Unit
from kvcore.base.units import gib
from kvcore.base.untrusted import utf8_text
from kvcore.base.words import Language, Words, platform_words
from kvcore.cli.streams import waiting
from kvcore.cli.words import request_of_words
from kvcore.contract.result import error_of, planned_result
from kvcore.engines.registry import find_engine
from kvcore.planning import Plan, Verdict, plan
from kvcore.scenario import DEFAULT_ENGINE
from kvcore.wire.request import from_hub, parse_request, scenario_from_request

if TYPE_CHECKING:
    from kvcore.advice.difference import Changed, Difference
    from kvcore.advice.fewest import Fitting
    from kvcore.hub import HubModel

FITS: Final = 0
FAILS: Final = 1
UNREADABLE: Final = 2
MOST_FIXES: Final = 4
MOST_ROWS: Final = 20
FORMATS: Final = ("table", "json", "yaml")


# -- the request


def request_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The request of a model and flags, or of a file with one, over which flags go."""
    source = arguments.model
    if source == "-" or Path(source).is_file():
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
        request = dict(parse_request(utf8_text(data)))
        if not arguments.given:
            return request
        typed = request_of_words(str(request.get("model") or ""), arguments.given)
        return request | {name: value for name, value in typed.items() if name not in ("model", "config")}
    return request_of_words(source, arguments.given)


def told_hub(model: str) -> HubModel:
    """`from_hub`, with a word to the person who waits."""
    waiting(f"asking huggingface.co for {shorten(model, 100)}")
    return from_hub(model)


def own_words(engine: str = DEFAULT_ENGINE) -> Words:
    """The texts in the language of the terminal, in the words of the engine's platform."""
    named = (os.environ.get(name) for name in ("LC_ALL", "LC_MESSAGES", "LANG"))
    tag = next(filter(None, named), "")
    language = Language.of_tag(tag.partition(".")[0]) or Language.ENGLISH
    return platform_words(language, find_engine(engine).graph_api)


def _printed(found: Mapping[str, Any], form: str) -> None:
    if form == "yaml":
        import yaml

        print(yaml.safe_dump(_plain(found), sort_keys=False, allow_unicode=True, width=110), end="")
    else:
        print(json.dumps(found, ensure_ascii=False))


def _plain(value: Any) -> Any:
    """Lists and mappings only, as YAML writes them."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


# -- plan


def run_plan(arguments: argparse.Namespace) -> int:
    """One deployment: verdict, figures, fixes, command."""
    t, form = own_words(), arguments.format or "table"
    try:
        request = request_of(arguments)
        planned = plan(scenario_from_request(request, told_hub))
    except Exception as error:
        known = error if isinstance(error, KvPlannerError) else defect(error)
        if isinstance(error, OSError) and not isinstance(error, KvPlannerError):
            raise
        status = FAILS if arguments.exit_status and isinstance(known, EngineRefusalError) else UNREADABLE
        if form == "table":
            print(f"kvcore: {t.error(known)} → {t.next_step(known)}", file=sys.stderr)
        else:
            _printed(error_of(known), form)
        return status
    if form == "table":
        print("\n".join(plan_lines(_on_a_card(planned), own_words(planned.scenario.engine))))
    else:
        _printed(planned_result(planned, request.get("id")), form)
    return status_of(planned, arguments.exit_status)


def _on_a_card(planned: Plan) -> Plan:
    """The plan on the card that is assumed where none is named, with the notice that says so."""
    if planned.memory is not None or planned.scenario.accelerator is not None:
        return planned
    return replace(plan(replace(planned.scenario, accelerator=planned.accelerator)), notices=planned.notices)


def status_of(planned: Plan, asked: str) -> int:
    """The exit status that was asked for: 1 where the plan is not as good as `asked` says.

    Example:
        >>> from kvcore.library import plan
        >>> small = plan(model="Qwen/Qwen3-32B", accelerator="L4-24GB")
        >>> [status_of(small, asked) for asked in ("", "starts", "fits", "target")]
        [0, 1, 1, 1]
    """
    if not asked:
        return FITS
    good = (Verdict.FITS, Verdict.TIGHT) if asked == "starts" else (Verdict.FITS,)
    if planned.verdict not in good:
        return FAILS
    if asked == "target":
        from kvcore.advice.target import served

        target = served(planned)
        return FITS if target is None or target.enough else FAILS
    return FITS


def plan_lines(planned: Plan, t: Words) -> Iterator[str]:
    """A plan for a terminal."""
    from kvcore.charts.memory_bar import memory_title
    from kvcore.charts.plan_report import SIGNS
    from kvcore.charts.summary import requests_at_once, scenario_line, verdict_sentence
    from kvcore.deploy.shell import launch_command

    sentence = verdict_sentence(planned, t)
    yield f"{SIGNS[sentence.outcome.value]} {sentence.text}"
    yield " · ".join((shorten(planned.scenario.model, 100), *scenario_line(planned, t)))
    memory, cache = planned.memory, planned.cache
    if memory is not None:
        yield ""
        rows = [(memory_title(planned, t), gib_text(memory.total.value), t("80 % interval"))]
        for part in PARTS:
            quantity = getattr(memory, part.name)
            low, high = quantity.bounds
            spread = "" if quantity.interval is None else f"{gib_text(low)} … {gib_text(high)}"
            rows.append((f"  {t(part.label)}", gib_text(quantity.value), spread))
        yield from _table(rows)
    if cache is not None and cache.num_blocks > 0:
        yield ""
        yield from _table(
            [
                (t("Requests at once"), concurrency_text(requests_at_once(planned))),
                (t("KV cache tokens"), count(cache.tokens)),
                (t("Longest request"), count(cache.longest_request_tokens)),
            ]
        )
    fixes = list(_fix_lines(planned, t))
    if fixes:
        yield ""
        yield from fixes
    if planned.notices:
        yield ""
        yield from (f"{t('Note')}: {t.error(one)} → {t.next_step(one)}" for one in planned.notices)
    yield ""
    yield launch_command(planned)


def _fix_lines(planned: Plan, t: Words) -> Iterator[str]:
    from kvcore.advice.fixes import falls_short, fixes
    from kvcore.charts.summary import fix_label, fix_text

    if planned.verdict is Verdict.FITS and not (planned.scenario.wanted and falls_short(planned)):
        return
    for fix in fixes(planned)[:MOST_FIXES]:
        yield f"→ {fix_text(fix_label(fix, t), fix, t)}"


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Rows as columns: the first to the left, all others to the right; Chinese signs count double."""
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        first = row[0] + " " * (widths[0] - _width(row[0]))
        cells = (" " * (width - _width(cell)) + cell for cell, width in zip(row[1:], widths[1:], strict=True))
        yield "  ".join((first, *cells)).rstrip()


def _width(text: str) -> int:
    return sum(2 if ord(sign) >= 0x2E80 else 1 for sign in text)


# -- diff


def run_diff(arguments: argparse.Namespace) -> int:
    """Two requests, or one deployment on two releases."""
    from kvcore.advice.difference import difference, difference_result, release_difference

    one, other = arguments.before, arguments.after
    if arguments.model is not None:
        base = scenario_from_request(request_of(arguments), told_hub)
        found = release_difference(base, one, other)
    else:
        if arguments.given or not any(Path(name).exists() for name in (one, other)):
            raise ScenarioError("missing-field", field="model")
        pair = [Path(name).read_bytes() for name in (one, other)]
        plans = (plan(scenario_from_request(parse_request(utf8_text(data)), told_hub)) for data in pair)
        found = difference(next(plans), next(plans))
    if (arguments.format or "table") == "table":
        print("\n".join(difference_lines(found, (one, other), own_words(found.after.scenario.engine))))
    else:
        _printed(difference_result(found), arguments.format)
    return FITS


def difference_lines(found: Difference, names: tuple[str, str], t: Words) -> Iterator[str]:
    """A difference for a terminal: the verdicts, what was changed, what follows from it, and why."""
    from kvcore.charts.summary import verdict_sentence

    for name, planned in zip(names, (found.before, found.after), strict=True):
        yield f"{shorten(name, 60)}: {verdict_sentence(planned, t).text}"
    sections = (
        (t("Asked"), found.asked),
        (t("Defaults that moved"), found.settings),
        (t("GiB of one GPU"), found.parts),
        (t("KV cache"), found.figures),
    )
    labels = {part.name: t(part.label) for part in PARTS}
    labels |= {"total": t("Memory of one GPU"), "budget": t("budget of the engine")}
    labels |= {"tokens": t("KV cache tokens"), "max_concurrency": t("Requests at once"),
               "longest_request_tokens": t("Longest request")}  # fmt: skip
    for title, changes in sections:
        if not changes:
            continue
        yield ""
        yield title
        yield from _table([_change(one, labels.get(one.name, one.name)) for one in changes])
        because = [one for one in changes if one.why]
        if because:
            yield ""
            yield t("Why")
        for one in because:
            said = "; ".join(_cause(cause, labels) for cause in one.why)
            yield f"  {labels.get(one.name, one.name)}: {said}"
    if not any(changes for _, changes in sections):
        yield t("Nothing differs.")


def _change(one: Changed, label: str) -> tuple[str, ...]:
    more = ""
    if one.more and not isinstance(one.before, bool):
        sign = "+" if one.more > 0 else MINUS
        is_size = one.unit is Unit.BYTES
        more = signed_gib(gib(one.more)) if is_size else f"{sign}{_number(abs(one.more), one.unit)}"
    return f"  {label}", _number(one.before, one.unit), "→", _number(one.after, one.unit), more


def _cause(cause: Changed, labels: Mapping[str, str]) -> str:
    name = labels.get(cause.name, cause.name.replace("_", " "))
    return f"{name} {_number(cause.before or 0, cause.unit)} → {_number(cause.after or 0, cause.unit)}"


def _number(value: Any, unit: Unit) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return shorten(json.dumps(value) if isinstance(value, dict | list | bool) else str(value), 60)
    if unit is Unit.BYTES:
        return gib_text(value)
    return count(value) if isinstance(value, int) else significant(value)


# -- fit


def run_fit(arguments: argparse.Namespace) -> int:
    """The fewest GPUs of each card."""
    from kvcore import catalogue
    from kvcore.advice.fewest import fewest_gpus

    t = own_words()
    scenario = scenario_from_request(request_of(arguments), told_hub)
    cards = [catalogue.find_accelerator(name) for name in arguments.accelerators]
    if not cards and scenario.accelerator is not None:
        cards = [scenario.accelerator]
    found = fewest_gpus(scenario, cards)
    if (arguments.format or "table") == "table":
        print("\n".join(fit_lines(found, arguments.all or bool(cards), t)))
    else:
        _printed({"status": "ok", "fits": fit_rows(found)}, arguments.format)
    return FITS if found else FAILS


def fit_rows(found: Iterable[Fitting]) -> list[dict[str, Any]]:
    """The fewest GPUs of each card as JSON."""
    return [
        {
            "accelerator": one.accelerator.id,
            "gpus": one.gpus,
            "tensor_parallel_size": one.tensor_parallel_size,
            "replicas": one.replicas,
            "serves": one.serves,
            "verdict": one.plan.verdict.value,
            "memory_gib": round(one.memory_gib, 2),
        }
        for one in found
    ]


def fit_lines(found: Sequence[Fitting], every: bool, t: Words) -> Iterator[str]:
    """The fewest GPUs of each card for a terminal."""
    if not found:
        yield t("No card of the catalogue serves this inside one machine.")
        return
    best = found[0]
    yield t(
        "Fewest: {gpus} × {card}, {total} requests of {tokens} tokens at once",
        gpus=count(best.gpus),
        card=best.accelerator.id,
        total=count(best.serves),
        tokens=count(best.plan.resolved.max_model_len),
    )
    yield ""
    shown = found if every else found[:MOST_ROWS]
    head = (t("Card"), "GPU", t("replicas"), "TP", t("Requests at once"), "")
    rows = [
        (one.accelerator.id, count(one.gpus), count(one.replicas), str(one.tensor_parallel_size), count(one.serves),
         "" if one.plan.verdict is Verdict.FITS else one.plan.verdict.value)
        for one in shown
    ]  # fmt: skip
    yield from _table([head, *rows])
    if len(shown) < len(found):
        yield t("and {count} more cards: --all", count=count(len(found) - len(shown)))
