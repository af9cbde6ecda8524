"""The registry of flags: whole, in step with what is planned, and loud about a wrong row."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from kvcore.advice.vary import Varied
from kvcore.catalogue.accelerators import Interconnect
from kvcore.catalogue.models import Checkpoint
from kvcore.errors import KvPlannerError
from kvcore.flags import (
    FLAGS,
    REGISTRY,
    Flag,
    Kind,
    LinkRule,
    fields_of,
    flags_of,
    read_whole,
    request_schema,
)
from kvcore.scenario import (
    MEASURED_PARTS,
    CudagraphMode,
    Measured,
    Parallel,
    Runner,
    Scenario,
    SpeculativeConfig,
)
from kvcore.scenario.request import scenario_from_request

PLANNED = {name for name, flag in FLAGS.items() if flag.kind is not Kind.ANY}


@pytest.mark.parametrize(
    ("parent", "kind"),
    [
        ("checkpoint", Checkpoint),
        ("measured", Measured),
        ("speculative_config", SpeculativeConfig),
    ],
)
def test_every_field_of_an_object_has_a_row(parent: str, kind: type[Any]) -> None:
    rows = {key for key in fields_of(parent) if f"{parent}.{key}" in PLANNED}
    assert rows == {field.name for field in fields(kind)}


def test_every_field_of_a_scenario_has_a_row() -> None:
    own = {field.name for kind in (Scenario, Parallel) for field in fields(kind)} - {"parallel"}
    assert {name for name in PLANNED if "." not in name} == own | {"hf_quant_config"}


def test_the_defaults_are_those_of_a_scenario() -> None:
    known = {field.name: field.default for kind in (Scenario, Parallel) for field in fields(kind)}
    for name in sorted(
        known.keys() & FLAGS.keys() - {"config", "model", "engine", "checkpoint", "env", "measured"}
    ):
        assert (name, known[name]) == (name, FLAGS[name].default)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("runner", Runner),
        ("cudagraph_mode", CudagraphMode),
        ("accelerator.interconnect", Interconnect),
    ],
)
def test_choices_are_the_members_of_their_enumeration(name: str, kind: type[StrEnum]) -> None:
    assert set(FLAGS[name].choices) == set(kind)


def test_the_engines_are_the_rooms() -> None:
    rooms = (Path(__file__).parents[1] / "kvcore" / "engine").glob("*/engine.toml")
    assert len(FLAGS["engine"].choices) == len(list(rooms))


@pytest.mark.parametrize("name", ["measured.fitted", "measured.carried"])
def test_origins_name_the_parts_in_their_order(name: str) -> None:
    assert FLAGS[name].choices == MEASURED_PARTS


def test_compare_varies_the_flags_that_say_so() -> None:
    assert {flag.name for flag in FLAGS.values() if flag.vary} == set(Varied) - {Varied.SPLIT}


def test_a_spelling_belongs_to_one_flag() -> None:
    words = [word for flag in FLAGS.values() for word in (*flag.cli, *flag.logged)]
    assert len(words) == len(set(words))
    assert not {word for flag in FLAGS.values() for word in flag.logged} & FLAGS.keys()


def test_what_a_flag_needs_is_a_switch() -> None:
    assert all(FLAGS[flag.needs].kind is Kind.BOOLEAN for flag in FLAGS.values() if flag.needs)


ENUMERATED = ("kind", "launch", "link", "log", "widget")


def misspelt() -> list[tuple[str, str]]:
    rows: Mapping[str, Any] = REGISTRY.raw()["flag"]
    return [(name, key) for name, row in rows.items() for key in row if key in ENUMERATED]


@pytest.mark.parametrize(("name", "key"), misspelt())
def test_a_misspelt_value_is_refused_with_file_key_and_what_is_allowed(name: str, key: str) -> None:
    raw = copy.deepcopy(dict(REGISTRY.raw()))
    raw["flag"][name][key] += "x"
    with pytest.raises(KvPlannerError) as refused:
        REGISTRY.read(raw)
    assert refused.value.code == "invalid-catalogue-entry"
    told = str(refused.value)
    assert f"registry.toml flag {name} {key}" in told
    assert REGISTRY.raw()["flag"][name][key] in told.partition("none of")[2]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"kind": "integer", "minimum": 1}, "minimum and maximum"),
        ({"kind": "text", "minimum": 1, "maximum": 2}, "minimum and maximum"),
        ({"kind": "choice"}, "choices"),
        ({"kind": "choice", "choices": ["a"], "common": ["b"]}, "common"),
        ({"kind": "text", "widget": "by-kind"}, "label"),
        ({"kind": "text", "labels": "x"}, "unknown labels"),
        ({"choices": ["a"]}, "missing kind"),
        ({"kind": "choice", "choices": "a"}, "a list"),
        ({"kind": "integer", "minimum": "1", "maximum": 2}, "a number"),
    ],
)
def test_a_row_whose_keys_do_not_go_together_is_refused(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(KvPlannerError) as refused:
        REGISTRY.read({"reviewed": "0.33.0", "flag": {"made_up": row}})
    assert "registry.toml flag made_up" in str(refused.value)
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


ROOT = Path(__file__).resolve().parents[1]
PUBLISHED = json.loads((ROOT / "docs" / "contract.schema.json").read_text("utf-8"))
VALIDATOR = Draft202012Validator(PUBLISHED)
REFUSED = ("invalid-value", "unknown-field", "missing-field")
"""What a schema can say; whether a model, a card or a release is known it cannot."""
MODEL = {"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB"}


JUDGED_BY_WHAT_IS_KNOWN = ("config", "model", "engine_version", "hf_overrides")


def is_read(request: dict[str, Any]) -> bool:
    try:
        scenario_from_request(request)
    except KvPlannerError as error:
        return error.code not in REFUSED
    return True


def is_valid(request: dict[str, Any]) -> bool:
    return VALIDATOR.is_valid(request)


def test_the_published_schema_is_that_of_the_registry() -> None:
    Draft202012Validator.check_schema(PUBLISHED)
    assert request_schema() == PUBLISHED


def test_the_command_prints_it() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kvcore", "schema"], cwd=ROOT, capture_output=True, check=True
    )
    assert done.stdout == (ROOT / "docs" / "contract.schema.json").read_bytes()


def test_the_request_of_the_contract_is_valid() -> None:
    text = (ROOT / "docs" / "contract.md").read_text("utf-8")
    written = re.search(r"## Request\n\n```json\n(.*?)```", text, re.DOTALL)
    assert written is not None
    request = json.loads(written[1]) | {"config": None, "hf_quant_config": None, "model": MODEL["model"]}
    assert is_valid(request)
    assert is_read(request)
    assert set(request) == {name for name in FLAGS if "." not in name} - {
        "hf_overrides", "max_cudagraph_capture_size", "cudagraph_capture_sizes", "cudagraph_mode",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "accepted"),
    [
        ({}, True),
        ({"model": None}, False),
        ({"model": None, "config": {"model_type": "qwen3"}}, True),
        ({"max_model_len": "auto"}, True),
        ({"max_model_len": -1}, True),
        ({"max_model_len": -2}, False),
        ({"max_model_len": 2147483649}, False),
        ({"max_num_seqs": None}, True),
        ({"max_num_seqs": True}, False),
        ({"gpu_memory_utilization": 1.01}, False),
        ({"gpu_memory_utilization": "0.9"}, False),
        ({"gpu_memory_utilisation": 0.9}, False),
        ({"kv_cache_dtype": "fp4"}, False),
        ({"cudagraph_capture_sizes": [4, 2]}, True),
        ({"cudagraph_capture_sizes": []}, False),
        ({"cudagraph_capture_sizes": [0]}, False),
        ({"accelerator": {"memory_gib": 24, "vendor": "nvidia"}}, True),
        ({"accelerator": {"memory_gib": 24, "speed": 3}}, False),
        ({"accelerator": 80}, False),
        ({"limit_mm_per_prompt": {"image": 2, "video": {"count": 1, "num_frames": 8}}}, True),
        ({"limit_mm_per_prompt": {"smell": 2}}, False),
        ({"speculative_config": {"method": "ngram", "prompt_lookup_max": 4}}, True),
        ({"speculative_config": {"method": "ngram", "prompt_lookup_most": 4}}, False),
        ({"speculative_config": {"method": "eagle3", "tensor_parallel_size": 2}}, False),
        ({"speculative_config": {"num_speculative_tokens": 4}}, False),
        ({"measured": {"non_torch_gib": -1, "fitted": ["non_torch_gib"]}}, True),
        ({"measured": {"fitted": ["speed"]}}, False),
        ({"env": {"VLLM_USE_V1": 0}}, True),
        ({"env": {"VLLM USE": "0"}}, False),
        ({"env": {"VLLM_USE_V1": [0]}}, False),
    ],
)  # fmt: skip
def test_a_request_is_accepted_or_refused_by_both(fields: dict[str, Any], accepted: bool) -> None:
    assert is_read(MODEL | fields) is accepted
    assert is_valid(MODEL | fields) is accepted


def values(flag: Flag) -> Iterator[Any]:
    """Values of every kind of JSON, and those around the ends of the flag's range."""
    yield from (
        None,
        True,
        False,
        0,
        1,
        -1,
        0.5,
        -1.5,
        10**30,
        "",
        "auto",
        "x" * 500,
        [],
        [1],
        ["x"],
        [True],
        {},
    )
    if flag.minimum is not None:
        low, high = flag.bounds
        yield from (low, high, low - 1, high + 1, [low], [high + 1], [low - 1])
    yield from flag.choices
    yield from ([choice] for choice in flag.choices if flag.kind is not Kind.NAMES)


