"""Lengths from request logs: JSON lines, CSV, the engine's own lines; other lines are counted or refused."""

import io
import json
import math
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcore.base.errors import WorkloadError
from kvcore.workload import columns, fields, requests, streams
from kvcore.workload.histogram import MAX_TOKENS
from kvcore.workload.logs import read_request_log, read_request_logs
from kvcore.workload.records import RequestLog
from kvcore.workload.requests import MAX_LOG_BYTES, Reading, Unusable
from kvcore.workload.traffic import traffic_of_counts

SAMPLES = Path(__file__).resolve().parents[1] / "pages" / "ui" / "samples"


def lines(*records: object) -> list[bytes]:
    return [json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records]


def table(text: str, encoding: str = "utf-8") -> RequestLog:
    return read_request_log(text.encode(encoding).splitlines(keepends=True))


def refused(content: list[bytes]) -> WorkloadError:
    with pytest.raises(WorkloadError) as caught:
        read_request_log(content)
    return caught.value


class TestJsonLines:
    def test_usage_counts_take_precedence_over_text(self) -> None:
        log = read_request_log(
            lines({"prompt": "x" * 7000, "usage": {"prompt_tokens": 12, "completion_tokens": 3}})
        )
        assert (log.traffic.prompts.longest_tokens, log.traffic.answers.longest_tokens, log.estimated) == (
            12,
            3,
            0,
        )

    @pytest.mark.parametrize(
        ("record", "tokens"),
        [
            ({"prompt": "aaaaaaa " * 50}, 91),
            ({"messages": [{"role": "user", "content": "aaaaaaa " * 5}]}, 14),
            ({"messages": [{"role": "user", "content": [{"type": "text", "text": "aaaaaaa " * 5}]}]}, 14),
            ({"request": {"body": {"prompt": "aaaaaaa " * 5}}}, 10),
            ({"prompt": "显存容量规划"}, 6),
        ],
    )
    def test_text_is_counted_by_the_stated_approximation(self, record: object, tokens: int) -> None:
        log = read_request_log(lines(record))
        assert (log.traffic.prompts.longest_tokens, log.estimated) == (tokens, 1)

    @given(st.text(st.sampled_from("aZ09+/_=-(!. \n显カ한กжעé\u3000\xa0😀\ud800"), max_size=400))
    def test_the_approximation_divides_each_run_by_the_rate_of_its_kind(self, text: str) -> None:
        kinds = requests.tables().estimate.kinds
        rates = [rate.characters_per_token for rate in kinds.values()]
        runs = re.finditer("|".join(f"({pattern})" for pattern in kinds), text)
        total = sum(len(run[0]) / rates[(run.lastindex or 0) - 1] for run in runs)
        assert requests.estimated_tokens(text) == math.ceil(total - 1e-9)

    def test_request_and_response_in_one_record(self) -> None:
        log = read_request_log(
            lines(
                {
                    "request": {"body": {"max_tokens": 512}},
                    "response": {"body": {"usage": {"prompt_tokens": 900, "completion_tokens": 80}}},
                }
            )
        )
        assert (log.traffic.taken.longest_tokens, log.traffic.needed.longest_tokens) == (980, 1412)

    def test_a_list_of_records_and_a_detailed_benchmark_have_many_requests(self) -> None:
        log = read_request_log(
            [
                json.dumps([{"prompt_tokens": 1}, {"prompt_tokens": 2}]).encode(),
                b"\n",
                json.dumps({"input_lens": [100, 200], "output_lens": [10, 20]}).encode(),
            ]
        )
        assert log.traffic.prompts.lengths == (1, 2, 100, 200)
        assert log.traffic.taken.longest_tokens == 220

    def test_unusable_lines_are_counted_by_reason_and_the_first_are_listed(self) -> None:
        log = read_request_log(
            [
                b"not json\n",
                b"[1]\n",
                b"\n",
                *lines({"prompt_tokens": 5}),
                b'{"prompt_tokens": -1}\n',
                b'{"prompt_tokens": 5, "max_tokens": 99999999999}\n',
                b'{"model": "x"}\n',
            ]
        )
        assert log.traffic.prompts.requests == 1
        assert (log.unusable, log.unusable_lines) == (5, (1, 2, 5, 6, 7))
        assert dict(log.reasons) == {
            Unusable.NOT_A_RECORD: 2,
            Unusable.ABSURD_LENGTH: 2,
            Unusable.NO_LENGTH: 1,
        }


