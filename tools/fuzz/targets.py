"""One function for each reader of a stranger's bytes. It returns where the reader answers, or refuses by code."""

from __future__ import annotations

import io
import json
import os
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

from kvcore import catalogue
from kvcore.advice.fixes import fixes, refusal_fixes
from kvcore.advice.vary import tensor_parallel_curves
from kvcore.answers import planned_answer
from kvcore.deploy import launch
from kvcore.engine.vllm.versions import find_release
from kvcore.errors import MESSAGES, EngineRefusalError, KvPlannerError
from kvcore.evidence.log.reader import read_log
from kvcore.evidence.log_report import log_report
from kvcore.evidence.recognized import scenario_from_log
from kvcore.explain import numbers
from kvcore.planning import Plan, plan
from kvcore.scenario import Scenario, link, settings
from kvcore.scenario.contract import error_of
from kvcore.scenario.request import id_of, parse_request, scenario_from_request
from kvcore.texts.words import Language, words
from kvcore.untrusted import utf8_text
from kvcore.views import charts, summary
from kvcore.views.memory_bars import memory_bar
from kvcore.workload.mix import workload_report
from kvcore.workload.records import read_request_logs

MAX_BYTES: Final = 1 << 16
"""Of one input: longer ones find what is slow, not what is wrong, and that has tests of its own."""

SHOWN: Final = int(os.environ.get("FUZZ_SHOWN", "1"))
"""Showing a plan costs ten times what planning it does: the fuzzer shows every eighth, the tests show all."""
_STATUSES: Final = ("ok", "error")
_T: Final = words(Language.ENGLISH)


def contract(data: bytes) -> None:
    """A request of the JSON contract."""
    try:
        request = parse_request(utf8_text(data))
        _check_result(planned_answer(request, id_of(request)))
    except KvPlannerError as error:
        _check_result(error_of(error))


def config(data: bytes) -> None:
    """A config.json, as an upload, and then everything that the Plan page shows of it."""
    try:
        given = parse_request(data.decode("utf-8", "replace"))
        scenario = scenario_from_request({"accelerator": "H100-80GB", "max_model_len": 8192, "config": given})
    except KvPlannerError as error:
        _check_error(error)
        return
    views(scenario)


def request(data: bytes) -> None:
    """A request of the contract, and then everything that the Plan page shows of it."""
    try:
        scenario = scenario_from_request(parse_request(data.decode("utf-8", "replace")))
        find_release(scenario.engine, scenario.engine_version)
    except KvPlannerError as error:
        _check_error(error)
        return
    views(scenario)


def link_parameters(data: bytes) -> None:
    """The query string of a link: it always becomes a scenario, which gives the same link again."""
    decoded = link.decode(dict(parse_qsl(data.decode("utf-8", "replace"), keep_blank_values=True)))
    for repair in decoded.repairs:
        _check_error(repair.error)
    views(decoded.scenario)


def start_up_log(data: bytes) -> None:
    """A start-up log, its report, and the scenario that it becomes."""
    try:
        log = read_log(data)
        json.dumps(log_report(log))
        taken = scenario_from_log(log, link.decode({}).scenario)
    except KvPlannerError as error:
        _check_error(error)
        return
    views(taken.scenario)


def request_log(data: bytes) -> None:
    """A request log, and its report."""
    try:
        json.dumps(workload_report(read_request_logs([io.BytesIO(data)])))
    except KvPlannerError as error:
        _check_error(error)


def command(data: bytes) -> None:
    """A pasted command, container file or YAML."""
    start_up_log(b"vllm serve " + data)
    start_up_log(data)


def search(data: bytes) -> None:
    """What somebody types to find a model or a card, or to describe one."""
    text = data.decode("utf-8", "replace")[:200]
    catalogue.search_models(text)
    catalogue.search_accelerators(text)
    for vendor in (None, text):
        try:
            scenario_from_request({"model": text, "accelerator": {"name": text, "vendor": vendor}})
        except KvPlannerError as error:
            _check_error(error)


def views(scenario: Scenario) -> None:
    """What the Plan page computes for a scenario, planned or refused; one in `SHOWN` of what is planned is shown."""
    encoded = link.encode(scenario)
    link.query_string(encoded)
    settings.settings_in_force(scenario, _T)
    try:
        planned = plan(scenario)
    except KvPlannerError as error:
        _check_error(error)
        if isinstance(error, EngineRefusalError):
            refusal_fixes(scenario, error)
        return
    if SHOWN == 1 or zlib.crc32(repr(encoded).encode("utf-8", "replace")) % SHOWN == 0:
        views_of_plan(planned)


def views_of_plan(planned: Plan) -> None:
    """Sentences, figures, charts and commands of one plan."""
    curves = tensor_parallel_curves(planned, charts.curve_lengths(planned))
    summary.verdict_sentence(planned, _T)
    summary.scenario_head(planned, _T)
    summary.cards(planned, curves[0] if curves else None, _T)
    memory_bar(planned, _T).html("fuzz", "")
    json.dumps(charts.concurrency_chart(planned, curves, _T))
    numbers.number_rows(planned, _T)
    settings.override_steps(planned)
    launch.launch_command(planned)
    fixes(planned)
    for notice in planned.notices:
        assert notice.message, notice.code


def _check_result(result: Mapping[str, Any]) -> None:
    assert result["status"] in _STATUSES
    json.dumps(result, allow_nan=False).encode()
    if result["status"] == "error":
        assert result["error"]["code"] in MESSAGES
        assert result["error"]["message"]


def _check_error(error: KvPlannerError) -> None:
    assert error.code in MESSAGES
    assert str(error)
    str(error).encode()
    assert error.next_step


Target = Callable[[bytes], None]

TARGETS: Final[Mapping[str, Target]] = {
    "contract": contract,
    "config": config,
    "request": request,
    "link": link_parameters,
    "start_up_log": start_up_log,
    "request_log": request_log,
    "command": command,
    "search": search,
}
