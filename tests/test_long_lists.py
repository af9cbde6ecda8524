"""Lists of names that published mixtures of experts have: one for each matrix of each expert."""

import json

import pytest

from kvcore import catalogue
from kvcore.contract.result import answer
from kvcore.model.config import MAX_NAMES
from kvcore.model.quantization.modules import Kind, ModuleName, NameList
from kvcore.model.quantization.patterns import Allowance
from tests.cpu import answer_within

MODEL = "deepseek-ai/DeepSeek-V3"
MATRICES = tuple(
    f"model.layers.{layer}.mlp.experts.{expert}.{name}_proj"
    for layer in range(61)
    for expert in range(359)
    for name in ("gate", "up", "down")
)[:MAX_NAMES]
GROUP = {
    "targets": ["Linear"],
    "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32},
    "format": "pack-quantized",
}
COMPRESSED = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"a": GROUP}}
LONGEST = {
    "compressed-tensors": {**COMPRESSED, "ignore": MATRICES},
    "targets": {
        **COMPRESSED,
        "config_groups": {str(number): {**GROUP, "targets": MATRICES[number::3]} for number in range(3)},
    },
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic", "ignored_layers": MATRICES},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "modules_to_not_convert": MATRICES},
    "modelopt": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": MATRICES},
    "long names": {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "ignored_layers": [f"{name}.{'x' * 75}" for name in MATRICES],
    },
}
"""Lists of a name for each matrix of each expert: 2.6 to 7.6 MB of JSON."""


class TestListsOfAllExperts:
    @pytest.mark.parametrize("quantization", LONGEST.values(), ids=LONGEST.keys())
    def test_a_name_for_each_matrix_of_each_expert_is_read_within_two_seconds(self, quantization):
        raw = catalogue.find_model(MODEL).config.raw | {"quantization_config": quantization}
        text = json.dumps(
            {"model": "a/b", "config": raw, "accelerator": "H200-141GB", "tensor_parallel_size": 8}
        )
        assert len(text) > 2_500_000
        found = answer_within(2, lambda: answer(text.encode()))
        assert found["status"] == "ok"

    def test_one_more_is_refused(self):
        raw = catalogue.find_model(MODEL).config.raw
        raw = raw | {"quantization_config": {**LONGEST["fp8"], "ignored_layers": [*MATRICES, "lm_head"]}}
        found = answer(json.dumps({"model": "a/b", "config": raw, "accelerator": "H200-141GB"}))
        assert found["error"]["field"] == "config.quantization_config.ignored_layers"

    def test_experts_are_found_by_the_name_before_their_number(self):
        listed = NameList(MATRICES, Allowance())
        for name in ("model.layers.60.mlp.experts", "layers.3.mlp.experts", "model.layers.3.mlp.experts.7"):
            expected = any(name in one for one in MATRICES)
            assert listed.covers(ModuleName(name=name, kind=Kind.EXPERTS)) == expected, name
        assert not listed.covers(ModuleName(name="model.layers.61.mlp.experts", kind=Kind.EXPERTS))
