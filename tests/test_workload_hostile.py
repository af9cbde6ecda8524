"""Request logs, traces and tables made to cost much or to break something: what is unpacked, hashed, kept and compiled
is counted."""

from __future__ import annotations

import io
import json
import logging
import random
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvcore.base.errors import KvPlannerError, WorkloadError
from kvcore.base.place import VARIABLE, place
from kvcore.replay import trace
from kvcore.replay.trace import Contents, TraceRequest, read_trace
from kvcore.workload import layouts, logs, opening, records, timeline
from kvcore.workload.collector import Collector
from kvcore.workload.database import cells
from kvcore.workload.fields import MAX_BLOCKS, json_requests
from kvcore.workload.histogram import MAX_LENGTH, MAX_TOKENS
from kvcore.workload.logs import read_apart, read_request_logs
from kvcore.workload.opening import parquet_batches
from kvcore.workload.records import RequestLog, read_logs_here
from kvcore.workload.requests import Reading, UnusableLineError
from pages.ui.shared.parameters import PARAMETERS

MEETING = (1 << 61) - 1
"""Its multiples have the same hash as numbers: CPython's modulus on 64 bits."""


def parquet(table: pa.Table, **given: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, compression="zstd", **given)
    return out.getvalue()


def repeated(characters: int, rows: int) -> bytes:
    """One text, and numbers that say it again and again."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["a" * characters]))
    return parquet(pa.table({"prompt": texts}), dictionary_pagesize_limit=1 << 30, store_schema=False)


def log(data: bytes) -> RequestLog:
    return read_request_logs([io.BytesIO(data)])


BOMBS = {
    "one text, again and again": lambda: repeated(100_000, 4096),
    "more than any memory": lambda: repeated(1_000_000, 100_000),
    "one page": lambda: parquet(pa.table({"prompt": ["a" * (200 << 20)]}), use_dictionary=False),
    "each text as the one before": lambda: parquet(
        pa.table({"prompt": ["a" * 100_000] * 2000}),
        use_dictionary=False,
        column_encoding={"prompt": "DELTA_BYTE_ARRAY"},
    ),
}


class TestParquet:
    @pytest.mark.parametrize("name", BOMBS)
    def test_a_bomb_is_too_large_and_never_unpacked_here(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data = BOMBS[name]()
        assert len(data) < 1 << 16
        unpacked: list[str] = []
        monkeypatch.setattr(records, "parquet_batches", lambda *_: unpacked.append(name))
        with pytest.raises(WorkloadError) as refused:
            log(data)
        assert (refused.value.code, refused.value.params["limit"]) == ("request-log-too-large", "100 MiB")
        assert not unpacked

    def test_reading_stops_at_the_limit_of_unpacked_bytes(self) -> None:
        rows = parquet_batches(io.BytesIO(repeated(100, 100_000)), frozenset(("prompt",)), None, 1 << 20)
        with pytest.raises(WorkloadError) as refused:
            Counter(batch.num_rows for batch in rows)
        assert refused.value.code == "request-log-too-large"

    @pytest.mark.parametrize("answer", [b"", b"{}\n", b"{}\n\x81"])
    @pytest.mark.parametrize(
        ("by_limit", "expected"), [(True, "parquet-ended"), (False, "request-log-damaged")]
    )
    def test_a_process_without_an_answer_is_a_coded_error(
        self, answer: bytes, by_limit: bool, expected: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data = parquet(pa.table({"prompt_tokens": [5, 6]}))
        end = logs.End(answer=answer, by_limit=by_limit)
        monkeypatch.setattr(logs, "_exchange", lambda *_: end)
        with pytest.raises(WorkloadError) as refused:
            log(data)
        assert refused.value.code == expected
        assert refused.value.next_step

    def test_rows_of_long_texts_are_unpacked_few_at_a_time(self) -> None:
        """A real log, 97 MiB in a file of 49 MiB: all its texts at once exceed the memory of the process."""
        texts = [random.Random(number).randbytes(1 << 19).hex() for number in range(97)]
        data = parquet(pa.table({"prompt": texts}))
        assert len(data) < 50 << 20
        assert opening._batch_rows(pq.ParquetFile(io.BytesIO(data)).metadata) < len(texts)
        assert log(data).traffic.requests == len(texts)

    def test_rows_without_text_are_unpacked_many_at_a_time(self) -> None:
        for rows in (0, 5):
            data = parquet(pa.table({"prompt_tokens": pa.array([5] * rows, pa.int64())}))
            assert opening._batch_rows(pq.ParquetFile(io.BytesIO(data)).metadata) == opening.BATCH_ROWS

    def test_readers_take_turns(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(logs, "PLACE_SECONDS", 0.0)
        monkeypatch.setenv(VARIABLE, str(tmp_path / "place"))
        data = parquet(pa.table({"prompt_tokens": [5, 6]}))
        with (
            place(0),
            pytest.raises(WorkloadError) as refused,
        ):
            log(data)
        assert refused.value.code == "parquet-busy"
        assert log(data).traffic.requests == 2

    def test_parquet_among_others_counts_as_in_this_process(self) -> None:
        data = parquet(pa.table({"usage": [{"prompt_tokens": 900, "completion_tokens": 80}, None]}))
        files = [data, b'{"prompt_tokens": 7}\n']
        here = read_logs_here([io.BytesIO(one) for one in files])
        assert read_request_logs([io.BytesIO(one) for one in files]) == here
        assert (here.traffic.prompts.lengths, here.unusable) == ((7, 900), 1)
        with pytest.raises(WorkloadError) as refused:
            read_apart(files, Reading(max_bytes=100))
        assert refused.value.code == "request-log-too-large"


class TestHashes:
    def test_numbers_of_a_log_cannot_collide_in_a_set(self) -> None:
        ids = [MEETING * k for k in range(1, 4001)]
        assert len({*map(hash, ids)}) == 1
        line = json.dumps({"timestamp": 1, "input_length": 1000, "output_length": 5, "hash_ids": ids})
        collector = Collector()
        for request in json_requests(line.encode()):
            collector.add(request)
        assert len({hash(one) for one in collector._blocks}) == len(ids)
        # 4,000 in 2^16 places: a few meet by chance.
        assert max(Counter(hash(one) % (1 << 16) for one in collector._blocks).values()) < 8

    def test_colliding_numbers_in_lines_of_a_layout(self) -> None:
        rows = [
            {"timestamp": at, "input_length": 1024, "output_length": 5, "hash_ids": [MEETING, MEETING * at]}
            for at in range(2, 9)
        ]
        found = log(b"".join(json.dumps(row).encode() + b"\n" for row in rows)).traffic
        assert (found.requests, found.shared_tokens) == (7, 6 * 512)

    def test_a_request_has_no_more_blocks_than_a_prompt(self) -> None:
        line = json.dumps({"input_length": 9, "output_length": 5, "hash_ids": [1] * (MAX_BLOCKS + 1)})
        with pytest.raises(UnusableLineError):
            list(json_requests(line.encode()))

    def test_contents_of_a_replay_start_at_a_secret_number(self) -> None:
        one, other = (
            TraceRequest(id=name, arrival=0, prompt=(("s", 20), (name, 30)), answer_tokens=9) for name in "ab"
        )
        first, second = (Contents((one, other), 16) for _ in range(2))
        assert first._shared != second._shared
        assert first.of(one, 3) == second.of(one, 3)


class TestTrace:
    @staticmethod
    def line(hashes: list[int]) -> bytes:
        return json.dumps(
            {"timestamp": 1, "input_length": 512 * len(hashes), "output_length": 5, "hash_ids": hashes}
        ).encode()

    def test_equal_pieces_are_shared(self) -> None:
        first, second = read_trace([self.line([1, 2]), self.line([1, 2])])
        assert all(one is other for one, other in zip(first.prompt, second.prompt, strict=True))

    def test_memory_is_a_small_multiple_of_the_file(self) -> None:
        data = [self.line([1] * 4096)] * 20
        tracemalloc.start()
        try:
            found = read_trace(data)
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(found) == 20
        assert kept < 6 * sum(map(len, data))

    def test_pieces_of_all_requests_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(timeline, "MAX_HASHES", 5)
        with pytest.raises(WorkloadError) as refused:
            read_trace([self.line([1, 2, 3]), self.line([1, 2]), self.line([3])])
        assert refused.value.code == "replay-too-long"
        monkeypatch.setattr(trace, "MAX_ALL_PIECES", 2)
        own = b'{"timestamp": 1, "prompt": [["a", 5], ["b", 1]], "output_tokens": 1}'
        with pytest.raises(WorkloadError) as refused:
            read_trace([own, own])
        assert (refused.value.code, refused.value.params) == (
            "trace-too-many-pieces",
            {"line": "2", "limit": "2"},
        )


class TestRecords:
    GOOD = b'{"prompt_tokens": 5, "completion_tokens": 4}\n'

    @pytest.mark.parametrize("kind", [["text"], {"a": 1}, 7, None, True], ids=repr)
    def test_a_message_may_be_of_any_type(self, kind: object) -> None:
        said = {"messages": [{"role": "user", "content": [{"type": kind, "text": "hi"}]}]}
        assert log(json.dumps(said).encode() + b"\n").by_text == 1

    @pytest.mark.parametrize("depth", [65, 500, *range(960, 1000, 3), 5000])
    def test_too_deep_nesting_is_one_unusable_line(self, depth: int) -> None:
        deep = "[" * depth + "]" * depth
        for line in (
            '{"prompt": "hi", "tools": ' + deep + "}",
            '{"conversation_id": ' + deep + ', "conversations": [{"from": "human", "value": "x"}]}',
            'data: {"usage": {"prompt_tokens": 4}, "x": ' + deep + "}",
        ):
            found = log(self.GOOD + line.encode() + b"\n" + self.GOOD)
            assert found.traffic.prompts.items
            assert found.traffic.requests == 2, line[:40]
        inner = json.dumps({"prompt": "hi", "request": '{"tools": ' + deep + "}"})
        assert log(self.GOOD + inner.encode() + b"\n").traffic.requests == 2

    def test_a_record_that_the_reader_fails_on_is_one_line_and_in_the_servers_log_once(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        whole = records.json_requests

        def fails(line: bytes, reading: Reading) -> Any:
            if b"SECRET" in line:
                raise TypeError(line)
            return whole(line, reading)

        monkeypatch.setattr(records, "json_requests", fails)
        with caplog.at_level(logging.ERROR):
            found = log(self.GOOD + b'{"x": "SECRET"}\n' * 3 + self.GOOD)
        assert (found.traffic.requests, found.unusable, found.unusable_lines) == (2, 3, (2, 3, 4))
        assert caplog.text.count("internal-error: TypeError") == 1
        assert "SECRET" not in caplog.text

    def test_running_out_of_memory_ends_the_reading(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fails(line: bytes, reading: Reading) -> Any:
            raise MemoryError

        monkeypatch.setattr(records, "json_requests", fails)
        with pytest.raises(MemoryError):
            log(self.GOOD)


class TestLayouts:
    @staticmethod
    def lines(kinds: int, times: int) -> list[bytes]:
        return [
            json.dumps(
                {"prompt_tokens": 5, "completion_tokens": 4}
                | {f"{kind}k{i}": {"a": [{"b": 1}]} for i in range(4)}
            ).encode()
            + b"\n"
            for _ in range(times)
            for kind in range(kinds)
        ]

    @staticmethod
    def made(monkeypatch: pytest.MonkeyPatch, data: bytes) -> int:
        """How many types are made for a log."""
        found: list[str] = []
        whole = layouts.defstruct

        def counting(name: str, *given: Any, **named: Any) -> Any:
            found.append(name)
            return whole(name, *given, **named)

        monkeypatch.setattr(layouts, "defstruct", counting)
        assert log(data).traffic.requests
        return len(found)

    def test_the_layouts_of_a_log_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.made(monkeypatch, b"".join(self.lines(64, 2))) == layouts.MAX_LAYOUTS

    def test_objects_of_a_layout_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        many = {"us" + "_" * number + "age": {"x": 1} for number in range(layouts.MAX_LAYERS)}
        line = json.dumps({"prompt_tokens": 5} | many).encode() + b"\n"
        assert self.made(monkeypatch, line * 3) == 0

    def test_a_layout_is_learned_once(self) -> None:
        learned = layouts.Layouts(layouts.JsonForm(Reading()))
        for _ in range(20):
            learned.learn(b'{"prompt_tokens": 5}')
        assert len(learned._layouts) == 1


def test_cells_of_a_file_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "MAX_CSV_CELLS", 2)
    text = "prompt,answer,requests\n" + "".join(f"{n},1,1\n" for n in range(1, 4))
    with pytest.raises(WorkloadError) as refused:
        log(text.encode())
    assert (refused.value.code, refused.value.params["limit"]) == ("cells-too-many", "2")


def test_the_limit_slider_reaches_the_longest_request() -> None:
    line = {"prompt_tokens": MAX_TOKENS, "max_tokens": MAX_TOKENS, "completion_tokens": 5}
    longest = log(json.dumps(line).encode() + b"\n").traffic.needed.longest_tokens
    assert longest == MAX_LENGTH
    limit = PARAMETERS["limit"]
    assert limit.read("limit", str(longest)) == longest
    with pytest.raises(KvPlannerError):
        limit.read("limit", str(longest + 1))