class TestTables:
    @pytest.mark.parametrize(
        "text",
        [
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16,374,44\n2023-11-17,396,109\n",
            "\ufeffprompt_tokens;completion_tokens\n374;44\n396;109\n",
            "Prompt Tokens\tCompletion Tokens\n374\t44\n396\t109.0\n",
            'id,note,input_tokens,output_tokens\n1,"two\nlines",374,44\n2,"a, b",396,109\n',
        ],
    )
    def test_columns_are_found_by_name(self, text: str) -> None:
        log = table(text)
        assert (log.traffic.prompts.lengths, log.traffic.answers.lengths) == ((374, 396), (44, 109))
        assert log.unusable == 0

    def test_a_chinese_spreadsheet_in_gb18030(self) -> None:
        log = table("时间,输入token数,输出token数\n九点,374,44\n", "gb18030")
        assert (log.traffic.prompts.lengths, log.traffic.answers.lengths) == ((374,), (44,))

    def test_one_column_is_a_table_too(self) -> None:
        assert table("prompt_tokens\n5\n7\n").traffic.prompts.lengths == (5, 7)

    def test_rows_without_a_length_are_counted(self) -> None:
        log = table("prompt_tokens,completion_tokens\n374,44\n,\n-4,1\nabc,2\n5\n396,\n")
        assert log.traffic.prompts.lengths == (5, 374, 396)
        assert log.without_answer == 2
        assert (dict(log.reasons), log.unusable_lines) == (
            {Unusable.ABSURD_LENGTH: 1, Unusable.NO_LENGTH: 1},
            (4, 5),
        )

    def test_a_table_without_prompt_tokens_names_its_columns(self) -> None:
        error = refused([b"time,latency_ms,status\n", b"1,200,ok\n"])
        assert (error.code, error.params["columns"]) == ("request-log-columns", "time, latency_ms, status")

    def test_an_open_quote_loses_no_line_silently(self) -> None:
        log = table('prompt_tokens,note\n5,ok\n7,"open\n9,ok\n')
        assert log.traffic.prompts.lengths == (5,)
        assert (log.unusable, log.unusable_lines) == (2, (3,))


class TestEngineLines:
    RECEIVED = (
        "INFO 11-02 10:00:0{n} [logger.py:40] Received request cmpl-{n}: "
        "prompt: 'max_tokens=9, prompt_token_ids: [1]', "
        "params: SamplingParams(n=1, temperature=0.7, max_tokens={wanted}, seed=None), "
        "prompt_token_ids: {ids}, prompt_embeds shape: None, lora_request: None.\n"
    )

    def test_lengths_are_numbers_of_ids(self) -> None:
        log = read_request_log(
            [
                b"INFO 11-02 10:00:00 [api_server.py:1] vLLM API server version 0.11.0\n",
                self.RECEIVED.format(n=1, wanted=64, ids=[5, 6, 7]).encode(),
                b"INFO [logger.py:60] Generated response cmpl-1: output: ' \xe4\xbd\xa0', output_token_ids: [8, 9], "
                b"finish_reason: stop\n",
                self.RECEIVED.format(n=2, wanted=32, ids=list(range(10))).encode(),
            ]
        )
        assert log.traffic.prompts.lengths == (3, 10)
        assert log.traffic.answers.lengths == (2,)
        assert log.traffic.needed.lengths == (67, 42)[::-1]
        assert (log.other_lines, log.unusable) == (1, 0)

    def test_newer_versions_print_lengths_at_debug_level(self) -> None:
        info = b"INFO Received request a: params: SamplingParams(n=1, max_tokens=128, seed=1), lora_request: None.\n"
        debug = b"DEBUG Request a details: prompt: 'x', prompt_token_ids: [1, 2, 3, 4], prompt_embeds shape: None.\n"
        log = read_request_log([debug, info])
        assert (log.traffic.prompts.lengths, log.traffic.max_tokens.lengths) == ((4,), (128,))
        assert refused([info]).code == "request-log-no-length"


