"""Encoders that `--limit-mm-per-prompt` leaves out, by the kinds of input that the engine builds them for."""

import json
from pathlib import Path

import pytest

from kvcore.memory.encoder_profile import with_encoders
from kvcore.model.architecture import Architecture
from kvcore.model.config import ModelConfig
from kvcore.model.families import read_architecture

CLASSES = Path(__file__).parent / "data" / "parity" / "classes"


def read(name: str) -> Architecture:
    entry = json.loads((CLASSES / f"{name}.json").read_text(encoding="utf-8"))
    return read_architecture(ModelConfig.from_mapping(entry["config"]))


@pytest.mark.parametrize(
    "name",
    [
        "Qwen2AudioForConditionalGeneration",
        "VoxtralForConditionalGeneration",
        "GraniteSpeechForConditionalGeneration",
        "MiDashengLMModel",
    ],
)
def test_a_model_that_only_hears_keeps_everything_without_images(name: str) -> None:
    architecture = read(name)
    assert with_encoders(architecture, False, True).every == architecture.every
    assert with_encoders(architecture, True, False).every == ()


def test_a_model_that_only_sees_keeps_everything_without_sound() -> None:
    architecture = read("KimiVLForConditionalGeneration")
    assert with_encoders(architecture, True, False).every == architecture.every
    assert with_encoders(architecture, False, True).every == ()


@pytest.mark.parametrize("name", ["Qwen3OmniMoeForConditionalGeneration", "MiniCPMO", "Phi4MMForCausalLM"])
def test_a_model_that_sees_and_hears_is_parted_in_two(name: str) -> None:
    architecture = read(name)
    seeing, hearing = (with_encoders(architecture, *kinds).every for kinds in ((True, False), (False, True)))
    assert seeing
    assert hearing
    assert len(seeing) + len(hearing) == len(architecture.every)
