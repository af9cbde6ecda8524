"""The Hub client against a local stand-in that speaks the Hub's API through HF_ENDPOINT."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from kvcore import hub
from kvcore.errors import HubError
from kvcore.hub import fetch_model

CONFIG = {"model_type": "llama", "hidden_size": 64}


@dataclass
class Answer:
    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay_seconds: float = 0.0


@dataclass
class StandIn:
    """Answers by path; remembers what was asked and with which token."""

    url: str
    answers: dict[str, Answer]
    asked: list[tuple[str, str | None]]

    def model(self, name: str, files: dict[str, object], **facts: object) -> None:
        siblings = [{"rfilename": file} for file in files]
        page = {"id": name, "sha": "c" * 40, "siblings": siblings, **facts}
        self.answers[f"/api/models/{name}"] = Answer(json.dumps(page).encode())
        for file, content in files.items():
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.answers[f"/{name}/resolve/main/{file}"] = Answer(body)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    answers: dict[str, Answer] = {}
    asked: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers.get("authorization")))
            missing = Answer(status=404, headers={"x-error-code": "EntryNotFound"})
            if self.path.startswith("/api/"):
                missing = Answer(status=401, headers={"x-error-code": "RepoNotFound"})
            answer = answers.get(self.path, missing)
            time.sleep(answer.delay_seconds)
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    for name in ("HF_HUB_OFFLINE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", url)
    yield StandIn(url, answers, asked)
    server.shutdown()
    server.server_close()


def code_of(model: str, **options: float) -> str:
    with pytest.raises(HubError) as caught:
        fetch_model(model, **options)
    assert caught.value.field == "model"
    assert caught.value.next_step
    return caught.value.code


def test_found_with_sizes_and_revision(stand_in: StandIn) -> None:
    index = {"metadata": {"total_size": 16060522496}, "weight_map": {}}
    stand_in.model(
        "a/b",
        {"config.json": CONFIG, "model.safetensors.index.json": index},
        safetensors={"total": 8030261248},
    )
    found = fetch_model("a/b")
    assert found.config.raw == CONFIG
    assert (found.checkpoint.total_size, found.checkpoint.total_parameters) == (16060522496, 8030261248)
    assert found.revision == "c" * 40


def test_side_files_are_read(stand_in: StandIn) -> None:
    stand_in.model(
        "a/modelopt", {"config.json": CONFIG, "hf_quant_config.json": {"quantization": {"quant_algo": "FP8"}}}
    )
    assert fetch_model("a/modelopt").config.hf_quant_config == {"quantization": {"quant_algo": "FP8"}}
    stand_in.model("a/gptq", {"config.json": CONFIG, "quantize_config.json": {"bits": 4, "group_size": 128}})
    quantization = fetch_model("a/gptq").config.raw["quantization_config"]
    assert quantization == {"quant_method": "gptq", "bits": 4, "group_size": 128}


def test_no_token_is_sent_unless_the_server_has_one(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in.model("a/b", {"config.json": CONFIG})
    fetch_model("a/b")
    assert {token for _, token in stand_in.asked} == {None}
    stand_in.asked.clear()
    monkeypatch.setenv("HF_TOKEN", "secret")
    fetch_model("a/b")
    assert {token for _, token in stand_in.asked} == {"Bearer secret"}


def test_no_weights_are_asked_for(stand_in: StandIn) -> None:
    stand_in.model("a/b", {"config.json": CONFIG, "model.safetensors": b"weights", "modeling_b.py": b"code"})
    fetch_model("a/b")
    assert {path for path, _ in stand_in.asked} == {"/api/models/a/b", "/a/b/resolve/main/config.json"}


@pytest.mark.parametrize(
    "model", ["", "gpt2", "a/b/c", "a/../b", "../a", "a b/c", "a/b?x=1", "http://x/y", "a/" + "b" * 200]
)
def test_only_owner_and_name(stand_in: StandIn, model: str) -> None:
    assert code_of(model) == "hub-invalid-id"
    assert not stand_in.asked


def test_missing(stand_in: StandIn) -> None:
    assert code_of("a/nothing") == "hub-not-found"


def test_without_a_config(stand_in: StandIn) -> None:
    stand_in.model("a/gguf", {"model.gguf": b""})
    assert code_of("a/gguf") == "hub-no-config"


def test_gated(stand_in: StandIn) -> None:
    stand_in.model("a/b", {}, gated="manual")
    stand_in.answers["/a/b/resolve/main/config.json"] = Answer(
        status=401, headers={"x-error-code": "GatedRepo"}
    )
    assert code_of("a/b") == "hub-gated"
    stand_in.answers["/api/models/a/b"] = Answer(status=403)
    assert code_of("a/b") == "hub-gated"


def test_server_trouble(stand_in: StandIn) -> None:
    stand_in.answers["/api/models/a/b"] = Answer(status=503)
    assert code_of("a/b") == "hub-unreachable"


def test_slow(stand_in: StandIn) -> None:
    stand_in.answers["/api/models/a/b"] = Answer(b"{}", delay_seconds=2.0)
    assert code_of("a/b", time_limit_seconds=0.2) == "hub-timeout"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "hub-malformed"),
        (b"[1]", "hub-malformed"),
        (b"\xff\xfe", "hub-malformed"),
        (b'{"hidden_size": NaN}', "hub-malformed"),
        (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, "hub-malformed"),
        (b'{"a": "' + b"x" * (hub.SIZE_LIMIT_BYTES + 1) + b'"}', "hub-too-large"),
    ],
)
def test_bad_content(stand_in: StandIn, body: bytes, code: str) -> None:
    stand_in.model("a/b", {"config.json": body})
    assert code_of("a/b") == code


def test_an_oversized_index_costs_only_the_size(stand_in: StandIn) -> None:
    stand_in.model(
        "a/b", {"config.json": CONFIG, "model.safetensors.index.json": b"x" * (hub.SIZE_LIMIT_BYTES + 1)}
    )
    assert fetch_model("a/b").checkpoint.total_size is None


def test_a_renamed_model_is_followed_on_the_same_host_only(stand_in: StandIn) -> None:
    stand_in.model("new/name", {"config.json": CONFIG})
    for path in ("/api/models/", "/"):
        suffix = "" if "api" in path else "/resolve/main/config.json"
        target = f"{path}new/name{suffix}"
        stand_in.answers[f"{path}old/name{suffix}"] = Answer(status=307, headers={"location": target})
    assert fetch_model("old/name").config.raw == CONFIG
    stand_in.answers["/api/models/evil/name"] = Answer(
        status=307, headers={"location": "http://127.0.0.2:1/x"}
    )
    assert code_of("evil/name") == "hub-unreachable"


def test_offline_uses_only_the_cache(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in.model("a/b", {"config.json": CONFIG})
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert code_of("a/b") == "hub-offline"
    assert not stand_in.asked


def test_nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert code_of("a/b") == "hub-unreachable"
