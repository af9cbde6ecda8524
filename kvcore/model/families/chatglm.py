"""ChatGLM 2 and 3, GLM-4 in its first layout: half-rotated heads, a few KV heads by `multi_query_attention`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kvcore.model.architecture import Architecture, Layer, Linear, Output, Split
from kvcore.model.config import ModelConfig
from kvcore.model.families.blocks import (
    Heads,
    cache_of,
    decoder,
    embedding,
    head,
    is_tied,
    norm,
    norms,
    qkv,
    row,
)
from kvcore.model.rope import Rope

ROTARY: Final = Rope(partial_rotary_factor=0.5)


def read(config: ModelConfig) -> Architecture:
    """ChatGLM.

    Source: vllm/model_executor/models/chatglm.py (0.32).
    """
    section = config.language
    if config.root.has("vision_config"):
        raise section.contradicting("vision_config", "the text model of a vision model is not read alone")
    hidden, num_heads = section.integer("hidden_size"), section.integer("num_attention_heads")
    if hidden % num_heads:
        raise section.contradicting(
            "hidden_size", f"{hidden} is not divisible by {num_heads} attention heads"
        )
    few = section.boolean("multi_query_attention", False)
    kv_heads = section.integer("multi_query_group_num") if few else num_heads
    heads = Heads(
        hidden_size=hidden, num_heads=num_heads, num_kv_heads=kv_heads, head_dim=hidden // num_heads
    )
    intermediate = section.integer("ffn_hidden_size")
    vocab = section.integer("padded_vocab_size")
    bias = section.boolean("add_bias_linear", False)
    norm_bias = not section.boolean("rmsnorm", True)
    layer = Layer(
        modules=(
            qkv(
                heads,
                "self_attention.query_key_value",
                ("query_key_value",),
                bias=bias or section.boolean("add_qkv_bias", False),
            ),
            row("self_attention.dense", num_heads * heads.head_dim, hidden, bias=bias),
            Linear(
                name="mlp.dense_h_to_4h",
                in_features=hidden,
                outputs=(Output(units=intermediate), Output(units=intermediate)),
                split=Split.COLUMN,
                bias=bias,
            ),
            row("mlp.dense_4h_to_h", intermediate, hidden, bias=bias),
            *norms(hidden, "input_layernorm", "post_attention_layernorm", bias=norm_bias),
        ),
        caches=(cache_of(heads),),
    )
    tied = is_tied(config, section, False)
    final = (
        (norm("transformer.encoder.final_layernorm", hidden, bias=norm_bias),)
        if section.boolean("post_layer_norm", True)
        else ()
    )
    output = head(section, "transformer.output_layer", vocab_size=vocab)
    return decoder(
        config,
        section,
        family="chatglm",
        heads=heads,
        layers=(layer,) * section.layers(),
        intermediate_size=intermediate,
        first=(embedding(section, "transformer.embedding", vocab_size=vocab),),
        last=final if tied else (*final, output),
        tied=tied,
        rotary_tables=(ROTARY.table(heads.head_dim, section.integer("seq_length", 8192)),),
        layer_prefix="transformer.encoder.layers",
        vocab_size=vocab,
    )


READERS: Final[Mapping[str, Callable[[ModelConfig], Architecture]]] = {
    "ChatGLMModel": read,
    "ChatGLMForConditionalGeneration": read,
    "chatglm": read,
}
