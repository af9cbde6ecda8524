"""Encoders of images and sounds, and the models that have them in front of a language part."""

import json
from pathlib import Path

import pytest

from kvcore import catalogue
from kvcore.base.errors import ModelError
from kvcore.model.architecture import elements
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families import (
    deepseek_ocr,
    internvl,
    llava,
    minicpm_v,
    phi_vision,
    qwen_vl,
    read_architecture,
    siglip,
    speech,
)
from kvcore.model.parts.encoder import MAX_MERGE, pair, patches_a_side, read_merge, square
from kvcore.model.parts.image_encoders import read_siglip
from tests.test_families_multimodal_rows import BY_ARITHMETIC

DATA = Path(__file__).parent / "data" / "parity"


def config_of(name: str) -> dict:
    """The config of a class whose figures are the engine's own (tests/test_parity_classes.py)."""
    return json.loads((DATA / "classes" / f"{name}.json").read_text("utf-8"))["config"]


SIGLIP = Section(
    {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "image_size": 32,
        "patch_size": 16,
    }
)


FAMILIES = (deepseek_ocr, internvl, llava, minicpm_v, phi_vision, qwen_vl, siglip, speech)


class TestModels:
    def test_every_reader_is_compared_with_the_engine(self):
        """A model of each is among those whose weights are the engine's own figures, or the sum of its modules."""
        _, *lines = (DATA / "vllm-0.32.0.jsonl").read_text("utf-8").splitlines()
        compared = {path.stem.partition("-")[0] for path in (DATA / "classes").iterdir()}
        for name in {json.loads(line)["model"] for line in lines}:
            compared |= set(catalogue.find_model(name).config.architectures)
        compared |= BY_ARITHMETIC
        for family in FAMILIES:
            for reader in set(family.READERS.values()):
                names = {name for name, other in family.READERS.items() if other is reader}
                assert compared & names, names

    def test_a_module_is_named_behind_its_encoder(self):
        layer = read_siglip(SIGLIP, "tower", layers=1).modules[2]
        assert layer.name == "tower.encoder.layers.0.self_attn.qkv_proj"
        assert layer.parts[0] == "tower.encoder.layers.0.self_attn.q_proj"

    def test_the_last_norm_is_behind_all_layers_only(self):
        assert len(read_siglip(SIGLIP, "", layers=1).modules) == 2 + 6
        assert len(read_siglip(SIGLIP, "").modules) == 2 + 2 * 6 + 1

    def test_an_encoder_that_is_not_known_is_refused_by_name(self):
        config = config_of("LlavaNextForConditionalGeneration")
        config["vision_config"]["model_type"] = "mystery"
        with pytest.raises(ModelError, match="mystery") as raised:
            read_architecture(ModelConfig.from_mapping(config))
        assert raised.value.field == "config.vision_config.model_type"


VISION = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "projection_intermediate_size": 96,
    "num_heads": 4,
    "depth": 2,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "out_hidden_size": 256,
}


class TestGlmFlash:
    """GLM-5.3-Flash behind its encoder: vllm/models/glm5next/common/multimodal.py (0.33)."""

    def test_its_modules_by_arithmetic_and_positions_as_far_as_the_texts(self):
        text = config_of("Glm5NextForCausalLM")
        built = read_architecture(
            ModelConfig.from_mapping(
                {
                    "architectures": ["Glm5NextForConditionalGeneration"],
                    "model_type": "glm5_next",
                    "text_config": text,
                    "vision_config": VISION,
                }
            )
        )
        patches = 3 * 2 * 14 * 14 * 64 + 64
        attention = 3 * 64 * (64 + 1) + 64 * (64 + 1) + 2 * 64 // 4
        mlp = 2 * 128 * (64 + 1) + 64 * (128 + 1)
        merger = 64 + 256 * (64 * 4 + 1) + 256 * 256 + 2 * 256 + 3 * 96 * 256
        assert sum(map(elements, built.every)) == patches + 2 * (attention + mlp + 2 * 64) + merger
        assert built.rotary_tables[-1].max_positions == text["max_position_embeddings"]


class TestSizes:
    def test_an_image_has_at_least_one_patch(self):
        assert patches_a_side(SIGLIP, 33, 16) == 2
        with pytest.raises(ModelError, match="an image of 8 has no patch of 16"):
            patches_a_side(SIGLIP, 8, 16)

    def test_a_size_may_be_written_for_both_sides(self):
        assert square(Section({"image_size": [448, 448]}), "image_size") == 448
        assert square(Section({}), "image_size", 14) == 14
        with pytest.raises(ModelError, match="image_size is no square"):
            square(Section({"image_size": [448, 224]}), "image_size")

    def test_a_pair_is_two_numbers(self):
        assert pair(Section({"merge": [2, 3]}), "merge") == (2, 3)
        assert pair(Section({}), "merge", 2) == (2, 2)
        with pytest.raises(ModelError, match="expected two numbers"):
            pair(Section({"merge": [2, 3, 4]}), "merge")

    def test_a_square_of_patches_is_bounded(self):
        with pytest.raises(ModelError, match=f"expected 1 to {MAX_MERGE}"):
            read_merge(Section({"spatial_merge_size": MAX_MERGE + 1}))
