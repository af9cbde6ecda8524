"""Nemotron-H and 3, whose layers are each one of Mamba 2, attention, MLP or experts; Nemotron-NAS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kvcore.model.architecture import Architecture, CacheState, Layer, Linear, MixtureOfExperts, Module
from kvcore.model.config import MAX_LAYERS, ModelConfig, Section
from kvcore.model.parts.blocks import (
    Heads,
    attention,
    cache_of,
    column,
    decoder,
    embedding,
    gated_mlp,
    named,
    norm,
    norms,
    plain_mlp,
    read_heads,
    replicated,
    with_kv_heads,
)
from kvcore.model.parts.experts import CORRECTED_FIRST, ExpertTraits, expert_modules, read_moe, shared_experts
from kvcore.model.parts.mixers import Mamba2, read_conv_kernel
from kvcore.model.parts.pattern import by_kind, with_modules
from kvcore.units import round_up

PATTERN: Final[Mapping[str, str]] = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""What the letters of `hybrid_override_pattern` stand for."""


def read_h(config: ModelConfig) -> Architecture:
    """Nemotron-H and Nemotron 3: each layer is one of Mamba 2, attention, MLP or experts.

    Source: vllm/model_executor/models/nemotron_h.py, config.py:NemotronHForCausalLMConfig (0.32).
    """
    section = config.language
    heads = nemotron_heads(section)
    hidden = heads.hidden_size
    kinds = nemotron_kinds(section)
    moe = read_moe(EXPERTS, section) if "moe" in kinds else None
    mixer = Mamba2(
        hidden_size=hidden,
        num_heads=section.integer("mamba_num_heads"),
        head_dim=section.integer("mamba_head_dim"),
        n_groups=section.integer("n_groups"),
        state_size=section.integer("ssm_state_size"),
        conv_kernel=read_conv_kernel(section, "conv_kernel"),
        conv_bias=section.boolean("use_conv_bias", True),
        bias=section.boolean("use_bias", False),
        state_dtype=section.string("mamba_ssm_cache_dtype", "float32"),
        chunk_size=section.integer("chunk_size", 2048, minimum=1),
    )
    bodies = {
        "mamba": Layer(modules=mixer.modules("mixer"), caches=(mixer.cache,)),
        "attention": Layer(modules=attention(heads, "mixer"), caches=(cache_of(heads),)),
    }
    if moe is not None:
        bodies["moe"] = Layer(modules=latent_experts(section, hidden, moe))
    widths = mlp_widths(section, kinds)

    def layer(kind: str, width: int) -> Layer:
        body = bodies.get(kind) or Layer(modules=nemotron_mlp(section, hidden, width))
        return with_modules(body, norm("norm", hidden))

    tied = section.boolean("tie_word_embeddings", False)
    built = decoder(
        config,
        heads=heads,
        layers=by_kind(zip(kinds, widths, strict=True), lambda kind: layer(*kind)),
        intermediate_size=max(widths) or section.integer("moe_intermediate_size", mixer.intermediate_size),
        first=(embedding(section, "backbone.embeddings"),),
        final_norm="backbone.norm_f",
        tied=tied,
        rotary_tables=(),
        layer_prefix="backbone.layers",
        moe=moe,
    )
    drafts = section.integer("num_nextn_predict_layers", 0, minimum=0, maximum=64)
    if not drafts:
        return built
    letters_key = "mtp_hybrid_override_pattern"
    pattern = section.words("mtp_layers_block_type", PATTERN.values()) or _kinds_of(
        section, letters_key, section.string(letters_key, "*E")
    )
    steps = tuple(bodies[kind] for kind in pattern if kind in bodies)
    return replace(
        built,
        draft_layers=nemotron_drafts(steps, hidden) * drafts,
        draft_prefix="mtp.layers",
        drafts_are_quantized=False,
        draft_steps=drafts,
    )


def nemotron_drafts(steps: tuple[Layer, ...], hidden: int) -> tuple[Layer, ...]:
    """The layers of one prediction step: a projection of two hidden states, the layers, a norm.

    Source: vllm/model_executor/models/nemotron_h_mtp.py (0.32).
    """
    if not steps:
        return ()
    layers = [replace(step, modules=(*step.modules, norm("norm", hidden))) for step in steps]
    start: tuple[Module, ...] = (column("eh_proj", 2 * hidden, hidden), *norms(hidden, "enorm", "hnorm"))
    layers[0] = replace(layers[0], modules=(*start, *layers[0].modules))
    layers[-1] = replace(layers[-1], modules=(*layers[-1].modules, norm("final_layernorm", hidden)))
    return tuple(layers)


