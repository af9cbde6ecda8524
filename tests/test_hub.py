"""The Hub client against a local stand-in that speaks the Hub's API through HF_ENDPOINT."""

from __future__ import annotations

import datetime
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from kvcore import hub_requests
from kvcore.catalogue.models import Checkpoint
from kvcore.errors import HubError
from kvcore.hub import KEPT_SECONDS, REFUSED_SECONDS, UNREACHED_SECONDS, HubModel, Lookups, fetch_model
from kvcore.hub_requests import SWITCH, InFlight
from kvcore.model.config import ModelConfig

CONFIG = {"model_type": "llama", "hidden_size": 64}
COMMIT = "c" * 40


NEVER_SECONDS = 60.0
"""How late an answer is that nobody waits for, however busy the machine."""


@dataclass
class Answer:
    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay_seconds: float = 0.0
    seconds_per_byte: float = 0.0


@dataclass
class StandIn:
    """Answers by path; remembers what was asked and with which token."""

    url: str
    answers: dict[str, Answer]
    asked: list[tuple[str, str | None]]

    def model(self, name: str, files: dict[str, object], **facts: object) -> None:
        siblings = [{"rfilename": file} for file in files]
        page = {"id": name, "sha": COMMIT, "siblings": siblings, **facts}
        self.answers[f"/api/models/{name}"] = Answer(json.dumps(page).encode())
        for file, content in files.items():
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.answers[f"/{name}/resolve/{COMMIT}/{file}"] = Answer(body)


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
            if not answer.seconds_per_byte:
                self.wfile.write(answer.body)
                return
            for byte in answer.body:
                time.sleep(answer.seconds_per_byte)
                try:
                    self.wfile.write(bytes([byte]))
                except OSError:
                    return

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    for name in (
        "KVPLANNER_HUB",
        "HF_HUB_OFFLINE",
        "HF_TOKEN",
        "HTTP_PROXY",
        "http_proxy",
        "ALL_PROXY",
        "all_proxy",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", url)
    yield StandIn(url, answers, asked)
    server.shutdown()
    server.server_close()


def code_of(model: str, **options: Any) -> str:
    with pytest.raises(HubError) as caught:
        fetch_model(model, **options)
    assert caught.value.field == "model"
    assert caught.value.next_step
    return caught.value.code


def test_found_with_sizes_at_one_commit(stand_in: StandIn) -> None:
    stand_in.model(
        "a/b", {"config.json": CONFIG}, safetensors={"parameters": {"BF16": 1000, "F32": 10}, "total": 1010}
    )
    found = fetch_model("a/b")
    assert found.config.raw == CONFIG
    assert (found.checkpoint.total_size, found.checkpoint.total_parameters) == (2040, 1010)
    assert found.revision == COMMIT
    assert abs(datetime.datetime.now(datetime.UTC) - found.fetched) < datetime.timedelta(minutes=1)


@pytest.mark.parametrize(
    ("counts", "total_size", "total_parameters"),
    [
        # meta-llama/Llama-3.1-8B: the published count and bytes
        ({"BF16": 8030261248}, 16060522496, 8030261248),
        # packed integers: bytes are known, parameters are not
        ({"I32": 800, "F16": 100}, 3400, None),
        ({"F8_E4M3": 1000, "BF16": 10, "F8_E8M0": 4}, 1024, 1014),
        ({"BF17": 100}, None, 100),
        ({"BF16": -1}, None, None),
        ({"BF16": True}, None, None),
        ([], None, None),
        (None, None, None),
    ],
)
def test_sizes_from_the_counted_dtypes(
    stand_in: StandIn, counts: object, total_size: int | None, total_parameters: int | None
) -> None:
    stand_in.model("a/b", {"config.json": CONFIG}, safetensors={"parameters": counts, "total": 1})
    found = fetch_model("a/b").checkpoint
    assert (found.total_size, found.total_parameters) == (total_size, total_parameters)


@pytest.mark.parametrize(
    ("metadata", "total_size"),
    [({"total_size": 16060522496}, 16060522496), ({"total_size": 0}, None), ({}, None), ("x", None)],
)
def test_a_sharded_index_gives_the_size_where_the_hub_counted_nothing(
    stand_in: StandIn, metadata: object, total_size: int | None
) -> None:
    index = {"metadata": metadata, "weight_map": {}}
    stand_in.model("a/b", {"config.json": CONFIG, "model.safetensors.index.json": index})
    assert fetch_model("a/b").checkpoint.total_size == total_size


def test_a_sentence_transformers_repository_is_known_by_its_list_of_files(stand_in: StandIn) -> None:
    stand_in.model("a/b", {"config.json": CONFIG, "modules.json": b"never read"}, safetensors=None)
    stand_in.model("a/c", {"config.json": CONFIG})
    assert fetch_model("a/b").checkpoint.sentence_transformers is True
    assert fetch_model("a/c").checkpoint.sentence_transformers is None
    assert not any("modules.json" in path for path, _ in stand_in.asked)


def test_a_revision_is_asked_for_by_name_and_read_by_commit(stand_in: StandIn) -> None:
    stand_in.model("a/b", {"config.json": CONFIG})
    stand_in.answers["/api/models/a/b/revision/refs%2Fpr%2F1"] = stand_in.answers.pop("/api/models/a/b")
    assert fetch_model("a/b", revision="refs/pr/1").revision == COMMIT
    assert code_of("a/b", revision="no-such-branch") == "hub-not-found"
    for bad in ("", "../main", "a b", "a?b", "x" * 300):
        assert code_of("a/b", revision=bad) == "hub-invalid-revision"


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
    assert {path for path, _ in stand_in.asked} == {"/api/models/a/b", f"/a/b/resolve/{COMMIT}/config.json"}


@pytest.mark.parametrize(
    "model",
    [
        "",
        "gpt2",
        "a/b/c",
        "a/../b",
        "../a",
        "a b/c",
        "a/b?x=1",
        "http://x/y",
        "a/" + "b" * 200,
        "a/b--c",
        "-a/b",
    ],
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
    stand_in.answers[f"/a/b/resolve/{COMMIT}/config.json"] = Answer(
        status=401, headers={"x-error-code": "GatedRepo"}
    )
    assert code_of("a/b") == "hub-gated"
    stand_in.answers["/api/models/a/b"] = Answer(status=403)
    assert code_of("a/b") == "hub-gated"


def test_server_trouble(stand_in: StandIn) -> None:
    stand_in.answers["/api/models/a/b"] = Answer(status=503)
    assert code_of("a/b") == "hub-unreachable"


def test_slow(stand_in: StandIn) -> None:
    stand_in.answers["/api/models/a/b"] = Answer(b"{}", delay_seconds=NEVER_SECONDS)
    started = time.monotonic()
    assert code_of("a/b", time_limit_seconds=0.2) == "hub-timeout"
    assert time.monotonic() - started < NEVER_SECONDS


def test_a_body_that_trickles_in_is_cut_off_at_the_limit_of_the_whole_call(stand_in: StandIn) -> None:
    stand_in.model("a/b", {"config.json": CONFIG})
    for path in stand_in.answers:
        stand_in.answers[path].seconds_per_byte = 0.3
    started = time.monotonic()
    assert code_of("a/b", time_limit_seconds=0.4) == "hub-timeout"
    assert time.monotonic() - started < 0.3 * len(stand_in.answers["/api/models/a/b"].body)


def test_the_time_limit_holds_while_a_host_name_is_looked_up(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: is_over.wait(NEVER_SECONDS))
    assert code_of("a/b", time_limit_seconds=0.2) == "hub-timeout"
    is_over.set()


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "hub-malformed"),
        (b"[1]", "hub-malformed"),
        (b"\xff\xfe", "hub-malformed"),
        (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, "hub-malformed"),
        (b'{"a": "' + b"x" * (hub_requests.SIZE_LIMIT_BYTES + 1) + b'"}', "hub-too-large"),
    ],
)
def test_bad_content(stand_in: StandIn, body: bytes, code: str) -> None:
    stand_in.model("a/b", {"config.json": body})
    assert code_of("a/b") == code


