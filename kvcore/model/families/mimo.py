"""MiMo V2, V2.5 and V2.6: sliding layers with heads and sinks of their own, and encoders of images, video and sound."""

from __future__ import annotations

import dataclasses
from typing import Final

from msgspec.structs import replace

from kvcore.model import architecture as arch
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families.decoder import DECODERS, by_row, experts_of, read_decoder
from kvcore.model.parts import blocks, image_encoders
from kvcore.model.parts import encoder as enc

ROUTER_DTYPES: Final = {
    "float32": "float32",
    "float": "float32",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "half": "float16",
}
"""Names of a router's dtype. Source: vllm/utils/torch_utils.py:STR_DTYPE_TO_TORCH_DTYPE (0.33.0)."""

Pieces = tuple[arch.Module, ...]

IMAGE_TOKENS: Final = 8192
"""Of the largest image, 8,388,608 pixels / 32²: `image_max_pixels` of the processor_config in config.json."""
FRAMES: Final = 28
"""Two for each of the 14 seconds that are drawn: a second has two frames, so that each counts as a pair.

Source: vllm/model_executor/models/mimo_v2_omni.py:MiMoV2OmniProcessingInfo (0.33).
"""
QUERY_SIZE: Final = 64
"""Elements of a head of the image encoder, which published configs leave out.

Source: vllm/transformers_utils/configs/mimo_v2_omni.py:Mimo_VLVisionConfig (0.33).
"""


def encoders(root: Section) -> enc.Encoder:
    """That of images and video and, with `audio_config`, that of sound, none of which is quantized.

    What makes codes of sound is loaded from a folder of its own where the model is a folder, so it is not counted.

    Source: vllm/model_executor/models/mimo_v2_omni.py:MiMoV2OmniForCausalLM (0.33).
    """
    seen = image_encoder(root.section("vision_config"))
    sound = root.optional_section("audio_config")
    heard = sound_encoder(sound) if sound is not None else ()
    return replace(seen, modules=enc.changed((*seen.modules, *heard), quantizable=False))


def image_encoder(section: Section) -> enc.Encoder:
    """Qwen2.5-VL's with fewer KV heads, heads whose size the width does not give, and sinks where attention is local.

    Source: vllm/model_executor/models/mimo_v2_omni.py:MiMoVisionTransformer (0.33).
    """
    patch, merge = section.integer("patch_size", maximum=enc.MAX_PATCH), enc.read_merge(section, default=2)
    time, width = enc.read_merge(section, "temporal_patch_size", 2), section.integer("hidden_size")
    count, size = section.integer("num_heads"), section.integer("qk_channels", QUERY_SIZE)
    kv_heads = section.integer("num_key_value_heads", 8)
    own = enc.Sizes(
        width=width,
        inner=section.integer("intermediate_size"),
        heads=count,
        head=size,
        kv_heads=kv_heads,
        attended=count * section.integer("kv_channels", size),
        layers=section.layers("depth"),
    )
    vit = image_encoders.Squares(
        own=own, channels=enc.read_channels(section, "in_chans"), time=time, patch=patch, merge=merge
    )
    full = section.integers("fullatt_block_indexes", minimum=0) or ()
    layer, sinks = enc.gated_block(own), arch.Parameter(name="attn.sinks", replicated=count)
    local = (*layer, sinks) if section.boolean("use_sink", False) else layer
    modules = (
        *vit.patch_embed(bias=False),
        *(
            each
            for index in range(own.layers)
            for each in enc.behind(f"blocks.{index}", layer if index in full else local)
        ),
        enc.norm("merger.ln_q", width, bias=False),
        enc.column("merger.mlp.0", vit.merged, vit.merged, bias=False),
        enc.row("merger.mlp.2", vit.merged, section.integer("out_hidden_size"), bias=False),
    )
    return enc.seeing(
        enc.behind("visual", modules),
        own,
        IMAGE_TOKENS,
        merge**2,
        values_per_patch=vit.channels * time * patch**2,
        unit=patch * merge,
        draws_video=True,
        pair_tokens=IMAGE_TOKENS,
        most_frames=FRAMES,
    )


def sound_encoder(section: Section) -> Pieces:
    """Tables of codes, a small Qwen2 as transformers builds it, and a projection, whole on every rank.

    Source: vllm/model_executor/models/mimo_audio.py:MimoAudioEncoder (0.33).
    """
    width, group = section.integer("input_local_dim", 1024), section.integer("group_size", 4)
    channels, out = section.integer("audio_channels", 8), section.integer("out_hidden_size", 4096)
    inner, grouped = section.integer("input_local_intermediate_size", 4096), width * group
    layer: Pieces = (
        *(enc.whole(f"self_attn.{name}_proj", width, width) for name in "qkv"),
        enc.whole("self_attn.o_proj", width, width, bias=False),
        *(enc.whole(f"mlp.{name}_proj", width, inner, bias=False) for name in ("gate", "up")),
        enc.whole("mlp.down_proj", inner, width, bias=False),
        *blocks.norms(width, *blocks.TWO_NORMS),
    )
    projection = (
        (
            enc.whole("projection.mlp.0", grouped, 4 * grouped, bias=False),
            enc.whole("projection.mlp.2", 4 * grouped, out, bias=False),
        )
        if section.integer("projection_layers", 1) == 2
        else (enc.whole("projection", grouped, out, bias=False),)
    )
    table = enc.tensor("speech_embeddings", sum(table_rows(section, channels)), width)
    return enc.behind(
        "audio_encoder",
        (
            *enc.repeated("input_local_transformer.layers", section.layers("input_local_layers"), layer),
            *enc.when(
                section.boolean("add_post_norm", False), enc.tensor("input_local_transformer.norm", width)
            ),
            table,
            *projection,
        ),
    )