class TestRefusals:
    @pytest.mark.parametrize(
        ("content", "code"),
        [
            ([], "request-log-empty"),
            ([b"\n", b"  \n"], "request-log-empty"),
            ([b"[" * 100_000], "request-log-empty"),
            ([b"\xff\xfe\x00p"], "request-log-not-text"),
            ([b"PK\x03\x04\x14\x00\x06\x00"], "request-log-not-text"),
            ([b'{"prompt_tokens": 1e400}'], "request-log-absurd"),
            ([b'{"prompt_tokens": -5}\n', b'{"prompt_tokens": 99999999999}\n'], "request-log-absurd"),
            ([b'{"model": "x"}\n'] * 3, "request-log-fields"),
            ([b"prompt_tokens,x\n", b"9e99,1\n"], "request-log-absurd"),
        ],
    )
    def test_a_log_without_usable_lines_is_a_coded_error(self, content: list[bytes], code: str) -> None:
        assert refused(content).code == code

    def test_a_log_over_the_limit_is_refused(self) -> None:
        line = b" " * (1 << 20)
        with pytest.raises(WorkloadError) as caught:
            read_request_log(line for _ in range((MAX_LOG_BYTES >> 20) + 1))
        assert caught.value.code == "request-log-too-large"

    def test_the_limit_applies_to_all_files_together(self) -> None:
        half = [b" " * (1 << 20)] * 26
        with pytest.raises(WorkloadError) as caught:
            read_request_logs([half, half])
        assert caught.value.code == "request-log-too-large"

    @given(st.binary(max_size=400))
    def test_any_bytes_end_in_a_log_or_in_a_coded_error(self, data: bytes) -> None:
        content = [b'{"prompt_tokens": 5}\n', *data.splitlines(keepends=True)]
        log = read_request_log(content)
        assert log.traffic.prompts.requests >= 1
        table = [b"prompt_tokens,max_tokens\n", b"5,7\n", *data.splitlines(keepends=True)]
        assert read_request_log(table).traffic.prompts.requests >= 1
        with suppress(WorkloadError):
            assert read_request_log(data.splitlines(keepends=True)).traffic.prompts.requests >= 1


def test_progress_is_reported_every_mebibyte() -> None:
    told: list[int] = []
    line = b'{"prompt_tokens": 5, "pad": "' + b"x" * (1 << 19) + b'"}\n'
    read_request_log([line] * 8, told.append)
    assert told == sorted(told)
    assert 3 <= len(told) <= 5


def test_several_files_each_in_its_format() -> None:
    log = read_request_logs([lines({"prompt_tokens": 5}), [b"input_tokens,n\n", b"7,1\n"]])
    assert log.traffic.prompts.lengths == (5, 7)


def test_tokens_of_a_running_request_are_averaged_over_its_steps() -> None:
    """Prompt 10, answer 4: 11, 12, 13, 14 at its steps. Prompt 100, answer 1: 101. Five steps: 151 / 5."""
    log = read_request_log(
        lines({"prompt_tokens": 10, "completion_tokens": 4}, {"prompt_tokens": 100, "completion_tokens": 1})
    )
    assert log.traffic.joint.running_tokens == pytest.approx(151 / 5)


