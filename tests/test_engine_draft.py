"""Which draft a method loads, how many tokens it proposes, and what the engine refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvcore.base.errors import EngineRefusalError, KvPlannerError, ModelError, ScenarioError
from kvcore.catalogue import find_model
from kvcore.engines.vllm.draft import draft_notices, proposed_tokens, read_draft
from kvcore.memory.loaded import draft_bytes, draft_parameter_bytes
from kvcore.model import architecture as arch
from kvcore.model.caches import LatentWindow
from kvcore.model.config import ModelConfig
from kvcore.model.families import read_architecture
from kvcore.model.families.drafts import Draft
from kvcore.model.quantization import Quantization
from kvcore.planning import Plan, plan
from kvcore.scenario import Parallel, SpeculativeConfig
from kvcore.wire.request import scenario_from_request, speculative_method
from tests.engine_examples import LLAMA_8B
from tests.test_families_decoder import total_elements
from tools.parity.deployments import EAGLE3_HEAD

LLAMA = read_architecture(ModelConfig.from_mapping(LLAMA_8B))
HEAD = {**EAGLE3_HEAD, "max_position_embeddings": 2048}
PLAIN = Quantization()
EAGLE3_PARAMETERS = 849_635_328
"""As vLLM 0.32 builds it for Llama 3.1 8B: 0.79 GiB."""


def draft_of(method: str, head: dict[str, Any] | None = None, **fields: Any) -> Draft | None:
    config = None if head is None else ModelConfig.from_mapping(head)
    speculative = SpeculativeConfig(method=method, num_speculative_tokens=3, config=config, **fields)
    return read_draft(speculative, LLAMA, PLAIN, Parallel(), 4096)


def planned(model: str, speculative: dict[str, Any], **fields: Any) -> Plan:
    request = {"model": model, "accelerator": "H100-80GB", "speculative_config": speculative, **fields}
    return plan(scenario_from_request(request))


class TestHeads:
    def test_eagle_3(self) -> None:
        draft = draft_of("eagle3", HEAD)
        assert draft is not None
        assert draft_parameter_bytes(draft, Parallel(), "bfloat16") == EAGLE3_PARAMETERS
        qkv = draft.layers[0].modules[0]
        assert (qkv.name, getattr(qkv, "in_features", 0)) == ("self_attn.qkv_proj", 2 * 4096)

    def test_an_unknown_head_is_assumed_to_be_the_usual_one(self) -> None:
        draft = draft_of("eagle3")
        assert draft is not None
        assert draft.is_assumed
        assert draft_parameter_bytes(draft, Parallel(), "bfloat16") == EAGLE3_PARAMETERS
        (notice,) = draft_notices(SpeculativeConfig(method="eagle3"), draft)
        assert notice.code == "draft-head-assumed"

    def test_sizes_inside_transformer_layer_config(self) -> None:
        nested = {key: HEAD[key] for key in HEAD if key not in ("architectures", "draft_vocab_size")}
        speculators = {
            "architectures": ["Eagle3Speculator", "LlamaForCausalLMEagle3"],
            "draft_vocab_size": 32000,
            "transformer_layer_config": nested,
        }
        draft = draft_of("eagle3", speculators)
        assert draft is not None
        assert draft_parameter_bytes(draft, Parallel(), "bfloat16") == EAGLE3_PARAMETERS

    def test_a_head_with_the_models_vocabulary_shares_lm_head(self) -> None:
        own, shared = draft_of("eagle3", HEAD), draft_of("eagle3", {**HEAD, "draft_vocab_size": 128256})
        assert own is not None
        assert shared is not None
        less = draft_parameter_bytes(own, Parallel(), "bfloat16") - draft_parameter_bytes(
            shared, Parallel(), "bfloat16"
        )
        assert less == 32000 * 4096 * 2 + 32000 * 8

    def test_its_rope_table_reaches_as_far_as_the_requests(self) -> None:
        config = ModelConfig.from_mapping(HEAD)
        speculative = SpeculativeConfig(method="eagle3", num_speculative_tokens=3, config=config)
        near = read_draft(speculative, LLAMA, PLAIN, Parallel(), 1024)
        far = read_draft(speculative, LLAMA, PLAIN, Parallel(), 8192)
        assert near is not None
        assert far is not None
        sizes = [draft_bytes(draft, Parallel(), "bfloat16") for draft in (near, far)]
        assert sizes[1] - sizes[0] == (8192 - 2048) * 128 * 2

    def test_other_layers_are_refused_by_name(self) -> None:
        with pytest.raises(ModelError) as refusal:
            draft_of("eagle", {**HEAD, "architectures": ["MiniCPMForCausalLM"]})
        assert refusal.value.code == "unknown-architecture"

    def test_beside_pipeline_stages_a_draft_keeps_its_embedding(self) -> None:
        draft = draft_of("eagle3", HEAD)
        assert draft is not None
        alone = draft_parameter_bytes(draft, Parallel(), "bfloat16")
        staged = draft_parameter_bytes(draft, Parallel(pipeline_parallel_size=2), "bfloat16")
        assert staged - alone == 128256 * 4096 * 2


class TestCheckpointDrafts:
    @pytest.mark.parametrize(
        ("model", "layers"),
        [
            ("deepseek-ai/DeepSeek-V3", 1),
            ("zai-org/GLM-4.5", 1),
            ("XiaomiMiMo/MiMo-7B-RL", 1),
            ("Qwen/Qwen3-Next-80B-A3B-Instruct", 1),
        ],
    )
    def test_every_spelling_of_the_method(self, model: str, layers: int) -> None:
        tensor = {"tensor_parallel_size": 8, "measured": {"available_kv_gib": 20.0}}
        if model.startswith("Qwen"):
            tensor["tensor_parallel_size"] = 4
        weights = {
            planned(model, {"method": method, "num_speculative_tokens": 1}, **tensor).weights.drafts
            for method in ("mtp", "deepseek_mtp", "qwen3_next_mtp")
        }
        assert len(weights) == 1
        assert min(weights) > 0
        without = planned(model, {"method": "ngram", "num_speculative_tokens": 1}, **tensor)
        assert len(without.architecture.draft_layers) == layers
        assert without.weights.drafts == 0

    def test_as_many_tokens_as_the_checkpoint_predicts(self) -> None:
        three = ModelConfig.from_mapping({**LLAMA_8B, **GLM, "num_nextn_predict_layers": 3})
        speculative = SpeculativeConfig(method="mtp")
        assert proposed_tokens(speculative, read_architecture(three)) == 3
        assert proposed_tokens(speculative, LLAMA) == 1
        with pytest.raises(EngineRefusalError) as refusal:
            proposed_tokens(
                SpeculativeConfig(method="mtp", num_speculative_tokens=4), read_architecture(three)
            )
        assert refusal.value.code == "speculative-tokens-not-divisible"
        assert "must be divisible by n_predict=3" in str(refusal.value)

    def test_a_model_without_such_layers_is_refused(self) -> None:
        with pytest.raises(EngineRefusalError) as refusal:
            draft_of("mtp")
        assert str(refusal.value) == "Unsupported speculative method: 'mtp'"


GLM = {
    "architectures": ["Glm4MoeForCausalLM"],
    "model_type": "glm4_moe",
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 1024,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}


class TestDraftModels:
    def test_all_of_it_is_loaded_and_cached(self) -> None:
        alone = planned("Qwen/Qwen3-0.6B", {"method": "ngram", "num_speculative_tokens": 3})
        both = planned(
            "Qwen/Qwen3-32B", {"model": "Qwen/Qwen3-0.6B", "num_speculative_tokens": 3}, max_model_len=8192
        )
        assert both.resolved.speculative_method == "draft_model"
        assert both.weights.drafts == alone.weights.total
        assert both.cache is not None
        assert [group.layers for group in both.cache.groups] == [64 + 28]

    def test_an_unknown_one_is_refused(self) -> None:
        with pytest.raises(ScenarioError) as refusal:
            planned("Qwen/Qwen3-32B", {"method": "draft_model", "model": "nobody/nothing"})
        assert (refusal.value.code, refusal.value.field) == (
            "draft-model-unknown",
            "speculative_config.model",
        )

    def test_fetching_it(self) -> None:
        def fetch(model: str) -> Any:
            raise ScenarioError("missing-field", field=model)

        request = {"model": "Qwen/Qwen3-32B", "speculative_config": {"method": "eagle3", "model": "a/head"}}
        assert scenario_from_request(request, fetch).speculative_config == SpeculativeConfig(
            method="eagle3", model="a/head"
        )
        request["speculative_config"] = {"model": "nobody/nothing"}
        with pytest.raises(KvPlannerError):
            scenario_from_request(request, fetch)

    @pytest.mark.parametrize(
        ("name", "method"),
        [
            ("yuhuili/EAGLE-LLaMA3-Instruct-8B", "eagle"),
            ("AngelSlim/Qwen3-8B_eagle3", "eagle3"),
            ("[ngram]", "ngram"),
            ("z-lab/Qwen3.5-9B-DFlash", "dflash"),
            ("deepseek-ai/dspark_qwen3_8b_block7", "dspark"),
            ("Qwen/Qwen3-0.6B", "draft_model"),
            (None, None),
        ],
    )
    def test_the_method_by_the_name(self, name: str | None, method: str | None) -> None:
        assert speculative_method(name) == method


def test_methods_without_a_draft_that_is_known_say_so() -> None:
    assert draft_of("suffix") is None
    assert draft_notices(SpeculativeConfig(method="suffix"), None) == ()
    assert [notice.code for notice in draft_notices(SpeculativeConfig(method="custom_class"), None)] == [
        "draft-not-counted"
    ]


DFLASH = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_hidden_layers": 5,
    "vocab_size": 128256,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000,
    "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
}
"""As z-lab's drafts for models of 8B are, with the vocabulary of Llama 3."""
LAYER = 4096 * (32 + 2 * 8) * 128 + 32 * 128 * 4096 + 3 * 4096 * 12288 + 2 * 128 + 2 * 4096
"""Elements of one: qkv, o, the MLP, norms of queries and keys, two norms."""


