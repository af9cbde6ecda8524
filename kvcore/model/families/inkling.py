"""Inkling: attention with relative positions and short convolutions, full or in windows; experts and shared ones."""

from __future__ import annotations

import dataclasses
import math
from itertools import combinations, pairwise
from typing import Final

from msgspec.structs import replace

from kvcore.base.units import round_up
from kvcore.model import architecture as arch
from kvcore.model.caches import InputWindow
from kvcore.model.config import ModelConfig, Section
from kvcore.model.parts import blocks
from kvcore.model.parts.experts import MAX_EXPERTS
from kvcore.model.parts.mixers import wide_column

GATE_ROWS: Final = 8
"""Rows of a router are padded to a multiple of this. Source: vllm/models/inkling/nvidia/moe.py:InklingGate (0.33)."""
MAX_FACTOR: Final = 4096


def read(config: ModelConfig) -> arch.Architecture:
    """Inkling, alone or behind its encoders.

    Source: vllm/models/inkling/configs.py, nvidia/model.py, attention.py, moe.py, mlp.py (0.33).
    """
    section = config.language
    moe = read_experts(section)
    count, hidden = section.layers(), section.integer("hidden_size")
    local = frozenset(section.integers("local_layer_ids", minimum=0) or ())
    dense = section.integer("dense_mlp_idx", 0, minimum=0)
    kinds = [(index in local, index < dense) for index in range(count)]
    layers = {kind: decoder_layer(section, moe, is_local=kind[0], is_dense=kind[1]) for kind in set(kinds)}
    vocab = section.optional_integer("padded_vocab_size", minimum=1) or section.integer("vocab_size", 201_024)
    around = [arch.Parameter(name="model.embed_tokens", replicated=vocab * hidden)]
    if section.boolean("use_embed_norm", False):
        around.append(blocks.norm("model.embed_norm", hidden))
    built = blocks.decoder(
        config,
        section=section,
        heads=read_heads(section, is_local=False),
        layers=tuple(layers[kind] for kind in kinds),
        intermediate_size=dense_width(section),
        first=tuple(around),
        last=(blocks.norm("model.norm", hidden), blocks.head(section, vocab_size=vocab)),
        tied=False,
        rotary_tables=(),
        moe=moe,
        vocab_size=vocab,
    )
    encoders = (*image_encoder(config), *audio_encoder(config))
    return dataclasses.replace(built, every=encoders, is_multimodal=config.language is not config.root)


def read_heads(section: Section, *, is_local: bool) -> blocks.Heads:
    """Heads of full attention or of the windows, which have their own where the config says so."""
    heads = blocks.read_heads(section)
    if not is_local:
        return heads
    return replace(
        heads,
        num_heads=section.integer("swa_num_attention_heads", heads.num_heads),
        num_kv_heads=section.integer("swa_num_key_value_heads", heads.num_kv_heads),
        head_dim=section.integer("swa_head_dim", heads.head_dim),
    )


def dense_width(section: Section) -> int:
    """Width of the MLP of layers without experts."""
    return section.integer("dense_intermediate_size", section.integer("intermediate_size"))


def read_experts(section: Section) -> arch.MixtureOfExperts:
    """Sizes of the experts; the shared ones are as wide as the routed ones."""
    width = section.integer("moe_intermediate_size", section.integer("intermediate_size"))
    shared = section.integer("n_shared_experts", minimum=1, maximum=MAX_EXPERTS)
    return arch.MixtureOfExperts(
        num_experts=section.integer("n_routed_experts", maximum=MAX_EXPERTS),
        top_k=section.integer("num_experts_per_tok", maximum=MAX_EXPERTS),
        moe_intermediate_size=width,
        shared_intermediate_size=shared * width,
    )


