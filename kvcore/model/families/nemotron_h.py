"""Nemotron-H and Nemotron 3: every layer is one of Mamba 2, attention, MLP or experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kvcore.model.architecture import (
    Architecture,
    Layer,
    Linear,
    MixtureOfExperts,
    Module,
    Parameter,
)
from kvcore.model.config import MAX_LAYERS, ModelConfig, Section
from kvcore.model.families.state_space import MAX_EXPERTS, experts_of
from kvcore.model.parts.blocks import (
    Heads,
    attention,
    beside_expert_ranks,
    cache_of,
    column,
    decoder,
    embedding,
    head,
    norm,
    norms,
    plain_mlp,
    read_heads,
    replicated,
)
from kvcore.model.parts.states import Mamba2, read_conv_kernel

PATTERN: Final[Mapping[str, str]] = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""What the letters of `hybrid_override_pattern` stand for."""


def read_nemotron_h(config: ModelConfig) -> Architecture:
    """Nemotron-H and Nemotron 3: each layer is one of Mamba 2, attention, MLP or experts.

    Source: vllm/model_executor/models/nemotron_h.py, config.py:NemotronHForCausalLMConfig (0.32).
    """
    section = config.language
    heads = nemotron_heads(section)
    hidden = heads.hidden_size
    kinds = nemotron_kinds(section)
    moe = nemotron_moe(section) if "moe" in kinds else None
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
    cache: dict[tuple[str, int], Layer] = {}
    order = []
    for kind, width in zip(kinds, widths, strict=True):
        if (kind, width) not in cache:
            body = bodies.get(kind) or Layer(modules=nemotron_mlp(section, hidden, width))
            cache[kind, width] = replace(body, modules=(*body.modules, norm("norm", hidden)))
        order.append(cache[kind, width])
    tied = section.boolean("tie_word_embeddings", False)
    built = decoder(
        config,
        section,
        heads=heads,
        layers=tuple(order),
        intermediate_size=max(widths) or section.integer("moe_intermediate_size", mixer.intermediate_size),
        first=(embedding(section, "backbone.embeddings"),),
        last=(norm("backbone.norm_f", hidden), *(() if tied else (head(section),))),
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


def nemotron_moe(section: Section) -> MixtureOfExperts:
    """The experts of Nemotron 3."""
    shared = section.integer("n_shared_experts", 0, minimum=0, maximum=MAX_EXPERTS)
    width = section.integer("moe_shared_expert_intermediate_size", 0, minimum=0)
    return MixtureOfExperts(
        num_experts=section.integer("n_routed_experts", maximum=MAX_EXPERTS),
        top_k=section.integer("num_experts_per_tok"),
        moe_intermediate_size=section.integer("moe_intermediate_size"),
        shared_intermediate_size=shared * width,
    )


def latent_experts(section: Section, hidden: int, moe: MixtureOfExperts) -> tuple[Module, ...]:
    """Router and experts without a gate, which may work in a narrower space than the model."""
    latent = section.optional_integer("moe_latent_size", minimum=1)
    bias = section.boolean("mlp_bias", False)
    modules: list[Module] = [
        replicated("mixer.gate", hidden, moe.num_experts, quantizable=False),
        Parameter(name="mixer.gate.e_score_correction_bias", replicated=moe.num_experts, dtype="float32"),
        replace(experts_of(moe, latent or hidden, "mixer.experts"), gated=False),
    ]
    if latent is not None:
        modules += [
            replicated("mixer.fc1_latent_proj", hidden, latent, bias=bias),
            replicated("mixer.fc2_latent_proj", latent, hidden, bias=bias),
        ]
    if moe.shared_intermediate_size:
        prefix = "mixer.shared_experts"
        modules += beside_expert_ranks(
            plain_mlp(hidden, moe.shared_intermediate_size, f"{prefix}.up_proj", f"{prefix}.down_proj")
        )
    return tuple(modules)


READERS: Final[Mapping[str, object]] = {
    "NemotronHForCausalLM": read_nemotron_h,
    "nemotron_h": read_nemotron_h,
}
