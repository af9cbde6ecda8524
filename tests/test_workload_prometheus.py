"""The engine's own histograms: intervals by hand, over labels together; damaged ones are coded errors."""

from __future__ import annotations

import io
import json
import math
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcore.base.errors import WorkloadError
from kvcore.cli import main
from kvcore.workload.prometheus import Buckets, metrics_report, query_server, read_metrics

EDGES = ("100.0", "200.0", "+Inf")


def exposed(metric: str, counts: tuple[float, ...], total: float, label: str = "m") -> str:
    rows = (f'{metric}_bucket{{engine="0",le="{edge}",model_name="{label}"}} {count}'
            for edge, count in zip(EDGES, counts, strict=True))  # fmt: skip
    return "\n".join((f"# TYPE {metric} histogram", *rows, f'{metric}_sum{{model_name="{label}"}} {total}'))


PROMPT = exposed("vllm:request_prompt_tokens", (40, 99, 100), 12_000)
ANSWER = exposed("vllm:request_generation_tokens", (100, 100, 100), 5_000)
LATENCY = exposed("vllm:e2e_request_latency_seconds", (100, 100, 100), 400)


def test_two_models_are_added_and_percentiles_lie_between_edges() -> None:
    """80 of 200 up to 100, 198 up to 200: P50 between 100 and 200, P99 at most 200, the mean 120."""
    found = read_metrics(
        PROMPT + "\n" + exposed("vllm:request_prompt_tokens", (40, 99, 100), 12_000, "other")
    )
    assert found["prompt"].counts == (80, 198, 200)
    assert [found["prompt"].interval(p) for p in (40, 50, 99, 99.5)] == [
        (0, 100), (100, 200), (100, 200), (200, math.inf),
    ]  # fmt: skip
    assert found["prompt"].mean == 120


def test_the_report_has_intervals_and_littles_law() -> None:
    report = metrics_report(read_metrics("\n".join((PROMPT, ANSWER, LATENCY))), requests_per_second=2.5)
    assert report["prompt"] == {
        "mean": 120.0,
        "p50": [100, 200],
        "p90": [100, 200],
        "p95": [100, 200],
        "p99": [100, 200],
    }
    assert report["recommended_max_model_len"] == [101, 300]
    assert report["requests_at_once"] == 10
    assert report["max_tokens"] is None


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=200), st.sampled_from([50, 90, 95, 99]))
def test_an_interval_contains_the_percentile(values: list[int], percent: int) -> None:
    edges = (10.0, 100.0, 1000.0, math.inf)
    counts = tuple(float(sum(value <= edge for value in values)) for edge in edges)
    low, high = Buckets(edges=edges, counts=counts, total=float(sum(values))).interval(percent)
    true = sorted(values)[-(-percent * len(values) // 100) - 1]
    assert low < true <= high


@pytest.mark.parametrize(("text", "code"), [
    ("", "metrics-none"),
    (ANSWER, "metrics-none"),
    (exposed("vllm:request_prompt_tokens", (40, 30, 100), 1), "metrics-damaged"),
    (exposed("vllm:request_prompt_tokens", (0, 0, 0), 0), "metrics-damaged"),
    (PROMPT.replace("+Inf", "300"), "metrics-damaged"),
    (PROMPT.replace('le="100.0"', 'le="x"'), "metrics-damaged"),
    (exposed("vllm:request_prompt_tokens", (math.inf, math.inf, math.inf), 1), "metrics-damaged"),
    (exposed("vllm:request_prompt_tokens", (40, 70, 100), 1).replace(" 100", " 1e999"), "metrics-damaged"),
    ("\n".join(f'vllm:request_prompt_tokens_bucket{{le="{edge}"}} 5' for edge in range(1000)), "metrics-damaged"),
])  # fmt: skip
def test_a_damaged_histogram_is_a_coded_error(text: str, code: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        read_metrics(text)
    assert caught.value.code == code


@given(st.text(max_size=300))
def test_any_text_ends_in_intervals_or_a_coded_error(text: str) -> None:
    assert read_metrics(PROMPT + "\n" + text.replace("vllm:", "")).keys() == {"prompt"}


class _Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)["query"][0]
        result = []
        if "request_prompt_tokens_bucket[6h]" in query:
            result = [{"metric": {"le": edge}, "value": [0, str(count)]}
                      for edge, count in zip(EDGES, (40, 99, 100), strict=True)]  # fmt: skip
        elif "request_prompt_tokens_sum" in query:
            result = [{"metric": {}, "value": [0, "12000"]}]
        body = json.dumps({"status": "success", "data": {"result": result}}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    found = HTTPServer(("127.0.0.1", 0), _Server)
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{found.server_port}"
    found.shutdown()
    found.server_close()


def test_a_prometheus_server_is_asked(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert query_server(server, "6h") == read_metrics(PROMPT)
    assert main(["metrics", server, "--window", "6h", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["prompt"]["p99"] == [100, 200]


@pytest.mark.parametrize(("address", "window", "code"), [
    ("http://127.0.0.1:9", "1d", "metrics-unreachable"),
    ("http://127.0.0.1:9", "1d]) or x", "metrics-window"),
])  # fmt: skip
def test_an_unreachable_server_or_a_bad_window(address: str, window: str, code: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        query_server(address, window)
    assert caught.value.code == code


def test_the_command_reads_a_pasted_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pasted = io.TextIOWrapper(io.BytesIO("\n".join((PROMPT, ANSWER)).encode()))
    monkeypatch.setattr("sys.stdin", pasted)
    assert main(["metrics", "-"]) == 0
    assert "--max-model-len from 101 to 300" in capsys.readouterr().out
