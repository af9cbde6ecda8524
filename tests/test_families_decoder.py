"""Plain decoders: exact against vLLM's own model classes and against published parameter totals."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from packaging.version import Version

from kvcore import catalogue
from kvcore.base.errors import CatalogueError, EngineRefusalError, ModelError
from kvcore.engine.protocol import Resolved
from kvcore.engines.registry import find_engine
from kvcore.memory.weights import weight_bytes
from kvcore.model import architecture as arch
from kvcore.model.architecture import Architecture, Experts, Linear, Split
from kvcore.model.caches import FullAttention, SlidingWindow
from kvcore.model.config import ModelConfig
from kvcore.model.families import READERS, collect_readers, decoder, gpt, read_architecture
from kvcore.model.quantization import read_quantization
from kvcore.model.rope import default_max_model_len
from kvcore.scenario import Parallel

VLLM = Version("0.32.0")
FACTS = [
    json.loads(line) for line in (Path(__file__).parent / "data/decoders.jsonl").read_text().splitlines()
]
MODELS = [pytest.param(fact, id=fact["model"]) for fact in FACTS if "model" in fact]

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}

QWEN2_SMALL = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}


def read(raw: dict) -> Architecture:
    return read_architecture(ModelConfig.from_mapping(raw))


def resolved(dtype: str = "bfloat16") -> Resolved:
    return Resolved(
        engine=find_engine("vllm"),
        engine_version="0.32.0",
        version=VLLM,
        is_v0=False,
        dtype=dtype,
        kv_cache_dtype=dtype,
        max_model_len=4096,
        derived_max_model_len=4096,
        max_model_len_auto=False,
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        block_size=16,
        gpu_memory_utilization=0.9,
        enforce_eager=True,
        enable_prefix_caching=True,
        enable_chunked_prefill=True,
        async_scheduling=True,
        max_concurrent_batches=2,
        use_v2_model_runner=True,
        hybrid_kv_cache_manager=True,
        mamba_cache_mode="none",
        attention_backend="FLASH_ATTN",
        cudagraph_capture_sizes=(),
        cudagraph_modes=(),
    )


def parameters_per_rank(raw: dict, tensor_parallel_size: int) -> int:
    config = ModelConfig.from_mapping(raw)
    parallel = Parallel(tensor_parallel_size=tensor_parallel_size)
    weights = weight_bytes(
        read_architecture(config), read_quantization(config, None), parallel, resolved(), 0
    )
    return weights.parameters


def total_elements(architecture: Architecture) -> int:
    modules = [module for layer in architecture.layers for module in layer.modules]
    modules += [*architecture.first, *architecture.every, *architecture.last]
    return sum(map(arch.elements, modules))


class TestAgainstTheEngine:
    @pytest.mark.parametrize("fact", MODELS)
    def test_weights_are_exact_to_the_byte(self, fact):
        for ranks, expected in fact.get("weights_bytes_per_rank", {}).items():
            assert parameters_per_rank(fact["config"], int(ranks)) == expected

    @pytest.mark.parametrize("fact", [fact for fact in MODELS if "max_model_len" in fact.values[0]])
    def test_max_model_len_is_the_engines(self, fact):
        assert default_max_model_len(read(fact["config"]).context, VLLM) == fact["max_model_len"]

    @pytest.mark.parametrize("fact", [fact for fact in MODELS if "cache" in fact.values[0]])
    def test_cache_states_have_the_engines_bytes_per_token(self, fact):
        ranks = fact["cache"]["tensor_parallel_size"]
        states = Counter(
            (
                type(cache).__name__,
                max(1, cache.num_kv_heads // ranks) * (cache.head_size + cache.head_size_v) * 2,
            )
            for layer in read(fact["config"]).layers
            for cache in layer.caches
        )
        assert sorted([kind, size, count] for (kind, size), count in states.items()) == sorted(
            fact["cache"]["layers"]
        )

    @pytest.mark.parametrize("fact", [fact for fact in MODELS if "parameters" in fact.values[0]])
    def test_parameters_are_the_published_total(self, fact):
        assert total_elements(read(fact["config"])) == fact["parameters"]


class TestRefusals:
    def test_an_unread_architecture_is_named(self):
        with pytest.raises(ModelError) as caught:
            read({**LLAMA, "architectures": ["FooForCausalLM"], "model_type": "foo", "num_experts": 8})
        assert caught.value.code == "unknown-architecture"
        assert "FooForCausalLM" in str(caught.value)
        assert "num_experts" in str(caught.value)

    @pytest.mark.parametrize(
        "change",
        [
            {"architectures": ["FooForConditionalGeneration"]},
            {"architectures": ["FooEagle3ForCausalLM"]},
            {"hidden_act": "gelu"},
            {"layer_types": ["linear_attention"] * 32},
            {"text_config": {}},
            {"kv_lora_rank": 512},
        ],
    )
    def test_an_unknown_class_that_may_be_something_else_is_refused(self, change):
        with pytest.raises(ModelError) as caught:
            read({**LLAMA, "architectures": ["FooForCausalLM"], "model_type": "foo", **change})
        assert caught.value.code == "unknown-architecture"

    def test_an_unknown_class_with_the_config_of_a_plain_decoder_is_read_as_one_and_marked(self):
        known, unknown = (
            read(LLAMA),
            read({**LLAMA, "architectures": ["FooForCausalLM"], "model_type": "foo"}),
        )
        assert (known.is_assumed, unknown.is_assumed, unknown.read_as) == (False, True, "FooForCausalLM")
        assert unknown.layers == known.layers

    def test_a_config_without_a_name_is_refused(self):
        with pytest.raises(ModelError) as caught:
            read({key: value for key, value in LLAMA.items() if key not in ("architectures", "model_type")})
        assert caught.value.code == "unknown-architecture"

    @pytest.mark.parametrize(
        "key", ["hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size"]
    )
    def test_a_missing_size_is_named(self, key):
        with pytest.raises(ModelError) as caught:
            read({name: value for name, value in LLAMA.items() if name != key})
        assert (caught.value.code, caught.value.field) == ("missing-config-key", f"config.{key}")

    @pytest.mark.parametrize("value", [-1, 0, 2.5, "x", [], float("nan"), 10**20])
    @pytest.mark.parametrize("key", ["hidden_size", "num_key_value_heads", "num_hidden_layers", "vocab_size"])
    def test_an_unusable_size_is_named(self, key, value):
        with pytest.raises(ModelError) as caught:
            read({**LLAMA, key: value})
        assert (caught.value.code, caught.value.field) == ("invalid-config-value", f"config.{key}")

    @pytest.mark.parametrize(
        "change",
        [{"num_key_value_heads": 5}, {"num_attention_heads": 33}, {"sliding_window": 8, "layer_types": []}],
    )
    def test_fields_that_contradict_each_other_are_refused(self, change):
        with pytest.raises(ModelError) as caught:
            read({**LLAMA, **change})
        assert caught.value.code == "contradicting-config"

    def test_tensor_parallelism_that_does_not_divide_the_heads_is_refused_in_the_engines_words(self):
        with pytest.raises(EngineRefusalError) as caught:
            parameters_per_rank(LLAMA, 3)
        assert str(caught.value) == (
            "Total number of attention heads (32) must be divisible by tensor parallel size (3)."
        )

    def test_kv_heads_that_neither_divide_nor_replicate_are_refused(self):
        with pytest.raises(EngineRefusalError) as caught:
            parameters_per_rank(
                {**LLAMA, "num_attention_heads": 24, "num_key_value_heads": 6, "head_dim": 128}, 4
            )
        assert caught.value.code == "size-not-divisible"


class TestRegistry:
    def test_the_same_config_is_read_once(self):
        config = ModelConfig.from_mapping(LLAMA)
        assert read_architecture(config) is read_architecture(config)
        assert read(LLAMA).layers == read(dict(reversed(LLAMA.items()))).layers

    def test_model_type_decides_when_no_architecture_is_named(self):
        assert read({**LLAMA, "architectures": None}).read_as == "llama"

    @pytest.mark.parametrize("name", ["LlamaModel", "LlamaForSequenceClassification", "LlamaForRewardModel"])
    def test_a_model_that_embeds_or_classifies_is_read_as_the_one_that_generates(self, name):
        assert read({**LLAMA, "architectures": [name]}).layers == read(LLAMA).layers

    def test_an_unknown_architecture_is_not_guessed_from_its_model_type(self):
        with pytest.raises(ModelError) as caught:
            read({**LLAMA, "architectures": ["EagleLlamaForCausalLM"]})
        assert caught.value.code == "unknown-architecture"

    def test_a_name_claimed_twice_is_an_error(self):
        with pytest.raises(ValueError, match="claims llama, which another family reads"):
            collect_readers((decoder, gpt, decoder))

    def test_a_classifier_has_a_float32_head_of_its_labels_instead_of_lm_head(self):
        plain = parameters_per_rank(QWEN2_SMALL, 1)
        two = parameters_per_rank({**QWEN2_SMALL, "architectures": ["Qwen2ForSequenceClassification"]}, 1)
        five = parameters_per_rank(
            {**QWEN2_SMALL, "architectures": ["Qwen2ForTokenClassification"], "num_labels": 5}, 1
        )
        assert (plain, two, five - two) == (191_905_792, 126_377_984, 3 * 1024 * 4)

    @pytest.mark.parametrize(
        ("name", "ranks", "expected"),
        [
            ("Qwen2Model", 2, 95_958_016),
            ("Qwen2ForSequenceClassification", 2, 63_198_208),
            ("Qwen2ForRewardModel", 1, 130_572_292),
            ("Qwen2ForRewardModel", 2, 65_291_268),
            ("Qwen2ForProcessRewardModel", 1, 130_576_392),
            ("Qwen2ForProcessRewardModel", 2, 65_293_320),
        ],
    )
    def test_models_that_judge_weigh_as_much_as_the_engines_classes(self, name, ranks, expected):
        """vLLM 0.32's own classes for this config, built without a GPU."""
        assert parameters_per_rank({**QWEN2_SMALL, "architectures": [name]}, ranks) == expected


