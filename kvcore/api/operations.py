"""The operations of the API, each a function from bytes to an answer. They run in workers; nothing is kept."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from kvcore.flags import FLAGS
from kvcore.flags.schema import request_schema
from kvcore.library import asked_sweep, catalogue_rows
from kvcore.model.config import SharedConfigs
from kvcore.planning import Batch, Plan, plan
from kvcore.wire.fields import Json, read_integer
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
MOST: Final = "most"
"""Option, of tools alone, with the most bytes of an answer's rows; what is left out is counted in `more`."""
FILES: Final = 64
"""Most files of one check."""


class Asked(Struct, frozen=True, kw_only=True):
    """One question: the body as it came, its media type, and the options of the address."""

    operation: str
    body: bytes = b""
    media: str = JSON
    options: Mapping[str, str] | None = None

    def option(self, name: str, default: str = "") -> str:
        """The option `name` of the address."""
        return (self.options or {}).get(name, default)

    @property
    def base(self) -> str | None:
        """The address of the pages; None where there are none."""
        return (self.options or {}).get("base")

    def linked(self, found: dict[str, Any], page: Callable[[str], str]) -> dict[str, Any]:
        """An answer with the link of the page that shows it, where there are pages."""
        return found if self.base is None else {**found, "page": page(self.base)}


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
    return asked.linked({**result, "sources": sources(planned)}, lambda base: page_of(planned, base))


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
    rows = [row for model in wanted.swept(wanted.models) for row in json_lines(model)]
    answer: dict[str, Any] = {"id": own_id[0], "status": "ok", "cells": []}
    most = asked.option(MOST)
    if most:
        cells = {row: json.loads(row) for row in rows}
        shown = _shortened(sorted(rows, key=lambda row: _worth(cells[row])), int(most))
        if len(shown) < len(rows):
            fitting = sum(cell.get("verdict") == FITS for cell in cells.values())
            answer["more"] = {"cells": len(rows) - len(shown), "fits_in_all": fitting, "to_see": NARROWER}
        rows = shown
    answer = asked.linked(answer, lambda base: f"{base}/explore?model={wanted.models[0]}")
    body = json.dumps(answer).replace('"cells": []', f'"cells": [{", ".join(rows)}]', 1)
    return Answered(status=200, media=JSON, body=body.encode())


NARROWER: Final = "name models, accelerators or tensor_parallel_sizes"


FITS: Final = "fits"


def _worth(cell: Json) -> tuple[bool, int, float]:
    """Orders cells for who sees some of them: those that fit first, the fewest GPUs, the most requests."""
    return cell.get("verdict") != FITS, cell.get("gpus") or 0, -(cell.get("max_concurrency") or 0.0)


def _shortened(rows: Sequence[str], most: int) -> list[str]:
    """The first rows that together have at most `most` bytes.

    Example:
        >>> _shortened(["abc", "de", "f"], 9)
        ['abc', 'de']
    """
    found: list[str] = []
    size = 0
    for row in rows:
        size += len(row.encode()) + 2
        if size > most:
            break
        found.append(row)
    return found


def _log(asked: Asked, own_id: list[object]) -> dict[str, Any]:
    from kvcore.evidence.log.reader import read_log
    from kvcore.evidence.log_report import log_report

    data, config, card = asked.body, None, None
    if asked.media == JSON:
        request = _request(asked, own_id)
        request.pop("id", None)
        config = _object(request, "config")
        if request.get("accelerator") is not None:
            card = catalogue.find_accelerator(_text_of(request, "accelerator"))
        request.pop("accelerator", None)
        data = _text_of(request, "log").encode("utf-8", "replace")
        _nothing_else(request)
    report = log_report(read_log(data), config, card)
    return asked.linked(report, lambda base: _page_of_log(report, config, base))


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
    return asked.linked(workload_report(log, max_tokens), lambda base: f"{base}/workload")


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
    answer: dict[str, Any] = {**rows}
    most = asked.option(MOST)
    if most:
        shown = _within(rows, int(most))
        answer |= shown
        more = {name: left for name, listed in rows.items() if (left := len(listed) - len(shown[name]))}
        if more:
            answer["more"] = {**more, "to_see": "search by words of a name, or name a kind"}
    return asked.linked(answer, lambda base: f"{base}/reference")


def _within(rows: Mapping[str, list[dict[str, Any]]], most: int) -> dict[str, list[dict[str, Any]]]:
    """The first rows of each kind; what a short list does not need is left to the longer ones."""
    texts = {name: [json.dumps(row) for row in listed] for name, listed in rows.items()}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in rows}
    for left, name in zip(
        range(len(texts), 0, -1), sorted(texts, key=lambda one: len(texts[one])), strict=True
    ):
        shown = _shortened(texts[name], most // left)
        found[name] = rows[name][: len(shown)]
        most -= sum(len(row.encode()) + 2 for row in shown)
    return found


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


def _check(asked: Asked, own_id: list[object]) -> dict[str, Any]:
    from kvcore.contract.deployed import Tight, check_files, check_result, reported
    from kvcore.manifests.files import Source

    request = _request(asked, own_id)
    request.pop("id", None)
    files = _object(request, "files")
    if not files:
        raise ScenarioError("missing-field", field="files")
    if len(files) > FILES or not all(isinstance(text, str) for text in files.values()):
        raise invalid("files", f"{len(files)} files", f"it must have at most {FILES} names, each with a text")
    card = None if request.get("accelerator") is None else _text_of(request, "accelerator")
    target = request.pop("target", None)
    if target is not None:
        target = read_integer(FLAGS["wanted"], target)
    tight = request.pop("tight", None)
    if tight is not None and tight not in list(Tight):
        raise not_among("tight", tight, list(Tight))
    request.pop("accelerator", None)
    _nothing_else(request)
    sources = [Source(name[:LONGEST_NAME], text) for name, text in files.items()]
    found = check_files(sources, card, Tight(tight or Tight.STARTS), target)
    return check_result(found, reported(found, asked.base or ""))


LONGEST_NAME: Final = 400


def _fields(asked: Asked, own_id: list[object]) -> dict[str, Any]:
    """Fields of a request by words of their name or their description, with their schemas."""
    del own_id
    words = asked.option("search").lower().replace("-", "_").split()
    found = {
        name: schema
        for name, schema in request_schema()["properties"].items()
        if all(word in f"{name} {schema.get('description', '')}".lower() for word in words)
    }
    rows = [json.dumps({name: schema}) for name, schema in found.items()]
    shown = _shortened(sorted(rows, key=len), int(asked.option(MOST, str(MOST_OF_FIELDS))))
    answer: dict[str, Any] = {"fields": {}}
    for row in shown:
        answer["fields"] |= json.loads(row)
    left = sorted(found.keys() - answer["fields"].keys())
    return answer | ({"more": left} if left else {})


MOST_OF_FIELDS: Final = 12_000


_OPERATIONS: Final[Mapping[str, Callable[[Asked, list[object]], Answered | list[Any] | dict[str, Any]]]] = {
    "plan": _plan,
    "batch": _batch,
    "sweep": _sweep,
    "log": _log,
    "workload": _workload,
    "catalogue": _catalogue,
    "check": _check,
    "fields": _fields,
}
