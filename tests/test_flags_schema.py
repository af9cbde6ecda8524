"""The published schema says what the reader accepts and refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from kvcore.base.errors import KvPlannerError
from kvcore.flags import FLAGS, Flag, Kind, LinkRule
from kvcore.flags.schema import request_schema
from kvcore.wire.request import scenario_from_request

ROOT = Path(__file__).resolve().parents[1]
PUBLISHED = json.loads((ROOT / "docs" / "contract.schema.json").read_text("utf-8"))
VALIDATOR = Draft202012Validator(PUBLISHED)
REFUSED = ("invalid-value", "unknown-field", "missing-field")
"""What a schema can say; whether a model, a card or a release is known it cannot."""
MODEL = {"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB"}


JUDGED_BY_WHAT_IS_KNOWN = ("config", "headers", "model", "engine_version", "hf_overrides")


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
    assert set(request) <= {name for name in FLAGS if "." not in name}


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
        ({"limit_mm_per_prompt": {"image": {"width": 512, "height": None}}}, True),
        ({"limit_mm_per_prompt": {"image": {"count": 1, "num_frames": 8}}}, False),
        ({"limit_mm_per_prompt": {"image": {"count": 1, "width": 0}}}, False),
        ({"limit_mm_per_prompt": {"smell": 2}}, False),
        ({"mm_processor_kwargs": {"max_pixels": 262144, "fps": 0}}, True),
        ({"mm_processor_kwargs": {"size": 262144}}, False),
        ({"surroundings": {"link": "pcie", "driver": None}}, True),
        ({"surroundings": {"driver": "ROCm 7.2"}}, True),
        ({"surroundings": {"driver": "auto"}}, False),
        ({"surroundings": {"link": "NVLink"}}, False),
        ({"surroundings": {"cards": 2}}, False),
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
    top, _, kind = parent.partition(".")
    return MODEL | {top: {kind: {key: value}} if kind else beside | {key: value}}


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
