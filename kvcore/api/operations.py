"""The operations of the API, each a function from bytes to an answer. They run in workers; nothing is kept."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from kvcore import catalogue
from kvcore.api.problems import MEDIA as PROBLEM
from kvcore.api.problems import problem_bytes, status_of
from kvcore.base.errors import KvPlannerError, ScenarioError, WorkloadError, defect, invalid, not_among
from kvcore.base.parts import WEIGHTS
from kvcore.base.quantity import Quantity
from kvcore.base.untrusted import MAX_JSON_DEPTH, check_json, utf8_text
from kvcore.contract.result import RANK_PARTS, answer, planned_result
from kvcore.library import asked_sweep, catalogue_rows
from kvcore.model.config import SharedConfigs
from kvcore.planning import Batch, Plan, plan
from kvcore.wire.fields import Json
from kvcore.wire.request import from_hub, id_of, parse_request, scenario_from_request

JSON: Final = "application/json"
JSON_LINES: Final = "application/x-ndjson"
MAX_BATCH: Final = 256
"""Most requests of a batch: some ten seconds of computing."""
MAX_CELLS: Final = 16_384
"""Most cells of a sweep: about the whole catalogue on eight cards at all sizes."""
MAX_FOUND: Final = 50
OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "workload": ("max_tokens", "columns"),
    "catalogue": ("kind", "search"),
}
"""Options that an address may have."""
KINDS: Final = ("models", "accelerators", "engines")
LOCAL_PAGE: Final = "http://localhost:8501"
"""Address at which `make run` serves the pages."""


class Asked(Struct, frozen=True, kw_only=True):
    """One question: the body as it came, its media type, and the options of the address."""

    operation: str
    body: bytes = b""
    media: str = JSON
    options: Mapping[str, str] | None = None

    def option(self, name: str, default: str = "") -> str:
        """The option `name` of the address."""
        return (self.options or {}).get(name, default)


class Answered(Struct, frozen=True, kw_only=True):
    """One answer as HTTP sends it."""

    status: int
    media: str
    body: bytes


def answered(asked: Asked) -> Answered:
    """The answer to a question; an error of any kind is a problem with a code.

    Example:
        >>> answered(Asked(operation="plan", body=b'{"max_num_seqs": 1}')).status
        422
    """
    own_id: list[object] = []
    try:
        found = _OPERATIONS[asked.operation](asked, own_id)
    except Exception as error:  # the last net: a worker goes on
        known = error if isinstance(error, KvPlannerError) else defect(error)
        return Answered(status=status_of(known), media=PROBLEM, body=problem_bytes(known, *own_id))
    if isinstance(found, Answered):
        return found
    return Answered(status=200, media=JSON, body=json.dumps(found, allow_nan=False).encode())


def _request(asked: Asked, own_id: list[object]) -> dict[str, Any]:
    """The body as one JSON object; its `id` is appended to `own_id` for the answer."""
    request = dict(parse_request(utf8_text(asked.body)))
    own_id.append(id_of(request))
    return request


def _plan(asked: Asked, own_id: list[object]) -> dict[str, Any]:
    request = _request(asked, own_id)
    planned = plan(scenario_from_request(request, from_hub))
    result = planned_result(planned, own_id[0])
    return {**result, "sources": sources(planned), "page": page_of(planned, asked.option("base"))}


def sources(planned: Plan) -> dict[str, dict[str, Any]]:
    """Grade and sources of each part of a rank's memory.

    Example:
        >>> import kvcore
        >>> sources(kvcore.plan(model="Qwen/Qwen3-8B", accelerator="H100-80GB"))["weights"]["grade"]
        'derived'
    """
    if planned.memory is None:
        parts = {WEIGHTS.name: planned.loaded_weights}
    else:
        parts = {name: getattr(planned.memory, name) for name in RANK_PARTS}
    return {
        name: {"grade": part.grade.value, "sources": list(_sources_of(part))} for name, part in parts.items()
    }


def _sources_of(part: Quantity) -> Iterable[str]:
    """The part's own source, or else those of its terms."""
    return [part.source] if part.source else sorted({one.source for one in part.walk() if one.source})


def page_of(planned: Plan, base: str = "") -> str:
    """The page at `base` that shows a plan, with release and share of the card written out in the link."""
    from kvcore.wire.link import encode, query_string, written_out

    return f"{base}/?{query_string(encode(written_out(planned)))}"


def _batch(asked: Asked, own_id: list[object]) -> Answered | list[dict[str, Any]]:
    del own_id
    configs, batch = SharedConfigs(), Batch()
    if asked.media != JSON:
        lines = [line for line in asked.body.splitlines() if line.strip()]
        _check_batch(len(lines))
        found = (json.dumps(answer(line, configs.read, batch)) for line in lines)
        return Answered(status=200, media=JSON_LINES, body="".join(f"{line}\n" for line in found).encode())
    text = utf8_text(asked.body)
    check_json(text, max_depth=MAX_JSON_DEPTH + 1)
    try:
        rows = json.loads(text, parse_int=_Number)
    except ValueError as error:
        raise ScenarioError("invalid-json", reason=str(error)) from None
    if not isinstance(rows, list):
        raise ScenarioError("invalid-json", reason="an array of requests is expected")
    _check_batch(len(rows))
    return [answer(json.dumps(row), configs.read, batch) for row in rows]


class _Number(int):
    """A whole number, cut to 64 digits, so that each request of a batch is read with the limits of a single one."""

    def __new__(cls, digits: str) -> _Number:
        return super().__new__(cls, digits[:64])