def decoder_layer(
    section: Section, moe: arch.MixtureOfExperts, *, is_local: bool, is_dense: bool
) -> arch.Layer:
    """One layer. The caches of its convolutions come before that of attention."""
    heads, hidden = read_heads(section, is_local=is_local), section.integer("hidden_size")
    kernel = section.integer(
        "sconv_kernel_size", section.integer("conv_kernel_size", 4), minimum=2, maximum=64
    )
    window = section.integer("sliding_window_size", 512)
    positions = window if is_local else section.integer("rel_extent", 1024)
    row = 2 * heads.head_dim + 2 * (hidden // heads.num_kv_heads)
    convolved = InputWindow(
        num_kv_heads=heads.num_kv_heads, row_elements=1 << (row - 1).bit_length(), kernel=kernel
    )
    return arch.Layer(
        modules=(
            *attention(section, heads, positions),
            *convolutions(heads, kernel),
            *(dense_mlp(section, hidden) if is_dense else experts(section, hidden, moe)),
            *blocks.norms(hidden, "attn_norm", "mlp_norm"),
        ),
        caches=(convolved, blocks.cache_of(heads, window if is_local else None)),
    )


def attention(section: Section, heads: blocks.Heads, positions: int) -> tuple[arch.Module, ...]:
    """Queries, keys, values and relative positions from one projection; norms of queries and keys.

    Source: vllm/models/inkling/nvidia/attention.py:InklingAttention (0.33).
    """
    relative = section.integer("d_rel", 16)
    keys = arch.Output(units=heads.num_kv_heads, width=heads.head_dim, replicable=True)
    queries = arch.Output(units=heads.num_heads, width=heads.head_dim)
    outputs = (queries, keys, keys, arch.Output(units=heads.num_heads, width=relative))
    parts = tuple(f"attn.{name}" for name in ("wq_du", "wk_dv", "wv_dv", "wr_du"))
    attended = heads.num_heads * heads.head_dim
    return (
        wide_column("attn.qkvr", heads.hidden_size, outputs, parts, bias=section.boolean("q_bias", False)),
        blocks.row("attn.wo_ud", attended, heads.hidden_size, bias=section.boolean("o_bias", False)),
        arch.Parameter(name="attn.rel_logits_proj.proj", replicated=relative * positions),
        *blocks.norms(heads.head_dim, "attn.q_norm", "attn.k_norm"),
    )


def convolutions(heads: blocks.Heads, kernel: int) -> tuple[arch.Module, ...]:
    """Convolutions over keys and values, divided like them, and over outputs of attention and MLP, divided by channels.

    Source: vllm/models/inkling/nvidia/short_conv.py:InklingShortConv (0.33).
    """
    keys = arch.Output(units=heads.num_kv_heads, width=heads.head_dim, replicable=True)
    return (
        *(
            replace(wide_column(f"attn.{name}_sconv", kernel, (keys,)), quantizable=False)
            for name in ("k", "v")
        ),
        *(
            arch.Parameter(name=f"{name}_sconv", sharded=heads.hidden_size, replicated=kernel)
            for name in ("attn", "mlp")
        ),
    )


def dense_mlp(section: Section, hidden: int) -> tuple[arch.Module, ...]:
    """The MLP of a layer without experts."""
    width = dense_width(section)
    modules: tuple[arch.Module, ...] = (
        replace(blocks.column("mlp.gate_up_proj", hidden, 2 * width), parts=("mlp.w13_dn",)),
        replace(blocks.row("mlp.down_proj", width, hidden), parts=("mlp.w2_md",)),
    )
    scale = arch.Parameter(name="mlp.global_scale")
    return (*modules, scale) if section.boolean("use_global_scale", False) else modules


def experts(section: Section, hidden: int, moe: arch.MixtureOfExperts) -> tuple[arch.Module, ...]:
    """Router, routed experts, and shared ones in 16 bits that tensor parallelism divides."""
    shared = moe.shared_intermediate_size
    rows = round_up(moe.num_experts + shared // moe.moe_intermediate_size, GATE_ROWS)
    modules: list[arch.Module] = [
        arch.Parameter(name="mlp.gate.weight", replicated=rows * hidden),
        arch.Experts(
            name="mlp.experts",
            num_experts=moe.num_experts,
            hidden_size=hidden,
            intermediate_size=moe.moe_intermediate_size,
            top_k=moe.top_k,
        ),
        arch.Parameter(name="mlp.shared_experts.w13_weight", sharded=shared, replicated=2 * hidden),
        arch.Parameter(name="mlp.shared_experts.w2_weight", sharded=shared, replicated=hidden),
    ]
    if section.boolean("use_global_scale", False):
        modules.append(arch.Parameter(name="mlp.gate.global_scale", dtype="float32"))
    if section.boolean("use_gate_bias", False):
        modules.append(arch.Parameter(name="mlp.gate.bias", replicated=moe.num_experts, dtype="float32"))
    return tuple(modules)


def audio_encoder(config: ModelConfig) -> tuple[arch.Module, ...]:
    """A table of levels of each band; () where the config has none.

    Source: vllm/models/inkling/common/towers.py:InklingAudio (0.33).
    """
    section = config.root.optional_section("audio_config")
    if section is None or section.get("decoder_dmodel") is None:
        return ()
    width = section.integer("decoder_dmodel")
    rows = section.integer("n_mel_bins") * section.integer("mel_vocab_size")
    table = arch.Parameter(name="audio.encoder", replicated=rows * width)
    normed = section.boolean("use_audio_norm")
    return (table, blocks.norm("audio.final_norm", width)) if normed else (table,)


def image_encoder(config: ModelConfig) -> tuple[arch.Module, ...]:
    """Linear layers that fold patches step by step; () where the config has none.

    Source: vllm/models/inkling/common/towers.py:HMLPPatchEncoder (0.33).
    """
    section = config.root.optional_section("vision_config")
    if section is None or section.get("decoder_dmodel") is None:
        return ()
    width, layers = section.integer("decoder_dmodel"), section.integer("n_layers", maximum=64)
    scales = fold_scales(
        section.integer("temporal_patch_size", maximum=MAX_FACTOR),
        section.integer("patch_size", minimum=2, maximum=MAX_FACTOR),
        layers,
        section.integer("n_channels", maximum=64),
    )
    modules: list[arch.Module] = []
    for index, ((before, wide), (after, wider)) in enumerate(pairwise(scales)):
        name, is_last = f"visual.vision_encoder.layers.linear_{index}", index == layers - 1
        modules.append(
            blocks.replicated(name, wide * (after // before), width if is_last else wider, quantizable=False)
        )
        if not is_last:
            modules.append(blocks.norm(f"visual.vision_encoder.layers.norm_{index}", wider))
    if section.boolean("use_vision_norm"):
        modules.append(blocks.norm("visual.vision_encoder.final_norm", width))
    return tuple(modules)


def fold_scales(frames: int, patch: int, layers: int, channels: int) -> list[tuple[int, int]]:
    """Values of a patch in each layer's input, and its channels.

    Of the steps by the prime factors of patch and frames, those nearest to equal ratios are taken.

    Source: vllm/models/inkling/common/towers.py:plan_out_scales (0.33).

    Example:
        >>> fold_scales(2, 4, 2, 3)
        [(1, 3), (16, 64), (32, 128)]
    """
    steps, side, depth = [(1, channels)], 1, 1
    for factor in reversed(prime_factors(patch)):
        side *= factor
        steps.append((side**2, round_up(side**2 * channels, 64)))
    for factor in reversed(prime_factors(frames)):
        depth *= factor
        steps.append((side**2 * depth, round_up(side**2 * channels * depth, 64)))
    most = math.log(patch * patch * frames * channels)
    costs = [[abs(at * (most / layers) - math.log(size)) for size, _ in steps] for at in range(layers + 1)]
    if layers >= len(steps):
        chosen = [min(range(len(steps)), key=row.__getitem__) for row in costs]
    else:
        ways = combinations(range(len(steps)), layers + 1)
        chosen = list(min(ways, key=lambda way: sum(row[at] for row, at in zip(costs, way, strict=True))))
    chosen[0], chosen[-1] = 0, len(steps) - 1
    return [steps[at] for at in chosen]


def prime_factors(number: int) -> list[int]:
    """Prime factors in ascending order.

    Example:
        >>> prime_factors(40)
        [2, 2, 2, 5]
    """
    found, factor = [], 2
    while factor <= number:
        if number % factor:
            factor += 1
            continue
        found.append(factor)
        number //= factor
    return found


READERS: Final = blocks.named(
    (read, "InklingForCausalLM InklingForConditionalGeneration inkling_model inkling_mm_model"),
)
