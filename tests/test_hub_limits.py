"""Whose models a server asks about, and how many questions at once."""

import pytest

from kvcore.errors import HubError
from kvcore.hub_limits import SWITCH, InFlight, check_owner, is_off, owners


def code_of(model: str) -> str | None:
    try:
        check_owner(model)
    except HubError as error:
        return error.code if error.next_step else ""
    return None


@pytest.mark.parametrize(
    ("written", "qwen", "other"),
    [
        (None, None, None),
        ("", None, None),
        ("on", None, None),
        ("off", "hub-off", "hub-off"),
        (" OFF ", "hub-off", "hub-off"),
        ("Qwen, meta-llama", None, "hub-owner-not-allowed"),
        ("qwen", None, "hub-owner-not-allowed"),
        (",", "hub-off", "hub-off"),
    ],
)
def test_the_switch(monkeypatch, written, qwen, other):
    monkeypatch.delenv(SWITCH, raising=False)
    if written is not None:
        monkeypatch.setenv(SWITCH, written)
    assert (code_of("Qwen/Qwen3-8B"), code_of("Qwen2/x")) == (qwen, other)
    assert is_off() is (qwen is not None)
    assert (owners() is None) is (other is None)


class TestInFlight:
    def test_the_process_has_so_many_places(self):
        going = InFlight(most=2, most_of_one=2)
        going.enter("a/b", "")
        going.enter("a/b", "")
        with pytest.raises(HubError) as caught:
            going.enter("a/b", "somebody")
        assert (caught.value.code, caught.value.field) == ("hub-busy", "model")
        going.leave("")
        going.enter("a/b", "somebody")
        assert going.count == 2

    def test_one_session_has_fewer(self):
        going = InFlight(most=9, most_of_one=1)
        going.enter("a/b", "one")
        with pytest.raises(HubError):
            going.enter("a/b", "one")
        going.enter("a/b", "another")
        going.leave("one")
        going.enter("a/b", "one")
