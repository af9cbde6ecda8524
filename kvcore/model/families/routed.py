"""Mixtures with routers of float32 and windows: Trinity, K-EXAONE, Hunyuan 3, Command A with experts, Param-2.

Rows as in `mixture.MIXTURES`. Checked against vLLM's own model classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from kvcore.model.architecture import Architecture, Module
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families.decoder import MLP_BIAS, Decoder
from kvcore.model.families.mixture import (
    SPARSE_AFTER_DENSE,
    SPARSE_AFTER_FIRST,
    SPARSE_BY_TYPES,
    Mixture,
    read_mixture,
)
from kvcore.model.parts.blocks import DraftTraits, column, gated_mlp, norms

MIXTURES: Final[Mapping[str, Mixture]] = {
    "afmoe": Mixture(
        base=Decoder(
            qk_norm="per_head",
            attention_gate="gate_proj",
            layer_norms=(
                "input_layernorm",
                "post_attention_layernorm",
                "pre_mlp_layernorm",
                "post_mlp_layernorm",
            ),
        ),
        sparse=SPARSE_AFTER_DENSE,
        router_dtype="float32",
        correction_bias=True,
        shared_count_key="num_shared_experts",
    ),
    "exaone_moe": Mixture(
        base=Decoder(
            qkv_bias=("attention_bias", False),
            out_bias=("attention_bias", False),
            mlp_bias=MLP_BIAS,
            qk_norm="per_head",
        ),
        sparse=SPARSE_BY_TYPES,
        correction_bias=True,
        shared_count_key="num_shared_experts",
    ),
    "hy_v3": Mixture(
        base=Decoder(
            qk_norm="per_head",
            qk_norm_key="qk_norm",
            drafts=DraftTraits(norms=("enorm", "hnorm", "final_layernorm")),
        ),
        intermediate_key="expert_hidden_dim",
        sparse=SPARSE_AFTER_FIRST,
        router_dtype="float32",
        correction_bias=True,
        shared_count_key="num_shared_experts",
    ),
    "cohere2_moe": Mixture(
        base=Decoder(layer_norms=("input_layernorm",), tied=True),
        intermediate_key="intermediate_size",
        dense_key="prefix_dense_intermediate_size",
        sparse=SPARSE_BY_TYPES,
        shared_count_key="num_shared_experts",
        window_extra=1,
    ),
    "flex_olmo": Mixture(
        base=Decoder(
            qkv_bias=("attention_bias", False),
            out_bias=("attention_bias", False),
            qk_norm="whole",
            layer_norms=("post_attention_layernorm", "post_feedforward_layernorm"),
        ),
        intermediate_key="intermediate_size",
    ),
    "param2moe": Mixture(
        base=Decoder(
            qkv_bias=("use_qkv_bias", False),
            out_bias=("use_bias", False),
            qk_norm="per_head",
            qk_norm_key="use_qk_norm",
        ),
        sparse=SPARSE_AFTER_FIRST,
        router_dtype="float32",
        correction_bias=("moe_router_enable_expert_bias", True),
        shared_size_key="moe_shared_expert_intermediate_size",
        shared_count_key="num_shared_experts",
        shared_count=1,
    ),
}
"""By model_type."""

ARCHITECTURES: Final[Mapping[str, str]] = {
    "AfmoeForCausalLM": "afmoe",
    "ExaoneMoeForCausalLM": "exaone_moe",
    "ExaoneMoEForCausalLM": "exaone_moe",
    "HYV3ForCausalLM": "hy_v3",
    "Cohere2MoeForCausalLM": "cohere2_moe",
    "FlexOlmoForCausalLM": "flex_olmo",
    "Param2MoEForCausalLM": "param2moe",
}


def read_exaone_moe(config: ModelConfig, section: Section | None = None) -> Architecture:
    """K-EXAONE, with its prediction layers: each like the layer of its number, with an MLP instead of experts.

    Source: vllm/model_executor/models/exaone_moe.py, exaone_moe_mtp.py (0.32).
    """
    section = section or config.language
    built = read_mixture(MIXTURES["exaone_moe"], config, section)
    count = section.integer("num_nextn_predict_layers", 0, minimum=0, maximum=built.num_layers)
    if not count:
        return built
    hidden = built.hidden_size
    mlp = gated_mlp(hidden, built.intermediate_size, bias=section.boolean("mlp_bias", False))
    return replace(
        built,
        draft_layers=tuple(
            replace(layer, modules=(*(each for each in layer.modules if not is_of_mlp(each)), *mlp))
            for layer in built.layers[:count]
        ),
        draft_prefix="mtp.layers",
        draft_modules=(
            column("mtp.fc", 2 * hidden, hidden),
            *norms(hidden, "mtp.norm", "mtp.pre_fc_norm_hidden", "mtp.pre_fc_norm_embedding"),
        ),
        draft_steps=count,
    )


def is_of_mlp(module: Module) -> bool:
    """Whether a module belongs to the MLP or the experts."""
    return module.name.startswith("mlp.")


SECTION_READERS: Final = {
    **{name: partial(read_mixture, traits) for name, traits in MIXTURES.items()},
    "exaone_moe": read_exaone_moe,
}

READERS: Final = {
    **SECTION_READERS,
    **{name: SECTION_READERS[kind] for name, kind in ARCHITECTURES.items()},
}
