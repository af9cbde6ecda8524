"""Sizes of experts: which of several keys is read, when the class has a default, and what is refused."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from kvcore.base.errors import ModelError
from kvcore.model.architecture import MixtureOfExperts
from kvcore.model.config import ModelConfig
from kvcore.model.families import read_architecture
from tests.special_models import fact_of

CLASSES = Path(__file__).parent / "data/parity/classes"
STEP = json.loads((CLASSES / "Step3VLForConditionalGeneration.json").read_text())["config"]
LONGCAT = json.loads((CLASSES / "LongcatFlashNgramForCausalLM.json").read_text())["config"]
KIMI = fact_of("moonshotai/Kimi-Linear-48B-A3B-Base")["config"]


def moe_of(config: dict[str, Any], **changes: Any) -> MixtureOfExperts:
    """The experts of a config, in whose language part some keys are changed; None takes a key away."""
    changed = copy.deepcopy(config)
    section = changed.get("text_config", changed)
    for key, value in changes.items():
        section.pop(key, None)
        if value is not None:
            section[key] = value
    moe = read_architecture(ModelConfig.from_mapping(changed)).moe
    assert moe is not None
    return moe


class TestKeyLeftOut:
    """Defaults of the config classes: transformers 5.19 step3_vl, longcat_flash; vLLM 0.32 kimi_linear."""

    def test_step_has_48_experts_of_which_a_token_takes_3(self):
        moe = moe_of(STEP, moe_num_experts=None, moe_top_k=None)
        assert (moe.num_experts, moe.top_k) == (48, 3)

    def test_a_token_takes_8_of_kimi_linear(self):
        assert moe_of(KIMI, num_experts_per_token=None).top_k == 8

    def test_experts_of_longcat_are_2048_wide(self):
        assert moe_of(LONGCAT, expert_ffn_hidden_size=None).moe_intermediate_size == 2048


class TestTwoKeys:
    @pytest.mark.parametrize(
        ("config", "keys", "size"),
        [
            (STEP, {"moe_num_experts": 16, "num_experts": 32}, "num_experts"),
            (STEP, {"moe_top_k": 16, "num_experts_per_tok": 32}, "top_k"),
            (KIMI, {"num_experts_per_token": 16, "num_experts_per_tok": 32}, "top_k"),
            (LONGCAT, {"moe_intermediate_size": 16, "expert_ffn_hidden_size": 32}, "moe_intermediate_size"),
        ],
    )
    def test_the_first_decides_and_the_other_is_read_alone(self, config, keys, size):
        (first, chosen), (other, _) = keys.items()
        assert getattr(moe_of(config, **keys), size) == chosen
        assert getattr(moe_of(config, **{first: chosen, other: None}), size) == chosen
        assert getattr(moe_of(config, **{first: None, other: 32}), size) == 32


class TestSharedWidth:
    def test_nothing_is_refused_where_a_shared_expert_is_always_there(self):
        with pytest.raises(ModelError) as refused:
            moe_of(STEP, share_expert_dim=0)
        assert refused.value.field == "config.text_config.share_expert_dim"

    def test_left_out_it_is_the_class_default(self):
        assert moe_of(STEP, share_expert_dim=None).shared_intermediate_size == 5120