def _check_batch(rows: int) -> None:
    if rows > MAX_BATCH:
        raise ScenarioError("batch-too-long", limit=MAX_BATCH)


def _sweep(asked: Asked, own_id: list[object]) -> Answered:
    from kvcore.charts.matrix import json_lines

    request = _request(asked, own_id)
    request.pop("id", None)
    wanted = asked_sweep(**{name: value for name, value in request.items() if value is not None})
    if wanted.cells > MAX_CELLS:
        raise ScenarioError("sweep-too-large", cells=f"{wanted.cells:,}", limit=f"{MAX_CELLS:,}")
    rows = ", ".join(row for model in wanted.swept(wanted.models) for row in json_lines(model))
    page = json.dumps(f"{asked.option('base')}/explore?model={wanted.models[0]}")
    body = f'{{"id": {json.dumps(own_id[0])}, "status": "ok", "cells": [{rows}], "page": {page}}}'
    return Answered(status=200, media=JSON, body=body.encode())


def _log(asked: Asked, own_id: list[object]) -> dict[str, Any]:
    from kvcore.evidence.log.reader import read_log
    from kvcore.evidence.log_report import log_report

    data, config = asked.body, None
    if asked.media == JSON:
        request = _request(asked, own_id)
        request.pop("id", None)
        config = _object(request, "config")
        data = _text_of(request, "log").encode("utf-8", "replace")
        _nothing_else(request)
    report = log_report(read_log(data), config)
    return {**report, "page": _page_of_log(report, config, asked.option("base"))}


def _page_of_log(report: Mapping[str, Any], config: Json | None, base: str) -> str:
    """The page of a plan calibrated by this start, or the page that reads logs where it cannot be planned."""
    if report["prediction_error"] is not None:
        return f"{base}/check"
    request = {**report["request"], "measured": report["calibrated"]}
    if config is not None:
        request["config"] = config
    try:
        return page_of(plan(scenario_from_request(request)), base)
    except KvPlannerError:
        return f"{base}/check"


def _object(request: dict[str, Any], field: str) -> Json | None:
    found = request.pop(field, None)
    if found is not None and not isinstance(found, dict):
        raise invalid(field, found, "it must be an object")
    return found


def _text_of(request: dict[str, Any], field: str) -> str:
    found = request.pop(field, None)
    if found is None:
        raise ScenarioError("missing-field", field=field)
    if not isinstance(found, str):
        raise invalid(field, found, "it must be a text")
    return found


def _nothing_else(request: Mapping[str, Any]) -> None:
    for name in request:
        raise ScenarioError("unknown-field", field=name)


def _workload(asked: Asked, own_id: list[object]) -> dict[str, Any]:
    del own_id
    from kvcore.workload.histogram import MAX_TOKENS
    from kvcore.workload.logs import read_request_logs
    from kvcore.workload.mix import workload_report
    from kvcore.workload.requests import Reading

    given = asked.option("max_tokens")
    max_tokens = None
    if given:
        if not (given.isascii() and given.isdigit() and len(given) < 20 and 1 <= int(given) <= MAX_TOKENS):
            raise invalid("max_tokens", given, f"it must be a whole number from 1 to {MAX_TOKENS}")
        max_tokens = int(given)
    columns = _columns(asked.option("columns"))
    log = read_request_logs([io.BytesIO(asked.body)], reading=Reading(columns=columns))
    for name in log.unseen:
        raise WorkloadError("unknown-column", field="columns", value=name)
    return {**workload_report(log, max_tokens), "page": f"{asked.option('base')}/workload"}


def _columns(given: str) -> tuple[tuple[str, str], ...]:
    """The log's own names of fields. Raises ScenarioError `invalid-value` or `named-twice`."""
    found: dict[str, str] = {}
    for part in given.split(",") if given else ():
        field, _, name = map(str.strip, part.partition("="))
        if not field or not name:
            raise invalid("columns", given, "it must be pairs such as prompt=in,completion=out")
        if field in found:
            raise ScenarioError("named-twice", field=field, value=name)
        found[field] = name
    return tuple(found.items())


def _catalogue(asked: Asked, own_id: list[object]) -> dict[str, Any]:
    del own_id
    kind, search = asked.option("kind"), asked.option("search")
    if kind and kind not in KINDS:
        raise not_among("kind", kind, KINDS)
    rows = {name: listed for name, listed in catalogue_rows().items() if kind in ("", name)}
    if search:
        rows = {name: _found(name, listed, search) for name, listed in rows.items()}
    return {**rows, "page": f"{asked.option('base')}/reference"}


def _found(kind: str, rows: list[dict[str, Any]], search: str) -> list[dict[str, Any]]:
    """The rows that match a search, the best match first."""
    if kind == "engines":
        return [row for row in rows if search.lower() in f"{row['engine']} {row['version']}"]
    if kind == "models":
        ids = list(catalogue.search_models(search, MAX_FOUND))
    else:
        ids = [card.id for card in catalogue.search_accelerators(search, MAX_FOUND)]
    by_id = {row["id"]: row for row in rows}
    return [by_id[name] for name in ids]


_OPERATIONS: Final[Mapping[str, Callable[[Asked, list[object]], Answered | list[Any] | dict[str, Any]]]] = {
    "plan": _plan,
    "batch": _batch,
    "sweep": _sweep,
    "log": _log,
    "workload": _workload,
    "catalogue": _catalogue,
}
