"""Mistral Large 3: DeepSeek V3's layers behind Pixtral."""

import pytest

import kvcore
from kvcore.catalogue import find_model
from kvcore.model.architecture import elements
from kvcore.model.families import read_architecture
from kvcore.scenario import Measured, Scenario
from tests.test_families_decoder import total_elements


class TestMistralLarge:
    def test_it_is_deepseek_v3_behind_pixtral(self):
        """Its card: 673 billion parameters, and 2.5 of the encoder."""
        built = read_architecture(find_model("mistralai/Mistral-Large-3-675B-Instruct-2512").config)
        encoder = sum(elements(module) for module in built.every)
        assert round((total_elements(built) - encoder) / 1e9) == 673
        assert round(encoder / 1e9, 1) == 2.6
        assert built.is_mla
        assert built.is_multimodal

    def test_its_weights_are_in_eight_bits_but_for_encoder_head_and_routers(self):
        config = find_model("mistralai/Mistral-Large-3-675B-Instruct-2512").config
        plan = kvcore.plan(Scenario(model="", config=config, measured=Measured(available_kv_gib=20)))
        assert plan.parameter_bytes_per_rank == pytest.approx(680e9, rel=0.01)
