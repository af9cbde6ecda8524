"""More published shapes of request logs: exports, collectors, tracers, traces of papers, lines of names and values."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kvcore.workload.logs import read_request_log
from kvcore.workload.mix import workload_report
from kvcore.workload.records import RequestLog

START = 1_782_600_000
Record = dict[str, Any]


def read(*records: Record | str) -> RequestLog:
    texts = (one if isinstance(one, str) else json.dumps(one) for one in records)
    return read_request_log([(line + "\n").encode() for text in texts for line in text.splitlines()])


def iso(at: int) -> str:
    return f"2026-06-01T10:00:{at:02}Z"


def usage(at: int) -> Record:
    return {"prompt_tokens": 100 + at, "completion_tokens": 20 + at}


LINES: dict[str, Callable[[int], Record | str]] = {
    "portkey": lambda at: {
        "created_at": iso(at), "req_units": 100 + at, "res_units": 20 + at, "response_status_code": 200,
        "is_success": True,
    },
    "cloudflare logpush": lambda at: {
        "CreatedAt": iso(at), "StatusCode": 200, "TokensIn": 100 + at, "TokensOut": 20 + at, "RequestBody": "",
    },
    "azure api management": lambda at: {
        "time": iso(at), "category": "GatewayLlmLogs",
        "properties": {"promptTokens": 100 + at, "completionTokens": 20 + at, "modelName": "m"},
    },
    "vertex in bigquery": lambda at: {
        "logging_time": iso(at), "full_request": '{"contents": []}', "full_response": json.dumps(
            {"usageMetadata": {"promptTokenCount": 100 + at, "candidatesTokenCount": 15 + at, "thoughtsTokenCount": 5}}
        ),
    },
    "phoenix": lambda at: {
        "span_kind": "LLM", "start_time": iso(at), "status_code": "OK",
        "attributes.llm.token_count.prompt": 100 + at, "attributes.llm.token_count.completion": 20 + at,
    },
    "weave": lambda at: {
        "op_name": "openai.chat", "started_at": iso(at), "exception": None,
        "summary": {"usage": {"gpt-4o": {"requests": 1, **usage(at)}}, "weave": {"status": "success"}},
    },
    "new relic": lambda at: {"timestamp": (START + at) * 1000, "response.usage.prompt_tokens": 100 + at,
                             "response.usage.completion_tokens": 20 + at},
    "splunk": lambda at: {"time": START + at, "sourcetype": "_json", "event": {"model": "m", "usage": usage(at)}},
    "cloud logging": lambda at: {"jsonPayload": {"usage": usage(at), "status": 200}, "timestamp": iso(at)},
    "docker": lambda at: {"log": json.dumps({"usage": usage(at)}) + "\n", "stream": "stdout", "time": iso(at)},
    "journald": lambda at: {"__REALTIME_TIMESTAMP": str((START + at) * 10**6),
                            "MESSAGE": json.dumps({"usage": usage(at)}), "PRIORITY": "6"},
    "fluent bit": lambda at: {"@timestamp": iso(at), "log_processed": {"usage": usage(at)}, "log": "x"},
    "elasticdump": lambda at: {"_index": "llm", "_score": 1, "_source": {
        "@timestamp": iso(at), "gen_ai": {"usage": {"input_tokens": 100 + at, "output_tokens": 20 + at}}}},
    "bailian": lambda at: {"chat_id": at, "parent_chat_id": -1, "timestamp": at / 2, "input_length": 100 + at,
                           "output_length": 20 + at, "type": "text", "turn": 1, "hash_ids": [at]},
    "mlflow traces": lambda at: {"info": {"request_time": iso(at), "state": "OK", "trace_metadata": {
        "mlflow.trace.tokenUsage": json.dumps({"input_tokens": 100 + at, "output_tokens": 20 + at})}}},
    "gemini cli": lambda at: {"attributes": {"event.name": "gemini_cli.api_response", "event.timestamp": iso(at),
                                             "input_token_count": 100 + at, "output_token_count": 20 + at}},
    "opencode": lambda at: {"role": "assistant", "time": {"created": (START + at) * 1000},
                            "tokens": {"input": 100 + at, "output": 20 + at, "cache": {"read": 0}}},
    "ray serve": lambda at: {"asctime": iso(at), "levelname": "INFO", "usage": usage(at)},
    "logfmt": lambda at: f'ts={iso(at)} level=info msg="done" prompt_tokens={100 + at} completion_tokens={20 + at}',
    "envoy as text": lambda at: f'[{iso(at)}] "POST /v1/x" 200 input_tokens={100 + at} output_tokens={20 + at}',
    "a dictionary of python": lambda at: f"2026-06-01 10:00:{at:02},123 - gw - INFO - {usage(at)}",
    "json within text": lambda at: f"2026-06-01 lb[1]: {json.dumps({'ts': START + at, **usage(at)})} end",
}  # fmt: skip


@pytest.mark.parametrize("name", LINES)
def test_ten_requests_of_each_shape(name: str) -> None:
    log = read(*(LINES[name](at) for at in range(10)))
    report = workload_report(log)
    assert (report["requests"], report["counted_by"], report["broken_lines"]) == (10, "usage", 0)
    assert (report["prompt"]["max"], report["output"]["max"]) == (109, 29)
    assert len(log.timeline) == 10


@pytest.mark.parametrize(
    "header", ["arrival_timestamp,prompt_size,token_size,request_id",
               ",num_prefill_tokens,num_decode_tokens,arrived_at",
               "time|prompt_tokens|completion_tokens", "# by a gateway\ntime,prompt_tokens,completion_tokens"],
)  # fmt: skip
def test_ten_requests_of_each_table(header: str) -> None:
    names = header.splitlines()[-1].replace("|", ",").split(",")
    prompt = next(at for at, name in enumerate(names) if "pr" in name)
    rows = []
    for at in range(10):
        cells = [str(at)] * len(names)
        cells[prompt : prompt + 2] = str(100 + at), str(20 + at)
        rows.append(("|" if "|" in header else ",").join(cells))
    log = read(header, *rows)
    assert (log.traffic.prompts.lengths, log.traffic.answers.longest_tokens) == (tuple(range(100, 110)), 29)
    assert len(log.timeline) == 10


def test_what_stands_beside_the_requests_is_told_apart() -> None:
    """Parts of a streamed answer, a bulk file's own lines, the head of a session, failures in each gateway's words."""
    counts = {"prompt_eval_count": 100, "eval_count": 20, "done": True}
    log = read({"message": {"content": "a"}, "done": False}, counts, {"message": {}, "done": False}, counts)
    assert (log.traffic.requests, log.other_kinds, log.unusable) == (2, 2, 0)
    bulk = read({"index": {"_index": "llm"}}, {"usage": usage(0)})
    assert (bulk.traffic.requests, bulk.unusable) == (1, 0)
    failed = (
        {"is_success": False, "response_status_code": 500, "req_units": 7, "res_units": 0},
        {"errorCode": "ThrottlingException", "input": {"inputTokenCount": 500}},
        {"usage": usage(1), "error": "boom"},
    )
    log = read({"usage": usage(0), "error": "0"}, {"usage": usage(0), "error_code": None}, *failed)
    assert (log.traffic.requests, log.failed) == (2, 3)


def test_a_request_came_with_its_first_line_in_a_log_of_vllm() -> None:
    def lines(at: int) -> list[str]:
        stamp = f"INFO 06-01 10:00:{at:02} [logger.py:39]"
        return [
            f"{stamp} Received request r{at}: params: SamplingParams(max_tokens=64), prompt_token_ids: [1, 2].",
            f"INFO 06-01 10:00:59 [logger.py:39] Generated response r{at}: output: 'x', output_token_ids: [7]",
        ]

    log = read(*(line for at in range(10) for line in lines(at)))
    assert (len(log.timeline), log.timeline.span_seconds) == (10, 9.0)


def test_single_values_of_search_results() -> None:
    hits = [
        {
            "fields": {
                "@timestamp": [iso(at)],
                "usage.prompt_tokens": [100 + at],
                "usage.completion_tokens": [20],
            }
        }
        for at in range(10)
    ]
    log = read({"hits": {"total": {"value": 10}, "hits": hits}})
    assert (log.traffic.requests, log.traffic.prompts.longest_tokens, len(log.timeline)) == (10, 109, 10)