@given(
    st.integers(1, MAX_TOKENS),
    st.none() | st.integers(0, MAX_TOKENS),
    st.none() | st.integers(0, MAX_TOKENS),
)
def test_a_request_never_takes_more_than_it_needs_room_for(
    prompt: int, answer: int | None, wanted: int | None
) -> None:
    found = traffic_of_counts({(prompt, answer, wanted): 1})
    assert prompt <= found.taken.longest_tokens <= found.needed.longest_tokens
    assert found.needed.longest_tokens > prompt


@pytest.mark.parametrize(
    ("name", "requests", "unusable"), [("requests.jsonl", 599, 1), ("requests.csv", 500, 0)]
)
def test_the_samples_have_the_stated_lengths(name: str, requests: int, unusable: int) -> None:
    with (SAMPLES / name).open("rb") as content:
        log = read_request_log(content)
    assert (log.traffic.prompts.requests, log.unusable) == (requests, unusable)
    if name == "requests.jsonl":
        assert (log.traffic.prompts.lengths[0], log.traffic.prompts.longest_tokens) == (765, 1203)
        assert log.traffic.max_tokens.lengths == (512,)
    else:
        assert 22_000 < log.traffic.taken.longest_tokens < 22_500


def run_cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvcore", "workload", *arguments], capture_output=True, text=True, check=False
    )


def test_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_bytes(
        b"".join(lines(*({"prompt_tokens": 800 + n % 401, "max_tokens": 512} for n in range(4010))))
    )
    done = run_cli("--json", str(tmp_path / "one.jsonl"))
    report = json.loads(done.stdout)
    # 4,010 prompts, ten of each length from 800 to 1,200; no answers, so the P99 of max_tokens stands for them
    assert report == {
        "requests": 4010, "broken_lines": 0, "counted_by": "usage",
        "prompt": {"p50": 1000, "p90": 1160, "p95": 1180, "p99": 1196, "max": 1200}, "output": None,
        "total": {"p50": 1512, "p90": 1672, "p95": 1692, "p99": 1708, "max": 1712},
        "max_tokens": 512, "without_max_tokens": 0, "recommended_max_model_len": 1708, "p99_total": 1708,
        "lengths_off": 0.0, "arrivals": None, "models": [], "not_asked": 0,
        "failed": 0, "other_kinds": 0, "warnings": [],
    }  # fmt: skip
    asked = run_cli("--json", "--max-tokens", "1000", str(tmp_path / "one.jsonl"))
    assert json.loads(asked.stdout)["recommended_max_model_len"] == 2196
    assert "--max-model-len 1708" in run_cli(str(tmp_path / "one.jsonl")).stdout
    saved = tmp_path / "traffic.json"
    run_cli("--save", str(saved), str(tmp_path / "one.jsonl"))
    assert json.loads(run_cli("--json", str(saved)).stdout) == report
    (tmp_path / "bad.csv").write_text("time,status\n1,ok\n")
    failed = run_cli(str(tmp_path / "bad.csv"))
    assert failed.returncode == 2
    assert "time, status" in failed.stderr


def test_the_sample_needs_what_the_document_says() -> None:
    """Its P99 of the prompts is 1,178 and all lines state max_tokens 512: 1,178 + 512 = 1,690."""
    path = str(SAMPLES / "requests.jsonl")
    report = json.loads(run_cli("--json", path).stdout)
    assert report["prompt"]["p99"] == 1178
    assert (report["max_tokens"], report["without_max_tokens"]) == (512, 0)
    assert report["recommended_max_model_len"] == 1690
    printed = run_cli(path).stdout
    assert "--max-model-len 1690 " in printed
    assert "rounds it up to 1792" in printed
    assert "state no max_tokens" not in printed


def test_lines_without_max_tokens_are_said_with_what_counts_instead(tmp_path: Path) -> None:
    """Half of the lines state 512 and need 1,000 + 512; the others need 1,000 and their answer of 700."""
    usage = {"prompt_tokens": 1000, "completion_tokens": 700}
    asked = [{"usage": {"prompt_tokens": 1000, "completion_tokens": 80}, "max_tokens": 512}] * 50
    (tmp_path / "half.jsonl").write_bytes(b"".join(lines(*asked, *[{"usage": usage}] * 50)))
    report = json.loads(run_cli("--json", str(tmp_path / "half.jsonl")).stdout)
    assert report["without_max_tokens"] == 50
    assert report["recommended_max_model_len"] == 1700
    assert (
        "50 requests state no max_tokens: their own answers" in run_cli(str(tmp_path / "half.jsonl")).stdout
    )


