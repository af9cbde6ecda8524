"""Nemotron-H and 3, whose layers are each one of Mamba 2, attention, MLP or experts; Nemotron-NAS."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from kvcore.base.units import round_up
from kvcore.model import architecture as arch
from kvcore.model.config import MAX_LAYERS, ModelConfig, Section
from kvcore.model.families.decoder import DECODERS, attending, attention, by_row, read_decoder
from kvcore.model.parts import blocks
from kvcore.model.parts.experts import ExpertTraits, read_moe
from kvcore.model.parts.latent import latent_experts
from kvcore.model.parts.mixers import mamba2
from kvcore.model.parts.pattern import by_kind, with_modules

PATTERN: Final[Mapping[str, str]] = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""Kinds of layers by the letters of `hybrid_override_pattern`."""

NEMOTRON_H: Final = DECODERS["nemotron_h"]
EXPERTS: Final = NEMOTRON_H.experts or ExpertTraits()


def read_h(config: ModelConfig) -> arch.Architecture:
    """Nemotron-H and Nemotron 3: each layer is one of Mamba 2, attention, MLP or experts.

    Source: vllm/model_executor/models/nemotron_h.py, nemotron_h_mtp.py, config.py:NemotronHForCausalLMConfig (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section)
    written = section.optional_integer("attention_head_dim", minimum=1)
    if written is not None and not section.has("head_dim"):
        heads = replace(heads, head_dim=written)
    hidden = heads.hidden_size
    places = puzzle_blocks(section, "block_configs")
    kinds = kinds_of_blocks(places) or section.words("layers_block_type", PATTERN.values())
    if kinds is None:
        kinds = kinds_of_letters(section, "hybrid_override_pattern")
    elif not kinds:
        raise section.invalid("layers_block_type", kinds, "expected at least one layer")
    row, places = replace(NEMOTRON_H, experts=None), places or (section,) * len(kinds)
    sizes = [
        read_moe(EXPERTS, place) if kind == "moe" else None for kind, place in zip(kinds, places, strict=True)
    ]
    moe = max(
        filter(None, sizes), key=lambda each: each.num_experts * each.moe_intermediate_size, default=None
    )
    state_heads, width = section.integer("mamba_num_heads"), section.integer("mamba_head_dim")
    mixes = mamba2(section, "nemotron_h", "mixer", hidden, state_heads, width)
    windows = [
        place.optional_integer("sliding_window", minimum=1) if kind == "attention" else None
        for kind, place in zip(kinds, places, strict=True)
    ]
    widths = mlp_widths(section, kinds)
    bias = section.boolean("mlp_bias", False)

    def mixer(
        kind: str, width: int = 0, own: arch.MixtureOfExperts | None = None, window: int | None = None
    ) -> arch.Layer:
        if own is not None:
            return arch.Layer(modules=read_experts(section, hidden, own))
        if kind == "attention":
            return arch.Layer(
                modules=attention(row, section, heads), caches=(blocks.cache_of(heads, window),)
            )
        mlp = blocks.plain_mlp(hidden, width, "mixer.up_proj", "mixer.down_proj", bias=bias)
        return mixes if kind == "mamba" else arch.Layer(modules=mlp)

    behind = blocks.norms(hidden, "norm")
    built = read_decoder(
        row,
        config,
        heads=heads,
        mixers=by_kind(zip(kinds, widths, sizes, windows, strict=True), lambda kind: mixer(*kind)),
        sparse=(False,) * len(kinds),
        width=max(widths) or section.integer("moe_intermediate_size", state_heads * width),
        mlp=behind,
    )
    built = dataclasses.replace(built, moe=moe)
    drafts = section.integer("num_nextn_predict_layers", 0, minimum=0, maximum=64)
    if not drafts:
        return built
    own = puzzle_blocks(section, "mtp_block_configs")
    pattern = kinds_of_blocks(own) or section.words("mtp_layers_block_type", PATTERN.values())
    pattern = pattern or kinds_of_letters(section, "mtp_hybrid_override_pattern", "*E")
    steps = [
        with_modules(mixer(kind, own=read_moe(EXPERTS, place) if kind == "moe" else None), *behind)
        for kind, place in zip(pattern, own or (section,) * len(pattern), strict=True)
        if kind != "mlp" and (kind != "moe" or own or moe)
    ]
    if steps:
        projection = blocks.column("eh_proj", 2 * hidden, hidden)
        steps[0] = with_modules(steps[0], projection, *blocks.norms(hidden, "enorm", "hnorm"))
        steps[-1] = with_modules(steps[-1], blocks.norm("final_layernorm", hidden))
    return dataclasses.replace(
        built,
        draft_layers=tuple(steps) * drafts,
        draft_prefix="mtp.layers",
        drafts_are_quantized=False,
        draft_steps=drafts,
    )


def puzzle_blocks(section: Section, name: str) -> tuple[Section, ...]:
    """The keys of each layer, where a config gives some by the layer; () where it gives none.

    Source: vllm/model_executor/models/nemotron_h.py:get_nemotron_h_config_for_layer (0.32, 0.33).
    """
    written = section.sequence(name) or ()
    if len(written) > MAX_LAYERS or not all(isinstance(block, Mapping) for block in written):
        raise section.invalid(name, written, "expected objects")
    return tuple(Section({**section.raw, **block}, section.path, section.model_type) for block in written)


def kinds_of_blocks(places: tuple[Section, ...]) -> tuple[str, ...]:
    """The `block_type` of each layer."""
    for place in places:
        if place.string("block_type") not in PATTERN.values():
            raise place.invalid(
                "block_type", place.get("block_type"), "expected mamba, attention, mlp or moe"
            )
    return tuple(place.string("block_type") for place in places)


def kinds_of_letters(section: Section, name: str, default: str | None = None) -> tuple[str, ...]:
    """Kinds of layers by the letters of a pattern."""
    letters = section.string(name, default)
    if not letters or set(letters) - set(PATTERN) or len(letters) > MAX_LAYERS:
        raise section.invalid(name, letters, "expected the letters M, *, - and E")
    return tuple(PATTERN[letter] for letter in letters)


def mlp_widths(section: Section, kinds: tuple[str, ...]) -> tuple[int, ...]:
    """The width of each MLP layer, 0 for the others; the config has one for all, or one each."""
    if isinstance(section.get("intermediate_size"), list | tuple):
        widths = section.integers("intermediate_size", minimum=1) or ()
        if len(widths) not in (1, kinds.count("mlp")):
            raise section.contradicting(
                "intermediate_size", f"{len(widths)} widths for {kinds.count('mlp')} MLPs"
            )
    else:
        widths = (section.integer("intermediate_size"),) if "mlp" in kinds else ()
    remaining = iter(widths if len(widths) > 1 else widths * kinds.count("mlp"))
    return tuple(next(remaining) if kind == "mlp" else 0 for kind in kinds)


def read_experts(section: Section, hidden: int, moe: arch.MixtureOfExperts) -> tuple[arch.Module, ...]:
    """Router and experts without a gate, which may work in a narrower space than the model."""
    inner = section.optional_integer("moe_latent_size", minimum=1)
    bias = section.boolean("mlp_bias", False)
    ways: tuple[arch.Module, ...] = ()
    if inner is not None:
        ways = (
            blocks.replicated("mixer.fc1_latent_proj", hidden, inner, bias=bias),
            blocks.replicated("mixer.fc2_latent_proj", inner, hidden, bias=bias),
        )
    return latent_experts(EXPERTS, section, hidden, moe, inner, *ways)


MLP_MULTIPLE: Final = 256
"""Source: vllm/model_executor/models/nemotron_nas.py:_ffn_mult_to_intermediate_size (0.32)."""


def read_nas(config: ModelConfig) -> arch.Architecture:
    """Nemotron-NAS.

    Source: vllm/model_executor/models/nemotron_nas.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section, "")
    written = section.sequence("block_configs")
    if written is None:
        raise section.missing("block_configs")
    if len(written) != section.layers():
        raise section.contradicting("block_configs", f"{len(written)} blocks for {section.layers()} layers")
    shapes = []
    for index, raw in enumerate(written):
        if not isinstance(raw, Mapping):
            raise section.invalid("block_configs", raw, "expected objects")
        block = Section(raw, f"{section.path}.block_configs[{index}]", "")
        shapes.append((kv_heads_of(block, heads), mlp_size_of(block, heads.hidden_size)))
    layers = by_kind(shapes, lambda shape: nas_layer(section, heads, *shape))
    kv_heads = next((count for count, _ in shapes if count), None)
    if kv_heads is None:
        raise section.contradicting("block_configs", "no block has attention")
    return blocks.decoder(
        config,
        heads=blocks.with_kv_heads(section, heads, kv_heads),
        layers=layers,
        intermediate_size=max(size for _, size in shapes) or heads.hidden_size,
    )