class TestVariants:
    def test_one_window_for_all_layers_unless_layer_types_name_some(self):
        base = {**LLAMA, "num_hidden_layers": 2, "sliding_window": 4096}
        kinds = [type(layer.caches[0]).__name__ for layer in read(base).layers]
        assert kinds == ["SlidingWindow", "SlidingWindow"]
        mixed = {**base, "layer_types": ["full_attention", "sliding_attention"]}
        kinds = [type(layer.caches[0]).__name__ for layer in read(mixed).layers]
        assert kinds == ["FullAttention", "SlidingWindow"]

    @pytest.mark.parametrize(
        "off", [{"sliding_window": 0}, {"sliding_window": None}, {"use_sliding_window": False}]
    )
    def test_a_window_can_be_switched_off(self, off):
        config = {**LLAMA, "num_hidden_layers": 1, "sliding_window": 4096, **off}
        assert type(read(config).layers[0].caches[0]).__name__ == "FullAttention"

    def test_an_explicit_head_dim_wins_and_changes_the_projections(self):
        one = parameters_per_rank({**LLAMA, "num_hidden_layers": 1}, 1)
        two = parameters_per_rank({**LLAMA, "num_hidden_layers": 1, "head_dim": 256}, 1)
        assert two - one == 2 * 4096 * (32 + 2 * 8 + 32) * 128

    def test_biases_are_divided_on_columns_and_whole_on_rows(self):
        plain = parameters_per_rank({**LLAMA, "num_hidden_layers": 1}, 2)
        biased = parameters_per_rank({**LLAMA, "num_hidden_layers": 1, "attention_bias": True}, 2)
        assert biased - plain == 2 * ((4096 + 2 * 1024) // 2 + 4096)

    def test_the_first_layers_of_a_mixture_can_be_dense(self):
        raw = next(fact["config"] for fact in FACTS if fact.get("model") == "zai-org/GLM-4.5")
        layers = read(raw).layers
        sparse = [any(isinstance(module, Experts) for module in layer.modules) for layer in layers]
        assert sparse == [False] * raw["first_k_dense_replace"] + [True] * (92 - raw["first_k_dense_replace"])

    def test_a_tower_is_on_every_stage(self):
        raw = next(fact["config"] for fact in FACTS if fact.get("model") == "Qwen/Qwen2-VL-2B-Instruct")
        architecture = read(raw)
        assert architecture.is_multimodal
        assert any(module.name.startswith("visual.") for module in architecture.every)

    @pytest.mark.parametrize(
        ("model", "divided"),
        [
            ("deepseek-ai/DeepSeek-OCR", r"model\.vision_model\.transformer\..*"),
            ("deepseek-ai/deepseek-vl2-tiny", r"vision\..*\.mlp\.fc[12]"),
        ],
    )
    def test_ranks_divide_deepseeks_towers_as_in_the_engine(self, model, divided):
        raw = next(fact["config"] for fact in FACTS if fact.get("model") == model)
        linears = [module for module in read(raw).every if isinstance(module, Linear)]
        assert {each.name for each in linears if each.split is not Split.REPLICATED} == {
            each.name for each in linears if re.fullmatch(divided, each.name)
        }

    def test_attention_of_internvit_is_whole_where_the_ranks_do_not_divide_its_heads(self):
        """InternViT-6B: 25 heads of 128; qkv and projection of one block, with the bias of the projection."""
        vision = {
            "model_type": "intern_vit_6b",
            "hidden_size": 3200,
            "intermediate_size": 12800,
            "num_attention_heads": 25,
            "num_hidden_layers": 2,
            "image_size": 448,
            "patch_size": 14,
        }
        raw = {"architectures": ["InternVLChatModel"], "vision_config": vision, "llm_config": LLAMA}
        one, two = (
            parameters_per_rank({**raw, "vision_config": {**vision, "num_hidden_layers": layers}}, 2)
            for layers in (1, 2)
        )
        attention = 4 * 3200 * 3200 + 3200
        mlp = (2 * 3200 * 12800 + 12800) // 2 + 3200
        assert two - one == 2 * (attention + mlp + 6 * 3200)


POWERS = st.sampled_from([1, 2, 4, 8])


@st.composite
def llamas(draw):
    kv_heads = draw(st.sampled_from([1, 2, 4, 8]))
    heads = kv_heads * draw(st.sampled_from([1, 2, 4])) * (8 // kv_heads)
    return {
        **LLAMA,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "hidden_size": heads * draw(st.sampled_from([64, 128])),
        "intermediate_size": 8 * draw(st.integers(1, 4096)),
        "num_hidden_layers": draw(st.integers(1, 8)),
        "vocab_size": draw(st.integers(1, 300_000)),
        "tie_word_embeddings": draw(st.booleans()),
        "attention_bias": draw(st.booleans()),
    }


class TestLaws:
    @given(llamas(), POWERS, POWERS)
    def test_more_ranks_never_mean_more_weight_on_each(self, raw, first, second):
        fewer, more = sorted((first, second))
        assert parameters_per_rank(raw, more) <= parameters_per_rank(raw, fewer)

    @given(llamas(), POWERS)
    def test_the_ranks_together_hold_the_whole_model(self, raw, ranks):
        assert ranks * parameters_per_rank(raw, ranks) >= 2 * total_elements(read(raw))

    @given(llamas())
    def test_one_rank_holds_the_model_and_the_padding_of_its_vocabulary(self, raw):
        padding = -raw["vocab_size"] % 64 * raw["hidden_size"] * (1 if raw["tie_word_embeddings"] else 2)
        assert parameters_per_rank(raw, 1) == 2 * (total_elements(read(raw)) + padding)


def test_olmo_3_without_layer_types_attends_fully_every_fourth_layer() -> None:
    """3 groups of 8 windows and 8 full layers. Source: vLLM 0.32.0's own planner (make parity)."""
    config = catalogue.find_model("allenai/Olmo-3-7B-Instruct").config
    caches = [cache for layer in read_architecture(config).layers for cache in layer.caches]
    assert [index for index, cache in enumerate(caches) if isinstance(cache, FullAttention)] == [
        *range(3, 32, 4)
    ]
    assert sum(isinstance(cache, SlidingWindow) for cache in caches) == 24


class TestRows:
    ROW = '[mine]\nclasses = ["MineForCausalLM"]\nqkv_bias = "attention_bias"\n'

    def test_a_row_takes_over_the_values_of_another(self):
        rows = decoder.Decoders(self.ROW + '[yours]\nlike = "mine"\ntied = true\n')
        assert rows["yours"] == replace(rows["mine"], classes=(), tied=True)

    def test_every_row_is_read_also_those_that_a_function_reads(self):
        for name, row in decoder.DECODERS.items():
            assert {name, *row.classes} <= READERS.keys()

    @pytest.mark.parametrize(
        ("line", "field", "named"),
        [
            ('qk_nrom = "whole"', "mine", "qk_nrom"),
            ('qk_norm = "hole"', "mine qk_norm", "'hole'"),
            ('sparse = "everywere"', "mine sparse", "everywhere"),
            ('like = "nobody"', "mine like", "nobody"),
            ('tied = "yes"', "mine tied", "Expected `bool`"),
            ("layer_norms = [1]", "mine layer_norms[0]", "Expected `str`"),
            ('mlp_bias = ["mlp_bias", 1]', "mine mlp_bias[1]", "Expected `bool`"),
            ('[mine.experts]\nruoter = "gate"', "mine experts", "ruoter"),
            ("[mine.experts]\nshared_count = true", "mine experts shared_count", "Expected `int`"),
            ("[mine.drafts]\nprefix = 1", "mine drafts prefix", "Expected `str`"),
        ],
    )
    def test_an_unknown_word_stops_it(self, line, field, named):
        with pytest.raises(CatalogueError) as caught:
            decoder.Decoders(self.ROW + line)["mine"]
        assert caught.value.field == f"decoders.toml {field}"
        assert named in str(caught.value)
