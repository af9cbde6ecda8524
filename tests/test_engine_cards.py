"""Flags depend on a card through its view alone, which is what a sweep goes by."""

from __future__ import annotations

import ast
import dataclasses
from collections import defaultdict
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import kvcore.engine
import kvcore.engines
from kvcore import catalogue
from kvcore.base.errors import KvPlannerError
from kvcore.catalogue.accelerators import Accelerator
from kvcore.engine.cards import CardView
from kvcore.engines.registry import find_engine, view_of
from kvcore.model.families import read_architecture
from kvcore.planning import begin, lay_out, load_weights, resolve_flags
from kvcore.wire.request import scenario_from_request

FOLDERS = (*kvcore.engine.__path__, *kvcore.engines.__path__)
REACHES_CARDS = {"cards.py", "protocol.py", "registry.py", "setting.py"}
"""Modules of the engines that see a card itself: to make its view, and to find the engine that runs there."""
SIZES_BY_CARD = {"sglang/engine.py", "sglang/start.py"}
"""Its defaults are bands of the card's own memory (server_args.py, 0.5.23), not of a view."""


def outcome(card: Accelerator, label: str, **flags: object) -> tuple[str, object, list[str]]:
    """Flags, cache specs and weights on a view, apart from words."""
    scenario = scenario_from_request({"max_model_len": 8192, **flags})
    view = dataclasses.replace(view_of(card), label=label)
    try:
        begun = begin(scenario)
        resolved = resolve_flags(scenario, begun, view)
        layout = lay_out(scenario, begun, resolved)
        weights = load_weights(scenario, begun, layout, view)
    except KvPlannerError as error:
        return error.code, None, []
    codes = [notice.code for notice in resolved.notices]
    return "", (replace(layout, resolved=replace(layout.resolved, notices=())), weights), codes


def test_no_flag_is_resolved_with_a_card_in_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """What resolves flags gets a scenario without a card, and a view."""
    found: list[Any] = []
    monkeypatch.setattr("kvcore.engines.vllm.engine.resolve", lambda engine, *given: found.extend(given))
    scenario = scenario_from_request({"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB"})
    assert scenario.accelerator is not None
    card = view_of(scenario.accelerator)
    find_engine("vllm").resolve(scenario, read_architecture(scenario.config), card)
    given, _, seen = found
    assert given == replace(scenario, accelerator=None)
    assert seen is card


def test_the_rooms_of_engines_know_no_card_but_its_view() -> None:
    for path in (path for folder in FOLDERS for path in sorted(Path(folder).rglob("*.py"))):
        names = {
            name.name
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.ImportFrom)
            for name in node.names
        }
        own = f"{path.parent.name}/{path.name}"
        assert path.name in REACHES_CARDS or own in SIZES_BY_CARD or "Accelerator" not in names, path


def test_a_label_stands_in_words_alone() -> None:
    """`label` is read as the `name` of a message and nowhere else."""
    for path in (path for folder in FOLDERS for path in sorted(Path(folder).rglob("*.py"))):
        tree = ast.parse(path.read_text("utf-8"))
        said = [one.value for one in ast.walk(tree) if isinstance(one, ast.keyword) and one.arg == "name"]
        for one in ast.walk(tree):
            if isinstance(one, ast.Dict):
                pairs = zip(one.keys, one.values, strict=True)
                said += [
                    value for key, value in pairs if isinstance(key, ast.Constant) and key.value == "name"
                ]
        read = [one for one in ast.walk(tree) if isinstance(one, ast.Attribute) and one.attr == "label"]
        assert all(any(one is value for value in said) for one in read), path


def test_the_label_is_no_part_of_the_key() -> None:
    assert [field.name for field in fields(CardView) if not field.compare] == ["label", "served_by"]
    card = view_of(catalogue.find_accelerator("H100-80GB"))
    assert hash(card) == hash(dataclasses.replace(card, label="another"))


@pytest.mark.parametrize(
    "flags",
    [
        {"model": "Qwen/Qwen3-8B"},
        {"model": "Qwen/Qwen3-8B", "kv_cache_dtype": "fp8", "engine_version": "0.11.0"},
        {"model": "openai/gpt-oss-20b"},
        {"model": "deepseek-ai/DeepSeek-V3.2", "tensor_parallel_size": 8},
        {"model": "Qwen/Qwen3-32B-AWQ", "engine_version": "0.8.5"},
        {"model": "Qwen/Qwen3-Next-80B-A3B-Instruct", "kv_cache_dtype": "nvfp4"},
    ],
)
def test_cards_of_one_view_come_to_the_same(flags: dict[str, object]) -> None:
    alike: dict[CardView, list[Accelerator]] = defaultdict(list)
    for card in catalogue.load_accelerators():
        alike[view_of(card)].append(card)
    assert 10 <= len(alike) < len(catalogue.load_accelerators()) / 2
    for cards in alike.values():
        first = outcome(cards[0], cards[0].name, **flags)
        assert outcome(cards[-1], "another name", **flags) == first
