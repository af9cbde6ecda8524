"""Lines of a known layout are read as the general reader reads them: whole, broken, mixed."""

from __future__ import annotations

import gc
import io
import json
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from kvcore.base.errors import WorkloadError
from kvcore.workload import layouts, opening, records
from kvcore.workload.logs import read_request_log
from kvcore.workload.requests import Reading
from tests.test_workload_readers import RECORDS, TABLES

MORE: tuple[Any, ...] = (
    {"usage": {"prompt_tokens": 900, "completion_tokens": 80}, "created": 1760000000, "max_tokens": 512},
    {"prompt_tokens": 900, "completion_tokens": 80, "created": "2026-02-28T01:02:03.5Z", "id": "é显"},
    {
        "time": 1760000000123,
        "prompt_tokens": 9,
        "session_id": 7,
        "choices": [{"message": {"content": 'a,"}'}}],
    },
    {"time": 12.5, "prompt_tokens": 9, "session_id": "s", "error": "", "status_code": 200, "max_tokens": 0},
    {
        "prompt_tokens": 900,
        "prompt_tokens_details": {"cached_tokens": 512},
        "metadata": {"a": [1, {"b": None}]},
    },
    {"timestamp": 100, "input_length": 900, "output_length": 80, "hash_ids": []},
    {"message": "said", "prompt_tokens": "900", "startTime": "2026-01-01 00:00:00", "created": 5},
    {"prompt_tokens": 900.0, "status": "failure"},
)
NUMBERS = (0, 1, -1, 7, 900, 9_999_999, 10_000_000, 16_777_216, 16_777_217, 2.5, 1e300, 150_000_000)
OTHERS = (None, True, "", "x", "2026-02-30T01:02:03Z", "12", "012", "failure", "{\"prompt_tokens\": 3}", {}, [],
          [1, 2], {"prompt_tokens": 5}, "\\u0041\\\\\"", "显\x7f")  # fmt: skip
JUNK = (b"", b"{", b"}", b"[", b"x", b"{}", b"null", b'{"prompt_tokens": 8,}', b'{"prompt_tokens": 08}', b'"', b'1,"2',
        b'data: {"usage": {"prompt_tokens": 3}}', b"Received request a: prompt_token_ids: [1]")  # fmt: skip


def changed(draw: st.DrawFn, value: Any) -> Any:
    """The record with a few of its values changed."""
    if isinstance(value, dict):
        return {key: changed(draw, one) for key, one in value.items()}
    if draw(st.integers(0, 9)):
        if isinstance(value, int) and not isinstance(value, bool):
            return draw(st.integers(0, 3000)) or value
        return value
    return draw(st.sampled_from((*NUMBERS, *OTHERS)))


@st.composite
def json_logs(draw: st.DrawFn) -> bytes:
    layouts = draw(
        st.lists(st.sampled_from((*(one for one, _ in RECORDS.values()), *MORE)), min_size=1, max_size=3)
    )
    lines = []
    for _ in range(draw(st.integers(1, 40))):
        line = json.dumps(
            changed(draw, draw(st.sampled_from(layouts))), ensure_ascii=draw(st.booleans())
        ).encode("utf-8", "surrogatepass")
        lines.append(broken(draw, line))
    return draw(st.sampled_from((b"\n", b"\n", b"\r\n", b",\n"))).join(lines)


@st.composite
def tables(draw: st.DrawFn) -> bytes:
    text, _ = TABLES[draw(st.sampled_from(sorted(TABLES)))]
    head, *rows = text.encode().splitlines()
    lines = [head]
    for _ in range(draw(st.integers(1, 40))):
        cells = draw(st.sampled_from(rows)).split(b",")
        cells = [
            str(
                draw(st.sampled_from(NUMBERS)) if not draw(st.integers(0, 3)) else draw(st.integers(0, 3000))
            ).encode()
            if cell.isdigit()
            else cell
            for cell in cells
        ]
        lines.append(broken(draw, b",".join(cells)))
    return draw(st.sampled_from((b"\n", b"\r\n"))).join(lines)


def broken(draw: st.DrawFn, line: bytes) -> bytes:
    kind = draw(st.integers(0, 19))
    if kind == 0:
        return draw(st.sampled_from(JUNK))
    if kind == 1:
        at = draw(st.integers(0, len(line)))
        return (
            line[:at]
            + draw(st.sampled_from((b"", b"\xff", b"\x01", b" ", b'"', b"\\", b"0", b"\r", b",")))
            + line[at + draw(st.integers(0, 1)) :]
        )
    return line


def said(data: bytes, most_layouts: int, slice_bytes: int) -> str:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(layouts, "MAX_LAYOUTS", most_layouts)
        patched.setattr(opening, "SLICE_BYTES", slice_bytes)
        try:
            return repr(read_request_log(io.BytesIO(data)))
        except WorkloadError as error:
            return repr((error.code, error.params))


@pytest.mark.parametrize("logs", [json_logs(), tables()], ids=["json", "table"])
def test_layouts_read_what_the_general_reader_reads(logs: st.SearchStrategy[bytes]) -> None:
    @given(logs, st.integers(1, 3000))
    @settings(max_examples=150, deadline=None, phases=(Phase.explicit, Phase.generate))
    def same(data: bytes, slice_bytes: int) -> None:
        assert said(data, layouts.MAX_LAYOUTS, slice_bytes) == said(data, 0, slice_bytes)

    same()


KNOWN = [
    "chat completion", "responses", "batch output", "Anthropic", "Gemini", "Ollama", "camel case", "numbers as text",
    "LiteLLM spend log", "LiteLLM with Anthropic behind it", "Langfuse observation", "Mooncake",
]  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_the_general_reader_reads_only_the_first_lines(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def counting(line: bytes, reading: Reading) -> Any:
        asked.append(line)
        return fields_requests(line, reading)

    fields_requests = records.json_requests
    monkeypatch.setattr(records, "json_requests", counting)
    record, _ = RECORDS[name]
    line = json.dumps(record).encode() + b"\n"
    counts = []
    for lines in (10, 1000):
        asked.clear()
        assert read_request_log(io.BytesIO(line * lines)).traffic.prompts.counts == (lines,)
        counts.append(len(asked))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("name", ["Azure", "LiteLLM", "BurstGPT"])
def test_the_general_reader_reads_only_the_first_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    head, row, *_ = TABLES[name][0].splitlines()
    asked = []
    alone = records.row_request
    monkeypatch.setattr(records, "row_request", lambda *given: (asked.append(given), alone(*given))[1])
    counts = []
    for rows in (10, 1000):
        asked.clear()
        log = read_request_log(io.BytesIO("\n".join([head, *[row] * rows]).encode()))
        assert (log.traffic.prompts.lengths, log.traffic.prompts.counts) == ((900,), (rows,))
        counts.append(len(asked))
    assert counts[0] == counts[1]


def test_names_of_a_log_stay_in_no_type() -> None:
    def kept(name: str) -> list[str]:
        gc.collect()
        texts = (
            one for thing in gc.get_objects() if thing is not globals() for one in gc.get_referents(thing)
        )
        return [text for text in texts if type(text) is str and text is not name and name in text]

    mark = "-".join(("name", "in", "log", "7d21"))
    assert not kept(mark)
    line = f'{{"{mark}": 1, "status": "{mark}", "prompt_tokens": 3, "created": "2026-01-01T00:00:00Z"}}\n'
    assert read_request_log(io.BytesIO(line.encode() * 3)).traffic.requests == 3
    del line
    assert not kept(mark)
