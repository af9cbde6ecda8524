"""Names from outside that tables use are the engine's own: held against the argument lists and answers that
`make parity` keeps, and against what else of this repository knows them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pytest
from packaging.version import Version
from rapidfuzz.distance import OSA

from kvcore import catalogue
from kvcore.engine.switches import AttentionBackend
from kvcore.engines.registry import engines
from kvcore.engines.vllm.availability import AVAILABILITY, FORMER_FLAGS, is_available
from kvcore.engines.vllm.classes import CLASSES
from kvcore.engines.vllm_ascend.npu import NpuFacts
from kvcore.engines.vllm_mindspore.engine import BLOCK_VARIABLE
from kvcore.evidence.log.line_formats import FORMATS
from kvcore.flags import BOUNDED, FLAGS, Flag, fields_of
from kvcore.flags.other import OTHER_FLAGS
from kvcore.memory.activations import ACTIVATIONS
from kvcore.model.families import readers
from tests.serve_parsers import ROWS

DATA: Final = Path(__file__).parent / "data"
ARGUMENTS: Final = {Version(release): flags for release, flags in ROWS.items()}
"""The flags of `vllm serve` by release, each with its choices where it lists some."""
NEWER: Final = {
    "deepep_v2", "moonep", "passthrough", "nvfp4_ds_mla", "int4_per_token_head", "nvfp4_4over6", "octave_k3v3",
    "octave_k3v3_compact", "octave_k3v4", "ultraquant_4bit",
}  # fmt: skip
"""Values that came after the newest release whose arguments are kept."""
UNUSED: Final = {"None", "draft"}
"""Values that change nothing that is planned, or that stand for no value."""


def argument(flag: Flag, arguments: dict[str, Any]) -> Any:
    """How a release takes a flag; None where it has no such flag."""
    words = (word.partition(".")[0] for word in flag.cli)
    return next((arguments[word] for word in words if word in arguments), None)


BETWEEN: Final = {"disable_flashinfer_autotune", "log_requests", "log_stats"}
"""Flags of releases whose arguments are not kept, and what is left of a flag without its `no-`."""


def test_flags_without_a_field_are_arguments_of_the_server() -> None:
    known = {word.lstrip("-").replace("-", "_") for word in chain.from_iterable(ARGUMENTS.values())}
    rows = [row for _, row in OTHER_FLAGS.load().groups()]
    written = {name for row in rows for name in (*row.names, *row.objects)}
    assert written - known == BETWEEN
    assert not written & set(fields_of())


LISTED: Final = [
    name
    for name, flag in FLAGS.items()
    if any(isinstance(argument(flag, arguments), list) for arguments in ARGUMENTS.values())
]
"""Flags whose values some release lists."""


@pytest.mark.parametrize("word", sorted(word for flag in FLAGS.values() for word in flag.cli))
def test_a_spelling_is_an_argument_of_the_server(word: str) -> None:
    assert word.partition(".")[0] in set(chain.from_iterable(ARGUMENTS.values()))


@pytest.mark.parametrize("name", LISTED)
def test_values_are_those_that_the_server_lists(name: str) -> None:
    flag = FLAGS[name]
    listed = [argument(flag, arguments) for arguments in ARGUMENTS.values()]
    taken = {value for values in listed if isinstance(values, list) for value in values} - UNUSED
    if flag.kind in BOUNDED:
        low, high = flag.bounds
        assert all(low <= int(value) <= high for value in taken)
    else:
        own = set(flag.choices or flag.common)
        assert taken <= own
        assert own - taken <= NEWER


@pytest.mark.parametrize("name", sorted({row.field for row in AVAILABILITY.load().value}))
def test_a_value_is_there_from_the_release_that_lists_it(name: str) -> None:
    flag = FLAGS[name]
    rows = [row.value for row in AVAILABILITY.load().value if row.field == name]
    for release, arguments in ARGUMENTS.items():
        taken = argument(flag, arguments)
        is_key = all("." in word for word in flag.cli)  # of an object that was there before
        if "" in rows and not is_key and "--compilation-config" not in flag.cli:
            assert is_available(name, "", release) is (taken is not None), release
        for value in flag.choices if isinstance(taken, list) else ():
            is_prefix_row = value == "nvfp4_ds_mla"  # the row of nvfp4 counts for it too
            if not is_prefix_row and any(row and value.startswith(row) for row in rows):
                assert is_available(name, value, release) is (value in taken), (release, value)


def test_former_flags_are_gone_when_the_table_says_so() -> None:
    for row in FORMER_FLAGS.load().flags:
        for release, arguments in ARGUMENTS.items():
            if release >= row.gone:
                assert row.flag not in arguments, (row.flag, release)
            elif row.seen is not None and release <= row.seen:
                assert row.flag in arguments, (row.flag, release)


def answers() -> Iterator[dict[str, Any]]:
    """What the engine's own code answered, with what was asked."""
    for file in (DATA / "engine_defaults.jsonl", *sorted((DATA / "parity").glob("vllm-*.jsonl"))):
        yield from map(json.loads, file.read_text("utf-8").splitlines())


def test_attention_backends_are_the_engines() -> None:
    named = {
        row.get("expect_backend") or row.get("resolved", {}).get("attention_backend") for row in answers()
    }
    assert len(named) > 3
    assert named - {None} <= {*AttentionBackend}


def model_classes() -> set[str]:
    """Model classes that a reader, the lists of releases or the engine's own answers know."""
    registry = CLASSES.load().registry
    gone = (row.architectures for row in registry.gone)
    listed = chain(*registry.since.values(), *registry.transformers.values(), *gone)
    files = (DATA / "parity" / "classes").glob("*.json")
    asked = {json.loads(file.read_text("utf-8"))["architecture"] for file in files}
    return {*readers(), *listed, *asked}


def test_a_model_class_is_no_other_one_misspelt() -> None:
    """A name that nothing else knows differs from each known one in more than two letters."""

    def letters(name: str) -> str:
        return re.sub(r"[\d_]", "", name)

    tables = CLASSES.load()
    used = {
        *tables.language.classes.values(), *tables.lora.unsupported, *chain(*tables.lora.taught.values()),
        *tables.lora.fused_expert_gates, *chain(*tables.uncompiled.classes.values()),
        *chain(*tables.attention_backend.classes.values()), *tables.runner.generate, *tables.v2_runner.dense,
        *tables.v2_runner.experts,
    }  # fmt: skip
    known = model_classes()
    spelt = {letters(name) for name in known}
    unknown = {letters(name) for name in used - known} - spelt
    assert len(used & known) > 100
    near = {(name, other) for name in unknown for other in spelt if OSA.distance(name, other) <= 2}
    assert not near


def test_figures_of_a_whole_log_are_those_of_its_lines() -> None:
    for engine in engines():
        assert set(engine.facts.log.figures) <= FORMATS.load().figure.keys()


def test_cards_are_in_the_catalogue() -> None:
    ids = [card.id for card in catalogue.load_accelerators()]
    for engine in engines():
        for tag in (tag for image in engine.facts.launch.images for tag in image.tags):
            assert any(name.startswith(tag.card) for name in ids), tag.card
    names = {
        word
        for card in catalogue.load_accelerators()
        for name in card.names
        for word in (name, name.split()[-1])
    }
    assert len(ACTIVATIONS.load().multiprocessors.card.keys() & names) > 5


def test_variables_are_offered_in_a_request() -> None:
    offered = set(FLAGS["env"].common)
    for engine in engines():
        if isinstance(engine.facts, NpuFacts):
            assert {engine.facts.communicators.variable} <= offered
    assert {BLOCK_VARIABLE} <= offered
