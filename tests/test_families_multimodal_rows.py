"""Models whose row says only what differs from another's: the difference by the engine's own modules."""

from __future__ import annotations

from typing import Any

import pytest

from kvcore.model import architecture as arch
from kvcore.model.config import ModelConfig
from kvcore.model.families import read_architecture

BY_ARITHMETIC = frozenset(
    {
        "BeeForConditionalGeneration",
        "RForConditionalGeneration",
        "QianfanOCRForConditionalGeneration",
        "ColPaliForRetrieval",
        "ColQwen3",
        "ColQwen3_5",
        "OpenPanguVLForConditionalGeneration",
        "Phi4ForCausalLMV",
    }
)
"""Classes of the rows that are tested here, and not yet on the engine's own plan."""

TEXT = {
    "model_type": "qwen3",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
}
SIGLIP = {
    "model_type": "siglip_vision_model",
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": 384,
    "patch_size": 14,
}
INTERN_VIT = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
}


def elements(name: str, **config: Any) -> int:
    built = read_architecture(ModelConfig.from_mapping({"architectures": [name], **config}))
    modules = (
        *built.first,
        *built.every,
        *built.last,
        *(one for layer in built.layers for one in layer.modules),
    )
    return sum(map(arch.elements, modules))


@pytest.mark.parametrize(
    ("name", "more"),
    [
        # vllm/model_executor/models/bee.py, rvl.py: a layer norm, and in Bee four times the width inside.
        ("BeeForConditionalGeneration", 2 * 1152 + (1152 + 1 + 4096) * 3 * 4096),
        ("RForConditionalGeneration", 2 * 1152),
    ],
)
def test_projectors_of_llava_onevision(name: str, more: int) -> None:
    base = elements("LlavaOnevisionForConditionalGeneration", text_config=TEXT, vision_config=SIGLIP)
    assert elements(name, text_config=TEXT, vision_config=SIGLIP) - base == more


def test_qianfan_is_internvl_spelled_as_transformers_spells_it() -> None:
    theirs = elements(
        "InternVLChatModel",
        llm_config=TEXT | {"architectures": ["Qwen3ForCausalLM"]},
        vision_config=INTERN_VIT
        | {
            "image_size": 448,
            "patch_size": 14,
            "qkv_bias": True,
            "qk_normalization": False,
            "norm_type": "layer_norm",
        },
        downsample_ratio=0.5,
    )
    own = elements(
        "QianfanOCRForConditionalGeneration", text_config=TEXT, vision_config=INTERN_VIT, downsample_ratio=0.5
    )
    assert own == theirs


def test_colpali_projects_every_token() -> None:
    gemma = {
        "model_type": "gemma",
        "hidden_size": 2048,
        "intermediate_size": 16384,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "vocab_size": 257216,
        "max_position_embeddings": 8192,
    }
    parts = {"text_config": gemma, "vision_config": SIGLIP | {"projection_dim": 2048}}
    base = elements("PaliGemmaForConditionalGeneration", **parts)
    assert elements("ColPaliForRetrieval", **parts) - base == 2048 * 128


def test_phi_4_sees_with_siglip_2_but_for_its_last_layer_and_norm() -> None:
    text = {
        "hidden_size": 5120,
        "intermediate_size": 17920,
        "num_hidden_layers": 2,
        "num_attention_heads": 40,
        "num_key_value_heads": 10,
        "vocab_size": 100352,
        "max_position_embeddings": 32768,
    }
    vision = {name: SIGLIP[name] for name in SIGLIP if name != "image_size"}
    vision |= {"model_type": "siglip2_vision_model", "patch_size": 16, "num_patches": 256}
    config = {"architectures": ["Phi4ForCausalLMV"], **text, "vision_config": vision}
    built = read_architecture(ModelConfig.from_mapping(config))
    layer = 4 * (1152 + 1) * 1152 + 2 * 1152 * 4304 + 4304 + 1152 + 4 * 1152
    embeddings = (3 * 16**2 + 1) * 1152 + 256 * 1152
    projector = (1152 + 1) * 5120 + (5120 + 1) * 5120
    assert sum(map(arch.elements, built.every)) == 26 * layer + embeddings + projector


QWEN3_VL = {
    "depth": 4,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_heads": 16,
    "in_channels": 3,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 4096,
    "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [1],
}


@pytest.mark.parametrize(("key", "width"), [("embed_dim", 320), ("dims", 128), ("colbert_dim", 64)])
def test_colqwen_3_projects_every_token_as_wide_as_its_config_says(key: str, width: int) -> None:
    parts = {"text_config": TEXT | {"model_type": "qwen3_vl_text"}, "vision_config": QWEN3_VL}
    base = elements("Qwen3VLForConditionalGeneration", **parts)
    assert elements("ColQwen3", **parts, **{key: width}) - base == 4096 * width
    assert elements("ColQwen3", **parts) == base


def test_colqwen_3_5_projects_every_token_with_a_bias() -> None:
    text = TEXT | {
        "model_type": "qwen3_5_text",
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
    }
    parts = {"text_config": text, "vision_config": QWEN3_VL}
    base = elements("Qwen3_5ForConditionalGeneration", **parts)
    assert elements("ColQwen3_5", **parts) - base == (4096 + 1) * 128


def test_openpangu_sees_with_a_merger_for_each_layer_whose_features_it_uses() -> None:
    text = {name: value for name, value in TEXT.items() if name != "model_type"}
    vision = QWEN3_VL | {"hidden_act": "silu", "mm_unit_vision_select_layer": [-1, -3, -5]}
    config = {"architectures": ["OpenPanguVLForConditionalGeneration"], "model_type": "openpangu_vl"}
    built = read_architecture(ModelConfig.from_mapping({**config, **text, "vision_config": vision}))
    wide, inner, merged = 1024, 4096, 4096
    block = 4 * (wide + 1) * wide + 2 * (wide + 1) * inner + (inner + 1) * wide + 2 * wide
    merger = wide + (merged + 1) * merged + (merged + 1) * 4096
    patches, projection = 3 * 2 * 16**2 * wide, (4096 + 1) * 4096
    assert sum(map(arch.elements, built.every)) == 4 * block + 3 * merger + patches + wide + projection
