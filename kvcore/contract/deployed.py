"""Files that people deploy, judged: as JSON, and as a table for people. See docs/check-files.md."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from msgspec import Struct

from kvcore.advice.difference import difference_result
from kvcore.advice.fixes import Fix, FixPair
from kvcore.base.errors import KvPlannerError, Notice, notice, shorten
from kvcore.base.units import rounded_gib
from kvcore.planning import Plan, Verdict
from kvcore.preflight.limits import tight_start
from kvcore.preflight.outcome import Checked, Checks, Outcome, Tight, check_files
from kvcore.preflight.patches import Patch, fixes_of, own_setting, patch_of, surer_of, that_count
from kvcore.preflight.upgrade import Upgraded
from kvcore.wire.link import encode, query_string, written_out

__all__ = [
    "Checked",
    "Checks",
    "Outcome",
    "Reported",
    "Tight",
    "cells",
    "check_files",
    "check_lines",
    "check_result",
    "reported",
]  # fmt: skip

MAX_FIXES: Final = 3
MAX_PATCHES: Final = 24
"""Most workloads of one check whose patch is looked for."""
PAGE: Final = "KVPLANNER_URL"
"""The variable with the address of the page, which links lead to."""
_SGR: Final = {Outcome.STARTS: "32", Outcome.CANNOT_BE_KNOWN: "33"}
"""Colours of a terminal; red for all others."""
_RED: Final = "31"


SIZES: Final[dict[str, tuple[str, str, str]]] = {
    "shm_gib": ("shm_size: {}gb", "--shm-size {}g", "/dev/shm of {}Gi"),
    "host_memory_gib": ("mem_limit: {}g", "--memory {}g", "memory limit of {}Gi"),
}
"""Sizes of a container as a Compose file, docker run and people write them."""


class Reported(Struct, frozen=True, kw_only=True):
    """A judged workload with what would make it start."""

    checked: Checked
    fixes: tuple[Fix, ...]
    pair: FixPair | None
    """More GPUs and less of each, where more GPUs alone start tight."""
    patch: Patch | None
    link: str | None
    """The plan on the page; None where the address of the page is not known."""


def reported(found: Checks, page: str | None = None) -> tuple[Reported, ...]:
    """All workloads with their fixes, patches and links; `page` is the address of the page."""
    base = (page if page is not None else os.environ.get(PAGE, "")).rstrip("/")
    made: list[Reported] = []
    tried = 0
    for one in found.checked:
        fixes = fixes_of(one)
        patch = patch_of(found, one, fixes) if tried < MAX_PATCHES else None
        tried += one.outcome is not Outcome.STARTS
        counted = that_count(fixes, found.asked.tight)[:MAX_FIXES]
        made.append(
            Reported(checked=one, fixes=counted, pair=surer_of(fixes), patch=patch, link=_link(one, base))
        )
    return tuple(made)


def _link(one: Checked, base: str) -> str | None:
    if not base or not one.plans:
        return None
    return f"{base}/?{query_string(encode(written_out(one.plans[0])))}"


def check_result(
    found: Checks, rows: Sequence[Reported] | None = None, upgrades: Sequence[Upgraded] = ()
) -> dict[str, Any]:
    """All outcomes as JSON: docs/check-files.md names the fields; `upgrades` stand beside their workloads."""
    made = [_row(one) for one in (reported(found) if rows is None else rows)]
    for row, one in zip(made, upgrades, strict=False):
        row["upgrade"] = _upgrade(one)
    return {
        "status": "ok" if not found.read.problems and found.checked else "error",
        "exit_status": found.status,
        "workloads": made,
        "others": [
            {"name": one.name, "role": one.role, "file": one.place.file, "line": one.place.line}
            for one in found.read.others
        ],
        "problems": [
            {"file": one.file, "line": one.line, **_message(one.error)} for one in found.read.problems
        ],
    }  # fmt: skip


def _message(one: KvPlannerError | Notice) -> dict[str, str]:
    return {"code": one.code, "message": one.message, "next_step": one.next_step}


def _about(said: Iterable[Notice]) -> list[dict[str, str]]:
    return [{"field": one.field, **_message(one)} for one in said]


def _row(one: Reported) -> dict[str, Any]:
    checked = one.checked
    own = checked.workload
    return {
        "name": own.name,
        "kind": own.kind,
        "file": own.place.file,
        "line": own.place.line,
        "engine": own.engine,
        "engine_version": own.release,
        "model": own.model,
        "served_name": own.served_name,
        "request": dict(own.request),
        "accelerator": own.card,
        "gpus": own.gpus,
        "replicas": own.replicas,
        "host_memory_gib": own.host_memory_gib,
        "shm_gib": own.shm_gib,
        "environment": dict(own.environment),
        "undefined": list(own.undefined),
        "extra": dict(own.extra),
        "verdict": checked.outcome.value,
        "plans": [_planned(planned) for planned in checked.plans],
        "reasons": _about(checked.reasons),
        "warnings": _about(checked.warnings),
        "assumed": [_message(said) for said in checked.assumed],
        "fixes": [{"field": fix.field, "value": fix.value, "verdict": fix.verdict.value} for fix in one.fixes],
        "patch": None if one.patch is None else _patched(one.patch),
        "link": one.link,
    }  # fmt: skip


def _upgrade(one: Upgraded) -> dict[str, Any]:
    """The same on another release: defaults, GiB and tokens with their causes, and what refuses it there."""
    told = {} if one.difference is None else difference_result(one.difference)
    return {
        "verdict": {"before": one.before.outcome.value, "after": one.after.outcome.value},
        **{name: told.get(name, []) for name in ("resolved", "per_rank_gib", "kv")},
        "warnings": told.get("warnings", {"gone": [], "new": []}),
        "refused": _about(one.after.reasons) if one.ends else [],
    }


def _patched(patch: Patch) -> dict[str, Any]:
    changes = [{"field": name, "from": before, "to": after} for name, before, after in patch.changes]
    return {"file": patch.file, "changes": changes, "diff": patch.diff}


def _planned(planned: Plan) -> dict[str, Any]:
    card, cache = planned.scenario.accelerator, planned.cache
    return {
        "verdict": planned.verdict.value,
        "model": planned.scenario.model,
        "accelerator": None if card is None else card.id,
        "engine_version": str(planned.resolved.engine_version),
        "weights_gib": rounded_gib(planned.loaded_weights.value),
        "kv_gib": rounded_gib(planned.available_kv_bytes) if planned.available_kv_bytes is not None else None,
        "kv_tokens": None if cache is None else cache.tokens,
        "max_model_len": planned.resolved.max_model_len,
        "max_concurrency": None if cache is None else cache.max_concurrency,
    }


# -- for people


def check_lines(
    found: Checks, rows: Sequence[Reported] | None = None, *, colours: bool = False
) -> Iterator[str]:
    """All outcomes for people: a table, then each workload that does not simply start, then a line of the sum."""
    rows = reported(found) if rows is None else rows
    yield from _table([cells(one.checked) for one in rows], [one.checked for one in rows], colours)
    for one in rows:
        yield from _details(one)
    for other in found.read.others:
        where = _place(other.place.file, other.place.line)
        yield f"{'no engine':<16} {shorten(other.name, 40)}: {other.role}  ({where})"
    for problem in found.read.problems:
        where = _place(problem.file, problem.line)
        yield f"{'cannot be read':<16} {where}: {problem.error.message}; {problem.error.next_step}"
    if not found.checked:
        said = notice("check-nothing-found")
        yield _with_advice(said)
        return
    counts = Counter((list(Outcome).index(one.outcome), outcome_text(one)) for one in found.checked)
    yield "  ".join(f"{count} {said}" for (_, said), count in sorted(counts.items()))


def outcome_text(one: Checked) -> str:
    """The outcome in words: a start that may fail is no plain one."""
    return f"{one.outcome.value} (tight)" if one.is_tight else one.outcome.value


def _place(file: str, line: int) -> str:
    return shorten(f"{file}:{line}" if line else file, 160)


NO_CARD: Final = "no card named"
_HEADS: Final = ("verdict", "workload", "model", "cards", "engine", "weights/GPU", "KV cache", "file")


def cells(one: Checked) -> tuple[str, ...]:
    """A row of the table: verdict, workload, model, cards, engine, weights of a GPU, KV cache, place."""
    own = one.workload
    planned = _planned(one.plans[0]) if one.plans else None
    return (
        outcome_text(one),
        shorten(own.name or "-", 28),
        shorten(own.model or "-", 44),
        _on(one),
        shorten(" ".join(filter(None, (own.engine, own.release))), 24),
        "-" if planned is None else f"{planned['weights_gib']:.1f} GiB",
        "-" if planned is None or planned["kv_tokens"] is None else f"{planned['kv_tokens']:,} tokens",
        _place(own.place.file, own.place.line),
    )


def _table(rows: Sequence[tuple[str, ...]], checked: Sequence[Checked], colours: bool) -> Iterator[str]:
    if not rows:
        return
    widths = [max(map(len, column)) for column in zip(_HEADS, *rows, strict=True)]
    yield "  ".join(name.ljust(width) for name, width in zip(_HEADS, widths, strict=True)).rstrip()
    for row, one in zip(rows, checked, strict=True):
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        if colours:
            sign = _SGR[Outcome.CANNOT_BE_KNOWN] if one.is_tight else _SGR.get(one.outcome, _RED)
            padded[0] = f"\033[{sign}m{padded[0]}\033[0m"
        yield "  ".join(padded).rstrip()


def _details(one: Reported) -> Iterator[str]:
    checked = one.checked
    own = checked.workload
    if checked.outcome is Outcome.STARTS and not checked.warnings and not checked.assumed:
        return
    yield ""
    yield f"{shorten(own.name or own.model or '?', 60)} ({_place(own.place.file, own.place.line)})"
    flags = ", ".join(f"{key}={_short(value)}" for key, value in own.request.items())
    if flags:
        yield f"  {shorten(flags, 400)}"
    for said in checked.reasons:
        yield f"  {_with_advice(said)}"
    for said in checked.warnings:
        yield f"  warning: {_with_advice(said)}"
    for said in checked.assumed:
        yield f"  assumed: {said.message}"
    yield from _fixes(one)
    if one.link is not None:
        yield f"  {one.link}"
    if one.patch is not None:
        yield "  patch:"
        yield from (f"  {_printable(line)}" for line in one.patch.diff.splitlines())


def _fixes(one: Reported) -> Iterator[str]:
    """Every change, with what its start is."""
    lines = [f"{_setting(one, fix.field, fix.value)}{_start_of(fix)}" for fix in one.fixes]
    if one.pair is not None:
        lines.insert(1, " and ".join(_setting(one, *change) for change in one.pair.changes) + " (starts)")
    if len(lines) > 1:
        yield "  any one of these fixes is enough:"
    yield from (f"  fix: {line}" for line in lines)


def _setting(one: Reported, field: str, value: Any) -> str:
    """A setting with its value, by the name that its engine has for it."""
    own = one.checked.workload
    if field in SIZES:
        in_compose, in_shell, elsewhere = SIZES[field]
        said = {"compose": in_compose, "shell": in_shell}.get(own.kind, elsewhere)
        return said.format(value)
    name, held = own_setting(own.engine, field, value) or (field, value)
    return f"{name} = {_short(held)}"


def _with_advice(said: Notice) -> str:
    """A notice and its next step: the sentence of an engine keeps no full stop before the semicolon."""
    return f"{said.message.removesuffix('.')}; {said.next_step}"


def _start_of(fix: Fix) -> str:
    return (
        f" (starts, tight: {tight_start(fix.plan).message})" if fix.verdict is Verdict.TIGHT else " (starts)"
    )


def _printable(line: str) -> str:
    """A line of a stranger's file without control characters, which a terminal would obey."""
    return "".join(letter if letter.isprintable() or letter == "\t" else " " for letter in line)


def _short(value: object) -> str:
    return shorten("unknown" if value is None else value, 60)


def _on(one: Checked) -> str:
    own = one.workload
    count = f"{own.gpus} x " if isinstance(own.gpus, int) else ""
    card = one.plans[0].scenario.accelerator if one.plans else None
    name = card.id if card is not None else own.card or ("cards" if count else NO_CARD)
    return f"{count}{shorten(name, 36)}"
