"""Decoders whose layers differ in window, in heads or in both: gpt-oss, Llama 4, Laguna, Step 3.5 and 3.7."""

from __future__ import annotations

import dataclasses
from typing import Final

from msgspec.structs import replace

from kvcore.model import architecture as arch
from kvcore.model.caches import CacheState, ChunkedLocal
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families.decoder import DECODERS, by_row, read_decoder
from kvcore.model.parts import blocks, image_encoders
from kvcore.model.parts import encoder as enc
from kvcore.model.parts.pattern import by_kind, layer_windows

Pieces = tuple[arch.Module, ...]

SLIDING: Final = "sliding_attention"
FULL: Final = "full_attention"


def read_gpt_oss(config: ModelConfig) -> arch.Architecture:
    """gpt-oss: every other layer slides, attention sinks, experts with biases, float32 rotary table.

    Source: vllm/model_executor/models/gpt_oss.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section)
    modules: Pieces = (
        *blocks.attention(heads, qkv_bias=True, out_bias=True),
        arch.Parameter(name="self_attn.sinks", sharded=heads.num_heads),
    )
    windows = (section.integer("sliding_window"), None)
    mixers = by_kind(
        (windows[index % 2] for index in range(section.layers())),
        lambda window: arch.Layer(modules=modules, caches=(blocks.cache_of(heads, window),)),
    )
    built = read_decoder(DECODERS["gpt_oss"], config, heads=heads, mixers=mixers)
    tables = tuple(replace(table, dtype="float32") for table in built.rotary_tables)
    return dataclasses.replace(built, rotary_tables=tables)


def read_llama4(config: ModelConfig) -> arch.Architecture:
    """Llama 4: chunked attention on layers with rotary positions, full on the others; experts every n-th layer.

    Source: vllm/model_executor/models/llama4.py, mllama4.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section)
    count = section.layers()
    step = section.integer("interleave_moe_layer_step", 1, minimum=0)
    written = section.integers("no_rope_layers") or ()
    interval = section.integer("no_rope_layer_interval", 4)
    rotary = written[:count] or tuple(int((index + 1) % interval != 0) for index in range(count))
    if len(rotary) < count:
        raise section.contradicting("no_rope_layers", f"{len(rotary)} entries for {count} layers")
    local: CacheState = blocks.cache_of(heads)
    if chunk := section.optional_integer("attention_chunk_size"):
        local = ChunkedLocal(
            num_kv_heads=heads.num_kv_heads,
            head_size=heads.head_dim,
            head_size_v=heads.head_dim,
            attention_chunk_size=chunk,
        )
    caches = {True: local, False: blocks.cache_of(heads)}
    modules = blocks.attention(heads)
    built = read_decoder(
        DECODERS["llama4"],
        config,
        heads=heads,
        mixers=by_kind(map(bool, rotary), lambda kind: arch.Layer(modules=modules, caches=(caches[kind],))),
        sparse=tuple(step > 0 and (index + 1) % step == 0 for index in range(count)),
        width=section.integer("intermediate_size_mlp"),
    )
    vision = config.root.optional_section("vision_config", "llama4_vision_model")
    if vision is None:
        return built
    encoder = enc.Encoder(modules=llama4_images(vision, heads.hidden_size))
    return enc.with_encoders(built, encoder, f"language_model.{built.layer_prefix}")


