"""torchao's configs by hand: what tensors torchao 0.15 makes of a weight, and which modules the engine hands it."""

import contextlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvcore.base.errors import EngineRefusalError, KvPlannerError, ModelError
from kvcore.model.config import Section
from kvcore.model.quantization.formats import LinearShape
from kvcore.model.quantization.torchao import BY_MODULE, CONFIGS, weight_format
from kvcore.planning import plan
from kvcore.wire.request import scenario_from_request
from tests.test_families_decoder import LLAMA
from tests.test_quantization import JSON, linear_bytes, read

DOWN = "model.layers.3.mlp.down_proj"
QKV = ("model.layers.3.self_attn.qkv_proj", ("q_proj", "k_proj", "v_proj"))


def config(name: str, version: int | None = None, /, **data) -> dict:
    written = {"_type": name, "_data": data}
    return written if version is None else {**written, "_version": version}


def torchao(default, **more) -> dict:
    return {"quant_method": "torchao", "quant_type": {"default": default}, **more}


def named(kind: str, **data) -> dict:
    return {"_type": kind, "_data": data}


def enum(kind: str, value: str) -> dict:
    return {"_type": kind, "_data": value}


INT4 = config(
    "Int4WeightOnlyConfig",
    2,
    group_size=128,
    int4_packing_format=enum("Int4PackingFormat", "TILE_PACKED_TO_4D"),
)
PLAIN = config(
    "Int4WeightOnlyConfig", 2, group_size=128, int4_packing_format=enum("Int4PackingFormat", "PLAIN")
)
FLOAT8 = config(
    "Float8DynamicActivationFloat8WeightConfig", 1, granularity=[named("PerRow"), named("PerRow")]
)
INT8_INT4 = config(
    "Int8DynamicActivationIntxWeightConfig",
    2,
    weight_dtype=enum("torch.dtype", "int4"),
    weight_granularity=named("PerGroup", group_size=32),
    weight_scale_dtype=enum("torch.dtype", "bfloat16"),
    intx_packing_format=enum("IntxPackingFormat", "UNPACKED_TO_INT8"),
)
ROWS, INPUTS = 256, 2560
ELEMENTS = ROWS * INPUTS


