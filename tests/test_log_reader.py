"""Start-up logs of every era: figures, flags, ranks, and all the ways in which a log is pasted."""

import contextlib
import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvcore.base.errors import LogError
from kvcore.evidence.log.cleaned import MAX_LINE_CHARACTERS, MAX_LOG_BYTES, MAX_LOG_LINES, clean_log
from kvcore.evidence.log.reader import StartupLog, measured_from, read_log
from kvcore.evidence.recognized import logged_flags, logged_memory_gib, request_from
from kvcore.scenario import Measured

DATA = Path(__file__).parent / "data" / "logs"
SAMPLES: list[dict[str, Any]] = tomllib.loads((DATA / "samples.toml").read_text("utf-8"))["sample"]
PARTS = (
    "weights_gib",
    "peak_activation_gib",
    "non_torch_gib",
    "cuda_graph_gib",
    "system_gib",
    "available_kv_gib",
)

AVAILABLE = "INFO 07-20 11:00:50 [gpu_worker.py:232] Available KV cache memory: {} GiB"


def text_of(name: str) -> str:
    return (DATA / name).read_text("utf-8")


def parts_of(measured: Measured) -> dict[str, float]:
    return {part: value for part in PARTS if (value := getattr(measured, part)) is not None}


def figures_of(log: StartupLog) -> dict[str, float]:
    return {reading.figure: reading.value for reading in log.figures.readings}


every_sample = pytest.mark.parametrize("sample", SAMPLES, ids=[sample["file"] for sample in SAMPLES])


@every_sample
def test_every_era_gives_its_memory(sample: dict[str, Any]) -> None:
    measured = measured_from(read_log(text_of(sample["file"])))
    assert parts_of(measured) == pytest.approx(sample["measured"], abs=2e-5)


@every_sample
def test_every_era_gives_its_capacity(sample: dict[str, Any]) -> None:
    figures = figures_of(read_log(text_of(sample["file"])))
    assert {name: figures.get(name) for name in sample["figures"]} == pytest.approx(sample["figures"])


@every_sample
def test_every_era_gives_its_engine_and_flags(sample: dict[str, Any]) -> None:
    log = read_log(text_of(sample["file"]))
    assert log.engine == sample["engine"]
    assert log.version == sample.get("version")
    assert log.is_v0 == sample.get("is_v0")
    assert log.model == sample.get("model")
    assert log.card_name == sample.get("card_name")
    assert log.resolved_quantization == sample.get("resolved_quantization")
    assert log.failure is None
    assert [notice.code for notice in log.notices] == sample.get("notices", [])
    flags = logged_flags(log)
    assert {name: getattr(flags, name) for name in sample["flags"]} == sample["flags"]
    assert request_from(log).get("env", {}) == sample.get("env", {})
    if "total_gib" in sample:
        assert logged_memory_gib(log) == pytest.approx(sample["total_gib"], abs=1e-3)
    else:
        assert logged_memory_gib(log) is None
    assert set(sample.get("missing", [])) <= set(log.missing)


@every_sample
def test_the_spread_of_the_ranks_is_given(sample: dict[str, Any]) -> None:
    log = read_log(text_of(sample["file"]))
    spreads = {spread.figure: spread for spread in log.spreads if spread.low != spread.high}
    expected = sample.get("spread")
    if expected is None:
        assert spreads == {}
    else:
        spread = spreads[expected["figure"]]
        assert (spread.low, spread.high, spread.ranks) == (
            expected["low"],
            expected["high"],
            expected["ranks"],
        )


@every_sample
def test_every_reading_keeps_its_line(sample: dict[str, Any]) -> None:
    text = text_of(sample["file"])
    readings = read_log(text).readings
    assert readings
    plain = clean_log(text).lines
    for reading in readings:
        line = plain[reading.line_number - 1]
        assert reading.line.removesuffix("...")[:200] in line


def wrapped(text: str, width: int = 100) -> str:
    return "\n".join(
        line[at : at + width] for line in text.split("\n") for at in range(0, max(1, len(line)), width)
    )


TRANSPORTS: dict[str, Callable[[str], str]] = {
    "as it is": lambda text: text,
    "windows": lambda text: text.replace("\n", "\r\n"),
    "compose": lambda text: "\n".join(f"vllm-engine-1  | {line}" for line in text.split("\n")),
    "kubernetes": lambda text: "\n".join(
        f"2026-08-01T10:00:{at % 60:02}.123456789Z stderr F {line}"
        for at, line in enumerate(text.split("\n"))
    ),
    "journald": lambda text: "\n".join(
        f"Aug 01 10:00:00 gpu-7 vllm[1234]: {line}" for line in text.split("\n")
    ),
    "json": lambda text: "\n".join(
        json.dumps({"log": line + "\n", "stream": "stderr", "time": "2026-08-01T10:00:00Z"})
        for line in text.split("\n")
    ),
    "quoted": lambda text: "\n".join(f"> {line}" for line in text.split("\n")),
    "smart quotes": lambda text: text.replace("'", "\u2019").replace('"', "\u201d"),
    "escaped markdown": lambda text: text.replace("_", "\\_"),
    "no-break spaces": lambda text: text.replace(" ", "\u00a0"),
    "html": lambda text: text.replace("'", "&#39;").replace(">", "&gt;"),
    "colours without escape": lambda text: text.replace("INFO", "[32mINFO[0m"),
    "without timestamps": lambda text: "\n".join(
        line.partition("] ")[2] or line for line in text.split("\n")
    ),
}
NEEDS_ITS_LINE_BEGINNING = {"without timestamps": {"v0_0.8.2_tp4.log", "mindspore_prerun.log"}}
NEEDS_ITS_SPACES = {"no-break spaces": {"mindspore_prerun.log"}}


