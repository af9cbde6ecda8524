"""Callbacks run before the page: one that raises would stop all of it, so each of them is under the net."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import streamlit as st

from kvcore.catalogue.accelerators import Interconnect
from pages.ui.shared import net
from pages.ui.sidebar import pickers

PAGES = Path(__file__).resolve().parents[1] / "pages"
ARGUMENTS = ("on_change", "on_click", "on_select")
HANDED_ON = ("on_select", "one.ask")
"""Arguments that pass a function on: it is checked where it is given."""


def trees() -> list[tuple[Path, ast.Module]]:
    return [(path, ast.parse(path.read_text("utf-8"))) for path in sorted(PAGES.rglob("*.py"))]


def under_the_net() -> set[str]:
    """Functions with the decorator, by name."""
    return {
        node.name
        for _, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(one) in ("net.callback", "callback") for one in node.decorator_list)
    }


def callbacks(tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg in (*ARGUMENTS, "ask"):
            yield node.value
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value in ARGUMENTS:
                    yield value


def name_of(found: ast.expr) -> str:
    """The function that is called in the end: `take` for `undo.take` and for `partial(undo.take, scenario)`."""
    if isinstance(found, ast.Call) and ast.unparse(found.func) == "partial":
        found = found.args[0]
    return ast.unparse(found).rpartition(".")[2]


def test_every_callback_is_under_the_net() -> None:
    known, found = under_the_net(), 0
    for path, tree in trees():
        for one in callbacks(tree):
            text = ast.unparse(one)
            is_event = isinstance(one, ast.Constant)  # "rerun" and "ignore"
            assert is_event or text in HANDED_ON or text.startswith("net.taking(") or name_of(one) in known, (
                path,
                text,
            )
            found += not is_event
    assert found > 80


def test_a_control_hands_on_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(st, "session_state", {"here": 3})
    taken: list[int] = []
    net.taking("here", taken.append)()
    assert taken == [3]


def test_a_control_that_another_change_took_away_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    state: dict[str, object] = {}
    monkeypatch.setattr(st, "session_state", state)
    taken: list[object] = []
    net.taking("gone", taken.append)()
    assert (taken, state) == ([], {})


def test_a_choice_by_its_words_in_the_other_language_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A browser sends the words of a choice; after a change of language once more those of before."""
    monkeypatch.setattr(st, "session_state", {"lesson": "The whole course"})
    taken: list[object] = []
    take = net.taking("lesson", taken.append, ("course/A", "course/B"))
    take()
    assert taken == []
    st.session_state["lesson"] = "course/B"
    take()
    assert taken == ["course/B"]


def test_an_own_card_of_a_vendor_in_the_other_language_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state: dict[str, object] = {
        pickers.OWN_VENDOR: "Other vendor",
        pickers.OWN_LINK: Interconnect.PCIE,
        pickers.OWN_MEMORY: 32.0,
        pickers.OWN_NAME: "RTX 6090",
        "scenario": None,
    }
    monkeypatch.setattr(st, "session_state", state)
    before = dict(state)
    pickers._use_own_card()
    assert state == before
