"""Answers of the Hub: shared, kept for a while, bounded."""

import datetime
import threading

import pytest

from kvcore.catalogue.models import Checkpoint
from kvcore.errors import HubError
from kvcore.hub import HubModel
from kvcore.hub_limits import SWITCH
from kvcore.hub_lookups import KEPT_SECONDS, REFUSED_SECONDS, UNREACHED_SECONDS, Lookups
from kvcore.model.config import ModelConfig


class Hub:
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
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.delenv(SWITCH, raising=False)
    return Hub()


def lookups(hub: Hub, **limits: int) -> Lookups:
    return Lookups(fetch=hub.fetch, clock=lambda: hub.now, **limits)


def test_an_answer_is_shared_and_kept_for_hours(hub):
    answers = lookups(hub)
    first = answers.look_up("a/b", asker="one")
    hub.now += KEPT_SECONDS - 1
    assert answers.look_up("a/b", asker="another") is first
    hub.now += 2
    answers.look_up("a/b", asker="one")
    assert hub.asked == ["a/b", "a/b"]


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
def test_a_refusal_is_kept_briefly(hub, code, seconds):
    answers = lookups(hub)
    for step in (0, max(0, seconds - 1), 2):
        hub.now += step
        with pytest.raises(HubError) as caught:
            answers.look_up(f"no/{code}", asker="one")
        assert (caught.value.code, caught.value.value) == (code, f"no/{code}")
    assert len(hub.asked) == (2 if seconds else 3)


def test_those_who_ask_the_same_at_once_share_one_question(hub):
    answers, found = lookups(hub), []
    hub.gate.clear()
    threads = [
        threading.Thread(target=lambda: found.append(answers.look_up("a/b", asker="x"))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    hub.entered.wait()
    hub.gate.set()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(map(id, found))) == 1
    assert hub.asked == ["a/b"]


def test_answers_take_so_many_bytes_and_the_oldest_go_first(hub):
    answers = lookups(hub, most_bytes=20_000)
    for number in range(30):
        answers.look_up(f"a/{number}", asker="one")
        assert answers.bytes <= 20_000
    asked = len(hub.asked)
    answers.look_up("a/29", asker="one")
    assert len(hub.asked) == asked
    answers.look_up("a/0", asker="one")
    assert len(hub.asked) == asked + 1


def test_what_was_kept_is_not_given_where_it_is_no_longer_allowed(hub, monkeypatch):
    answers = lookups(hub)
    answers.look_up("a/b", asker="one")
    monkeypatch.setenv(SWITCH, "other")
    with pytest.raises(HubError) as caught:
        answers.look_up("a/b", asker="one")
    assert caught.value.code == "hub-owner-not-allowed"