MAX_ROWS: Final = 2**20
"""Codes of one channel."""


def table_rows(section: Section, channels: int) -> tuple[int, ...]:
    """Codes of each channel: one number for all, or numbers in a text with hyphens between them.

    Example:
        >>> table_rows(Section({"speech_vocab_size": "1025-129"}, "audio_config"), 2)
        (1025, 129)
    """
    written = str(section.get("speech_vocab_size"))
    numbers = written.split("-")
    if not all(each.isdecimal() and len(each) < 8 for each in numbers):
        raise section.invalid("speech_vocab_size", written, "expected numbers with hyphens between them")
    rows = tuple(int(each) for each in numbers)
    if not 0 < len(rows) <= channels or max(rows) > MAX_ROWS:
        raise section.invalid("speech_vocab_size", written, f"expected one number or {channels}")
    return rows if len(rows) > 1 else rows * channels


def read_mimo_v2(config: ModelConfig) -> arch.Architecture:
    """MiMo V2: two attention geometries with narrower values, sinks on sliding layers, experts after the first layer.

    With `vision_config` the engine takes its class with encoders whatever class the config names.

    Source: vllm/model_executor/models/mimo_v2.py (0.32), vllm/transformers_utils/model_arch_config_convertor.py:
    MimoV2ModelArchConfigConvertor (0.33).
    """
    section = config.language
    count = section.layers()
    pattern = section.integers("hybrid_layer_pattern") or ()
    sparse = section.integers("moe_layer_freq") or ()
    if len(pattern) < count or len(sparse) < count:
        raise section.contradicting("hybrid_layer_pattern", f"patterns shorter than {count} layers")
    plain = blocks.read_heads(section)
    heads = replace(plain, value_dim=section.integer("v_head_dim", plain.head_dim))
    size = section.integer("swa_head_dim", heads.head_dim)
    local = blocks.Heads(
        hidden_size=heads.hidden_size,
        num_heads=section.integer("swa_num_attention_heads", heads.num_heads),
        num_kv_heads=section.integer("swa_num_key_value_heads", heads.num_kv_heads),
        head_dim=size,
        value_dim=section.integer("swa_v_head_dim", size),
    )
    kinds = {False: mimo_attention(section, heads), True: mimo_attention(section, local, is_sliding=True)}
    named = section.string("moe_router_dtype", "float32")
    if (router_dtype := ROUTER_DTYPES.get(named)) is None:
        raise section.invalid("moe_router_dtype", named, f"expected one of {', '.join(ROUTER_DTYPES)}")
    experts = replace(experts_of("mimo_v2"), router_dtype=router_dtype)
    width = section.integer("intermediate_size")
    positions = section.integer("max_position_embeddings")
    share = section.number("partial_rotary_factor", 1.0)
    built = read_decoder(
        replace(DECODERS["mimo_v2"], experts=experts),
        config,
        heads=heads,
        mixers=tuple(kinds[number == 1] for number in pattern[:count]),
        sparse=tuple(map(bool, sparse[:count])),
        width=width,
        rotary_tables=tuple(
            arch.RotaryTable(max_positions=positions, rotary_dim=int(dim * share))
            for dim in (heads.head_dim, local.head_dim)
        ),
    )
    draft = mimo_draft(kinds[True], heads.hidden_size, width)
    built = dataclasses.replace(built, draft_layers=(draft,), draft_prefix="model.mtp.layers", draft_steps=1)
    if config.root.optional_section("vision_config") is None:
        return built
    return enc.with_encoders(built, encoders(config.root))


def mimo_draft(sliding: arch.Layer, hidden: int, width: int) -> arch.Layer:
    """The one prediction layer that the engine takes: a sliding layer with an MLP behind a projection of two states.

    Source: vllm/model_executor/models/mimo_v2_mtp.py (0.32).
    """
    start: Pieces = (
        blocks.replicated("eh_proj", 2 * hidden, hidden, quantizable=False),
        *blocks.norms(hidden, "enorm", "hnorm", "final_layernorm"),
    )
    plain = (
        replace(each, quantizable=False)
        if isinstance(each, arch.Linear) and each.name == "self_attn.o_proj"
        else each
        for each in sliding.modules
    )
    return replace(sliding, modules=(*start, *plain, *blocks.gated_mlp(hidden, width)))


def mimo_attention(section: Section, heads: blocks.Heads, *, is_sliding: bool = False) -> arch.Layer:
    """Attention of one layer, with its norms and, where it slides, one sink a head."""
    bias = section.boolean("attention_bias", False)
    modules: Pieces = (
        *blocks.attention(heads, qkv_bias=bias),
        *blocks.norms(heads.hidden_size, *blocks.TWO_NORMS),
    )
    if is_sliding and section.boolean("add_swa_attention_sink_bias", False):
        sink = arch.Parameter(name="self_attn.attention_sink_bias", sharded=heads.num_heads)
        modules = (*modules, sink)
    window = None
    if is_sliding:
        window = section.integer("sliding_window_size", section.integer("sliding_window", 128))
    return arch.Layer(modules=modules, caches=(blocks.cache_of(heads, window),))


READERS: Final = by_row({"mimo_v2": read_mimo_v2})