def llama4_images(section: Section, text: int) -> enc.Modules:
    """Llama 4's encoder with its projector.

    Source: vllm/model_executor/models/mllama4.py (0.32).
    """
    own = enc.read_sizes(section, is_checked=False)
    width, image, patch = own.width, section.integer("image_size"), section.integer("patch_size")
    between, out = section.integer("projector_input_dim"), section.integer("projector_output_dim")
    bias, pixels = section.boolean("multi_modal_projector_bias", False), patch**2
    encoder: enc.Modules = (
        blocks.column("patch_embedding.linear", section.integer("num_channels", 3) * pixels, width),
        enc.tensor("class_embedding", width),
        enc.tensor("positional_embedding_vlm", (image // patch) ** 2 + 1, width),
        *blocks.norms(width, "layernorm_pre", "layernorm_post", bias=True),
        blocks.column("vision_adapter.mlp.fc1", own.inner, between, bias=bias),
        blocks.row("vision_adapter.mlp.fc2", between, out, bias=bias),
    )
    projector = blocks.column("multi_modal_projector.linear_1", section.integer("vision_output_dim"), text)
    layers = enc.repeated("vision_model.model.layers", own.layers, enc.block(own, enc.LLAMA))
    return (*enc.behind("vision_model", encoder), projector, *layers)


def read_laguna(config: ModelConfig) -> arch.Architecture:
    """Laguna: layers with their own number of heads, a gate on the output of attention, windows with experts.

    Source: vllm/model_executor/models/laguna.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section)
    windows = layer_windows(section) if section.has("layer_types") else (None,) * section.layers()
    mixers = by_kind(
        zip(heads_by_layer(section, heads), windows, strict=True),
        lambda kind: arch.Layer(
            modules=laguna_attention(section, kind[0], is_sliding=kind[1] is not None),
            caches=(blocks.cache_of(*kind),),
        ),
    )
    width = section.integer("intermediate_size")
    return read_decoder(DECODERS["laguna"], config, heads=heads, mixers=mixers, width=width)


def heads_by_layer(section: Section, heads: blocks.Heads) -> tuple[blocks.Heads, ...]:
    """The attention geometry of each layer: its own number of heads, the same KV heads."""
    count = section.layers()
    own = section.integers("num_attention_heads_per_layer", minimum=1)
    if own is None:
        return (heads,) * count
    if len(own) < count:
        raise section.contradicting("num_attention_heads_per_layer", f"{len(own)} entries for {count} layers")
    return tuple(
        blocks.with_kv_heads(section, replace(heads, num_heads=number), heads.num_kv_heads)
        for number in own[:count]
    )


def laguna_attention(section: Section, heads: blocks.Heads, *, is_sliding: bool) -> Pieces:
    """Projections, norms, the gate and, in sliding layers of some models, one sink a head."""
    bias = section.boolean("attention_bias", False)
    modules: list[arch.Module] = [
        *blocks.attention(heads, qkv_bias=bias, out_bias=bias),
        *blocks.norms(heads.head_dim, "self_attn.q_norm", "self_attn.k_norm"),
        *blocks.norms(heads.hidden_size, *blocks.TWO_NORMS),
    ]
    gating = section.get("gating")
    if gating:
        is_per_head = gating is True or gating == "per-head"
        width = heads.num_heads * (1 if is_per_head else heads.head_dim)
        modules.append(blocks.column("self_attn.g_proj", heads.hidden_size, width))
    if is_sliding and section.boolean("swa_attention_sink_enabled", False):
        modules.append(arch.Parameter(name="self_attn.sink", sharded=heads.num_heads))
    return tuple(modules)


def read_step_flash(config: ModelConfig) -> arch.Architecture:
    """Step 3.5 Flash and 3.7 Flash.

    Source: vllm/model_executor/models/step3p5.py, step3p7.py (0.32).
    """
    section = config.language
    kv_key = "num_attention_groups" if section.has("num_attention_groups") else "num_key_value_heads"
    heads = blocks.read_heads(section, kv_key)
    count = section.layers()
    kinds = section.words("layer_types", (SLIDING, FULL)) or ()
    if kinds and len(kinds) < count:
        raise section.contradicting("layer_types", f"{len(kinds)} layer types for {count} layers")
    drafts = section.integer("num_nextn_predict_layers", 0, minimum=0, maximum=64)
    sliding = tuple(
        kinds[index] == SLIDING if index < len(kinds) else index % 2 == 0 for index in range(count + drafts)
    )
    mixers = by_kind(sliding, lambda is_sliding: step_attention(section, heads, is_sliding=is_sliding))
    width = section.integer("intermediate_size")
    built = read_decoder(
        DECODERS["step3p5"],
        config,
        heads=heads,
        mixers=mixers[:count],
        sparse=step_sparse_layers(section, count),
        width=width,
    )
    vision = config.root.optional_section("vision_config")
    seen = image_encoders.step_vision(config.root, heads.hidden_size) if vision is not None else None
    return dataclasses.replace(
        built,
        is_multimodal=seen is not None,
        every=seen.modules if seen else (),
        vision=seen.vision if seen else None,
        draft_layers=tuple(step_draft(section, mixer, heads.hidden_size, width) for mixer in mixers[count:]),
        draft_steps=drafts,
    )


def step_draft(section: Section, mixer: arch.Layer, hidden: int, width: int) -> arch.Layer:
    """A prediction layer: a dense layer behind a projection of two hidden states, with an lm_head of its own.

    Source: vllm/model_executor/models/step3p5_mtp.py (0.32).
    """
    start: Pieces = (
        blocks.replicated("eh_proj", 2 * hidden, hidden, quantizable=False),
        *blocks.norms(hidden, "enorm", "hnorm", "shared_head.norm"),
        blocks.head(section, "shared_head.head"),
    )
    return replace(mixer, modules=(*start, *mixer.modules, *blocks.gated_mlp(hidden, width)))


def step_sparse_layers(section: Section, count: int) -> tuple[bool, ...]:
    """Layers with experts: those that `moe_layers_enum` lists, or all after the dense ones."""
    listed = section.get("moe_layers_enum")
    if isinstance(listed, str):
        numbers = [part.strip() for part in listed.split(",")]
        if not all(part.isdigit() for part in numbers):
            raise section.invalid("moe_layers_enum", listed, "expected layer numbers with commas between")
        chosen = {int(part) for part in numbers}
        return tuple(index in chosen for index in range(count))
    dense = section.integer("first_k_dense_replace", 1, minimum=0)
    return tuple(index >= dense for index in range(count))


def step_attention(section: Section, heads: blocks.Heads, *, is_sliding: bool) -> arch.Layer:
    """Attention of one layer; sliding layers may have heads of their own."""
    own = heads
    other = section.optional_section("attention_other_setting")
    if is_sliding and other is not None and other.string("attention_type", SLIDING) == SLIDING:
        own = replace(
            heads,
            num_heads=other.integer("num_attention_heads", heads.num_heads),
            num_kv_heads=other.integer("num_attention_groups", heads.num_kv_heads),
            head_dim=other.integer("head_dim", heads.head_dim),
        )
    modules: Pieces = (
        *blocks.attention(own, qkv_bias=section.boolean("attention_bias", False)),
        *blocks.norms(own.head_dim, "self_attn.q_norm", "self_attn.k_norm"),
        *blocks.norms(own.hidden_size, *blocks.TWO_NORMS),
    )
    if section.boolean("use_head_wise_attn_gate", False):
        modules = (*modules, blocks.column("self_attn.g_proj", own.hidden_size, own.num_heads))
    window = section.integer("sliding_window") if is_sliding else None
    return arch.Layer(modules=modules, caches=(blocks.cache_of(own, window),))


READERS: Final = by_row(
    {
        "gpt_oss": read_gpt_oss,
        "llama4": read_llama4,
        "laguna": read_laguna,
        "step3p5": read_step_flash,
    }
)
