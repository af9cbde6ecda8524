"""The catalogues as tables, and what stands next to names."""

from __future__ import annotations

import datetime

import pytest

from kvcore import catalogue
from kvcore.base.errors import KvPlannerError
from kvcore.base.words import Language, words
from kvcore.catalogue.documented import DOCUMENTED, license_of
from kvcore.catalogue.models import Rank
from kvcore.charts.catalogue_rows import (
    RANK_NAMES,
    accelerator_facts,
    accelerator_rows,
    bundled_facts,
    model_facts,
    model_rows,
    parameters,
    sibling_rows,
    version_rows,
)
from kvcore.engines.vllm.versions import vllm_releases
from kvcore.model.config import ModelConfig
from kvcore.model.families import read_architecture


def test_every_model_is_there_and_can_be_read() -> None:
    rows = model_rows()
    assert tuple(row.id for row in rows) == catalogue.model_ids()
    assert all(row.source and row.checked for row in rows)
    assert [row.id for row in rows if row.layers is None] == []


def test_models_known_by_name_say_of_what_they_are_made() -> None:
    rows = sibling_rows()
    assert {row.id for row in rows} == set(catalogue.known_ids()) - set(catalogue.model_ids())
    (row,) = [row for row in rows if row.id == "RedHatAI/Qwen3-8B-FP8-dynamic"]
    assert (row.base, row.rank, row.format) == (
        "Qwen/Qwen3-8B", Rank.FORMAT, "compressed-tensors, fp8 with a scale a row",
    )  # fmt: skip
    assert {row.rank for row in rows} <= RANK_NAMES.keys()


def test_every_kind_of_source_has_a_name() -> None:
    assert RANK_NAMES.keys() == set(Rank)
    by_name = {row.id: row.rank for row in model_rows()}
    assert by_name["Qwen/Qwen3-1.7B"] is Rank.COPIES
    assert by_name["01-ai/Yi-1.5-9B-Chat"] is Rank.VALUES
    assert by_name["nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-FP8"] is Rank.STUB


def test_a_model() -> None:
    (row,) = [row for row in model_rows() if row.id == "Qwen/Qwen3-32B"]
    assert (row.layers, row.heads, row.kv_heads, row.context_tokens) == (64, 64, 8, 40960)
    assert row.kv_kib_per_token == 256
    assert row.attention == "full"


def test_every_accelerator_is_there() -> None:
    rows = accelerator_rows()
    assert {row.id for row in rows} == {card.id for card in catalogue.load_accelerators()}
    (h100,) = [row for row in rows if row.id == "H100-80GB"]
    assert (h100.bandwidth_gb_s, h100.capability, h100.vendor) == (3350.0, "9.0", "nvidia")
    assert all(row.source and row.checked for row in rows)


def test_every_release_is_there_newest_first() -> None:
    rows = [row for row in version_rows() if row.engine == "vllm"]
    assert [row.version for row in rows] == [str(version) for version in reversed(vllm_releases())]
    by_version = {row.version: row for row in rows}
    assert (by_version["0.7.3"].generation, by_version["0.8.5"].generation) == ("V0", "V1")
    assert (by_version["0.19.1"].utilization, by_version["0.20.0"].utilization) == (0.9, 0.92)
    assert {row.engine for row in version_rows()} == {"vllm", "vllm-ascend", "vllm-mindspore", "sglang"}


T = words(Language.ENGLISH)


def test_counted_parameters_are_the_published_ones() -> None:
    """Of models without a head that is tied or counted twice, whose total the Hub publishes."""
    for name in (
        "Qwen/Qwen3-32B",
        "meta-llama/Llama-3.1-8B-Instruct",
        "mistralai/Mixtral-8x7B-Instruct-v0.1",
    ):
        entry = catalogue.find_model(name)
        published = entry.checkpoint.total_parameters
        assert published is not None
        assert parameters(read_architecture(entry.config)) == pytest.approx(published, rel=1e-3)


def test_every_bundled_model_has_its_facts() -> None:
    for name in catalogue.model_ids():
        facts = bundled_facts(name, T).split(" · ")
        assert facts[0][-1] in "MBT", name
        assert facts[1].endswith(" tokens"), name
        assert facts[2:] == ([license_of(name)] if license_of(name) else []), name


def test_the_facts_of_cards() -> None:
    assert accelerator_facts(catalogue.find_accelerator("Ascend-910B3-64GB"), T).startswith(
        "60.96 GiB · HCCS"
    )
    chinese = words(Language.CHINESE)
    for card in catalogue.load_accelerators():
        assert " · " in accelerator_facts(card, chinese)


def test_an_unreadable_config_has_no_facts() -> None:
    assert (
        model_facts(ModelConfig.from_mapping({}), catalogue.find_model("Qwen/Qwen3-8B").checkpoint, "", T)
        == ""
    )


def test_licenses_are_of_bundled_models() -> None:
    assert license_of("openai/gpt-oss-120b") == "Apache-2.0"
    assert license_of("meta-llama/Llama-3.3-70B-Instruct") == "Llama 3.3 Community"
    row = {"name": "MIT", "source": "x", "checked": datetime.date(2026, 1, 1), "models": ["Qwen/Qwen3-8B"]}
    unsaid = {name: row[name] for name in ("name", "models")}
    for rows in ([{**row, "models": ["no/model"]}], [{**row, "source": ""}], [unsaid], [row, row]):
        with pytest.raises(KvPlannerError):
            DOCUMENTED.read({**DOCUMENTED.raw(), "license": rows})
    assert DOCUMENTED.read({**DOCUMENTED.raw(), "license": [row]}).license[0].name == "MIT"
