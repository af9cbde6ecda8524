"""The Hub client against a local stand-in that speaks the Hub's API through HF_ENDPOINT."""

from __future__ import annotations

import datetime
import gzip
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2
import pytest
from huggingface_hub import get_session, set_client_factory

from kvcore.base.errors import HubError
from kvcore.catalogue.models import Checkpoint
from kvcore.hub import KEPT_SECONDS, REFUSED_SECONDS, UNREACHED_SECONDS, HubModel, Lookups, fetch_model
from kvcore.hub import requests as hub_requests
from kvcore.hub.requests import SWITCH, InFlight, Lookup
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
    has_ranges: bool = True


@dataclass
class StandIn:
    """Answers by path; remembers what was asked and with which token."""

    url: str
    answers: dict[str, Answer]
    asked: list[tuple[str, str | None]]
    sent: dict[str, int]
    """Bytes by path."""
    cookies: list[str | None]

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
    sent: dict[str, int] = {}
    cookies: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers.get("authorization")))
            cookies.append(self.headers.get("cookie"))
            missing = Answer(status=404, headers={"x-error-code": "EntryNotFound"})
            if self.path.startswith("/api/"):
                missing = Answer(status=401, headers={"x-error-code": "RepoNotFound"})
            answer = answers.get(self.path, missing)
            time.sleep(answer.delay_seconds)
            body, status = answer.body, answer.status
            span = self.headers.get("range", "").removeprefix("bytes=").split("-")
            if status == 200 and len(span) == 2 and answer.has_ranges:
                body, status = body[int(span[0]) : int(span[1]) + 1], 206
            self.send_response(status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            sent[self.path] = sent.get(self.path, 0) + len(body)
            if not answer.seconds_per_byte:
                with suppress(OSError):
                    self.wfile.write(body)
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
    yield StandIn(url, answers, asked, sent, cookies)
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


def test_a_look_up_that_ran_out_of_time_counts_until_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    is_over = threading.Event()
    going = InFlight(most=9, most_of_one=1)
    monkeypatch.setattr(hub_requests, "IN_FLIGHT", going)

    def code_within(time_limit_seconds: float) -> str:
        with pytest.raises(HubError) as caught:
            hub_requests.within(
                Lookup("a/b", None, time_limit_seconds), "one", lambda: is_over.wait(NEVER_SECONDS)
            )
        return caught.value.code

    assert code_within(0.05) == "hub-timeout"
    assert going.count == 1
    assert code_within(NEVER_SECONDS) == "hub-busy"
    is_over.set()
    while going.count:
        threading.Event().wait(0.01)


# -- the client that huggingface_hub uses


@pytest.mark.parametrize(
    "page",
    [
        [],
        {"sha": COMMIT},
        {"id": "a/b", "sha": 3},
        {"id": "a/b", "sha": "../../x"},
        {"id": "a/b", "sha": COMMIT, "siblings": 3},
        {"id": "a/b", "sha": COMMIT, "siblings": [{"name": "config.json"}]},
        {"id": "a/b", "sha": COMMIT, "safetensors": "x"},
        {"id": "a/b", "sha": COMMIT, "createdAt": "yesterday"},
        {"id": "a/b", "sha": COMMIT, "inferenceProviderMapping": "x" * (1 << 20)},
        {"id": "a/b", "sha": COMMIT, "x": [0] * (1 << 19)},
    ],
)
def test_a_description_that_the_library_cannot_read(stand_in: StandIn, page: object) -> None:
    stand_in.answers["/api/models/a/b"] = Answer(json.dumps(page).encode())
    with pytest.raises(HubError) as caught:
        fetch_model("a/b")
    assert caught.value.code == "hub-malformed"
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
def test_a_description_that_nests_too_deep_for_the_parser(stand_in: StandIn, encoding: str) -> None:
    nested = '{"id": "a/b", "x": "\\"' + '", "y": ' + "[" * 100_000 + "]" * 100_000 + "}"
    stand_in.answers["/api/models/a/b"] = Answer(nested.encode(encoding))
    assert code_of("a/b") == "hub-malformed"


def test_nothing_is_unpacked(stand_in: StandIn) -> None:
    stand_in.model("a/b", {"config.json": CONFIG})
    path = f"/a/b/resolve/{COMMIT}/config.json"
    packed = gzip.compress(b'{"a": "' + b"x" * (64 << 20) + b'"}')
    stand_in.answers[path] = Answer(packed, headers={"content-encoding": "gzip"})
    assert code_of("a/b") == "hub-malformed"


def test_a_refusal_is_not_read(stand_in: StandIn) -> None:
    nested = b"[" * (hub_requests.SIZE_LIMIT_BYTES + 1)
    for status, code in (
        (401, "hub-not-found"),
        (404, "hub-not-found"),
        (403, "hub-gated"),
        (500, "hub-unreachable"),
    ):
        stand_in.answers["/api/models/a/b"] = Answer(nested, status=status)
        assert code_of("a/b") == code


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_without_content(stand_in: StandIn, status: int) -> None:
    stand_in.answers["/api/models/a/b"] = Answer(status=status)
    assert code_of("a/b") == "hub-unreachable"


def test_redirects_without_end(stand_in: StandIn) -> None:
    stand_in.answers["/api/models/a/b"] = Answer(status=307, headers={"location": "/api/models/a/b"})
    assert code_of("a/b") == "hub-unreachable"
    assert len(stand_in.asked) == 4


def test_a_server_without_ranges_is_read_no_further_than_the_header(stand_in: StandIn) -> None:
    stand_in.model(
        "a/b", {"config.json": UNREAD, "model.safetensors": weights(0, padding=200_000) + bytes(32 << 20)}
    )
    stand_in.answers[f"/a/b/resolve/{COMMIT}/model.safetensors"].has_ranges = False
    headers = fetch_model("a/b").config.headers
    assert headers is not None
    assert headers.stored_bytes == 4 * 8192


def test_no_cookie_is_kept(stand_in: StandIn) -> None:
    stand_in.model("a/b", {"config.json": CONFIG})
    for answer in stand_in.answers.values():
        answer.headers["set-cookie"] = "who=you; Path=/"
    fetch_model("a/b")
    fetch_model("a/b")
    assert stand_in.cookies == [None] * 4


def test_the_token_is_in_no_log_and_no_error(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    stand_in.model("a/b", {"config.json": CONFIG})
    fetch_model("a/b")
    with pytest.raises(HubError) as caught:
        fetch_model("a/c")
    assert "hf_secret" not in caplog.text + str(caught.value) + repr(caught.value.params)


def test_the_limits_are_those_of_look_ups_alone(stand_in: StandIn) -> None:
    """A program that uses kvcore downloads with huggingface_hub as before."""
    stand_in.model("a/b", {"config.json": CONFIG})
    fetch_model("a/b")
    stand_in.answers["/large"] = Answer(bytes(hub_requests.SIZE_LIMIT_BYTES + 1))
    stand_in.answers["/elsewhere"] = Answer(
        status=302, headers={"location": stand_in.url.replace("127.0.0.1", "localhost") + "/large"}
    )
    response = get_session().get(stand_in.url + "/elsewhere")
    assert len(response.content) == hub_requests.SIZE_LIMIT_BYTES + 1


def test_a_client_that_somebody_else_sets_does_not_lift_the_limits(stand_in: StandIn) -> None:
    stand_in.model("a/b", {"config.json": b" " * (hub_requests.SIZE_LIMIT_BYTES + 1)})
    set_client_factory(lambda: httpx2.Client(follow_redirects=True))
    assert code_of("a/b") == "hub-too-large"


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


# -- headers of weight files, of a class that nobody reads ----------------------------------------------------------

UNREAD = {"architectures": ["UnreadForCausalLM"], "model_type": "unread", "x": 1, "num_attention_heads": 1}


def weights(*layers: int, padding: int = 0) -> bytes:
    """A safetensors file whose weights nobody may read."""
    shape = {"dtype": "BF16", "shape": [64, 64], "data_offsets": [0, 8192]}
    header: dict[str, object] = {"__metadata__": {"format": "pt", "x": "x" * padding}}
    for name in "qkvo":
        header |= {f"model.layers.{layer}.self_attn.{name}_proj.weight": shape for layer in layers}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"w" * 100_000


def test_headers_are_read_of_a_class_that_nobody_reads(stand_in: StandIn) -> None:
    files = {
        "config.json": UNREAD,
        "model-00001-of-00002.safetensors": weights(0, 1),
        "model-00002-of-00002.safetensors": weights(2, padding=200_000),
        "consolidated.safetensors": b"",
    }
    stand_in.model("a/b", files)
    found = fetch_model("a/b")
    assert found.config.headers is not None
    assert found.config.headers.raw.keys() == {
        f"model.layers.{{0-2}}.self_attn.{name}_proj.weight" for name in "qkvo"
    }
    assert found.checkpoint.total_size == 3 * 4 * 8192
    assert not any("consolidated" in path for path, _ in stand_in.asked)
    assert max(stand_in.sent.values()) < 400_000


def test_no_header_is_asked_of_a_class_that_a_family_reads(stand_in: StandIn) -> None:
    stand_in.model("a/b", {"config.json": CONFIG, "model.safetensors": weights(0)})
    assert fetch_model("a/b").config.headers is None
    assert not any("safetensors" in path for path, _ in stand_in.asked)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "hub-malformed"),
        (b"\x00" * 8, "hub-malformed"),
        (b"\x08", "hub-malformed"),
        ((64).to_bytes(8, "little") + b"{}", "hub-malformed"),
        ((2).to_bytes(8, "little") + b"[]", "hub-malformed"),
        ((2).to_bytes(8, "little") + b"{}", "hub-malformed"),
        ((1 << 62).to_bytes(8, "little") + b"{}", "hub-too-large"),
        (b"\xff" * 64, "hub-too-large"),
    ],
)
def test_bad_headers(stand_in: StandIn, body: bytes, code: str) -> None:
    stand_in.model("a/b", {"config.json": UNREAD, "model.safetensors": body})
    assert code_of("a/b") == code


