"""Encoders of images and sounds: what their rows build, and what a row may say."""

import copy
import json
from pathlib import Path

import pytest

from kvcore.errors import ModelError, TableError
from kvcore.model.architecture import Linear, Split, elements
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families import multimodal, read_architecture
from kvcore.model.parts.encoder import Scope, read_encoder
from kvcore.model.parts.encoder_rows import Part, Row, evaluate, parse
from kvcore.versioned import convert

HEADER, *MODELS = [
    json.loads(line) for line in (Path(__file__).parent / "data/encoders.jsonl").read_text().splitlines()
]


def merged(values: dict, changes: dict) -> dict:
    """The values with changes in them, where null is a key that goes."""
    found = copy.deepcopy(values)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = merged(found[key], value) if both else value
    return {key: value for key, value in found.items() if value is not None}


def config_of(model: dict) -> ModelConfig:
    """The config of a line."""
    values = merged(HEADER["shared"], HEADER["flipped"] if model["flipped"] else {})
    return ModelConfig.from_mapping(merged(values, {**model["changes"], "architectures": [model["class"]]}))


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
    @pytest.mark.parametrize(
        "model", [pytest.param(each, id=f"{each['class']}-{at}") for at, each in enumerate(MODELS)]
    )
    def test_builds_what_a_function_built(self, model):
        built = read_architecture(config_of(model))
        modules = (*built.every, *built.first)
        layers = [module for module in modules if isinstance(module, Linear)]
        divided = [
            layer
            for layer in layers
            if layer.split is not Split.REPLICATED and layer.whole_unless_divided % 2 == 0
        ]
        assert len(modules) == model["modules"]
        assert sum(map(elements, modules)) == model["elements"]
        assert sum(map(elements, divided)) == model["divided"]
        assert sum(elements(layer) for layer in layers if layer.quantizable) == model["quantizable"]
        assert built.layer_prefix == model["prefix"]
        limits = built.vision and [getattr(built.vision, name) for name in built.vision.__slots__]
        assert limits == model["limits"]

    def test_every_model_of_the_table_is_one_of_them(self):
        compared = {model["class"] for model in MODELS}
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
        model = next(each for each in MODELS if each["class"] == "LlavaForConditionalGeneration")
        changes = merged(model["changes"], {"vision_config": {"model_type": "mystery"}})
        with pytest.raises(ModelError, match="mystery") as raised:
            read_architecture(config_of({**model, "changes": changes}))
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