class TestSeveralTokensAtOnce:
    def test_dflash_by_the_arithmetic_of_its_class(self) -> None:
        draft = draft_of("dflash", DFLASH)
        assert draft is not None
        around = 5 * 4096 * 4096 + 3 * 4096
        assert draft_parameter_bytes(draft, Parallel(), "bfloat16") == 2 * (5 * LAYER + around)

    def test_it_keeps_a_copy_of_the_projections_to_keys_and_values(self) -> None:
        draft = draft_of("dflash", DFLASH)
        assert draft is not None
        copies = sum(2 * arch.elements(module) for layer in draft.layers for module in layer.loading)
        assert copies == 2 * 5 * 2 * 8 * 128 * 4096

    def test_its_layers_take_cache_like_the_models(self) -> None:
        speculative = {"method": "dflash", "num_speculative_tokens": 15, "config": DFLASH}
        fields = {"measured": {"available_kv_gib": 40.0}, "engine_version": "0.32.0"}
        without = planned(
            "meta-llama/Llama-3.1-8B-Instruct", {"method": "ngram", "num_speculative_tokens": 1}, **fields
        )
        drafted = planned("meta-llama/Llama-3.1-8B-Instruct", speculative, **fields)
        assert without.cache is not None
        assert drafted.cache is not None
        assert drafted.cache.tokens == pytest.approx(without.cache.tokens * 32 / 37, rel=0.001)

    def test_windows_by_the_layer_and_by_the_draft(self) -> None:
        mixed = DFLASH | {
            "layer_types": ["sliding_attention"] * 4 + ["full_attention"],
            "sliding_window": 2048,
        }
        draft = draft_of("dflash", mixed)
        assert draft is not None
        kinds = [type(layer.caches[0]).__name__ for layer in draft.layers]
        assert kinds == ["SlidingWindow"] * 4 + ["FullAttention"]
        everywhere = DFLASH | {"dflash_config": {"use_swa": True, "swa_window_size": 512}}
        draft = draft_of("dflash", everywhere)
        assert draft is not None
        assert {getattr(layer.caches[0], "sliding_window", 0) for layer in draft.layers} == {512}

    def test_dspark_adds_a_bias_of_low_rank_and_a_confidence_head(self) -> None:
        flash = draft_of("dflash", DFLASH)
        spark = DFLASH | {
            "architectures": ["Qwen3DSparkModel"],
            "markov_rank": 256,
            "enable_confidence_head": True,
        }
        draft = draft_of("dspark", spark)
        assert draft is not None
        assert flash is not None
        sizes = [draft_parameter_bytes(one, Parallel(), "bfloat16") for one in (flash, draft)]
        assert sizes[1] - sizes[0] == 2 * 2 * 128256 * 256 + 4 * (4096 + 1)

    def test_drafts_of_other_layers_are_refused_by_name(self) -> None:
        with pytest.raises(ModelError) as refusal:
            draft_of("dflash", DFLASH | {"architectures": ["DFlash2DraftModel"]})
        assert refusal.value.code == "unknown-architecture"

    @pytest.mark.parametrize("method", ["dflash", "dspark", "medusa", "mlp_speculator"])
    def test_without_a_config_no_number_is_promised(self, method: str) -> None:
        with pytest.raises(ScenarioError) as refusal:
            draft_of(method)
        assert refusal.value.code == "draft-model-unknown"


