"""Encoders of images and sounds: what their rows build, and what a row may say."""

import json
from pathlib import Path

import pytest

from kvcore import catalogue
from kvcore.base.errors import ModelError, TableError
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families import multimodal, read_architecture
from kvcore.model.parts.encoder import Scope, read_encoder
from kvcore.model.parts.encoder_rows import Part, Row, evaluate, parse
from kvcore.tables import convert
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


class TestRows:
    def test_every_row_is_compared_with_the_engine(self):
        """A model of each row is among those whose weights are the engine's own figures, or the sum of its modules."""
        _, *lines = (DATA / "vllm-0.32.0.jsonl").read_text("utf-8").splitlines()
        compared = {path.stem.partition("-")[0] for path in (DATA / "classes").iterdir()}
        for name in {json.loads(line)["model"] for line in lines}:
            compared |= set(catalogue.find_model(name).config.architectures)
        compared |= BY_ARITHMETIC
        for name, row in multimodal.ROWS.items():
            assert compared & set(row.classes), name

    def test_a_part_is_named_behind_the_row_that_uses_it(self):
        layer = read_encoder("siglip", SIGLIP, "tower", layers=1).modules[2]
        assert layer.name == "tower.encoder.layers.0.self_attn.qkv_proj"
        assert layer.parts[0] == "tower.encoder.layers.0.self_attn.q_proj"

    def test_a_given_number_goes_before_the_config(self):
        assert len(read_encoder("siglip", SIGLIP, layers=1).modules) == 2 + 6
        assert len(read_encoder("siglip", SIGLIP).modules) == 2 + 2 * 6 + 1

    def test_an_encoder_that_is_not_known_is_refused_by_name(self):
        config = config_of("LlavaNextForConditionalGeneration")
        config["vision_config"]["model_type"] = "mystery"
        with pytest.raises(ModelError, match="mystery") as raised:
            read_architecture(ModelConfig.from_mapping(config))
        assert raised.value.field == "config.vision_config.model_type"


class TestFormulas:
    @pytest.mark.parametrize(
        ("formula", "value"),
        [
            ("2*width + 1", 129),
            ("(width - 1) // 4**2", 3),
            ("-width % 10", 6),
            ("7 if width == 64 else 9", 7),
            ("7 if width < 64 else 9", 9),
            ("width == 64 and 1 < width", 1),
        ],
    )
    def test_is_arithmetic(self, formula, value):
        assert evaluate(parse(formula), {"width": 64}.__getitem__) == value

    @pytest.mark.parametrize("formula", ["width +", "len(width)", "width.real", "'a'", "[1]", "not width"])
    def test_is_nothing_else(self, formula):
        with pytest.raises(TableError, match="is no formula"):
            convert({"make": "norm", "of": [formula]}, Part, "encoders.toml row")
        with pytest.raises(TableError, match="is no formula"):
            convert({"sizes": {"width": formula}}, Row, "encoders.toml row")

    def test_a_name_that_nobody_defines_is_an_error_of_the_table(self):
        with pytest.raises(TableError, match="'breadth' is no size"):
            Scope(Row(), {"own": SIGLIP}).value("breadth")

    def test_a_part_is_of_one_kind(self):
        with pytest.raises(TableError, match="one of make, use, use_named"):
            convert({"make": "norm", "use": "siglip"}, Part, "encoders.toml row")
