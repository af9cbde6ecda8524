"""MiMo V2.5 and V2.6, and others of this autumn: the published counts, and the bytes on disk."""

import pytest

import kvcore
from kvcore.base.errors import ModelError
from kvcore.catalogue import find_model
from kvcore.model import architecture as arch
from kvcore.model.config import ModelConfig
from kvcore.model.families import read_architecture
from kvcore.scenario import Measured, Scenario
from tests.test_families_decoder import total_elements

ENCODERS = 989_721_600
"""Published count of V2.5 above that of V2-Flash."""


def read(model: str) -> arch.Architecture:
    return read_architecture(find_model(model).config)


def draft_of(built: arch.Architecture) -> int:
    return sum(arch.elements(module) for layer in built.draft_layers for module in layer.modules)


class TestCounts:
    """Three prediction layers are in the checkpoints, of which the engine loads one."""

    def test_encoders_are_what_v25_has_more_than_v2_flash(self):
        assert total_elements(read("XiaomiMiMo/MiMo-V2.5")) - total_elements(
            read("XiaomiMiMo/MiMo-V2-Flash")
        ) == (ENCODERS)

    @pytest.mark.parametrize(
        ("model", "published", "scales"),
        [
            ("XiaomiMiMo/MiMo-V2.5", 310_775_040_000, 18_717_312),
            ("XiaomiMiMo/MiMo-V2.6-Flash-RL", 310_756_322_688, 0),
            ("XiaomiMiMo/MiMo-V2.6-Pro-RL", 1_024_216_603_392, 0),
            ("XiaomiMiMo/MiMo-V2.5-Pro", 1_023_182_841_600, 0),
        ],
    )
    def test_all_published_parameters_are_counted(self, model: str, published: int, scales: int):
        built = read(model)
        assert total_elements(built) + 3 * draft_of(built) + scales == published

    def test_the_sound_encoder_is_there_only_with_its_section(self):
        """20 tables of 1,280 codes, six layers 1,024 wide with biases of queries, keys and values, two projections."""
        config = dict(find_model("XiaomiMiMo/MiMo-V2.5").config.raw)
        heard = total_elements(read_architecture(ModelConfig.from_mapping(config)))
        del config["audio_config"]
        deaf = total_elements(read_architecture(ModelConfig.from_mapping(config)))
        layer = 4 * 1024 * 1024 + 3 * 1024 + 3 * 1024 * 4096 + 2 * 1024
        assert heard - deaf == 20 * 1280 * 1024 + 6 * layer + 1024 + 2 * 4096 * 16384


class TestBytes:
    def test_v26_has_experts_in_four_bits_and_layers_in_eight(self):
        """172,923,364,096 bytes on disk, of which 1,920 at least are headers, with three prediction layers.

        Of each the projection of two states and o_proj are in 16 bits, the rest in blocks of 128 × 128.
        """
        config = find_model("XiaomiMiMo/MiMo-V2.6-Flash-RL").config
        plan = kvcore.plan(Scenario(model="", config=config, measured=Measured(available_kv_gib=20)))
        in_eight = 14848 * 4096 + 3 * 16384 * 4096
        scales = 4 * in_eight // 128**2
        draft = 2 * (2 * 4096 * 4096 + 8192 * 4096) + in_eight + scales + 2 * (5 * 4096 + 64)
        assert plan.parameter_bytes_per_rank == pytest.approx(172_923_364_096 - 3 * draft, abs=2e6)

    def test_experts_alone_are_in_four_bits(self):
        """47 layers of 256 experts: half a byte each, and a byte for each 32."""
        config = find_model("XiaomiMiMo/MiMo-V2.6-Flash-RL").config
        raw = dict(config.raw)
        raw["quantization_config"] = {**raw["quantization_config"], "store_dtype": None}
        plain = ModelConfig.from_mapping(raw)
        four, eight = (
            kvcore.plan(Scenario(model="", config=each, measured=Measured(available_kv_gib=20)))
            for each in (config, plain)
        )
        elements = 47 * 256 * 3 * 4096 * 2048
        saved = elements + elements // 128**2 * 4 - elements // 2 - elements // 32
        assert eight.parameter_bytes_per_rank - four.parameter_bytes_per_rank == saved


def test_tables_of_codes_of_another_form_are_refused():
    config = dict(find_model("XiaomiMiMo/MiMo-V2.5").config.raw)
    config["audio_config"] = {**config["audio_config"], "speech_vocab_size": "many"}
    with pytest.raises(ModelError):
        read_architecture(ModelConfig.from_mapping(config))


@pytest.mark.parametrize(
    ("model", "published"),
    [
        ("IFM/K2-Horizon-375B-A23B", 379_167_159_168),
        ("IFM/K2-Horizon-MoVA-36B-A4B", 37_444_792_020),
        ("internlm/Intern-S1", 240_709_856_128),
        ("inclusionAI/Ring-1T", 999_705_328_640),
        ("inclusionAI/Ling-2.6-flash", 107_494_409_216),
        ("inclusionAI/Ling-2.6-1T", 1_025_414_425_344),
        ("baidu/ERNIE-4.5-VL-424B-A47B-PT", 423_526_285_184),
    ],
)
def test_other_models_by_their_published_counts(model: str, published: int):
    """With the prediction layer of those that have one."""
    built = read(model)
    assert total_elements(built) + draft_of(built) == published


def test_a_router_of_an_unknown_dtype_is_refused_by_its_field() -> None:
    config = find_model("XiaomiMiMo/MiMo-V2.5").config.raw
    with pytest.raises(ModelError) as caught:
        read_architecture(ModelConfig.from_mapping({**config, "moe_router_dtype": "attention"}))
    assert (caught.value.code, caught.value.field) == ("invalid-config-value", "config.moe_router_dtype")