class TestHeadsWithoutACache:
    def test_medusa(self) -> None:
        config = {"medusa_num_heads": 3, "medusa_num_layers": 2, "hidden_size": 4096, "vocab_size": 32000}
        draft = draft_of("medusa", config)
        assert draft is not None
        assert draft.layers == ()
        assert draft_parameter_bytes(draft, Parallel(), "bfloat16") == 2 * 3 * (2 * 4096**2 + 32000 * 4096)
        halves = draft_parameter_bytes(draft, Parallel(tensor_parallel_size=2), "bfloat16")
        assert halves == 2 * 3 * (2 * 4096**2 + 16000 * 4096)

    def test_an_mlp_speculator_is_whole_on_its_rank(self) -> None:
        config = {"emb_dim": 4096, "inner_dim": 3072, "n_predict": 4, "vocab_size": 128256}
        draft = draft_of("mlp_speculator", config)
        assert draft is not None
        elements = 4096 * 3072 + 3 * 3072**2 + 4 * (2 * 128256 * 3072 + 2 * 3072)
        for ranks in (1, 4):
            assert (
                draft_parameter_bytes(draft, Parallel(tensor_parallel_size=ranks), "bfloat16") == 2 * elements
            )


def test_a_draft_is_cut_like_the_model_or_not_at_all() -> None:
    speculative = SpeculativeConfig(method="eagle3", num_speculative_tokens=1, draft_tensor_parallel_size=2)
    with pytest.raises(EngineRefusalError) as refusal:
        read_draft(speculative, LLAMA, PLAIN, Parallel(tensor_parallel_size=4), 4096)
    assert refusal.value.code == "draft-ranks"
    assert read_draft(speculative, LLAMA, PLAIN, Parallel(tensor_parallel_size=2), 4096) is not None


