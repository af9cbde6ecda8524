"""Which releases lack a model class, against the registries of models in the engine's sources."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from msgspec.structs import replace
from packaging.version import Version

from kvcore import catalogue
from kvcore.advice.sweep import plan_cell, sweep
from kvcore.base.errors import CatalogueError, EngineRefusalError
from kvcore.base.words import Language, words
from kvcore.engines.registry import engine_of, find_engine
from kvcore.engines.vllm.classes import (
    Registry,
    absence_of,
    is_surely_there,
    known_absences,
)
from kvcore.model.config import ModelConfig
from kvcore.planning import plan
from kvcore.tables import convert
from kvcore.wire.request import scenario_from_request

QWEN = "Qwen/Qwen3.5-35B-A3B"
BAICHUAN = "baichuan-inc/Baichuan2-7B-Chat"
NOT_YET = "architecture-not-in-release"
GONE = "architecture-gone-from-release"

TEXT = """
reviewed = "0.33.0"
source = "x"
read = ["0.8.5", "0.9.2", "0.10.2"]
[since]
"0.9.2" = ["NewForCausalLM"]
[transformers]
[[gone]]
first_without = "0.10.2"
until = "0.8.5"
architectures = ["OldForCausalLM"]
"""


def asked(model: str, **flags: Any) -> Any:
    return scenario_from_request(
        {"model": model, "accelerator": "H100-80GB", "tensor_parallel_size": 2, "max_model_len": 2048} | flags
    )


def refusal_of(model: str, **flags: Any) -> str:
    try:
        plan(asked(model, **flags))
    except EngineRefusalError as error:
        return error.code
    return ""


@pytest.mark.parametrize(
    ("model", "version", "code"),
    [
        (QWEN, "0.9.2", NOT_YET),
        (QWEN, "0.16.0", NOT_YET),
        (QWEN, "0.17.0", ""),  # between 0.16.0 without and 0.17.1 with
        (QWEN, "0.17.1", ""),
        (QWEN, "0.16.1.dev3", ""),  # a build of main may have it
        ("openai/gpt-oss-120b", "0.9.2", NOT_YET),
        ("openai/gpt-oss-120b", "0.10.1.1", ""),
        ("deepseek-ai/DeepSeek-V3.2", "0.10.2", NOT_YET),
        ("deepseek-ai/DeepSeek-V3", "0.8.5", ""),
        (BAICHUAN, "0.24.0", ""),
        (BAICHUAN, "0.25.0", GONE),
        (BAICHUAN, "0.32.0", GONE),
        (BAICHUAN, "0.33.0", GONE),
        ("Qwen/Qwen-7B", "0.23.0", ""),
        ("Qwen/Qwen-7B", "0.24.0", GONE),
        ("mosaicml/mpt-7b", "0.28.0", ""),
        ("mosaicml/mpt-7b", "0.29.0", GONE),
    ],
)
def test_models(model: str, version: str, code: str) -> None:
    assert refusal_of(model, engine_version=version) == code


def test_the_words_are_the_engine_s_and_name_a_release_that_has_it() -> None:
    with pytest.raises(EngineRefusalError) as refused:
        plan(asked(BAICHUAN, engine_version="0.32.0"))
    assert str(refused.value).startswith(
        "Model architecture BaichuanForCausalLM was supported in vLLM until v0.23.0, and is not supported anymore."
    )
    assert refused.value.field == "engine_version"
    for language in (Language.ENGLISH, Language.CHINESE):
        assert "0.23.0" in words(language).next_step(refused.value)
    with pytest.raises(EngineRefusalError) as refused:
        plan(asked(QWEN, engine_version="0.9.2"))
    assert str(refused.value).startswith(
        "Model architectures ['Qwen3_5MoeForConditionalGeneration'] are not supported for now."
    )
    assert "0.17.1" in words(Language.ENGLISH).next_step(refused.value)


def test_a_class_that_came_back_is_refused_in_between_alone() -> None:
    """ExaoneMoEForCausalLM: 0.14.1 to 0.26.0, 0.32.0 and 0.33.0."""
    found = [
        absence_of(("ExaoneMoEForCausalLM",), find_engine("vllm"), Version(version)) is None
        for version in ("0.13.0", "0.14.1", "0.26.0", "0.27.1", "0.31.0", "0.32.0", "0.33.0")
    ]
    assert found == [False, True, True, False, False, True, True]


def test_one_class_that_the_release_has_is_enough() -> None:
    old = Version("0.9.2")
    assert absence_of(("Qwen3_5ForConditionalGeneration",), find_engine("vllm"), old) is not None
    assert (
        absence_of(("Qwen3_5ForConditionalGeneration", "LlamaForCausalLM"), find_engine("vllm"), old) is None
    )
    assert absence_of(("NeverHeardOfForCausalLM",), find_engine("vllm"), old) is None
    assert absence_of((), find_engine("vllm"), old) is None


def test_what_transformers_runs_is_not_refused() -> None:
    """Transformers 4.53 has SmolLM3 for the attention of the engine, 0.10.1 an entry for it."""
    names = ("SmolLM3ForCausalLM",)
    assert absence_of(names, find_engine("vllm"), Version("0.8.5")) is not None
    assert absence_of(names, find_engine("vllm"), Version("0.9.2")) is None


def test_plug_ins_are_judged_by_their_vllm_where_their_own_classes_are_known() -> None:
    names = asked(QWEN).config.architectures
    assert absence_of(names, find_engine("vllm-ascend"), Version("0.13.0")) is not None
    assert absence_of(names, find_engine("vllm-ascend"), Version("0.18.0")) is None
    assert absence_of(names, find_engine("vllm-ascend"), Version("0.9.1")) is None
    assert absence_of(names, find_engine("vllm-mindspore"), Version("0.9.1")) is None


def test_without_a_version_the_last_release_with_the_class_is_planned_and_said() -> None:
    planned = plan(asked(BAICHUAN))
    assert planned.resolved.version == Version("0.23.0")
    notice = next(notice for notice in planned.notices if notice.code == "release-assumed-for-model")
    assert notice.params == {"used": "0.23.0", "value": "BaichuanForCausalLM"}
    assert engine_of(planned.scenario).assumed_version(planned.scenario) == "0.23.0"
    assert find_engine("vllm").assumed_version(asked(BAICHUAN, engine_version="0.19.0")) == "0.23.0"
    newest = plan(asked(QWEN))
    assert newest.resolved.version == Version("0.33.0")
    assert not [notice for notice in newest.notices if notice.code.startswith("release-assumed")]


def test_an_assumed_release_is_exact_and_the_first_engine_goes_before() -> None:
    assert engine_of(asked(BAICHUAN)).planned_release(asked(BAICHUAN)).is_exact
    release = find_engine("vllm").planned_release(asked(BAICHUAN, env={"VLLM_USE_V1": "0"}))
    assert release.version == Version("0.10.2")
    assert [notice.code for notice in release.notices] == ["v0-release-assumed"]


def test_a_class_that_no_release_with_the_first_engine_has_is_refused() -> None:
    assert refusal_of(QWEN, env={"VLLM_USE_V1": "0"}) == NOT_YET


@pytest.mark.parametrize("version", ["0.12.0", "0.26.0", None])
def test_sweeps_say_what_plans_say(version: str | None) -> None:
    base = replace(asked("Qwen/Qwen3-8B"), engine_version=version)
    models = [catalogue.find_model(name) for name in (QWEN, BAICHUAN, "Qwen/Qwen3-8B")]
    cards = [catalogue.find_accelerator(name) for name in ("H100-80GB", "L40S-48GB", "A100-80GB")]
    cells = [cell for row in sweep(base, models, cards, (1, 2)) for cell in row.cells]
    alone = [plan_cell(base, entry, card, size) for entry in models for card in cards for size in (1, 2)]
    assert cells == alone
    refused = {cell.refusal for cell in cells} & {NOT_YET, GONE}
    assert refused == {"0.12.0": {NOT_YET}, "0.26.0": {GONE}, None: set()}[version]


def test_every_absence_ends_after_it_begins() -> None:
    for name, absences in known_absences().items():
        for absence in absences:
            assert absence.first <= absence.last, name
            assert (absence.since is None) is not (absence.until is None), name
            assert not is_surely_there((name,), absence.first), name


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('source = "x"\n', ""),
        ("[transformers]", "[transformer]"),
        ('"0.9.2" = ["NewForCausalLM"]', '"0.11.0" = ["NewForCausalLM"]'),
        ('"0.9.2" = ["NewForCausalLM"]', '"0.8.5" = ["NewForCausalLM"]'),
        ('"0.9.2" = ["NewForCausalLM"]', '"0.9.2" = ["NewForCausalLM"]\n"0.10.2" = ["NewForCausalLM"]'),
        ("[transformers]", '[transformers]\n"0.9.2" = ["OtherForCausalLM"]'),
        ('until = "0.8.5"\n', ""),
        ('until = "0.8.5"', 'until = "0.8.5"\nwhy = "?"'),
        ('["0.8.5", "0.9.2", "0.10.2"]', '["0.9.2", "0.8.5", "0.10.2"]'),
    ],
)
def test_a_wrong_file_is_refused(old: str, new: str) -> None:
    whole = convert(tomllib.loads(TEXT), Registry, "classes.toml registry")
    assert set(whole.absences) == {"NewForCausalLM", "OldForCausalLM"}
    assert old in TEXT
    with pytest.raises(CatalogueError):
        convert(tomllib.loads(TEXT.replace(old, new)), Registry, "classes.toml registry")


def test_a_config_without_classes_is_not_judged() -> None:
    config = ModelConfig.from_mapping({"model_type": "llama"})
    assert is_surely_there(config.architectures, Version("0.8.5"))
