"""What a pipeline stage holds beside its layers: exact against vLLM's own classes, and published starts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from kvcore.base.errors import CatalogueError, EngineRefusalError
from kvcore.base.units import gib
from kvcore.catalogue import find_model
from kvcore.engine.records import End
from kvcore.engines.registry import find_engine
from kvcore.engines.vllm.classes import CLASSES, Stages, ends_of_class
from kvcore.memory.loaded import head_bytes
from kvcore.memory.lora import Slots
from kvcore.memory.stages import loaded_architecture, on_every_stage, stage_modules, stores, with_encoders
from kvcore.memory.weights import weight_bytes
from kvcore.model.architecture import Architecture
from kvcore.model.config import ModelConfig
from kvcore.model.families import READERS, read_architecture
from kvcore.planning import Plan, plan
from kvcore.scenario import Parallel
from kvcore.tables import convert
from kvcore.wire.request import scenario_from_request
from tests.engine_examples import LLAMA_8B
from tests.special_models import slots_by_stage

FACTS = [
    json.loads(line)
    for line in (Path(__file__).parent / "data/pipeline_stages.jsonl").read_text().splitlines()
][1:]
ALL = {End.EMBEDDING, End.NORM, End.HEAD}
EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": 2}
PP2, PP3 = Parallel(pipeline_parallel_size=2), Parallel(pipeline_parallel_size=3)


def planned(model: str, **fields: Any) -> Plan:
    request = {"model": model, "accelerator": "H100-80GB", "engine_version": "0.32.0", "max_model_len": 2048}
    checkpoint = {"sentence_transformers": False}
    return plan(scenario_from_request({**request, "checkpoint": checkpoint, **fields}))


def asked_with(fact: dict[str, Any]) -> dict[str, Any]:
    """The config that the engine was asked with, where the catalogue has learnt of modules left in 16 bits since."""
    if "asked_with" not in fact:
        return {}
    raw = find_model(fact["model"]).config.raw
    return {"config": {**raw, "quantization_config": {**raw["quantization_config"], **fact["asked_with"]}}}


def with_kind(key: str) -> list[Any]:
    return [pytest.param(fact, id=fact["model"]) for fact in FACTS if key in fact]


def of_class(name: str, **keys: Any) -> Architecture:
    return read_architecture(ModelConfig.from_mapping({**LLAMA_8B, "architectures": [name], **keys}))


def held(architecture: Architecture, version: str, parallel: Parallel = PP2) -> set[End]:
    return set(on_every_stage(find_engine("vllm"), architecture, parallel, Version(version)))


@pytest.mark.parametrize("fact", with_kind("weights_bytes"))
def test_a_stage_weighs_what_the_engine_builds(fact: dict[str, Any]) -> None:
    got = planned(fact["model"], pipeline_parallel_size=3, **asked_with(fact))
    architecture = loaded_architecture(got.architecture, got.scenario, got.resolved)
    parallel = got.scenario.parallel
    ours = [
        weight_bytes(architecture, got.quantization, parallel, got.resolved, stage).parameters
        for stage in range(3)
    ]
    assert ours == fact["weights_bytes"]


@pytest.mark.parametrize("fact", with_kind("lora_bytes"))
def test_slots_of_a_stage(fact: dict[str, Any]) -> None:
    ranks = fact.get("tensor_parallel_size", 1)
    got = planned(fact["model"], pipeline_parallel_size=3, tensor_parallel_size=ranks, enable_lora=True)
    assert slots_by_stage(got, Slots(max_loras=1, max_lora_rank=16)) == fact["lora_bytes"]


@pytest.mark.parametrize("fact", with_kind("refused"))
def test_classes_that_are_not_cut_are_refused(fact: dict[str, Any]) -> None:
    with pytest.raises(EngineRefusalError) as error:
        planned(fact["model"], pipeline_parallel_size=3)
    assert error.value.code == "pipeline-unsupported"
    assert str(error.value).startswith(fact["refused"])
    assert planned(fact["model"], max_num_seqs=16).weights.parameters > 0


class TestPublishedStarts:
    def test_qwen3_30b_on_eight_gh200(self) -> None:
        """GH200, 0.10.1.2.dev0, TP 4, PP 2: "Model loading took 7.3272 GiB" on each of the 8 ranks."""
        got = planned(
            "Qwen/Qwen3-30B-A3B-Instruct-2507",
            accelerator={"name": "GH200 120GB", "memory_gib": 139.81, "vendor": "nvidia"},
            engine_version="0.10.1.2.dev0+g1da94e673.d20250903",
            tensor_parallel_size=4,
            pipeline_parallel_size=2,
        )
        ranks = [
            weight_bytes(got.architecture, got.quantization, got.scenario.parallel, got.resolved, stage).total
            for stage in (0, 1)
        ]
        assert [gib(size) for size in ranks] == pytest.approx([7.3272, 7.3272], rel=0.0005)


class TestByClassAndRelease:
    @pytest.mark.parametrize(
        ("name", "version", "expected"),
        [
            ("LlamaForCausalLM", "0.8.5", set()),
            ("MixtralForCausalLM", "0.8.5", ALL),
            ("MixtralForCausalLM", "0.33.0", ALL),
            ("Qwen3NextForCausalLM", "0.32.0", {End.EMBEDDING, End.HEAD}),
            ("DeepseekForCausalLM", "0.11.0", ALL),
            ("DeepseekForCausalLM", "0.11.1", set()),
            ("Starcoder2ForCausalLM", "0.24.0", ALL),
            ("Starcoder2ForCausalLM", "0.25.0", set()),
            ("Olmo2ForCausalLM", "0.25.1", ALL),
            ("Olmo2ForCausalLM", "0.26.0", set()),
            ("Olmo3ForCausalLM", "0.28.0", ALL),
            ("Olmo3ForCausalLM", "0.29.0", set()),
            ("PhiForCausalLM", "0.31.0", ALL),
            ("PhiForCausalLM", "0.32.0", set()),
        ],
    )
    def test_ends_on_every_stage(self, name: str, version: str, expected: set[End]) -> None:
        assert set(ends_of_class(name, "", Version(version))) == expected

    def test_without_stages_there_is_nothing_to_repeat(self) -> None:
        mixtral = of_class("MixtralForCausalLM", model_type="mixtral", **EXPERTS)
        assert held(mixtral, "0.32.0", Parallel(tensor_parallel_size=8)) == set()
        assert held(mixtral, "0.32.0") == ALL

    def test_a_class_that_judges_is_the_one_that_generates(self) -> None:
        assert held(of_class("MixtralForSequenceClassification", **EXPERTS), "0.32.0") == ALL

    def test_a_config_without_architectures_goes_by_its_model_type(self) -> None:
        raw = {key: value for key, value in LLAMA_8B.items() if key != "architectures"}
        gemma = read_architecture(ModelConfig.from_mapping({**raw, "model_type": "gemma"}))
        assert held(gemma, "0.32.0") == ALL

    @pytest.mark.parametrize(("language", "expected"), [("internlm2", ALL), ("qwen2", set())])
    def test_the_class_of_a_language_part(self, language: str, expected: set[End]) -> None:
        assert set(ends_of_class("InternVLChatModel", "", Version("0.32.0"))) == set()
        architecture = replace(
            of_class("LlamaForCausalLM"), read_as="InternVLChatModel", language_type=language
        )
        assert held(architecture, "0.32.0") == expected

    @pytest.mark.parametrize(("version", "refused"), [("0.10.1.1", True), ("0.10.2", False)])
    def test_gpt_oss_is_cut_since_0_10_2(self, version: str, refused: bool) -> None:
        if not refused:
            assert set(ends_of_class("GptOssForCausalLM", "", Version(version))) == ALL
            return
        with pytest.raises(EngineRefusalError):
            ends_of_class("GptOssForCausalLM", "", Version(version))


class TestEnds:
    def test_llama_by_stage(self) -> None:
        llama = of_class("LlamaForCausalLM")
        names = [[module.name for module in stage_modules(llama, PP3, stage)] for stage in range(3)]
        assert names == [["model.embed_tokens"], [], ["model.norm", "lm_head"]]

    def test_everything_everywhere(self) -> None:
        llama = of_class("LlamaForCausalLM")
        for stage in range(3):
            names = [module.name for module in stage_modules(llama, PP3, stage, frozenset(ALL))]
            assert names == ["model.embed_tokens", "model.norm", "lm_head"]

    def test_a_tied_head_needs_the_embedding_on_the_last_stage(self) -> None:
        tied = of_class("LlamaForCausalLM", tie_word_embeddings=True)
        assert [stores(End.EMBEDDING, tied, PP3, stage) for stage in range(3)] == [True, False, True]
        assert [stores(End.HEAD, tied, PP3, stage) for stage in range(3)] == [False, False, True]

    def test_a_pooling_model_drops_the_head_of_every_stage(self) -> None:
        """151936 x 2048 in bfloat16; Qwen3 guards it, Qwen3-MoE does not."""
        sizes = {}
        for model in ("Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-8B"):
            got = planned(model, pipeline_parallel_size=3)
            parts = (got.architecture, got.quantization, got.scenario.parallel, got.resolved)
            sizes[model] = [head_bytes(*parts, stage) for stage in range(3)]
        assert sizes["Qwen/Qwen3-30B-A3B"] == pytest.approx([2 * 151936 * 2048] * 3, rel=0.002)
        assert sizes["Qwen/Qwen3-8B"] == pytest.approx([0, 0, 2 * 151936 * 4096], rel=0.002)


class TestTables:
    def test_every_class_is_one_that_is_read_and_named_once_per_release(self) -> None:
        tables = CLASSES.load().stages
        named = [name for row in (*tables.every_stage, *tables.unsupported) for name in row.architectures]
        assert set(named) <= READERS.keys()
        repeated = [name for row in tables.every_stage for name in row.architectures]
        assert len(repeated) == len(set(repeated)) >= 50

    def test_an_end_that_is_none_is_an_error(self) -> None:
        row = {"source": "x", "modules": ["embedding", "tail"], "architectures": []}
        with pytest.raises(CatalogueError):
            convert(
                {"reviewed": "0.33.0", "source": "x", "every_stage": [row], "unsupported": []},
                Stages,
                "classes.toml stages",
            )

    @pytest.mark.parametrize("table", ["every_stage", "unsupported"])
    def test_an_unknown_key_is_an_error(self, table: str) -> None:
        raw = {"reviewed": "0.33.0", "source": "x", "every_stage": [], "unsupported": []}
        assert convert(raw, Stages, "classes.toml stages").every_stage == ()
        with pytest.raises(CatalogueError):
            convert(raw | {table: [{"source": "x", "classes": []}]}, Stages, "classes.toml stages")


PARITY = Path(__file__).parent / "data" / "parity" / "classes"


def read(name: str) -> Architecture:
    entry = json.loads((PARITY / f"{name}.json").read_text(encoding="utf-8"))
    return read_architecture(ModelConfig.from_mapping(entry["config"]))


@pytest.mark.parametrize(
    "name",
    [
        "Qwen2AudioForConditionalGeneration",
        "VoxtralForConditionalGeneration",
        "GraniteSpeechForConditionalGeneration",
        "MiDashengLMModel",
    ],
)
def test_a_model_that_only_hears_keeps_everything_without_images(name: str) -> None:
    architecture = read(name)
    assert with_encoders(architecture, False, True).every == architecture.every
    assert with_encoders(architecture, True, False).every == ()


def test_a_model_that_only_sees_keeps_everything_without_sound() -> None:
    architecture = read("KimiVLForConditionalGeneration")
    assert with_encoders(architecture, True, False).every == architecture.every
    assert with_encoders(architecture, False, True).every == ()


@pytest.mark.parametrize("name", ["Qwen3OmniMoeForConditionalGeneration", "MiniCPMO", "Phi4MMForCausalLM"])
def test_a_model_that_sees_and_hears_is_parted_in_two(name: str) -> None:
    architecture = read(name)
    seeing, hearing = (with_encoders(architecture, *kinds).every for kinds in ((True, False), (False, True)))
    assert seeing
    assert hearing
    assert len(seeing) + len(hearing) == len(architecture.every)
