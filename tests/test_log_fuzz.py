"""The log reader against anything: no exception but its own coded one, and time in proportion to the input.

The suite runs a small number of inputs; `LOG_FUZZ_EXAMPLES=100000 pytest tests/test_log_fuzz.py` runs many.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvcore.base.errors import LogError
from kvcore.evidence.log import arguments as log_flags
from kvcore.evidence.log import cleaned as log_text
from kvcore.evidence.log import commands as log_commands
from kvcore.evidence.log import failures
from kvcore.evidence.log import line_formats as log_formats
from kvcore.evidence.log import reader as log_reader
from kvcore.evidence.log.cleaned import clean_log
from kvcore.evidence.log.failures import ERRORS
from kvcore.evidence.log.line_formats import FORMATS as TABLES
from kvcore.evidence.log.line_formats import MAX_HITS, LineFormat, find_lines
from kvcore.evidence.log.reader import StartupLog, measured_from, read_log
from kvcore.evidence.recognized import request_from
from kvcore.manifests import values as log_values

EXAMPLES = int(os.environ.get("LOG_FUZZ_EXAMPLES", "120"))
DATA = Path(__file__).parent / "data" / "logs"
SAMPLES = [path.read_text("utf-8") for path in sorted(DATA.glob("*.log"))]
FORMATS: list[LineFormat] = [
    *TABLES.load().lines,
    *(line for error in ERRORS.load().error for line in error.formats),
]

fuzz = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example, HealthCheck.data_too_large],
)


def read(given: str | bytes) -> StartupLog | None:
    """The log and everything derived from it; None where it is refused by code."""
    try:
        log = read_log(given)
    except LogError as error:
        if "{" in str(error).replace(repr(error.value), ""):
            raise
        return None
    measured_from(log)
    request_from(log)
    for notice in log.notices:
        assert notice.message
    for failure in log.failures:
        assert failure.notice.message
        assert failure.line.isprintable()
    for rank in log.ranks:
        for reading in rank.readings:
            assert 0 <= reading.value <= 10240 or reading.figure == "available_kv_gib"
            assert reading.line.isprintable()
    return log


def filled(text: str, numbers: Iterator[str]) -> str:
    """A format with something in place of each figure."""
    return re.sub(r"\{[^}]*\}", lambda _: next(numbers, ""), text)


odd_numbers = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True).map(str),
    st.integers(-(10**30), 10**30).map(str),
    st.sampled_from(["", "-", ".", "1.", "1,,2", "1e9", "0x10", "--1", "9" * 40, "١٢", "½", "1.2.3.4"]),
)
engine_lines = st.builds(
    lambda line, numbers: filled(line.text, iter(numbers)),
    st.sampled_from(FORMATS),
    st.lists(odd_numbers, max_size=8),
)
prefixes = st.sampled_from(
    [
        "",
        "(EngineCore pid=1) INFO 01-01 10:00:00 [a.py:1] ",
        "(Worker_TP0 pid=2) ",
        "(VllmWorker rank=1 pid=3) ",
        "> ",
    ]
)
argument_lines = st.builds(
    lambda start, body: start + body,
    st.sampled_from(["non-default args: {", "args: Namespace(", "with config: model=", "vllm serve --"]),
    st.text(alphabet="'\"{}[](),:=\\ abmodel_0123.-", max_size=200),
)


@fuzz
@given(st.text(max_size=2000))
def test_any_text_is_read_or_refused_by_code(text: str) -> None:
    read(text)


@fuzz
@given(st.binary(max_size=2000))
def test_any_bytes_are_read_or_refused_by_code(data: bytes) -> None:
    read(data)


@fuzz
@given(st.lists(st.builds(str.__add__, prefixes, st.one_of(engine_lines, argument_lines)), max_size=12))
def test_engine_lines_with_odd_numbers(lines: list[str]) -> None:
    read("\n".join(lines))


@fuzz
@given(
    st.sampled_from(SAMPLES),
    st.lists(
        st.tuples(
            st.floats(0, 1), st.integers(0, 60), st.one_of(st.text(max_size=12), odd_numbers, engine_lines)
        ),
        min_size=1,
        max_size=8,
    ),
)
def test_changed_logs_are_read_or_refused_by_code(text: str, edits: list[tuple[float, int, str]]) -> None:
    for share, length, put in edits:
        at = int(share * len(text))
        text = text[:at] + put + text[at + length :]
    read(text)


@fuzz
@given(st.lists(st.sampled_from([line for text in SAMPLES for line in text.split("\n")]), max_size=30))
def test_lines_of_all_samples_mixed(lines: list[str]) -> None:
    read("\n".join(lines))


@fuzz
@given(st.sampled_from(FORMATS), st.integers(0, 9999), st.integers(1, 9999))
def test_a_format_finds_its_own_line_wherever_it_is_broken(line: LineFormat, whole: int, seed: int) -> None:
    units = {"size": " GiB"}
    values = iter([f"{whole}.25" + units.get(kind, "") for _, kind in line.fields])
    text = re.sub(
        r"\{(\w+)(?::\w+)?\}",
        lambda match: {"any": "x", "word": "7", "count": "7", "unit": "GiB"}.get(match[1]) or next(values),
        line.text,
    )
    at = seed % len(text)
    log = clean_log(text[:at] + "\n" + text[at:])
    if line.ends_line and "\n" in (text[:at] + "\n" + text[at:])[-8:]:
        return
    hits = list(find_lines(log, line, 0, len(log.text)))
    assert [name for name, _ in hits[0].numbers] == [name for name, _ in line.fields]


YAML_LINES = [
    "services:", "  llm:", "    image: vllm/vllm-openai:v0.19.0", "    command:", "      - --model=m", "  environment:",
    "    command: [--model, m, -tp, 2]", "model: m", "max-model-len: 8192", "args: |", "  vllm serve m --dtype half \\",
    "a: &a [*a]", "<<: *a", "---", "env: [{name: VLLM_USE_V1, value: 1}]", "docker run --rm \\",
    " vllm/vllm-openai -e A=1 m",
    "cudagraph-capture-sizes: {a: [1, {b: 2}]}", "? [x]", "- !t x", "\t", "limit-mm-per-prompt: {image: 2}",
]  # fmt: skip


@fuzz
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.one_of(st.sampled_from(YAML_LINES), st.text(max_size=12))),
        max_size=16,
    )
)
def test_container_files_are_read_or_refused_by_code(lines: list[tuple[int, str]]) -> None:
    read("\n".join("  " * indent + line for indent, line in lines))


# -- time, by construction

NESTED = re.compile(r"\([^()]*[*+}][^()]*\)[*+]|\([^()]*[*+][^()]*\)\{")
PATTERNS = {
    f"{module.__name__}.{name}": pattern
    for module in (
        failures,
        log_commands,
        log_values,
        log_text,
        log_flags,
        log_formats,
        log_reader,
    )
    for name, pattern in vars(module).items()
    if isinstance(pattern, re.Pattern)
} | {line.text: line.pattern for line in FORMATS}


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_no_pattern_repeats_without_bound(pattern: re.Pattern[str]) -> None:
    plain = re.sub(r"\\.|\[(?:\\.|[^\]\\])*\]", "x", pattern.pattern)
    assert "*" not in plain
    assert "+" not in plain
    assert not NESTED.search(plain)
    assert all(int(high) <= 400 for high in re.findall(r"\{\d+,(\d+)\}", plain))


@pytest.mark.parametrize("line", FORMATS, ids=[line.text for line in FORMATS])
def test_every_format_begins_with_words(line: LineFormat) -> None:
    assert len(line.beginning) >= 5
    assert line.pattern.pattern.startswith(re.escape(line.beginning))


@pytest.mark.parametrize("line", FORMATS, ids=[line.text for line in FORMATS])
def test_a_format_skips_what_differs_only_once(line: LineFormat) -> None:
    assert line.pattern.pattern.count(".{0,160}?") <= 1


def test_hits_of_one_format_are_bounded() -> None:
    line = TABLES.load().lines[0]
    log = clean_log((line.beginning + "1 GiB ") * (MAX_HITS + 500))
    assert sum(1 for _ in find_lines(log, line, 0, len(log.text))) == MAX_HITS


@pytest.mark.parametrize(
    "unit",
    [
        "Available KV cache memory: ",
        "Free memory on device ",
        "CUDA out of memory. Tried to allocate ",
        "ValueError: ",
        "a.b.c_d",
        "Model architectures ",
        "Graph capturing finished in ",
        "Total non KV cache memory: 1",
        "non-default args: {",
        "args: Namespace(",
        "with config: model='",
        "vllm serve --x \\\n",
        "docker run --rm \\\n",
        "args: [",
        "model: m\n",
        "(Worker_TP0 pid=",
        "device_name=",
        "NVIDIA ",
        "\x1b[",
        "> | * ",
        "a | ",
        "&amp;",
        "ASCEND_TOTAL_MEMORY_GB=",
        "Initializing a V1 LLM engine (v",
        '{"log": "',
        "((((((((",
        "9" * 60,
    ],
)
def test_one_adversarial_line_is_read_to_its_end(unit: str) -> None:
    text = unit * (200_000 // len(unit)) + "\nINFO Available KV cache memory: 1.50 GiB\n"
    log = read(text)
    assert log is not None
    assert log.worst_rank.available_kv_gib is not None
    assert log.worst_rank.available_kv_gib.value == 1.5