def test_only_the_last_stage_has_the_draft() -> None:
    got = planned(
        "meta-llama/Llama-3.1-8B-Instruct",
        {"method": "eagle3", "num_speculative_tokens": 2, "config": HEAD},
        pipeline_parallel_size=2,
    )
    assert [sum(spec.layers for spec in stage) for stage in got.specs] == [16, 17]


def config_of_class(name: str, **more: Any) -> ModelConfig:
    """A small config of a class, as the engine's own plan was made of it."""
    path = Path(__file__).parent / "data" / "parity" / "classes" / f"{name}.json"
    config = json.loads(path.read_text("utf-8"))["config"]
    return ModelConfig.from_mapping(config | more)


def draft_elements(config: ModelConfig) -> int:
    speculative = SpeculativeConfig(method="mtp", num_speculative_tokens=1)
    draft = read_draft(speculative, read_architecture(config), PLAIN, Parallel(), 4096)
    assert draft is not None
    modules = (*draft.modules, *(module for layer in draft.layers for module in layer.modules))
    return sum(arch.elements(module) for module in modules)


LING_ATTENTION = 2048 * (1536 + 576) + 1536 + 1536 * 16 * 192 + 512 + 512 * 16 * 256 + 16 * 128 * 2048
LING_EXPERTS = 128 * 2048 + 128 + 129 * 3 * 2048 * 512