def test_a_plain_decoder_is_planned_without_headers_that_cannot_be_read(stand_in: StandIn) -> None:
    plain = {
        "architectures": ["UnreadForCausalLM"], "model_type": "unread", "hidden_size": 64, "vocab_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256,
    }  # fmt: skip
    stand_in.model("a/b", {"config.json": plain, "model.safetensors": b"\xff" * 64})
    assert fetch_model("a/b").config.headers is None


@pytest.mark.parametrize(
    "elsewhere", ["http://storage.hf.co/x", "https://hf.co.evil.example/x", "https://10.0.0.1/x"]
)
def test_weights_are_followed_to_the_storage_of_the_hub_only(stand_in: StandIn, elsewhere: str) -> None:
    stand_in.model("a/b", {"config.json": UNREAD, "model.safetensors": weights(0)})
    path = f"/a/b/resolve/{COMMIT}/model.safetensors"
    stand_in.answers[path] = Answer(status=302, headers={"location": elsewhere})
    assert code_of("a/b") == "hub-unreachable"


def test_the_token_stays_with_the_hub(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """A storage of the Hub, as it were: the host is another one than that of HF_ENDPOINT."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    stand_in.model("a/b", {"config.json": UNREAD, "model.safetensors": weights(0)})
    path = f"/a/b/resolve/{COMMIT}/model.safetensors"
    stand_in.answers["/storage"] = stand_in.answers[path]
    storage = stand_in.url.replace("127.0.0.1", "localhost") + "/storage"
    stand_in.answers[path] = Answer(status=302, headers={"location": storage})
    assert code_of("a/b") == "hub-unreachable"
    monkeypatch.setattr(hub_requests, "STORAGE_HOSTS", ("localhost",))
    monkeypatch.setattr(hub_requests, "STORAGE_SCHEME", "http")
    assert fetch_model("a/b").config.headers is not None
    assert dict(stand_in.asked)["/storage"] is None
    assert dict(stand_in.asked)[path] == "Bearer hf_secret"


def test_many_slow_headers_end_with_the_call(stand_in: StandIn) -> None:
    files: dict[str, object] = {
        f"model-{number:05}-of-00064.safetensors": weights(number) for number in range(64)
    }
    stand_in.model("a/b", {"config.json": UNREAD, **files})
    for path, answer in stand_in.answers.items():
        if "safetensors" in path:
            answer.delay_seconds = 0.5
    started = time.monotonic()
    assert code_of("a/b", time_limit_seconds=1.5) == "hub-timeout"
    assert time.monotonic() - started < 30