class TestTensorsByHand:
    @pytest.mark.parametrize(
        ("written", "expected"),
        [
            (INT4, ROWS * 3072 // 2 + ROWS * 24 * 4),
            (config("Int4WeightOnlyConfig", group_size=128), ROWS * 3072 // 2 + ROWS * 24 * 4),
            (PLAIN, ELEMENTS // 2 + ROWS * 20 * 4),
            (config("Int8WeightOnlyConfig", 1, group_size=None), ELEMENTS + ROWS * (2 + 8)),
            (config("Int8WeightOnlyConfig", 2, granularity=named("PerRow")), ELEMENTS + ROWS * 2),
            (config("Int8DynamicActivationInt8WeightConfig", 1), ELEMENTS + ROWS * 2),
            (config("Float8WeightOnlyConfig", 2), ELEMENTS + ROWS * 4),
            (FLOAT8, ELEMENTS + ROWS * 4),
            (config("Float8DynamicActivationFloat8WeightConfig", 2), ELEMENTS + 4),
            (INT8_INT4, ELEMENTS + ROWS * 80 * 3),
            (config("Int8DynamicActivationIntxWeightConfig"), ELEMENTS + ROWS * 80 * 3),
            (config("IntxWeightOnlyConfig", 2), ELEMENTS + ROWS * 3),
        ],
    )
    def test_one_weight(self, written, expected):
        shape = LinearShape(in_features=INPUTS, outputs=(ROWS,), element_bytes=2)
        assert weight_format(Section(written)).linear_bytes(shape) == expected

    @pytest.mark.parametrize(
        ("written", "inputs", "rows"), [(INT4, 2560 + 64, 256), (FLOAT8, 2560, 250), (FLOAT8, 2568, 256)]
    )
    def test_a_shape_that_torchao_skips_stays_as_it_is(self, written, inputs, rows):
        shape = LinearShape(in_features=inputs, outputs=(rows,), element_bytes=2)
        assert weight_format(Section(written)).linear_bytes(shape) == inputs * rows * 2

    def test_a_whole_model(self):
        """Llama-3.1-8B in tiles: no side is padded; embedding and lm_head keep their 16 bits."""
        linears = 32 * (6144 * 4096 + 4096 * 4096 + 28672 * 4096 + 4096 * 14336)
        others = 2 * 128256 * 4096 * 2 + 65 * 4096 * 2
        request = {"config": {**LLAMA, "quantization_config": torchao(INT4)}, "accelerator": "H100-80GB"}
        planned = plan(scenario_from_request(request))
        assert planned.parameter_bytes_per_rank == linears // 2 + linears // 128 * 4 + others

    def test_two_ranks_pad_their_parts(self):
        """down_proj's 5120 inputs are 2560 on each of two ranks, and 3072 in tiles of 1024."""
        raw = {**LLAMA, "intermediate_size": 5120, "quantization_config": torchao(INT4)}
        plain = {**LLAMA, "intermediate_size": 5120, "quantization_config": torchao(PLAIN)}
        sizes = [
            plan(
                scenario_from_request(
                    {"config": config, "accelerator": "H100-80GB", "tensor_parallel_size": 2}
                )
            ).parameter_bytes_per_rank
            for config in (raw, plain)
        ]
        assert sizes[0] - sizes[1] == 32 * 4096 * (512 // 2 + 4 * 4)


class TestModules:
    def test_lists_name_whole_components(self):
        read_one = read(torchao(FLOAT8, modules_to_not_convert=["layers.3.mlp", "lm_head"]))
        assert linear_bytes(read_one, DOWN) == 256 * 256 * 2
        assert linear_bytes(read_one, "model.layers.30.mlp.down_proj") == 256 * 256 + 256 * 4

    def test_configs_by_name_pattern_and_default(self):
        table = {
            "_default": FLOAT8,
            "model.embed_tokens": config("Anything"),
            "model.layers.3.mlp.down_proj": INT8_INT4,
            r"re:.*\.self_attn\.qkv_proj": None,
        }
        by_module = config("ModuleFqnToConfig", 1, module_fqn_to_config=table)
        read_one = read(torchao(by_module, modules_to_not_convert=None))
        assert linear_bytes(read_one, DOWN) == 256 * 256 + 256 * 8 * 3
        assert linear_bytes(read_one, *QKV) == 255 * 256 * 2
        assert linear_bytes(read_one, "model.layers.3.self_attn.o_proj") == 256 * 256 + 256 * 4

    def test_without_a_default_only_named_modules_are_quantized(self):
        by_module = config("FqnToConfig", 1, fqn_to_config={"re:.*down_proj": FLOAT8})
        read_one = read(torchao(by_module))
        assert linear_bytes(read_one, DOWN) == 256 * 256 + 256 * 4
        assert linear_bytes(read_one, "model.layers.3.self_attn.o_proj") == 256 * 256 * 2

    def test_a_part_of_a_fused_layer_is_not_its_name(self):
        by_module = config("ModuleFqnToConfig", 1, module_fqn_to_config={"re:.*v_proj": FLOAT8})
        read_one = read(torchao(by_module))
        assert linear_bytes(read_one, *QKV) == 255 * 256 * 2


class TestRefusals:
    @pytest.mark.parametrize("written", ["int4wo-128", "int8_weight_only", {"a": {}, "default": {}}])
    def test_the_text_form_is_refused_as_the_engine_does(self, written):
        with pytest.raises(EngineRefusalError) as caught:
            read({"quant_method": "torchao", "quant_type": written})
        assert caught.value.code == "torchao-quant-type"

    @pytest.mark.parametrize(
        "written",
        [
            config("UIntXWeightOnlyConfig"),
            config("Int4WeightOnlyConfig", 1, layout=named("MarlinSparseLayout")),
            config("Int4WeightOnlyConfig", 2, int4_packing_format=enum("Int4PackingFormat", "MARLIN_SPARSE")),
            config("Float8DynamicActivationFloat8WeightConfig", 2, granularity=named("PerBlock")),
            config("ModuleFqnToConfig", 1),
            config("IntxWeightOnlyConfig", 2, granularity=named("PerRowAndColumn")),
        ],
    )
    def test_unknown_tensors_are_refused_by_name(self, written):
        with pytest.raises(ModelError) as caught:
            read(torchao(written))
        assert caught.value.code == "unknown-quantization"
        assert "torchao" in str(caught.value)


FIELDS = st.sampled_from(
    [
        *("group_size", "layout", "granularity", "weight_granularity", "int4_packing_format", "scale_dtype"),
        *("intx_packing_format", "weight_scale_dtype", "fqn_to_config", "module_fqn_to_config", "_data"),
    ]
)


class TestHostileConfigs:
    @given(st.sampled_from([*CONFIGS, *BY_MODULE]), st.dictionaries(FIELDS, JSON, max_size=3), JSON)
    @settings(suppress_health_check=[HealthCheck.too_slow])
    def test_any_config_is_counted_or_refused(self, kind, data, version):
        for default in ({"_type": kind, "_data": data, "_version": version}, data):
            with contextlib.suppress(KvPlannerError):
                assert linear_bytes(read(torchao(default)), DOWN) > 0
