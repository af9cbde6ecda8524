"""The registry of flags: whole, in step with what is planned, and loud about a wrong row."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import pytest
from msgspec.structs import fields

from kvcore.advice.vary import Varied
from kvcore.base.errors import KvPlannerError
from kvcore.base.parts import MEASURED_FIELDS
from kvcore.catalogue.accelerators import Interconnect
from kvcore.catalogue.models import Checkpoint
from kvcore.engines.registry import engine_names
from kvcore.flags import FLAGS, REGISTRY, Kind, fields_of, flags_of, read_whole
from kvcore.scenario import (
    PARALLEL,
    CudagraphMode,
    Host,
    Installation,
    Link,
    Measured,
    Parallel,
    Runner,
    Scenario,
    SpeculativeConfig,
    Surroundings,
)

PLANNED = {name for name, flag in FLAGS.items() if flag.kind is not Kind.ANY}


@pytest.mark.parametrize(
    ("parent", "kind"),
    [
        ("checkpoint", Checkpoint),
        ("measured", Measured),
        ("speculative_config", SpeculativeConfig),
        ("surroundings", Surroundings),
    ],
)
def test_every_field_of_an_object_has_a_row(parent: str, kind: type[Any]) -> None:
    rows = {key for key in fields_of(parent) if f"{parent}.{key}" in PLANNED}
    assert rows == set(kind.__struct_fields__)


def test_every_field_of_a_scenario_has_a_row() -> None:
    own = {*Scenario.__struct_fields__, *PARALLEL} - {"parallel"}
    assert {name for name in PLANNED if "." not in name} == own | {
        "hf_quant_config",
        "headers",
        "draft_config",
    }


def test_the_defaults_are_those_of_a_scenario() -> None:
    known = {field.name: field.default for kind in (Scenario, Parallel) for field in fields(kind)}
    objects = {"config", "model", "engine", "checkpoint", "env", "surroundings", "measured"}
    for name in sorted(known.keys() & FLAGS.keys() - objects):
        assert (name, known[name]) == (name, FLAGS[name].default)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("runner", Runner),
        ("cudagraph_mode", CudagraphMode),
        ("accelerator.interconnect", Interconnect),
        ("surroundings.link", Link),
        ("surroundings.installation", Installation),
        ("surroundings.host", Host),
    ],
)
def test_choices_are_the_members_of_their_enumeration(name: str, kind: type[StrEnum]) -> None:
    assert set(FLAGS[name].choices) == set(kind)


def test_the_engines_are_the_rooms() -> None:
    assert FLAGS["engine"].choices == engine_names()


@pytest.mark.parametrize("name", ["measured.fitted", "measured.carried"])
def test_origins_name_the_parts_in_their_order(name: str) -> None:
    assert FLAGS[name].choices == MEASURED_FIELDS


def test_compare_varies_the_flags_that_say_so() -> None:
    assert {flag.name for flag in FLAGS.values() if flag.vary} == set(Varied) - {
        Varied.SPLIT,
        Varied.INSTANCES,
    }


def test_a_spelling_belongs_to_one_flag() -> None:
    words = [word for flag in FLAGS.values() for word in (*flag.cli, *flag.logged)]
    assert len(words) == len(set(words))
    assert not {word for flag in FLAGS.values() for word in flag.logged} & FLAGS.keys()


def test_what_a_flag_needs_is_a_switch() -> None:
    assert all(FLAGS[flag.needs].kind is Kind.BOOLEAN for flag in FLAGS.values() if flag.needs)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"kind": "integer", "minimum": 1}, "minimum and maximum"),
        ({"kind": "text", "minimum": 1, "maximum": 2}, "minimum and maximum"),
        ({"kind": "choice"}, "choices"),
        ({"kind": "choice", "choices": ["a"], "common": ["b"]}, "common"),
        ({"kind": "text", "widget": "by-kind"}, "label"),
        ({"kind": "text", "labels": "x"}, "unknown field `labels`"),
        ({"choices": ["a"]}, "missing required field `kind`"),
        ({"kind": "choice", "choices": "a"}, "Expected `array`"),
        ({"kind": "integer", "minimum": "1", "maximum": 2}, "Expected `float | null`"),
        ({"kind": "integer", "minimum": 3, "maximum": 2}, "minimum is above maximum"),
        ({"kind": "integer", "minimum": 1, "maximum": 2, "default": 3}, "default 3 is not a valid value"),
        ({"kind": "boolean", "default": 1}, "default 1 is not a valid value"),
        ({"kind": "choice", "choices": ["a"], "default": "b"}, "default 'b' is not a valid value"),
        ({"kind": "text", "needs": "made_up"}, "which is no switch"),
        ({"kind": "object", "one_of": ["a"]}, "one_of: a has no row"),
    ],
)
def test_a_row_whose_keys_do_not_go_together_is_refused(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(KvPlannerError) as refused:
        REGISTRY.read({"reviewed": "0.33.0", "flag": {"made_up": row}})
    assert "flag made_up" in str(refused.value)
    assert reason in str(refused.value)


def test_a_new_row_is_a_flag() -> None:
    row = {"kind": "integer", "minimum": 1, "maximum": 8, "default": 2}
    flag = flags_of(REGISTRY.read({"reviewed": "0.33.0", "flag": {"made_up": row}}))["made_up"]
    assert (flag.name, flag.bounds, flag.default, flag.spelling) == ("made_up", (1, 8), 2, "--made-up")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("max_model_len", "32k", 32000),
        ("max_model_len", "1.5K", 1536),
        ("max_model_len", "-1", -1),
        ("max_model_len", "auto", -1),
        ("max_model_len", "-2", None),
        ("max_model_len", "3G", None),
        ("max_num_batched_tokens", "8K", 8192),
        ("max_num_batched_tokens", "auto", None),
        ("kv_cache_memory_bytes", "10G", 10 << 30),
        ("max_num_seqs", "1k", None),
        ("max_num_seqs", "64", 64),
        ("max_num_seqs", "0", None),
        ("max_num_seqs", "9" * 400, None),
    ],
)
def test_a_text_is_the_number_that_the_parser_of_its_flag_takes(
    name: str, text: str, value: int | None
) -> None:
    assert read_whole(text, FLAGS[name]) == value