def cases() -> Iterator[tuple[str, Any]]:
    for name, flag in FLAGS.items():
        if flag.kind is not Kind.ANY and name not in JUDGED_BY_WHAT_IS_KNOWN:
            for value in values(flag):
                yield name, value


def request_with(name: str, value: Any) -> dict[str, Any]:
    parent, _, key = name.rpartition(".")
    if not parent:
        return MODEL | {name: value}
    beside = {"speculative_config": {"model": "ngram"}, "accelerator": {"name": "L4"}}.get(parent, {})
    return MODEL | {parent: beside | {key: value}}


def test_both_agree_on_values_of_every_kind_for_every_flag() -> None:
    counted = {True: 0, False: 0}
    for name, value in cases():
        request = request_with(name, value)
        read = is_read(request)
        assert is_valid(request) is read, (name, value)
        counted[read] += 1
    assert min(counted.values()) > 200


def test_every_name_is_one_of_the_registry() -> None:
    for parent in ("", "measured", "checkpoint", "speculative_config", "accelerator"):
        request = request_with(f"{parent}.made_up".lstrip("."), 1)
        assert not is_valid(request)
        assert not is_read(request)


def test_what_only_the_contract_knows_is_not_in_a_link() -> None:
    unused = {name for name, flag in FLAGS.items() if flag.kind is Kind.ANY}
    assert all(FLAGS[name].link is LinkRule.NEVER for name in unused)
