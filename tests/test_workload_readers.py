"""Formats of request logs: each as its publisher documents it, with lengths read off by hand."""

from __future__ import annotations

import gzip
import io
import json
import math
from typing import Any

import pytest
import zstandard

from kvcore.base.errors import WorkloadError
from kvcore.workload.logs import read_request_log, read_request_logs
from kvcore.workload.opening import slices_of
from kvcore.workload.records import RequestLog
from kvcore.workload.requests import Reading

CHAT = {"usage": {"prompt_tokens": 900, "completion_tokens": 80, "total_tokens": 980}}
ANTHROPIC = {"input_tokens": 10, "cache_creation_input_tokens": 100, "cache_read_input_tokens": 800,
             "output_tokens": 80}  # fmt: skip
SPAN = {
    "startTimeUnixNano": "1760000000000000000",
    "attributes": [
        {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "900"}},
        {"key": "gen_ai.usage.output_tokens", "value": {"intValue": "80"}},
        {"key": "gen_ai.request.max_tokens", "value": {"intValue": "512"}},
        {"key": "gen_ai.conversation.id", "value": {"stringValue": "c1"}},
    ],
}
RECORDS: dict[str, tuple[Any, tuple[int, int | None, int | None]]] = {
    "chat completion": ({**CHAT, "id": "x", "object": "chat.completion"}, (900, 80, None)),
    "responses": ({"usage": {"input_tokens": 900, "input_tokens_details": {"cached_tokens": 512},
                             "output_tokens": 80}, "max_output_tokens": 512, "error": None}, (900, 80, 512)),
    "batch output": ({"custom_id": "a", "error": None,
                      "response": {"status_code": 200, "body": CHAT}}, (900, 80, None)),
    "batch input": ({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
                     "body": {"max_tokens": 512, "messages": [{"role": "user", "content": "aaaaaaa " * 5}]}},
                    (14, None, 512)),
    "Anthropic": ({"type": "message", "usage": ANTHROPIC}, (910, 80, None)),
    "Gemini": ({"usageMetadata": {"promptTokenCount": 900, "candidatesTokenCount": 50, "thoughtsTokenCount": 30}},
               (900, 80, None)),
    "Gemini request": ({"contents": [{"role": "user", "parts": [{"text": "aaaaaaa " * 5}]}],
                        "generationConfig": {"maxOutputTokens": 512}}, (14, None, 512)),
    "Ollama": ({"model": "x", "prompt_eval_count": 900, "eval_count": 80, "options": {"num_predict": -1}},
               (900, 80, None)),
    "camel case": ({"promptTokens": 900, "completionTokens": 80, "maxTokens": 512}, (900, 80, 512)),
    "numbers as text": ({"prompt_tokens": "900", "completion_tokens": "80"}, (900, 80, None)),
    "LiteLLM spend log": ({"request_id": "x", "call_type": "acompletion", "prompt_tokens": 900,
                           "completion_tokens": 80, "total_tokens": 980, "status": "success",
                           "startTime": "2026-01-01T00:00:00Z", "session_id": "s"}, (900, 80, None)),
    "LiteLLM with Anthropic behind it": ({"usage": {"prompt_tokens": 910, "completion_tokens": 80,
                                                    "cache_read_input_tokens": 800}}, (910, 80, None)),
    "Langfuse observation": ({"type": "GENERATION", "level": "DEFAULT", "usageDetails": {
        "input": 100, "input_cached_tokens": 800, "output": 80, "total": 980},
        "modelParameters": {"max_tokens": 512}}, (900, 80, 512)),
    "OpenTelemetry span": ({"attributes": {"gen_ai.usage.input_tokens": 900, "gen_ai.usage.output_tokens": 80,
                                           "gen_ai.usage.cache_read.input_tokens": 512}}, (900, 80, None)),
    "OTLP": ({"resourceSpans": [{"scopeSpans": [{"spans": [SPAN, {"name": "db"}]}]}]}, (900, 80, 512)),
    "Mooncake": ({"timestamp": 27482, "input_length": 900, "output_length": 80, "hash_ids": [46, 47]},
                 (900, 80, None)),
    "ShareGPT": ({"id": "x", "conversations": [{"from": "human", "value": "aaaaaaa " * 5},
                                               {"from": "gpt", "value": "bbbbbbb " * 10}]}, (18, 19, None)),
    "LMSYS": ({"conversation_id": "x", "conversation": [{"role": "user", "content": "aaaaaaa " * 5},
                                                        {"role": "assistant", "content": "bbbbbbb " * 10}]},
              (18, 19, None)),
}  # fmt: skip
TABLES = {
    "Azure": ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,900,80\n", (900, 80, None)),
    "BurstGPT": ("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
                 "5,ChatGPT,900,80,980,Conversation log\n45,GPT-4,472,0,472,API log\n", (900, 80, None)),
    "LiteLLM": ("request_id,prompt_tokens,completion_tokens,status\na,900,80,success\nb,5,0,failure\n",
                (900, 80, None)),
    "Langfuse": ('id,name,usage_details\n1,x,"{""input"": 900, ""output"": 80}"\n', (900, 80, None)),
}  # fmt: skip


