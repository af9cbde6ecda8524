"""Logs of gateways, tracers, benchmarks and engines in their published shapes: five requests each, and what is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kvcore.base.errors import WorkloadError
from kvcore.workload import opening
from kvcore.workload.logs import read_request_log
from kvcore.workload.mix import workload_report
from kvcore.workload.records import RequestLog
from kvcore.workload.requests import Reading

Record = dict[str, Any]


def read(*records: Record | str) -> RequestLog:
    texts = (one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in records)
    return read_request_log([(text + "\n").encode() for text in texts])


def span(**attributes: int | str) -> Record:
    said = [
        {"key": name, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for name, value in attributes.items()
    ]
    return {"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "x", "attributes": said}]}]}]}


ONE_RECORD: dict[str, Callable[[int, int], Record]] = {
    "bedrock": lambda p, a: {
        "modelId": "m", "operation": "Converse", "input": {"inputBodyJson": {"messages": []}, "inputTokenCount": p},
        "output": {"outputBodyJson": {}, "outputTokenCount": a},
    },
    "higress": lambda p, a: {
        "ai_log": json.dumps({"model": "m", "input_token": str(p), "output_token": str(a)}), "response_code": "200",
        "path": "/v1/chat/completions",
    },
    "apisix": lambda p, a: {"llm_model": "m", "llm_prompt_tokens": str(p), "llm_completion_tokens": a, "status": 200},
    "kong": lambda p, a: {
        "ai": {"proxy": {"meta": {"request_model": "m"}, "usage": {"prompt_tokens": p, "completion_tokens": a}}},
        "request": {"method": "POST"}, "started_at": 1,
    },
    "kong-plugin": lambda p, a: {"ai": {"ai-proxy-advanced": {"usage": {"prompt_tokens": p, "completion_tokens": a}}}},
    "envoy": lambda p, a: {"genai_tokens_input": p, "genai_tokens_output": a, "response_code": 200},
    "sglang-dump": lambda p, a: {"text": "..", "meta_info": {"prompt_tokens": p, "completion_tokens": a}},
    "sglang-json": lambda p, a: {
        "event": "request.finished", "obj": {"sampling_params": {"max_new_tokens": 64}, "text": "a question"},
        "out": {"meta_info": {"prompt_tokens": p, "completion_tokens": a}},
    },
    "open-webui": lambda p, a: {
        "chat": {"messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "x", "usage": {"prompt_tokens": p, "completion_tokens": a}},
        ]},
    },
    "inference-perf": lambda p, a: {
        "request": json.dumps({"prompt": "x", "max_tokens": 64}), "info": {"input_tokens": p, "output_tokens": a},
    },
    "datadog": lambda p, a: {"meta": {"kind": "llm"}, "metrics": {"input_tokens": p, "output_tokens": a}},
    "dynamo": lambda p, a: {
        "event_type": "request_end",
        "request": {"output_tokens": a, "replay": {"input_length": p, "input_sequence_hashes": [1]}},
    },
    "openinference": lambda p, a: span(**{
        "openinference.span.kind": "LLM", "llm.token_count.prompt": p, "llm.token_count.completion": a,
    }),
    "openinference-nested": lambda p, a: {"attributes": {"llm": {"token_count": {"prompt": p, "completion": a}}}},
    "vercel": lambda p, a: span(**{
        "operation.name": "ai.streamText.doStream", "ai.usage.promptTokens": p, "ai.usage.completionTokens": a,
    }),
    "copilot": lambda p, a: {
        "session_id": "s", "turns": [{"llm_calls": [{"status_code": "OK", "tokens": {"prompt": p, "completion": a}}]}],
    },
    "guidellm": lambda p, a: {
        "benchmarks": [{"requests": {"successful": [
            {"input_metrics": {"text_tokens": p}, "output_metrics": {"text_tokens": a}},
        ]}}],
    },
    "loki": lambda p, a: {
        "stream": {"app": "gw"},
        "values": [["1782600000000000000", json.dumps({"prompt_tokens": p, "completion_tokens": a})]],
    },
    "cloudwatch-export": lambda p, a: {
        "logEvents": [{"id": "1", "message": json.dumps({"usage": {"prompt_tokens": p, "completion_tokens": a}})}],
    },
    "elastic": lambda p, a: {"_index": "i", "_source": {"usage": {"prompt_tokens": p, "completion_tokens": a}}},
    "fluent-bit": lambda p, a: {"date": 1, "log": json.dumps({"usage": {"prompt_tokens": p, "completion_tokens": a}})},
    "apisix-summary": lambda p, a: {"llm_summary": {"model": "m", "prompt_tokens": p, "completion_tokens": a}},
    "envoy-metadata": lambda p, a: {"io.envoy.ai_gateway": {"llm_input_token": p, "llm_output_token": a}},
    "langsmith": lambda p, a: {
        "run_type": "llm", "outputs": {"llm_output": {"token_usage": {"prompt_tokens": p, "completion_tokens": a}}},
    },
    "aiperf": lambda p, a: {
        "metadata": {"session_num": 3, "request_start_ns": 1782600000000000000}, "error": None,
        "metrics": {
            "input_sequence_length": {"value": p, "unit": "tokens"},
            "output_sequence_length": {"value": a, "unit": "tokens"},
        },
    },
    "jaeger": lambda p, a: {
        "data": [{"spans": [{"tags": [
            {"key": "gen_ai.usage.input_tokens", "type": "int64", "value": p},
            {"key": "gen_ai.usage.output_tokens", "type": "int64", "value": a},
        ]}]}],
    },
    "otlp-logs": lambda p, a: {
        "resourceLogs": [{"scopeLogs": [{"logRecords": [
            {"body": {"stringValue": json.dumps({"usage": {"prompt_tokens": p, "completion_tokens": a}})}},
        ]}]}],
    },
    "cloudwatch-insights": lambda p, a: {
        "results": [[
            {"field": "@timestamp", "value": "2026-09-01 00:00:00.000"},
            {"field": "@message", "value": json.dumps({"usage": {"prompt_tokens": p, "completion_tokens": a}})},
        ]],
    },
    "elastic-search": lambda p, a: {"hits": {"hits": [{"_source": {"prompt_tokens": p, "completion_tokens": a}}]}},
    "anthropic-batch": lambda p, a: {
        "custom_id": "1",
        "result": {"type": "succeeded", "message": {"id": "m", "usage": {"input_tokens": p, "output_tokens": a}}},
    },
    "databricks": lambda p, a: {
        "status_code": 200, "request": json.dumps({"messages": [{"role": "user", "content": "hi"}]}),
        "response": json.dumps({"usage": {"prompt_tokens": p, "completion_tokens": a}}),
    },
    "llama.cpp": lambda p, a: {"content": "x", "timings": {"prompt_n": p, "predicted_n": a}},
    "mlflow": lambda p, a: {
        "attributes": {
            "mlflow.spanType": '"CHAT_MODEL"',
            "mlflow.chat.tokenUsage": json.dumps({"input_tokens": p, "output_tokens": a}),
        },
    },
    "cloudflare": lambda p, a: {"success": True, "status_code": 200, "tokens_in": p, "tokens_out": a},
}  # fmt: skip


@pytest.mark.parametrize("name", ONE_RECORD)
def test_five_requests_of_each_shape(name: str) -> None:
    report = workload_report(read(*(ONE_RECORD[name](100 + n, 20 + n) for n in range(5))))
    assert (report["requests"], report["counted_by"], report["broken_lines"]) == (5, "usage", 0)
    for part, first in (("prompt", 100), ("output", 20)):
        assert (report[part]["p50"], report[part]["p99"]) == (first + 2, first + 4)


@pytest.mark.parametrize(
    "header",
    [
        "generation_id,tokens_prompt,tokens_completion,tokens_cached",
        "时间,提示,补全,花费",
        "date;Prompt tokens;Completion tokens;x",
    ],
)
def test_five_requests_of_each_table(header: str) -> None:
    delimiter = ";" if ";" in header else ","
    rows = (delimiter.join(("x", str(100 + n), str(20 + n), "0")) for n in range(5))
    report = workload_report(read(header, *rows))
    assert (report["requests"], report["prompt"]["p50"], report["output"]["p99"]) == (5, 102, 24)


@pytest.mark.parametrize(
    ("rows", "prompt"),
    [
        (["sep=;", "prompt_tokens;completion_tokens", "1990;5"], 1990),
        (["prompt_tokens;completion_tokens", "1.990;5"], 1990),
        (["prompt_tokens;completion_tokens", "1 990;5"], 1990),
        (["prompt_tokens;completion_tokens", "1990,0;5"], 1990),
        (["prompt_tokens\tcompletion_tokens", "1,990\t5"], 1990),
        (["prompt_tokens,completion_tokens", '"12,345,678",5'], 12_345_678),
    ],
)
def test_numbers_as_spreadsheets_write_them(rows: list[str], prompt: int) -> None:
    log = read(*rows)
    assert (log.traffic.prompts.lengths, log.traffic.answers.lengths) == ((prompt,), (5,))


def test_lines_of_a_session_that_are_no_answer() -> None:
    answer = {"type": "assistant", "message": {"id": "a", "usage": {"input_tokens": 9, "output_tokens": 3}}}
    log = read(
        {"type": "user", "message": {"role": "user", "content": "hi"}},
        answer,
        {"type": "summary", "summary": "x"},
    )
    assert (log.traffic.requests, log.other_kinds, log.unusable) == (1, 2, 0)
    usage = {
        "last_token_usage": {"input_tokens": 90, "output_tokens": 3},
        "total_token_usage": {"input_tokens": 900},
    }
    codex = read({"type": "event_msg", "payload": {"type": "token_count", "info": usage}})
    assert codex.traffic.prompts.lengths == (90,)


USAGE = {"usage": {"prompt_tokens": 1000, "completion_tokens": 50}}


@pytest.mark.parametrize(
    "prefix", ["2026-11-24T10:00:00.000000001Z stdout F ", "llm-1  | ", "<14>Nov 24 10:00:00 host gw[7]: "]
)
def test_what_a_container_puts_before_a_line(prefix: str) -> None:
    log = read(*(prefix + json.dumps(USAGE) for _ in range(40)))
    assert (log.traffic.requests, log.traffic.prompts.longest_tokens, log.unusable) == (40, 1000, 0)


@pytest.mark.parametrize(
    "other",
    [
        {"type": "EMBEDDING", "usageDetails": {"input": 40000}},
        {"call_type": "aembedding", "prompt_tokens": 700, "completion_tokens": 0},
        {"run_type": "chain", "prompt_tokens": 3000, "completion_tokens": 150},
        {"path": "/v1/embeddings", "usage": {"prompt_tokens": 900, "total_tokens": 900}},
        {"event_type": "tool_end", "tool": {"status": "succeeded", "output_tokens": 77}},
        {"event": "request.received", "obj": {"text": "a question"}},
        span(
            **{
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.usage.input_tokens": 3000,
                "gen_ai.usage.output_tokens": 150,
            }
        ),
        span(
            **{
                "operation.name": "ai.streamText",
                "ai.usage.promptTokens": 1000,
                "ai.usage.completionTokens": 50,
            }
        ),
    ],
)
def test_embeddings_tools_and_sums_of_agents_are_counted_apart(other: Record) -> None:
    log = read(USAGE, other, USAGE)
    assert (log.traffic.requests, log.traffic.prompts.longest_tokens) == (2, 1000)
    assert (log.other_kinds, log.unusable, log.failed) == (1, 0, 0)


@pytest.mark.parametrize(
    "rows",
    [
        ["start_time,num_model_requests,model,input_tokens,output_tokens", "1782600000,420,m,1250000,98000"],
        [{"date": "2026-08-05", "n_requests": 12, "input_tokens": 46981, "output_tokens": 900}],
    ],
)
def test_sums_of_several_requests_are_refused(rows: list[Any]) -> None:
    with pytest.raises(WorkloadError) as caught:
        read(*rows)
    assert caught.value.code == "request-log-sums"


def test_the_lines_of_one_call_are_one_request() -> None:
    def line(call: str, answer: int) -> Record:
        usage = {"input_tokens": 400, "cache_read_input_tokens": 600, "output_tokens": answer}
        return {"type": "assistant", "message": {"id": call, "role": "assistant", "usage": usage}}

    log = read(line("a", 1), line("a", 50), line("b", 7), line("a", 60))
    assert (log.traffic.requests, log.traffic.prompts.longest_tokens) == (2, 1000)
    assert log.traffic.answers.lengths == (7, 60)


def test_failed_requests_of_a_benchmark_are_in_no_figure() -> None:
    log = read(
        {
            "input_lens": [1000, 1010, 1020],
            "output_lens": [0, 53, 56],
            "errors": ["Connection reset", "", ""],
            "start_times": [1782600000.0, 1782600000.25, 1782600001.25],
        }
    )
    assert (log.traffic.requests, log.failed, log.traffic.answers.lengths) == (2, 1, (53, 56))
    assert log.traffic.span_seconds == 1.0
    guidellm = read(
        {
            "benchmarks": [
                {"requests": {"successful": [{"prompt_tokens": 9, "output_tokens": 3}], "errored": [{}, {}]}}
            ]
        }
    )
    assert (guidellm.traffic.requests, guidellm.failed) == (1, 2)


def test_what_was_asked_for_stands_within_others_too() -> None:
    log = read(
        {"input": {"inputTokenCount": 9, "inputBodyJson": {"inferenceConfig": {"maxTokens": 700}}}},
        {
            "attributes": {
                "llm.invocation_parameters": '{"max_tokens": 300}',
                "llm": {"token_count": {"prompt": 9}},
            }
        },
    )
    assert log.traffic.max_tokens.lengths == (300, 700)


def test_a_gateway_that_says_that_a_request_did_not_succeed() -> None:
    log = read(
        {"success": False, "tokens_in": 100, "tokens_out": 0},
        {"success": True, "tokens_in": 9, "tokens_out": 3},
    )
    assert (log.traffic.requests, log.failed) == (1, 1)


def test_one_bad_record_of_a_list_loses_no_other() -> None:
    log = read(json.dumps([USAGE, {"prompt_tokens": "many"}, USAGE, {"status": 500, **USAGE}, USAGE]))
    assert (log.traffic.requests, log.unusable, log.failed) == (3, 1, 1)


def engine(request: str, prompt: int, answer: int, cut: int = 1 << 20) -> list[str]:
    ids = [", ".join(map(str, range(min(count, cut)))) for count in (prompt, answer)]
    return [
        f"DEBUG 11-24 [request_logger.py:47] Request {request} details: prompt: 'x', prompt_token_ids: [{ids[0]}].",
        f"INFO 11-24 [request_logger.py:47] Received request {request}: params: SamplingParams(max_tokens=64).",
        f"DEBUG 11-24 [request_logger.py:47] Generated response {request} (streaming complete) details: "
        f"output_token_ids: [{ids[1]}]",
        f"INFO 11-24 [request_logger.py:47] Generated response {request} (streaming complete): output: 'x', "
        "finish_reason: stop",
    ]


def test_the_newest_lines_of_vllm() -> None:
    report = workload_report(read(*(line for n in range(5) for line in engine(f"r{n}", 100 + n, 20 + n))))
    assert (report["requests"], report["prompt"]["p50"], report["output"]["p99"]) == (5, 102, 24)
    assert (report["max_tokens"], report["warnings"]) == (64, [])


def test_an_id_that_comes_again_is_another_request() -> None:
    """Two starts of a server in one log: both have the same ids."""
    lines = [line for n in range(5) for line in engine(f"r{n}", 100 + n, 20 + n)]
    log = read(*lines, *lines)
    assert (log.traffic.requests, log.traffic.prompts.counts, log.unusable) == (10, (2,) * 5, 0)


def test_ids_that_the_log_cut_are_named() -> None:
    lines = [line for n in range(20) for line in engine(f"r{n}", 30 + n, 9, cut=40)]
    (warning,) = workload_report(read(*lines))["warnings"]
    assert warning["code"] == "request-log-cut"
    assert "40 token ids" in warning["message"]


def test_the_lines_of_sglang() -> None:
    out = "{{'text': '', 'meta_info': {{'id': 'a', 'prompt_tokens': {}, 'completion_tokens': {}, 'cached_tokens': 0}}}}"
    text = "[2026-09-01 00:00:00] Finish: obj=GenerateReqInput(rid='a', sampling_params={'max_new_tokens': 512}), out="
    report = workload_report(read(*(text + out.format(100 + n, 20 + n) for n in range(5))))
    assert (report["requests"], report["prompt"]["p50"], report["output"]["p99"]) == (5, 102, 24)
    assert report["max_tokens"] == 512


def test_a_log_read_by_its_layouts_and_one_by_one_is_the_same() -> None:
    """Forty lines of a shape, and the same lines each with a field of its own: no layout is known for those."""
    for name, make in ONE_RECORD.items():
        lines = [make(100 + n, 20 + n) for n in range(40)]
        fast, slow = read(*lines), read(*({**one, f"x{n}": n} for n, one in enumerate(lines)))
        assert fast.traffic == slow.traffic, name


def test_fields_within_others_are_named_with_dots() -> None:
    lines = [json.dumps({"x": {"sizes": [100 + n, 20 + n]}, "id": n}) for n in range(40)]
    columns = (("prompt", "x.sizes.0"), ("completion", "x.sizes.1"))
    log = read_request_log([f"{line}\n".encode() for line in lines], reading=Reading(columns=columns))
    assert (log.traffic.prompts.lengths[0], log.traffic.answers.longest_tokens) == (100, 59)
    assert log.unseen == ()


def test_a_refusal_names_the_fields_that_were_found() -> None:
    with pytest.raises(WorkloadError) as caught:
        read({"id": 1, "sizes": {"in": 5, "out": 2}, "when": [1, 2]})
    assert caught.value.code == "request-log-fields"
    assert "id, sizes.in, sizes.out, when" in str(caught.value)


@pytest.mark.parametrize("times", [1, 7])
def test_a_log_says_the_same_at_every_size(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of each shape, some of them failed, read in slices of every size."""
    failed: list[int] = []
    for name, make in ONE_RECORD.items():
        lines = [make(100 + n, 20 + n) for n in range(12)] + [{**make(9000, 8), "status_code": 503}] * 3
        once = read(*lines)
        monkeypatch.setattr(opening, "SLICE_BYTES", 2048)
        found = read(*(lines * times))
        monkeypatch.undo()
        assert found.traffic.prompts.lengths == once.traffic.prompts.lengths, name
        assert found.traffic.prompts.counts == tuple(n * times for n in once.traffic.prompts.counts), name
        assert (found.failed, found.unusable) == (once.failed * times, 0), name
        failed.append(once.failed)
    assert failed.count(3) > len(failed) / 2
