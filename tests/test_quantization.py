"""Storage formats by hand, names against lists, and checkpoints exact against vLLM's own classes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcore.base.errors import EngineRefusalError, KvPlannerError, ModelError
from kvcore.catalogue import find_model
from kvcore.model.architecture import Experts, Linear, Output
from kvcore.model.caches import FullAttention, Mla, RecurrentState
from kvcore.model.config import ModelConfig
from kvcore.model.families import read_architecture
from kvcore.model.quantization import Quantization, read_quantization
from kvcore.model.quantization.formats import (
    BlockScaled,
    ChannelScaled,
    ExpertsShape,
    LinearShape,
    TensorScaled,
    Unquantized,
)
from kvcore.model.quantization.modules import Kind, ModuleName, canonical
from kvcore.model.quantization.packed import Mxfp4, Mxfp8, Nvfp4, PackedInteger, PackQuantized
from tests.special_models import config_of, fact_of, parameters_per_rank, weigh
from tests.test_families_decoder import LLAMA
from tests.test_memory_weights import MIXTRAL

SQUARE = LinearShape(in_features=256, outputs=(128, 128), element_bytes=2)
EXPERTS = ExpertsShape(num_experts=2, hidden_size=256, intermediate_size=128, element_bytes=2)
ELEMENTS = 2 * 3 * 256 * 128

FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
FP8_BLOCKS = {**FP8, "weight_block_size": [128, 128]}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
W4A16 = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128},
        }
    },
}


def read(quantization: dict | None, base: dict = LLAMA, requested: str | None = None) -> Quantization:
    raw = base if quantization is None else {**base, "quantization_config": quantization}
    return read_quantization(ModelConfig.from_mapping(raw), requested)


def linear_bytes(quantization: Quantization, name: str, parts: tuple[str, ...] = ()) -> int:
    """Bytes of a 256 × 256 linear layer of that name."""
    prefix, _, own = name.rpartition(".")
    prefix = f"{prefix}." if prefix else ""
    outputs = tuple(Output(units=256 // max(1, len(parts))) for _ in parts or (own,))
    linear = Linear(name=own, in_features=256, outputs=outputs, parts=parts)
    shape = LinearShape(in_features=256, outputs=tuple(part.units for part in outputs), element_bytes=2)
    return quantization.format_for(linear, prefix + own).linear_bytes(shape)


def is_quantized(quantization: Quantization, name: str, parts: tuple[str, ...] = ()) -> bool:
    return linear_bytes(quantization, name, parts) < 256 * 256 * 2


class TestAgainstTheEngine:
    def test_an_mlx_conversion_is_read_as_the_engine_reads_it_unquantized(self):
        config = config_of(fact_of("mlx-community/Qwen3-14B-4bit"))
        assert read_quantization(config, None).method == "unquantized"

    def test_a_mixed_file_with_weight_only_layers_is_exact(self):
        """vLLM 0.32's own classes, built without a GPU: FP8 attention, W4A16_NVFP4 MLPs and lm_head."""
        config = find_model("nvidia/Qwen3.6-27B-NVFP4").config
        assert parameters_per_rank(config, 2) == 10_541_312_758