def lengths(log: RequestLog) -> tuple[int, int | None, int | None]:
    found = log.traffic
    assert found.requests == 1
    only = [
        one.lengths[0] if one.lengths else None for one in (found.prompts, found.answers, found.max_tokens)
    ]
    return only[0] or 0, only[1], only[2]


def packed(*records: Any) -> io.BytesIO:
    return io.BytesIO(b"".join(json.dumps(one).encode() + b"\n" for one in records))


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_on_a_line_and_over_many(name: str) -> None:
    record, expected = RECORDS[name]
    assert lengths(read_request_log(packed(record))) == expected
    for spread in (record, [record]):
        log = read_request_log(io.BytesIO(json.dumps(spread, indent=2).encode()))
        assert (lengths(log), log.unusable, log.other_lines) == (expected, 0, 0)


@pytest.mark.parametrize("name", TABLES)
def test_a_table(name: str) -> None:
    text, expected = TABLES[name]
    assert lengths(read_request_log(io.BytesIO(text.encode()))) == expected


@pytest.mark.parametrize("pack", [
    gzip.compress,
    lambda data: gzip.compress(gzip.compress(data)),
    lambda data: zstandard.ZstdCompressor().compress(data),
    lambda data: data.decode().encode("utf-16"),
    lambda data: b"\xfe\xff" + data.decode().encode("utf-16-be"),
    lambda data: gzip.compress(data[:20]) + gzip.compress(data[20:]),
])  # fmt: skip
def test_packed_files_and_encodings(pack: Any) -> None:
    assert lengths(read_request_log(io.BytesIO(pack(json.dumps(CHAT).encode() + b"\n")))) == (900, 80, None)


def test_parquet() -> None:
    import pyarrow
    import pyarrow.parquet

    columns = {"prompt_tokens": [900, None], "completion_tokens": [80, 5], "secret": ["x", "y"]}
    for table in (
        pyarrow.table(columns),
        pyarrow.table({"usage": [{"prompt_tokens": 900, "completion_tokens": 80}]}),
    ):
        out = io.BytesIO()
        pyarrow.parquet.write_table(table, out)
        out.seek(0)
        log = read_request_log(out)
        assert lengths(log) == (900, 80, None)
        assert log.unusable == table.num_rows - 1
    damaged = io.BytesIO(b"PAR1" + b"x" * 100)
    with pytest.raises(WorkloadError) as caught:
        read_request_log(damaged)
    assert caught.value.code == "request-log-damaged"


class TestStreams:
    def test_chunks_of_openai_count_once(self) -> None:
        chunks = [{"choices": [{"delta": {"content": "a"}}], "usage": None}] * 3 + [{"choices": [], **CHAT}]
        text = "".join(f"data: {json.dumps(one)}\n\n" for one in chunks) + "data: [DONE]\n"
        log = read_request_log(io.BytesIO(text.encode()))
        assert (lengths(log), log.unusable) == ((900, 80, None), 0)

    def test_events_of_anthropic_are_merged(self) -> None:
        start = {"type": "message_start", "message": {"usage": {**ANTHROPIC, "output_tokens": 1}}}
        delta = {"type": "message_delta", "usage": {"output_tokens": 80}}
        text = "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in (start, delta))
        assert lengths(read_request_log(io.BytesIO(text.encode()))) == (910, 80, None)


@pytest.mark.parametrize("failure", [
    {"error": {"message": "x"}}, {"status": "failure"}, {"status_code": 429}, {"level": "ERROR"},
    {"status": {"code": 2}}, {"response": {"status_code": 500, "body": {}}},
])  # fmt: skip
def test_failed_requests_are_counted_apart(failure: dict[str, Any]) -> None:
    log = read_request_log(packed(CHAT, {**CHAT, **failure}))
    assert (log.traffic.requests, log.failed, log.unusable) == (1, 1, 0)