@pytest.mark.parametrize("transport", TRANSPORTS)
@every_sample
def test_a_log_reads_the_same_however_it_was_carried(sample: dict[str, Any], transport: str) -> None:
    if sample["file"] in NEEDS_ITS_LINE_BEGINNING.get(transport, set()) | NEEDS_ITS_SPACES.get(
        transport, set()
    ):
        pytest.skip("what names the rank or parts the command is taken away")
    plain = read_log(text_of(sample["file"]))
    carried = read_log(TRANSPORTS[transport](text_of(sample["file"])))
    assert figures_of(carried) == figures_of(plain)
    assert carried.flags == plain.flags
    if transport != "without timestamps":
        assert measured_from(carried) == measured_from(plain)
        assert carried.version == plain.version


@every_sample
@pytest.mark.parametrize("width", [60, 80, 133])
def test_a_broken_log_reads_the_same(sample: dict[str, Any], width: int) -> None:
    if sample["file"] == "mindspore_prerun.log":
        pytest.skip("a shell command cannot be put together again")
    plain = read_log(text_of(sample["file"]))
    broken = read_log(wrapped(text_of(sample["file"]), width))
    assert measured_from(broken) == measured_from(plain)
    assert figures_of(broken) == figures_of(plain)
    assert broken.flags == plain.flags


@every_sample
def test_joined_lines_read_the_same(sample: dict[str, Any]) -> None:
    plain = read_log(text_of(sample["file"]))
    joined = read_log(text_of(sample["file"]).replace("\n", " "))
    assert figures_of(joined) == figures_of(plain)
    assert joined.worst_rank.available_kv_gib == plain.worst_rank.available_kv_gib or (
        joined.worst_rank.available_kv_gib is not None
        and plain.worst_rank.available_kv_gib is not None
        and joined.worst_rank.available_kv_gib.value == plain.worst_rank.available_kv_gib.value
    )


