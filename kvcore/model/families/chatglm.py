"""ChatGLM 2 and 3, GLM-4 in its first layout: half-rotated heads, a few KV heads by `multi_query_attention`."""

from __future__ import annotations

from typing import Final

from kvcore.model import architecture as arch
from kvcore.model.config import ModelConfig
from kvcore.model.parts import blocks, vision
from kvcore.model.rope import Rope

ROTARY: Final = Rope(partial_rotary_factor=0.5)


def read(config: ModelConfig) -> arch.Architecture:
    """ChatGLM.

    Source: vllm/model_executor/models/chatglm.py (0.32).
    """
    if config.root.has("vision_config"):
        raise config.root.contradicting("vision_config", "the text model of a vision model is not read alone")
    return read_text(config)


def read_text(config: ModelConfig) -> arch.Architecture:
    """ChatGLM's decoder."""
    section = config.language
    hidden, num_heads = section.integer("hidden_size"), section.integer("num_attention_heads")
    if hidden % num_heads:
        raise section.contradicting(
            "hidden_size", f"{hidden} is not divisible by {num_heads} attention heads"
        )
    few = section.boolean("multi_query_attention", False)
    kv_heads = section.integer("multi_query_group_num") if few else num_heads
    heads = blocks.Heads(
        hidden_size=hidden, num_heads=num_heads, num_kv_heads=kv_heads, head_dim=hidden // num_heads
    )
    intermediate = section.integer("ffn_hidden_size")
    vocab = section.integer("padded_vocab_size")
    bias = section.boolean("add_bias_linear", False)
    norm_bias = not section.boolean("rmsnorm", True)
    layer = arch.Layer(
        modules=(
            blocks.qkv(
                heads,
                "self_attention.query_key_value",
                ("query_key_value",),
                bias=bias or section.boolean("add_qkv_bias", False),
            ),
            blocks.row("self_attention.dense", num_heads * heads.head_dim, hidden, bias=bias),
            arch.Linear(
                name="mlp.dense_h_to_4h",
                in_features=hidden,
                outputs=(arch.Output(units=intermediate), arch.Output(units=intermediate)),
                split=arch.Split.COLUMN,
                bias=bias,
            ),
            blocks.row("mlp.dense_4h_to_h", intermediate, hidden, bias=bias),
            *blocks.norms(hidden, "input_layernorm", "post_attention_layernorm", bias=norm_bias),
        ),
        caches=(blocks.cache_of(heads),),
    )
    tied = blocks.is_tied(config, section, False)
    final = (
        (blocks.norm("transformer.encoder.final_layernorm", hidden, bias=norm_bias),)
        if section.boolean("post_layer_norm", True)
        else ()
    )
    output = blocks.head(section, "transformer.output_layer", vocab_size=vocab)
    return blocks.decoder(
        config,
        heads=heads,
        layers=(layer,) * section.layers(),
        intermediate_size=intermediate,
        first=(blocks.embedding(section, "transformer.embedding", vocab_size=vocab),),
        last=final if tied else (*final, output),
        tied=tied,
        rotary_tables=(ROTARY.table(heads.head_dim, section.integer("seq_length", 8192)),),
        layer_prefix="transformer.encoder.layers",
        vocab_size=vocab,
    )


def read_vision(config: ModelConfig) -> arch.Architecture:
    """GLM-4V: ChatGLM behind a ViT, a convolution and a gated projector.

    Source: vllm/model_executor/models/glm4v.py (0.32).
    """
    built, section = read_text(config), config.root.section("vision_config")
    width, hidden, prefix = section.integer("hidden_size"), built.hidden_size, "transformer.vision"
    patch, positions = section.integer("patch_size", maximum=4096), section.integer("num_positions")
    channels = section.integer("in_channels", 3)
    modules: list[arch.Module] = [
        arch.Parameter(name=f"{prefix}.boi", replicated=hidden),
        arch.Parameter(name=f"{prefix}.eoi", replicated=hidden),
        arch.Parameter(name=f"{prefix}.patch_embedding.cls_embedding", replicated=width),
        vision.convolution(f"{prefix}.patch_embedding.proj", channels, width, (patch, patch), bias=True),
        vision.table(f"{prefix}.patch_embedding.position_embedding", positions, width),
        vision.convolution(f"{prefix}.conv", width, hidden, (2, 2), bias=True),
        blocks.replicated(f"{prefix}.linear_proj.linear_proj", hidden, hidden),
        blocks.norm(f"{prefix}.linear_proj.norm1", hidden, bias=True),
        vision.merged(
            f"{prefix}.linear_proj.merged_proj",
            hidden,
            built.intermediate_size,
            (f"{prefix}.linear_proj.gate_proj", f"{prefix}.linear_proj.dense_h_to_4h"),
        ),
        blocks.row(f"{prefix}.linear_proj.dense_4h_to_h", built.intermediate_size, hidden),
    ]
    heads, inner = vision.square_heads(section, width, "num_heads"), section.integer("intermediate_size")
    modules += vision.blocks(BLOCK, f"{prefix}.transformer.layers", section.layers(), heads, inner)
    tokens = (positions - 1) // PATCHES_PER_TOKEN + 2
    encoder = vision.input_limits(section, tokens, PATCHES_PER_TOKEN)
    return vision.with_images(built, modules, encoder)


BLOCK: Final = vision.Block(
    qkv="attention.query_key_value",
    out="attention.dense",
    norms=("input_layernorm", "post_attention_layernorm"),
)

PATCHES_PER_TOKEN: Final = 4
"""Source: vllm/model_executor/models/glm4v.py:EVA2CLIPModel.conv (0.32)."""

READERS: Final = blocks.named(
    (read_vision, "GLM4VForCausalLM"),
    (read, "ChatGLMModel", "ChatGLMForConditionalGeneration", "chatglm"),
)