def test_sessions_times_caches_and_blocks_are_read() -> None:
    log = read_request_log(packed(
        {**CHAT, "session_id": "a", "created": 1_760_000_000, "cached_tokens": 512},
        {**CHAT, "metadata": {"session_id": "a"}, "created": 1_760_000_060_000},
    ))  # fmt: skip
    assert log.traffic.turns.lengths == (2,)
    assert (log.traffic.cached_tokens, log.traffic.span_seconds) == (512, 60.0)
    trace = [{"timestamp": 1000 * at, "input_length": 1024, "output_length": 5, "hash_ids": [1, 2 + at]}
             for at in range(2)]  # fmt: skip
    found = read_request_log(packed(*trace)).traffic
    assert (found.shared_tokens, found.span_seconds) == (512, 1.0)


def test_images_are_reported_and_tools_are_counted() -> None:
    said = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "aaaaaaa " * 5},
                {"type": "image_url", "image_url": {"url": "data:" + "x" * 900}},
            ],
        }
    ]
    plain = read_request_log(packed({"messages": said}))
    assert (lengths(plain)[0], plain.not_counted) == (14, 1)
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    more = read_request_log(packed({"messages": said, "tools": tools}))
    written = json.dumps(tools, separators=(",", ":"))
    letters = sum(map(str.isalpha, written))
    assert lengths(more)[0] == 14 + math.ceil(letters / 3.85 + (len(written) - letters) / 2.14)


def test_given_columns() -> None:
    text = b"when,in,out\n1,900,80\n"
    with pytest.raises(WorkloadError) as caught:
        read_request_log(io.BytesIO(text))
    assert caught.value.code == "request-log-columns"
    reading = Reading(columns=(("prompt", "in"), ("completion", "out")))
    assert lengths(read_request_log(io.BytesIO(text), reading=reading)) == (900, 80, None)
    assert lengths(read_request_log(packed({"in": 900, "out": 80}), reading=reading)) == (900, 80, None)
    with pytest.raises(WorkloadError) as unknown:
        read_request_log(io.BytesIO(text), reading=Reading(columns=(("prmpt", "in"),)))
    assert unknown.value.code == "unknown-column-field"


class TestBombs:
    def test_unpacking_stops_at_the_limit(self) -> None:
        line = json.dumps({"pad": "x" * 1000}).encode() + b"\n"
        for data in (gzip.compress(line * 4000), zstandard.ZstdCompressor().compress(line * 4000)):
            with pytest.raises(WorkloadError) as caught:
                read_request_log(io.BytesIO(data), reading=Reading(max_bytes=1 << 20))
            assert caught.value.code == "request-log-too-large"

    def test_an_endless_line_is_never_in_memory_as_a_whole(self) -> None:
        bomb = gzip.compress(b" " * (40 << 20) + b"\n" + json.dumps(CHAT).encode())
        pieces = [sum(map(len, lines)) for lines in slices_of(io.BytesIO(bomb))]
        assert max(pieces) <= (8 << 20) + 1
        log = read_request_log(io.BytesIO(bomb))
        assert log.traffic.requests == 1

    @pytest.mark.parametrize("data", [
        gzip.compress(b"x" * 10_000)[:-10], b"\x1f\x8b" + b"x" * 100, b"\x28\xb5\x2f\xfd" + b"x" * 100,
    ], ids=("gzip cut short", "no gzip", "no zstd"))  # fmt: skip
    def test_a_damaged_file_is_a_coded_error(self, data: bytes) -> None:
        with pytest.raises(WorkloadError) as caught:
            read_request_log(io.BytesIO(data))
        assert caught.value.code == "request-log-damaged"

    def test_a_zip_is_refused(self) -> None:
        with pytest.raises(WorkloadError) as caught:
            read_request_log(io.BytesIO(b"PK\x03\x04\x14\x00\x06\x00"))
        assert caught.value.code == "request-log-not-text"


def test_without_a_limit_more_is_read() -> None:
    line = json.dumps({**CHAT, "pad": "x" * 1000}).encode() + b"\n"
    logs = [io.BytesIO(line * 2), io.BytesIO(line)]
    assert read_request_logs(logs, reading=Reading(max_bytes=None, max_requests=None)).traffic.requests == 3