@every_sample
def test_a_truncated_log_gives_its_remaining_figures(sample: dict[str, Any]) -> None:
    text = text_of(sample["file"])
    whole = {(r.figure, r.value) for rank in read_log(text).ranks for r in rank.readings}
    for share in range(1, 20):
        with contextlib.suppress(LogError):
            part = read_log(text[: len(text) * share // 20])
            assert {(r.figure, r.value) for rank in part.ranks for r in rank.readings} <= whole


def test_utf16_of_a_windows_shell() -> None:
    data = text_of("v1_0.9.2_a100.log").encode("utf-16")
    assert measured_from(read_log(data)).available_kv_gib == 18.69


def test_worst_rank_is_the_one_with_the_least_kv_memory() -> None:
    log = read_log(text_of("v1_0.19.0_tp2_debug.log"))
    assert log.worst_rank.rank == "Worker_TP0"
    assert [rank.rank for rank in log.ranks] == ["Worker_TP0", "Worker_TP1"]


def test_ranks_without_names_are_told_apart() -> None:
    log = read_log("\n".join(AVAILABLE.format(value) for value in (10.4, 10.1, 10.3, 10.2)))
    assert [rank.available_kv_gib.value for rank in log.ranks if rank.available_kv_gib] == [
        10.4,
        10.1,
        10.3,
        10.2,
    ]
    assert measured_from(log).available_kv_gib == 10.1
    assert log.notices == ()


def test_one_rank_that_gives_two_figures_contradicts_itself() -> None:
    args = "non-default args: {'model': 'm', 'tensor_parallel_size': 1}"
    log = read_log("\n".join([args, AVAILABLE.format(10.4), AVAILABLE.format(8.1)]))
    assert [(n.code, n.field) for n in log.notices] == [("log-contradiction", "available_kv_gib")]
    assert log.notices[0].message == "the log gives available_kv_gib as 10.40 GiB and as 8.10 GiB"
    assert measured_from(log).available_kv_gib == 8.1


def test_figures_too_far_apart_for_ranks_contradict_each_other() -> None:
    log = read_log("\n".join([AVAILABLE.format(40.4), AVAILABLE.format(8.1)]))
    assert [notice.code for notice in log.notices] == ["log-contradiction"]


@pytest.mark.parametrize(
    ("line", "figure"),
    [
        ("Model loading took -3.5 GiB and 1.0 seconds", "weights_gib"),
        ("Model loading took 99999999 GiB and 1.0 seconds", "weights_gib"),
        ("Available KV cache memory: 20480.5 GiB", "available_kv_gib"),
        ("GPU KV cache size: -5 tokens", "kv_tokens"),
        ("Graph capturing finished in 9 secs, took -0.65 GiB", "cuda_graph_gib"),
        ("actual peak used mem:99999999999M.", "peak_used_gib"),
    ],
)
def test_absurd_figures_are_dropped_and_reported(line: str, figure: str) -> None:
    log = read_log(line)
    assert log.readings == ()
    assert [(notice.code, notice.field) for notice in log.notices] == [("log-absurd-figure", figure)]


def test_a_failing_start_may_print_negative_kv_memory() -> None:
    log = read_log(AVAILABLE.format(-24.42))
    assert (measured_from(log).available_kv_gib, log.notices) == (-24.42, ())


def test_last_of_several_starts_is_read() -> None:
    first = text_of("v1_0.10.2_h100.log")
    log = read_log(first + text_of("v1_0.9.2_a100.log"))
    assert (log.version, measured_from(log).available_kv_gib) == ("0.9.2", 18.69)
    assert [(n.code, n.params["starts"]) for n in log.notices] == [("log-several-starts", "2")]


def test_a_start_that_has_only_begun_gives_way_to_the_one_before() -> None:
    log = read_log(text_of("v1_0.9.2_a100.log") + "INFO 07-20 12:00:00 vLLM API server version 0.9.2\n")
    assert measured_from(log).available_kv_gib == 18.69


def test_data_parallel_engines_are_one_start() -> None:
    line = "(EngineCore_DP{} pid=5{}) INFO [core.py:1] Initializing a V1 LLM engine (v0.19.0) with config: model=m"
    log = read_log("\n".join(line.format(at, at) for at in range(4)))
    assert log.notices == ()


def test_auto_fit_gives_both_lengths() -> None:
    line = (
        "(EngineCore pid=1) INFO 04-14 09:02:00 [kv_cache_utils.py:1462] Auto-fit max_model_len: reduced from 262144 "
        "to 131056 to fit in available GPU memory (16.0 GiB available for KV cache)"
    )
    figures = figures_of(read_log(line))
    assert (figures["auto_fit_from"], figures["auto_fit_len"]) == (262144, 131056)


def test_graph_estimate_is_left_in_where_it_is_not_charged() -> None:
    charged = text_of("v1_0.26.0_tp4_estimate.log")
    line = "CUDA graph memory profiling is disabled (VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0)."
    assert measured_from(read_log(charged + line)).peak_activation_gib == 11.3


def test_mindspore_peak_in_gib() -> None:
    peak = read_log(text_of("mindspore_prerun.log")).worst_rank.peak_used_gib
    assert peak is not None
    assert peak.value == pytest.approx(28.92, abs=0.005)


def test_request_is_complete_for_planning() -> None:
    log = read_log(text_of("v1_0.19.0_tp2_debug.log"))
    assert request_from(log) == {
        "model": "Qwen/Qwen2.5-72B-Instruct",
        "engine": "vllm",
        "engine_version": "0.19.0",
        "accelerator": {"memory_gib": 79.19},
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 1,
        "data_parallel_size": 1,
        "decode_context_parallel_size": 1,
        "dtype": "bfloat16",
        "kv_cache_dtype": "auto",
        "gpu_memory_utilization": 0.95,
        "max_model_len": 8192,
        "max_num_seqs": 1024,
        "enforce_eager": False,
        "enable_prefix_caching": False,
        "enable_chunked_prefill": True,
    }


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ("", "log-not-recognized"),
        ("KV cache size: 51380224 bytes, allocated: 45749248 bytes (89.0%)", "log-not-recognized"),
        ("[2026-08-01] nginx: 200 GET /\n" * 50, "log-not-recognized"),
        (bytes(range(256)) * 64, "log-not-text"),
        ("\x7fELF\x02\x01\x01" + "\x00" * 400, "log-not-text"),
        ("x" * (MAX_LOG_BYTES + 1), "log-too-large"),
        ("\n" * (MAX_LOG_LINES + 1), "log-too-large"),
    ],
)
def test_a_text_that_is_no_log_is_refused_by_code(given: str | bytes, code: str) -> None:
    with pytest.raises(LogError) as caught:
        read_log(given)
    assert caught.value.code == code
    assert "{" not in str(caught.value) + caught.value.next_step


def test_a_refusal_names_the_lines_that_were_expected() -> None:
    with pytest.raises(LogError, match="Available KV cache memory"):
        read_log("hello\nworld")


def test_a_line_that_is_too_long_is_read_in_part() -> None:
    log = read_log(AVAILABLE.format(18.69) + " " + "x" * MAX_LINE_CHARACTERS + AVAILABLE.format(99.0))
    assert measured_from(log).available_kv_gib == 18.69
    assert [notice.code for notice in log.notices] == ["log-line-cut"]