class TestDraftsOfMixtures:
    """Sizes by the modules that the engine's classes build."""

    def test_ling_2_5(self) -> None:
        config = config_of_class("BailingMoeV2_5ForCausalLM", num_nextn_predict_layers=1)
        assert draft_elements(config) == 2 * 2048**2 + 5 * 2048 + LING_ATTENTION + LING_EXPERTS

    def test_ling_3_has_a_gate_a_head(self) -> None:
        config = config_of_class("BailingMoeV3ForCausalLM", num_nextn_predict_layers=2)
        each = 2 * 2048**2 + 5 * 2048 + LING_ATTENTION + 2048 * 16 + LING_EXPERTS
        assert draft_elements(config) == 2 * each

    def test_minimax_m3_all_with_sparse_attention_and_experts(self) -> None:
        qkv = 6144 * 128 * (64 + 2 * 4 + 4 + 1)
        attention = qkv + 64 * 128 * 6144 + 4 * 128
        experts = 128 * 6144 + 128 + 129 * 3 * 6144 * 3072
        each = 2 * 6144**2 + 5 * 6144 + attention + experts
        assert draft_elements(config_of_class("MiniMaxM3SparseForCausalLM")) == 7 * each

    def test_hunyuan_4_mixes_no_streams_in_its_drafts(self) -> None:
        config = config_of_class("HYV4ForCausalLM", num_nextn_predict_layers=1)
        attention = 2816 * (1536 + 576) + 1536 + 1536 * 32 * 256 + 512 + 512 * 32 * 448 + 32 * 256 * 2816
        gate = 2816 * 32 * 256 + 32
        indexer = 1536 * 16 * 128 + 2816 * (128 + 16) + 2 * 128
        experts = 2816 * 256 + 256 + 257 * 3 * 2816 * 768
        expected = 2 * 2816**2 + 5 * 2816 + attention + gate + indexer + experts
        assert draft_elements(config) == expected


class TestDsparkInTheCheckpoint:
    """DeepSeek-V4's releases with a draft under `mtp.`: the engine's command names no model (0.25.0)."""

    SPARK = SpeculativeConfig(method="dspark", num_speculative_tokens=7)

    def test_the_published_parameters_come_out(self) -> None:
        """304,180,418,494 of the release of 31 July; the projection of the context is a copy of what is in it."""
        entry = find_model("deepseek-ai/DeepSeek-V4-Flash-0731")
        architecture = read_architecture(entry.config)
        draft = read_draft(self.SPARK, architecture, PLAIN, Parallel(), 4096)
        assert draft is not None
        assert len(draft.layers) == 3
        copies = 4096 * 3 * 512
        stored = sum(
            arch.elements(module)
            for module in (*draft.modules, *(module for layer in draft.layers for module in layer.modules))
        )
        both = total_elements(architecture) + stored
        assert both - copies == 304_180_418_494

    def test_every_layer_keeps_a_window_alone(self) -> None:
        architecture = read_architecture(find_model("deepseek-ai/DeepSeek-V4-Pro-DSpark").config)
        draft = read_draft(self.SPARK, architecture, PLAIN, Parallel(), 4096)
        assert draft is not None
        assert [[type(cache) for cache in layer.caches] for layer in draft.layers] == [[LatentWindow]] * 3

    def test_the_checkpoint_says_how_many_tokens(self) -> None:
        architecture = read_architecture(find_model("deepseek-ai/DeepSeek-V4-Pro-DSpark").config)
        assert proposed_tokens(SpeculativeConfig(method="dspark"), architecture) == 5
        assert proposed_tokens(self.SPARK, architecture) == 7

    def test_a_checkpoint_without_one_has_none(self) -> None:
        architecture = read_architecture(find_model("deepseek-ai/DeepSeek-V4-Flash").config)
        with pytest.raises(ScenarioError, match="draft model"):
            read_draft(self.SPARK, architecture, PLAIN, Parallel(), 4096)

    def test_states_that_it_sees_are_kept_while_the_last_layer_runs(self) -> None:
        """Of layers 58 and 59, and four streams of the latter, 7,168 elements each: 86,016 bytes a batched token."""
        seen, unseen = (
            planned(
                "deepseek-ai/DeepSeek-V4-Pro-DSpark",
                {"method": method, "num_speculative_tokens": 1},
                tensor_parallel_size=8,
                accelerator="H200-141GB",
                engine_version="0.25.0",
                max_num_batched_tokens=16384,
                max_model_len=200_000,
            )
            for method in ("dspark", "mtp")
        )
        kept = seen.memory.activations.value - unseen.memory.activations.value
        assert kept == 16384 * 2 * (2 + 4) * 7168

    def test_the_checkpoint_itself_may_be_named(self) -> None:
        found = planned(
            "deepseek-ai/DeepSeek-V4-Flash-0731",
            {"method": "dspark", "model": "deepseek-ai/DeepSeek-V4-Flash-0731"},
            tensor_parallel_size=8,
            accelerator="B200-180GB",
            engine_version="0.29.0",
        )
        unnamed = planned(
            "deepseek-ai/DeepSeek-V4-Flash-0731",
            {"method": "dspark"},
            tensor_parallel_size=8,
            accelerator="B200-180GB",
            engine_version="0.29.0",
        )
        assert found.weights.drafts == unnamed.weights.drafts > 0