class TestFormatsByHand:
    @pytest.mark.parametrize(
        ("weights", "expected"),
        [
            (Unquantized(), 65536 * 2),
            (TensorScaled(), 65536 + 2 * 4),
            (TensorScaled(static_input=True), 65536 + 4 * 4),
            (ChannelScaled(), 65536 + 256 * 4),
            (BlockScaled(rows=128, columns=128), 65536 + 4 * 4),
            (PackedInteger(bits=4, group_size=128), 32768 + 2 * 256 * 2 + 2 * 256 // 2),
            (PackedInteger(bits=8, group_size=-1), 65536 + 256 * 2 + 256),
            (PackQuantized(bits=4, group_size=128), 32768 + 2 * 256 * 2 + 16),
            (PackQuantized(bits=8, group_size=-1), 65536 + 256 * 2 + 16),
            (PackQuantized(bits=4, group_size=64, symmetric=False), 32768 + 4 * 256 * 2 + 4 * 128 + 16),
            (Nvfp4(), 32768 + 65536 // 16 + 4 * 4),
            (Nvfp4(input_scale=False), 32768 + 65536 // 16 + 2 * 4),
            (Nvfp4(is_weight_only=True), 32768 + 65536 // 16 + 2 * (4 + 2)),
            (Mxfp8(), 65536 + 65536 // 32),
            (Mxfp4(), 65536 * 2),
            (Mxfp4(linears=True), 32768 + 65536 // 32),
        ],
    )
    def test_a_linear_layer(self, weights, expected):
        assert weights.linear_bytes(SQUARE) == expected

    @pytest.mark.parametrize(
        ("weights", "expected"),
        [
            (Unquantized(), ELEMENTS * 2),
            (TensorScaled(static_input=True), ELEMENTS + 2 * 5 * 4),
            (ChannelScaled(), ELEMENTS + 2 * (2 * 128 + 256) * 4),
            (BlockScaled(rows=128, columns=128), ELEMENTS + 2 * 6 * 4),
            (Nvfp4(), ELEMENTS // 2 + ELEMENTS // 16 + 2 * 2 * 3 * 4),
            (Mxfp8(), ELEMENTS + ELEMENTS // 32),
            (Mxfp4(), ELEMENTS // 2 + ELEMENTS // 32),
        ],
    )
    def test_experts(self, weights, expected):
        assert weights.experts_bytes(EXPERTS) == expected

    def test_gpt_oss_experts_are_padded_to_tiles(self):
        shape = ExpertsShape(
            num_experts=1, hidden_size=2880, intermediate_size=2880 // 4, element_bytes=2, bias=True
        )
        padded = Mxfp4(expert_tiles=(256, 128)).experts_bytes(shape)
        hidden, intermediate = 3072, 768
        assert padded == 3 * hidden * intermediate * 17 // 32 + 2 * (2 * intermediate + hidden)

    def test_a_slice_that_cuts_a_block_takes_a_finer_block(self):
        shape = ExpertsShape(
            num_experts=1, hidden_size=256, intermediate_size=192, element_bytes=2, is_cut=True
        )
        elements = 3 * 256 * 192
        assert BlockScaled(rows=128, columns=128).experts_bytes(shape) == elements + elements // 64**2 * 4

    @given(st.integers(1, 64), st.integers(1, 64), st.booleans())
    def test_no_format_is_larger_than_sixteen_bits(self, inputs, outputs, gated):
        linear = LinearShape(in_features=inputs * 256, outputs=(outputs * 256,), element_bytes=2)
        experts = ExpertsShape(
            num_experts=2,
            hidden_size=inputs * 256,
            intermediate_size=outputs * 256,
            element_bytes=2,
            gated=gated,
        )
        for weights in (
            TensorScaled(static_input=True),
            ChannelScaled(),
            BlockScaled(rows=128, columns=128),
            PackedInteger(bits=4, group_size=128, expert_bias=True),
            PackedInteger(bits=8, group_size=-1),
            PackQuantized(bits=4, group_size=32, symmetric=False),
            Nvfp4(),
            Mxfp8(),
            Mxfp4(linears=True, expert_tiles=(256, 128)),
        ):
            assert 0 < weights.linear_bytes(linear) < Unquantized().linear_bytes(linear)
            assert 0 < weights.experts_bytes(experts) < Unquantized().experts_bytes(experts)
            assert weights.experts_loading_bytes(experts) <= 0


class TestNames:
    def test_the_prefixes_around_a_language_model_are_taken_off(self):
        assert canonical("language_model.model.layers.0.mlp.down_proj") == "model.layers.0.mlp.down_proj"
        assert canonical("language_model.lm_head") == "lm_head"
        assert canonical("model.layers.0.mlp") == "model.layers.0.mlp"


class TestReading:
    @pytest.mark.parametrize(
        ("quantization", "method", "detail"),
        [
            (None, "unquantized", ""),
            (FP8, "fp8", "one scale per tensor"),
            (FP8_BLOCKS, "fp8", "128 × 128 blocks"),
            (GPTQ, "gptq", "4 bits, groups of 128"),
            ({**GPTQ, "bits": 8, "group_size": -1}, "gptq", "8 bits, one scale per row"),
            (AWQ, "awq", "4 bits, groups of 128"),
            (W4A16, "compressed-tensors", "pack-quantized"),
            ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt_fp4", "NVFP4"),
            ({"quant_method": "mxfp4"}, "mxfp4", "experts, groups of 32"),
            ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes", "4.5 bits"),
            ({"quant_method": "auto-round", "bits": 4, "group_size": 128}, "auto-round", "4 bits"),
            ({"bits": 4, "group_size": 64}, "unquantized", ""),
        ],
    )
    def test_method_and_detail(self, quantization, method, detail):
        read_one = read(quantization)
        assert (read_one.method, read_one.detail) == (method, detail)

    @pytest.mark.parametrize(
        ("quantization", "named"),
        [
            ({"quant_method": "aqlm"}, "aqlm"),
            ({"quant_method": "gguf"}, "gguf"),
            ({**AWQ, "bits": 3}, "awq (3 bits)"),
            ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "W4A8_AWQ"),
            (
                {
                    "quant_method": "quark",
                    "global_quant_config": {"weight": {"dtype": "int3", "qscheme": "per_row"}},
                },
                "quark",
            ),
        ],
    )
    def test_unknown_quantizations_are_refused_by_name(self, quantization, named):
        with pytest.raises(ModelError) as caught:
            read(quantization)
        assert named in str(caught.value)

    def test_a_value_that_cannot_be_is_refused(self):
        with pytest.raises(ModelError):
            read({**GPTQ, "group_size": 0})
        with pytest.raises(ModelError):
            read({**FP8, "weight_block_size": [128]})
        with pytest.raises(ModelError):
            read({"quant_method": "auto-round", "bits": 4, "block_name_to_quantize": 3})

    def test_the_flag_may_name_the_checkpoints_method_in_any_of_its_spellings(self):
        for requested in ("gptq", "gptq_marlin", "auto_gptq"):
            assert read(GPTQ, requested=requested).method == "gptq"

    def test_a_flag_against_the_checkpoint_is_refused(self):
        with pytest.raises(EngineRefusalError) as caught:
            read(GPTQ, requested="awq")
        assert caught.value.code == "quantization-mismatch"
        assert "gptq" in str(caught.value)
        assert "awq" in str(caught.value)

    def test_an_unknown_flag_is_refused(self):
        with pytest.raises(ModelError) as caught:
            read(None, requested="q8")
        assert caught.value.code == "unknown-quantization"

    def test_fp8_made_while_loading_halves_the_linear_layers(self):
        made = read(None, requested="fp8")
        assert made.method == "fp8"
        assert linear_bytes(made, "model.layers.0.mlp.down_proj") == 256 * 256 + 4


class TestLists:
    def test_fp8_leaves_listed_modules_alone(self):
        quantization = read({**FP8_BLOCKS, "modules_to_not_convert": ["model.layers.0.mlp.down_proj"]})
        assert quantization.depends_on_layer
        assert not is_quantized(quantization, "model.layers.0.mlp.down_proj")
        assert is_quantized(quantization, "model.layers.1.mlp.down_proj")

    def test_awq_leaves_alone_whatever_contains_a_listed_fragment(self):
        quantization = read({**AWQ, "modules_to_not_convert": ["mlp"]})
        assert not is_quantized(quantization, "model.layers.0.mlp.down_proj")
        assert is_quantized(quantization, "model.layers.0.self_attn.o_proj")

    def test_gptq_quantizes_only_the_modules_it_lists(self):
        quantization = read({**GPTQ, "modules_in_block_to_quantize": [["self_attn.o_proj"], ["mlp.up_proj"]]})
        assert is_quantized(quantization, "model.layers.0.self_attn.o_proj")
        assert not is_quantized(quantization, "model.layers.0.mlp.down_proj")

    def test_gptqmodels_rules_leave_alone_and_override(self):
        rules = {"-:.*attn.*": {}, r".*\.1\.mlp.*": {"bits": 8}}
        quantization = read({**GPTQ, "dynamic": rules})
        assert not is_quantized(quantization, "model.layers.0.self_attn.o_proj")
        four = linear_bytes(quantization, "model.layers.0.mlp.down_proj")
        eight = linear_bytes(quantization, "model.layers.1.mlp.down_proj")
        weights, zero_points = 256 * 256 // 2, 2 * 256 // 2
        assert eight - four == weights + zero_points

    def test_compressed_tensors_ignore(self):
        quantization = read({**W4A16, "ignore": ["re:.*self_attn.*", "model.layers.0.mlp.down_proj"]})
        assert not is_quantized(quantization, "model.layers.3.self_attn.o_proj")
        assert not is_quantized(quantization, "model.layers.0.mlp.down_proj")
        assert is_quantized(quantization, "model.layers.1.mlp.down_proj")

    def test_modelopt_excludes_by_wildcard(self):
        quantization = read(
            {
                "quant_method": "modelopt",
                "quant_algo": "FP8",
                "exclude_modules": ["model.layers.0.*", "lm_head"],
            }
        )
        assert not is_quantized(quantization, "model.layers.0.mlp.down_proj")
        assert is_quantized(quantization, "model.layers.1.mlp.down_proj")

    def test_encoders_stay_in_the_models_dtype(self):
        for quantization in (FP8, GPTQ, AWQ, W4A16):
            assert not is_quantized(read(quantization), "visual.blocks.0.mlp.linear_fc1")

    def test_the_lm_head_is_quantized_only_where_the_checkpoint_quantizes_it(self):
        architecture = read_architecture(ModelConfig.from_mapping(LLAMA))
        (lm_head,) = (module for module in architecture.last if module.name == "lm_head")
        shape = LinearShape(in_features=4096, outputs=(128256,), element_bytes=2)
        plain = read(GPTQ).format_for(lm_head, "lm_head").linear_bytes(shape)
        quantized = read({**GPTQ, "lm_head": True}).format_for(lm_head, "lm_head").linear_bytes(shape)
        assert plain == 128256 * 4096 * 2
        assert quantized < plain / 3


class TestKvCache:
    @pytest.mark.parametrize(
        ("quantization", "declared"),
        [
            (FP8, ""),
            ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, "fp8_e4m3"),
            ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "NVFP4"}, "nvfp4"),
            ({**W4A16, "kv_cache_scheme": {"type": "float", "num_bits": 8, "dynamic": False}}, "fp8_e4m3"),
            ({**W4A16, "kv_cache_scheme": {"type": "int", "num_bits": 8}}, ""),
            ({**W4A16, "kv_cache_scheme": None}, ""),
        ],
    )
    def test_the_kv_cache_dtype_that_the_checkpoint_declares(self, quantization, declared):
        assert read(quantization).kv_cache_dtype == declared

    def test_only_attention_has_scales(self):
        quantization = read({"quant_method": "modelopt", "quant_algo": "FP8"})
        attention = FullAttention(num_kv_heads=8, head_size=128, head_size_v=128)
        assert quantization.scale_bytes(attention) == 8
        assert quantization.scale_bytes(Mla(kv_lora_rank=512, qk_rope_head_dim=64)) == 8
        assert quantization.scale_bytes(RecurrentState(kind="mamba2", shapes=(), heads=8)) == 0


class TestSideFile:
    def test_mixed_precision_takes_the_algorithm_of_each_module(self):
        side = {
            "quantization": {
                "quant_algo": "MIXED_PRECISION",
                "quantized_layers": {
                    "model.layers.0.mlp.down_proj": {"quant_algo": "FP8"},
                    "model.layers.1.mlp.down_proj": {"quant_algo": "NVFP4", "group_size": 16},
                },
            }
        }
        quantization = read_quantization(ModelConfig.from_mapping(LLAMA, side), None)
        assert quantization.method == "modelopt_mixed"
        eight, four, whole = (
            linear_bytes(quantization, f"model.layers.{layer}.mlp.down_proj") for layer in range(3)
        )
        assert eight == 256 * 256 + 8
        assert four == 256 * 256 // 2 + 256 * 256 // 16 + 8
        assert whole == 256 * 256 * 2

    def test_a_mixed_checkpoint_without_its_layers_is_refused(self):
        with pytest.raises(ModelError):
            read({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"})

    def test_the_written_config_comes_before_the_side_file(self):
        raw = {**LLAMA, "quantization_config": FP8}
        side = {"quantization": {"quant_algo": "NVFP4"}}
        assert read_quantization(ModelConfig.from_mapping(raw, side), None).method == "fp8"


class TestExperts:
    def added_by_loading(self, quantization: dict) -> int:
        """To eight experts of 256 × 128."""
        experts = Experts(name="mlp.experts", num_experts=8, hidden_size=256, intermediate_size=128)
        weights = read(quantization, MIXTRAL).format_for(experts, "model.layers.0.block_sparse_moe.experts")
        shape = ExpertsShape(num_experts=8, hidden_size=256, intermediate_size=128, element_bytes=2)
        return weights.experts_loading_bytes(shape)

    def test_gptq_experts_drop_their_zero_biases_after_loading(self):
        assert self.added_by_loading(GPTQ) == -8 * (2 * 128 + 256) * 2

    def test_the_other_formats_keep_the_bytes_that_they_load(self):
        for quantization in (FP8, AWQ, W4A16, {"quant_method": "mxfp4"}):
            assert self.added_by_loading(quantization) == 0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 300) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(
    [
        *("bits", "group_size", "dynamic", "modules_to_not_convert", "weight_block_size", "config_groups"),
        *(
            "ignore",
            "quant_algo",
            "exclude_modules",
            "quantized_layers",
            "global_quant_config",
            "extra_config",
        ),
        *("block_name_to_quantize", "modules_in_block_to_quantize", "kv_cache_scheme", "lm_head", "sym"),
    ]
)
METHODS = st.sampled_from(
    [
        *("fp8", "gptq", "awq", "compressed-tensors", "modelopt", "mxfp4", "bitsandbytes", "auto-round"),
        *("quark", "fbgemm_fp8", "mxfp8", "other"),
    ]
)


class TestHostileConfigs:
    @given(METHODS, st.dictionaries(KEYS, JSON, max_size=5))
    def test_any_config_is_counted_or_refused(self, method, values):
        raw = {**LLAMA, "num_hidden_layers": 2, "quantization_config": {**values, "quant_method": method}}
        config = ModelConfig.from_mapping(raw)
        try:
            assert weigh(config, tensor_parallel_size=2).total > 0
        except KvPlannerError:
            return

    @given(st.dictionaries(KEYS, JSON, max_size=5))
    def test_any_side_file_is_counted_or_refused(self, values):
        config = ModelConfig.from_mapping({**LLAMA, "num_hidden_layers": 2}, {"quantization": values})
        try:
            assert weigh(config).total > 0
        except KvPlannerError:
            return


ONLINE = "VLLM_HUMMING_ONLINE_QUANT_CONFIG"


@pytest.mark.parametrize(
    ("said", "linear", "experts"),
    [
        (
            '{"dtype": "int6", "hadamard_block_size": -1}',
            65536 * 6 // 8 + 256 * 2,
            ELEMENTS * 6 // 8 + 2 * 512 * 2,
        ),
        (
            '{"dtype": "uint4", "group_size": 128}',
            65536 // 2 + 256 * 2 * 2,
            ELEMENTS // 2 + 2 * (256 * 2 + 256) * 2,
        ),
        ('{"dtype": "float8e4m3", "ignore": ["mlp"]}', 65536 + 256 * 2, ELEMENTS + 2 * 512 * 2),
    ],
)
def test_humming_makes_what_its_variable_says(said: str, linear: int, experts: int) -> None:
    """256 × 256, and two experts of three 128 × 256: packed bits, and a scale in 16 bits a row or group."""
    found = read_quantization(ModelConfig.from_mapping(LLAMA), "humming", said)
    assert found.method == "humming"
    assert linear_bytes(found, "model.layers.0.self_attn.o_proj") == linear
    weights = found.format_of(ModuleName(name="model.layers.0.block.experts", kind=Kind.EXPERTS))
    assert weights.experts_bytes(EXPERTS) == experts
    left = linear_bytes(found, "model.layers.0.mlp.down_proj")
    assert left == (2 * 65536 if "ignore" in said else linear)


@pytest.mark.parametrize("said", ["", "{}", "int6", '{"dtype": 6}', '{"dtype": "nonsense"}', "[" * 100])
def test_humming_has_no_type_of_its_own(said: str) -> None:
    with pytest.raises(ModelError) as raised:
        read_quantization(ModelConfig.from_mapping(LLAMA), "humming", said)
    assert (raised.value.code, ONLINE in raised.value.message) == ("unknown-quantization", True)


def test_humming_reads_a_quantized_checkpoint_as_it_is_stored() -> None:
    assert read(FP8_BLOCKS, requested="humming").detail == read(FP8_BLOCKS).detail
    with pytest.raises(EngineRefusalError):
        read({"quant_method": "mxfp4"}, {**LLAMA, "model_type": "gpt_oss"}, "humming")
