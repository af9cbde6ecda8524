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
from kvcore.base.errors import MESSAGES, EngineRefusalError, KvPlannerError
from kvcore.base.untrusted import utf8_text
from kvcore.base.words import Language, words
from kvcore.charts import curves as charts
from kvcore.charts import summary
from kvcore.charts.memory_bar import memory_bar
from kvcore.charts.replay_figures import replay_report
from kvcore.contract.deployed import check_files, check_result
from kvcore.contract.result import error_of, planned_result
from kvcore.controls import in_force
from kvcore.deploy import shell
from kvcore.engines.registry import find_engine
from kvcore.evidence.log.reader import read_log
from kvcore.evidence.log_report import log_report
from kvcore.evidence.recognized import scenario_from_log
from kvcore.explain import numbers
from kvcore.manifests.files import Source
from kvcore.planning import Plan, plan
from kvcore.replay.clock import UserClock
from kvcore.replay.fitting import fitted_clock
from kvcore.replay.series import replayed
from kvcore.replay.steps import case_answer, case_settings
from kvcore.replay.trace import read_trace
from kvcore.scenario import Scenario
from kvcore.wire import link
from kvcore.wire.request import id_of, parse_request, scenario_from_request
from kvcore.workload.mix import workload_report
from kvcore.workload.prometheus import read_metrics
from kvcore.workload.records import read_logs_here

MAX_BYTES: Final = 1 << 16
"""Longest input: longer ones find slow code rather than wrong code, which has tests of its own."""

SHOWN: Final = int(os.environ.get("FUZZ_SHOWN", "1"))
"""Plans of which one is shown, as that costs ten times the planning: the fuzzer shows every eighth, tests all."""
_REPLAY: Final[Mapping[str, Any]] = {
    "engine_version": "0.32.0", "num_blocks": 600, "block_size": 16, "max_num_seqs": 8, "max_num_batched_tokens": 512,
    "max_model_len": 8192, "async_scheduling": True,
}  # fmt: skip
_RATES: Final = UserClock(prefill_tokens_per_second=10_000, decode_tokens_per_second=50)
_STATUSES: Final = ("ok", "error")
_T: Final = words(Language.ENGLISH)


def contract(data: bytes) -> None:
    """A request of the JSON contract."""
    try:
        request = parse_request(utf8_text(data))
        _check_result(planned_result(plan(scenario_from_request(request)), id_of(request)))
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
        find_engine(scenario.engine).release(scenario.engine_version)
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
        json.dumps(workload_report(read_logs_here([io.BytesIO(data)])))
    except KvPlannerError as error:
        _check_error(error)


def packed_log(data: bytes) -> None:
    """A request log in a packed file, as the page reads it."""
    request_log(data)


def metrics(data: bytes) -> None:
    """A pasted text of /metrics, and the percentiles between its edges."""
    try:
        found = read_metrics(data.decode("utf-8", "replace"))
    except KvPlannerError as error:
        _check_error(error)
        return
    for buckets in found.values():
        for percent in (50, 95, 99):
            low, high = buckets.interval(percent)
            assert 0 <= low <= high
        assert buckets.mean >= 0


def trace(data: bytes) -> None:
    """A trace file, replayed in a small pool."""
    try:
        requests = read_trace(io.BytesIO(data))[:40]
        settings = case_settings({**_REPLAY, "enable_prefix_caching": len(data) % 2 == 0})
        json.dumps(replay_report(replayed(requests, settings, _RATES)), allow_nan=False)
    except KvPlannerError as error:
        _check_error(error)


def benchmark(data: bytes) -> None:
    """A benchmark's result, from which a clock is fitted."""
    try:
        found = fitted_clock(parse_request(data.decode("utf-8", "replace")))
    except KvPlannerError as error:
        _check_error(error)
        return
    assert min(found.a, found.b, found.c) >= 0


def replay_case(data: bytes) -> None:
    """A case of the step contract."""
    answer = case_answer(data)
    json.dumps(answer, allow_nan=False)
    if "error" in answer:
        assert answer["error"]["code"] in MESSAGES
        assert answer["error"]["code"] != "internal-error"


def command(data: bytes) -> None:
    """A pasted command, container file or YAML."""
    start_up_log(b"vllm serve " + data)
    start_up_log(data)


def deployed(data: bytes) -> None:
    """Files that people deploy, as each kind in turn, and what their workloads come to."""
    for name in ("a.yaml", "a.sh", "a.py", "a.tf", "a.service", "Makefile", "Dockerfile", "-"):
        found = check_files([Source(name, data)], "L4-24GB")
        json.dumps(check_result(found), allow_nan=False)
        for problem in found.read.problems:
            _check_error(problem.error)


def search(data: bytes) -> None:
    """Texts that find a model or a card, or describe one."""
    text = data.decode("utf-8", "replace")[:200]
    catalogue.search_models(text)
    catalogue.search_accelerators(text)
    for vendor in (None, text):
        try:
            scenario_from_request({"model": text, "accelerator": {"name": text, "vendor": vendor}})
        except KvPlannerError as error:
            _check_error(error)


def views(scenario: Scenario) -> None:
    """The figures of the Plan page for a scenario, planned or refused; one in `SHOWN` plans is shown."""
    encoded = link.encode(scenario)
    link.query_string(encoded)
    in_force.settings_in_force(scenario, _T)
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
    in_force.override_steps(planned)
    shell.launch_command(planned)
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
    "gzip": packed_log,
    "zstd": packed_log,
    "parquet": packed_log,
    "metrics": metrics,
    "trace": trace,
    "benchmark": benchmark,
    "replay_case": replay_case,
    "command": command,
    "deployed": deployed,
    "search": search,
}