class TestCost:
    """The work is in proportion to the log, whatever stands in it."""

    def test_the_oldest_of_many_pending_requests_is_found_at_once(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def cpu_seconds(pending: int, ids: int) -> float:
            monkeypatch.setattr(streams, "MAX_PENDING", pending)
            lines = streams.EngineLines()
            before = time.thread_time()
            for number in range(ids):
                lines.take(f"Received request {number}: prompt_token_ids: [1]")
                assert sum(1 for _ in lines.overflow()) == (number >= pending)
            return time.thread_time() - before

        all_kept = cpu_seconds(100_000, 100_000)
        passed_on = cpu_seconds(25_000, 100_000)
        # a plain dictionary takes several times as long
        assert passed_on < 2 * all_kept + 0.1

    @pytest.mark.parametrize(
        "unit",
        [
            b"{\n",
            b"[\n",
            b"\n",
            b'{"prompt_tokens":1}\n',
            b'{"messages":[{"role":"user","content":"aaaa"}]}\n',
            b"Received request ",
            b"Received request a: \n",
            b"prompt_tokens: [",
            b"x,y\n",
            b'"1\n',
            b"1,1,",
        ],
    )
    @pytest.mark.parametrize("head", [b"", b"prompt_tokens,completion_tokens\n"])
    def test_time_grows_in_proportion_to_the_lines(self, unit: bytes, head: bytes) -> None:
        def cpu_seconds(size: int) -> float:
            content = io.BytesIO(head + unit * (size // len(unit)))
            before = time.thread_time()
            with suppress(WorkloadError):
                read_request_log(content)
            return time.thread_time() - before

        assert cpu_seconds(80_000) < 9 * min(cpu_seconds(20_000) for _ in range(2)) + 0.5

    def test_more_requests_than_are_read_are_refused(self) -> None:
        few = Reading(max_requests=100)
        one = b'{"prompt_tokens": 8}'
        for content in ([one + b"\n"] * 101, [b"[" + b",".join([one] * 101) + b"]"], [b"\n"] * 101):
            with pytest.raises(WorkloadError) as caught:
                read_request_log(content, reading=few)
            assert caught.value.code == "request-log-too-long"
        assert read_request_log([one + b"\n"] * 100, reading=few).traffic.prompts.requests == 100

    def test_an_overlong_row_counts_as_unusable(self) -> None:
        log = read_request_log(
            [b"prompt_tokens,x\n", b"5,1\n", b"1," * (columns.MAX_ROW_BYTES // 2) + b"1\n", b"6,1\n"]
        )
        assert log.traffic.prompts.lengths == (5, 6)
        assert (log.unusable, log.unusable_lines) == (1, (3,))

    def test_a_record_with_too_many_values_counts_as_unusable(self) -> None:
        many = b'{"prompt_tokens": [' + b"0," * fields.MAX_VALUES + b"0]}\n"
        log = read_request_log([many, b'{"prompt_tokens": 8}\n'])
        assert (log.traffic.prompts.lengths, log.unusable_lines) == ((8,), (1,))

    def test_a_long_text_of_both_kinds_is_counted_in_slices(self) -> None:
        slices = 3 * requests.TEXT_SLICE
        assert requests.estimated_tokens("显a" * slices) == math.ceil(slices + slices / 3.85)

    def test_a_long_first_line_is_read_in_its_encoding(self) -> None:
        prompt = "显存" * columns.MAX_ROW_BYTES
        log = read_request_log(lines({"prompt": prompt, "prompt_tokens": 7}))
        assert log.traffic.prompts.lengths == (7,)
