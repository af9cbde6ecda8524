"""Nemotron-NAS: a Llama whose layers were each given their own KV heads and MLP width, or none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kvcore.model.architecture import Architecture, Layer, Module
from kvcore.model.cache_state import CacheState
from kvcore.model.config import MAX_LAYERS, ModelConfig, Section
from kvcore.model.parts.blocks import (
    Heads,
    attention,
    cache_of,
    decoder,
    gated_mlp,
    norm,
    read_heads,
    with_kv_heads,
)
from kvcore.units import round_up

MLP_MULTIPLE: Final = 256
"""Source: vllm/model_executor/models/nemotron_nas.py:_ffn_mult_to_intermediate_size (0.32)."""


def read(config: ModelConfig) -> Architecture:
    """Nemotron-NAS.

    Source: vllm/model_executor/models/nemotron_nas.py (0.32).
    """
    section = config.language
    heads = read_heads(section, "")
    blocks = section.sequence("block_configs")
    if blocks is None:
        raise section.missing("block_configs")
    if len(blocks) != section.layers():
        raise section.contradicting("block_configs", f"{len(blocks)} blocks for {section.layers()} layers")
    known: dict[tuple[int, int], Layer] = {}
    layers: list[Layer] = []
    for index, raw in enumerate(blocks):
        if not isinstance(raw, Mapping):
            raise section.invalid("block_configs", raw, "expected objects")
        block = Section(raw, f"{section.path}.block_configs[{index}]", "")
        shape = (kv_heads_of(block, heads), mlp_size_of(block, heads.hidden_size))
        if shape not in known:
            known[shape] = layer_of(section, heads, *shape)
        layers.append(known[shape])
    if not any(layer.caches for layer in layers):
        raise section.contradicting("block_configs", "no block has attention")
    widest = max(size for _, size in known)
    kv_heads = next(count for count, _ in known if count)
    return decoder(
        config,
        section,
        heads=with_kv_heads(section, heads, kv_heads),
        layers=tuple(layers),
        intermediate_size=widest or heads.hidden_size,
    )


def layer_of(section: Section, heads: Heads, kv_heads: int, mlp_size: int) -> Layer:
    """One layer; a part of size 0 is not there, and its norm neither."""
    modules: list[Module] = []
    caches: tuple[CacheState, ...] = ()
    if kv_heads:
        own = with_kv_heads(section, heads, kv_heads)
        bias = section.boolean("attention_bias", False)
        modules += attention(own, qkv_bias=bias, out_bias=bias)
        modules.append(norm("input_layernorm", heads.hidden_size))
        caches = (cache_of(own),)
    if mlp_size:
        modules += gated_mlp(heads.hidden_size, mlp_size, bias=section.boolean("mlp_bias", False))
        modules.append(norm("post_attention_layernorm", heads.hidden_size))
    return Layer(modules=tuple(modules), caches=caches)


def kv_heads_of(block: Section, heads: Heads) -> int:
    """KV heads of a block; 0 without attention."""
    part = block.section("attention")
    refuse_linear(part)
    if part.boolean("no_op", False):
        return 0
    group = part.integer("n_heads_in_group", maximum=heads.num_heads)
    if heads.num_heads % group:
        raise part.contradicting("n_heads_in_group", f"{heads.num_heads} heads are no multiple of {group}")
    return heads.num_heads // group


def mlp_size_of(block: Section, hidden_size: int) -> int:
    """Width of a block's MLP; 0 without one."""
    part = block.section("ffn")
    refuse_linear(part)
    if part.boolean("no_op", False):
        return 0
    if part.has("ffn_mult"):
        factor = part.number("ffn_mult")
        if not 0 < factor <= MAX_LAYERS:
            raise part.invalid("ffn_mult", factor, "expected a factor above 0")
        return round_up(int(2 * factor * hidden_size / 3), MLP_MULTIPLE)
    return part.integer("intermediate_size")


def refuse_linear(part: Section) -> None:
    """Raise for a block that is one linear layer, which the engine does not run."""
    if part.boolean("replace_with_linear", False):
        raise part.contradicting(
            "replace_with_linear", "the engine runs no block that was replaced by a linear layer"
        )


READERS: Final[Mapping[str, Callable[[ModelConfig], Architecture]]] = {
    "DeciLMForCausalLM": read,
    "nemotron-nas": read,
}