def nas_layer(section: Section, heads: blocks.Heads, kv_heads: int, mlp_size: int) -> arch.Layer:
    """One layer; a part of size 0 is not there, and its norm neither."""
    row, hidden, layer = DECODERS["nemotron-nas"], heads.hidden_size, arch.Layer(modules=())
    before, between = blocks.norms(hidden, *row.layer_norms)
    if kv_heads:
        own = blocks.with_kv_heads(section, heads, kv_heads)
        layer = with_modules(attending(row, section, own)[0], before)
    if mlp_size:
        bias = blocks.flag(section, row.mlp_bias)
        layer = with_modules(layer, *blocks.gated_mlp(hidden, mlp_size, bias=bias), between)
    return layer


def kv_heads_of(block: Section, heads: blocks.Heads) -> int:
    """KV heads of a block; 0 without attention."""
    if (part := part_of(block, "attention")) is None:
        return 0
    group = part.integer("n_heads_in_group", maximum=heads.num_heads)
    if heads.num_heads % group:
        raise part.contradicting("n_heads_in_group", f"{heads.num_heads} heads are no multiple of {group}")
    return heads.num_heads // group


def mlp_size_of(block: Section, hidden_size: int) -> int:
    """Width of a block's MLP; 0 without one."""
    if (part := part_of(block, "ffn")) is None:
        return 0
    if part.has("ffn_mult"):
        factor = part.number("ffn_mult")
        if not 0 < factor <= MAX_LAYERS:
            raise part.invalid("ffn_mult", factor, "expected a factor above 0")
        return round_up(int(2 * factor * hidden_size / 3), MLP_MULTIPLE)
    return part.integer("intermediate_size")


def part_of(block: Section, name: str) -> Section | None:
    """A part of a block, None where the block is without. One linear layer in its place the engine does not run."""
    part = block.section(name)
    if part.boolean("replace_with_linear", False):
        raise part.contradicting(
            "replace_with_linear", "the engine runs no block that was replaced by a linear layer"
        )
    return None if part.boolean("no_op", False) else part


READERS: Final = by_row({"nemotron_h": read_h, "nemotron-nas": read_nas})