def test_infinity_is_read_as_python_writes_it(stand_in: StandIn) -> None:
    stand_in.model(
        "a/b", {"config.json": b'{"model_type": "nemotron_h", "time_step_limit": [0.0, Infinity]}'}
    )
    assert fetch_model("a/b").config.raw["time_step_limit"] == [0.0, float("inf")]


def test_an_oversized_index_costs_only_the_size(stand_in: StandIn) -> None:
    stand_in.model(
        "a/b",
        {"config.json": CONFIG, "model.safetensors.index.json": b"x" * (hub_requests.INDEX_LIMIT_BYTES + 1)},
    )
    assert fetch_model("a/b").checkpoint.total_size is None


def test_a_renamed_model_is_followed_on_the_same_host_only(stand_in: StandIn) -> None:
    stand_in.model("new/name", {"config.json": CONFIG})
    for path in ("/api/models/", "/"):
        suffix = "" if "api" in path else f"/resolve/{COMMIT}/config.json"
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


def test_only_an_http_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "file:///etc")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert code_of("a/b") == "hub-unreachable"


def test_an_empty_token_is_none(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in.model("a/b", {"config.json": CONFIG})
    monkeypatch.setenv("HF_TOKEN", " ")
    fetch_model("a/b")
    assert {token for _, token in stand_in.asked} == {None}


def test_the_switch_forbids_before_anybody_is_asked(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in.model("a/b", {"config.json": CONFIG})
    monkeypatch.setenv("KVPLANNER_HUB", "off")
    assert code_of("a/b") == "hub-off"
    monkeypatch.setenv("KVPLANNER_HUB", "qwen")
    assert code_of("a/b") == "hub-owner-not-allowed"
    assert not stand_in.asked
    monkeypatch.setenv("KVPLANNER_HUB", "A")
    assert fetch_model("a/b").config.raw == CONFIG


def test_a_renamed_model_is_its_new_owners(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in.model("new/name", {"config.json": CONFIG})
    stand_in.answers["/api/models/old/name"] = Answer(
        status=307, headers={"location": "/api/models/new/name"}
    )
    monkeypatch.setenv("KVPLANNER_HUB", "old")
    assert code_of("old/name") == "hub-owner-not-allowed"


def test_a_large_index_is_read_no_further_than_its_size(stand_in: StandIn) -> None:
    index = b'{"metadata": {"total_size": 12}, "weight_map": {' + b'"a": "b", ' * (3 << 20)
    stand_in.model("a/b", {"config.json": CONFIG, "model.safetensors.index.json": index})
    assert fetch_model("a/b").checkpoint.total_size == 12


def test_a_look_up_that_ran_out_of_time_counts_until_it_has_ended(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_over = threading.Event()
    going = InFlight(most=9, most_of_one=1)
    monkeypatch.setattr(hub_requests, "IN_FLIGHT", going)
    with monkeypatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", lambda *_, **__: is_over.wait(NEVER_SECONDS))
        assert code_of("a/b", time_limit_seconds=0.2, asker="one") == "hub-timeout"
        assert code_of("a/b", time_limit_seconds=0.2, asker="one") == "hub-busy"
        is_over.set()
        while going.count:
            threading.Event().wait(0.01)


# -- answers: shared, kept for a while, bounded


class Publisher:
    """Answers by name: a config's filling, or the code of a refusal."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    def fetch(self, model: str, *, asker: str) -> HubModel:
        self.asked.append(model)
        self.entered.set()
        self.gate.wait()
        if model.startswith("no/"):
            raise HubError(model[3:], field="model", value=model, limit="10", reason="x", owners="y")
        config = ModelConfig.from_mapping({"model_type": "llama", "x": ["y" * 1000] * len(model)})
        now = datetime.datetime.now(datetime.UTC)
        return HubModel(id=model, config=config, checkpoint=Checkpoint(), revision="", fetched=now)


@pytest.fixture
def publisher(monkeypatch: pytest.MonkeyPatch) -> Publisher:
    monkeypatch.delenv(SWITCH, raising=False)
    return Publisher()


def lookups(publisher: Publisher, **limits: int) -> Lookups:
    return Lookups(fetch=publisher.fetch, clock=lambda: publisher.now, **limits)


def test_an_answer_is_shared_and_kept_for_hours(publisher):
    answers = lookups(publisher)
    first = answers.look_up("a/b", asker="one")
    publisher.now += KEPT_SECONDS - 1
    assert answers.look_up("a/b", asker="another") is first
    publisher.now += 2
    answers.look_up("a/b", asker="one")
    assert publisher.asked == ["a/b", "a/b"]


@pytest.mark.parametrize(
    ("code", "seconds"),
    [
        ("hub-not-found", REFUSED_SECONDS),
        ("hub-gated", REFUSED_SECONDS),
        ("hub-no-config", REFUSED_SECONDS),
        ("hub-malformed", REFUSED_SECONDS),
        ("hub-timeout", UNREACHED_SECONDS),
        ("hub-unreachable", UNREACHED_SECONDS),
        ("hub-busy", 0),
    ],
)
def test_a_refusal_is_kept_briefly(publisher, code, seconds):
    answers = lookups(publisher)
    for step in (0, max(0, seconds - 1), 2):
        publisher.now += step
        with pytest.raises(HubError) as caught:
            answers.look_up(f"no/{code}", asker="one")
        assert (caught.value.code, caught.value.value) == (code, f"no/{code}")
    assert len(publisher.asked) == (2 if seconds else 3)


def test_those_who_ask_the_same_at_once_share_one_question(publisher):
    answers, found = lookups(publisher), []
    publisher.gate.clear()
    threads = [
        threading.Thread(target=lambda: found.append(answers.look_up("a/b", asker="x"))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    publisher.entered.wait()
    publisher.gate.set()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(map(id, found))) == 1
    assert publisher.asked == ["a/b"]


def test_answers_take_so_many_bytes_and_the_oldest_go_first(publisher):
    answers = lookups(publisher, most_bytes=20_000)
    for number in range(30):
        answers.look_up(f"a/{number}", asker="one")
        assert answers.bytes <= 20_000
    asked = len(publisher.asked)
    answers.look_up("a/29", asker="one")
    assert len(publisher.asked) == asked
    answers.look_up("a/0", asker="one")
    assert len(publisher.asked) == asked + 1


def test_what_was_kept_is_not_given_where_it_is_no_longer_allowed(publisher, monkeypatch):
    answers = lookups(publisher)
    answers.look_up("a/b", asker="one")
    monkeypatch.setenv(SWITCH, "other")
    with pytest.raises(HubError) as caught:
        answers.look_up("a/b", asker="one")
    assert caught.value.code == "hub-owner-not-allowed"