def nemotron_heads(section: Section) -> Heads:
    """Attention heads, whose size has two spellings."""
    heads = read_heads(section)
    written = section.optional_integer("attention_head_dim", minimum=1)
    if written is None or section.has("head_dim"):
        return heads
    return replace(heads, head_dim=written)


def nemotron_kinds(section: Section) -> tuple[str, ...]:
    """What each layer is, by `layers_block_type` or the letters of `hybrid_override_pattern`."""
    kinds = section.words("layers_block_type", PATTERN.values())
    if kinds is None:
        pattern = section.string("hybrid_override_pattern")
        kinds = _kinds_of(section, "hybrid_override_pattern", pattern)
    if not kinds:
        raise section.invalid("layers_block_type", kinds, "expected at least one layer")
    return kinds


def _kinds_of(section: Section, name: str, letters: str) -> tuple[str, ...]:
    """What the letters of a pattern stand for."""
    if not letters or set(letters) - set(PATTERN) or len(letters) > MAX_LAYERS:
        raise section.invalid(name, letters, "expected the letters M, *, - and E")
    return tuple(PATTERN[letter] for letter in letters)


def mlp_widths(section: Section, kinds: tuple[str, ...]) -> tuple[int, ...]:
    """The width of each MLP layer, 0 for the others; the config has one for all, or one each."""
    written = section.get("intermediate_size")
    if not isinstance(written, list | tuple):
        width = section.integer("intermediate_size") if "mlp" in kinds else 0
        return tuple(width if kind == "mlp" else 0 for kind in kinds)
    widths = section.integers("intermediate_size", minimum=1) or ()
    if len(widths) not in (1, kinds.count("mlp")):
        raise section.contradicting(
            "intermediate_size", f"{len(widths)} widths for {kinds.count('mlp')} MLPs"
        )
    remaining = iter(widths if len(widths) > 1 else widths * kinds.count("mlp"))
    return tuple(next(remaining) if kind == "mlp" else 0 for kind in kinds)


def nemotron_mlp(section: Section, hidden: int, width: int) -> tuple[Linear, ...]:
    """An MLP without a gate."""
    bias = section.boolean("mlp_bias", False)
    return plain_mlp(hidden, width, "mixer.up_proj", "mixer.down_proj", bias=bias)


EXPERTS: Final = ExpertTraits(
    experts_key="n_routed_experts",
    shared_count_key="n_shared_experts",
    prefix="mixer",
    correction_bias=True,
    gated=False,
    shared_whole=True,
    order=CORRECTED_FIRST,
)


def latent_experts(section: Section, hidden: int, moe: MixtureOfExperts) -> tuple[Module, ...]:
    """Router and experts without a gate, which may work in a narrower space than the model."""
    latent = section.optional_integer("moe_latent_size", minimum=1)
    bias = section.boolean("mlp_bias", False)
    routed = replace(moe, shared_intermediate_size=0)
    modules = [*expert_modules(EXPERTS, section, hidden, routed, inner_size=latent)]
    if latent is not None:
        modules += [
            replicated("mixer.fc1_latent_proj", hidden, latent, bias=bias),
            replicated("mixer.fc2_latent_proj", latent, hidden, bias=bias),
        ]
    if moe.shared_intermediate_size:
        modules += shared_experts(EXPERTS, hidden, moe.shared_intermediate_size)
    return tuple(modules)


MLP_MULTIPLE: Final = 256
"""Source: vllm/model_executor/models/nemotron_nas.py:_ffn_mult_to_intermediate_size (0.32)."""


def read_nas(config: ModelConfig) -> Architecture:
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
            known[shape] = nas_layer(section, heads, *shape)
        layers.append(known[shape])
    if not any(layer.caches for layer in layers):
        raise section.contradicting("block_configs", "no block has attention")
    widest = max(size for _, size in known)
    kv_heads = next(count for count, _ in known if count)
    return decoder(
        config,
        heads=with_kv_heads(section, heads, kv_heads),
        layers=tuple(layers),
        intermediate_size=widest or heads.hidden_size,
    )


def nas_layer(section: Section, heads: Heads, kv_heads: int, mlp_size: int) -> Layer:
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


READERS: Final = named(
    (read_h, "NemotronHForCausalLM", "nemotron_h"),
    (read_nas, "DeciLMForCausalLM", "nemotron-nas"),
)
