"""Mamba and its hybrids with attention: Mamba, Falcon-Mamba, Mamba 2, Jamba, Falcon-H1, Bamba,
Granite 4.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvcore.model import architecture as arch
from kvcore.model.config import ModelConfig, Section
from kvcore.model.parts import blocks
from kvcore.model.parts.experts import BLOCK_SPARSE, ExpertTraits, expert_modules, optional_moe, read_moe
from kvcore.model.parts.mixers import Mamba1, Mamba2, read_conv_kernel
from kvcore.model.parts.pattern import by_kind, with_modules
from kvcore.units import ceil_div

ATTENTION_FREE: Final = blocks.Heads(hidden_size=0, num_heads=0, num_kv_heads=0, head_dim=0)


def read_mamba(config: ModelConfig) -> arch.Architecture:
    """Mamba and Falcon-Mamba: nothing but Mamba 1 mixers.

    Source: vllm/model_executor/models/mamba.py (0.32).
    """
    section = config.language
    hidden = section.integer("hidden_size")
    expanded = section.optional_integer("intermediate_size", minimum=1)
    mixer = Mamba1(
        hidden_size=hidden,
        intermediate_size=expanded or section.integer("expand") * hidden,
        state_size=section.integer("state_size"),
        conv_kernel=read_conv_kernel(section, "conv_kernel"),
        time_step_rank=time_step_rank(section, "time_step_rank", hidden),
        conv_bias=section.boolean("use_conv_bias", True),
        bias=section.boolean("use_bias", False),
    )
    layer = arch.Layer(modules=(*mixer.modules("mixer"), blocks.norm("norm", hidden)), caches=(mixer.cache,))
    return pure(config, section, layer, mixer.intermediate_size)


def read_mamba2(config: ModelConfig) -> arch.Architecture:
    """Mamba 2 alone.

    Source: vllm/model_executor/models/mamba2.py (0.32).
    """
    section = config.language
    hidden = section.integer("hidden_size")
    mixer = Mamba2(
        hidden_size=hidden,
        num_heads=section.integer("num_heads"),
        head_dim=section.integer("head_dim"),
        n_groups=section.integer("n_groups"),
        state_size=section.integer("state_size"),
        conv_kernel=read_conv_kernel(section, "conv_kernel"),
        conv_bias=section.boolean("use_conv_bias", True),
        bias=section.boolean("use_bias", False),
        chunk_size=section.integer("chunk_size", 2048, minimum=1),
    )
    layer = arch.Layer(modules=(*mixer.modules("mixer"), blocks.norm("norm", hidden)), caches=(mixer.cache,))
    return pure(config, section, layer, mixer.intermediate_size)


def pure(
    config: ModelConfig, section: Section, layer: arch.Layer, intermediate_size: int
) -> arch.Architecture:
    """A model without attention."""
    hidden = section.integer("hidden_size")
    tied = section.boolean("tie_word_embeddings", True)
    return blocks.decoder(
        config,
        section=section,
        heads=replace(ATTENTION_FREE, hidden_size=hidden),
        layers=(layer,) * section.layers(),
        intermediate_size=intermediate_size,
        first=(blocks.embedding(section, "backbone.embeddings"),),
        final_norm="backbone.norm_f",
        tied=tied,
        rotary_tables=(),
        layer_prefix="backbone.layers",
    )


def time_step_rank(section: Section, key: str, hidden_size: int) -> int:
    """The rank of the time step projection; `auto` is a sixteenth of the hidden size."""
    if section.get(key) == "auto":
        return ceil_div(hidden_size, 16)
    return section.integer(key)


JAMBA_EXPERTS: Final = ExpertTraits(
    intermediate_key="intermediate_size", prefix="feed_forward", router="router"
)


def read_jamba(config: ModelConfig) -> arch.Architecture:
    """Jamba: Mamba 1, every n-th layer attention, every n-th MLP experts.

    Source: vllm/model_executor/models/jamba.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section, reads_head_dim=False)
    hidden, intermediate = heads.hidden_size, section.integer("intermediate_size")
    mixer = Mamba1(
        hidden_size=hidden,
        intermediate_size=section.integer("mamba_expand") * hidden,
        state_size=section.integer("mamba_d_state"),
        conv_kernel=read_conv_kernel(section, "mamba_d_conv"),
        time_step_rank=time_step_rank(section, "mamba_dt_rank", hidden),
        conv_bias=section.boolean("mamba_conv_bias", True),
        bias=section.boolean("mamba_proj_bias", False),
        has_norms=True,
    )
    moe = read_moe(JAMBA_EXPERTS, section)
    bodies: dict[bool, tuple[arch.Module, ...]] = {
        False: blocks.gated_mlp(hidden, intermediate, "feed_forward")
    }
    bodies[True] = (
        expert_modules(JAMBA_EXPERTS, section, hidden, moe) if moe.num_experts > 1 else bodies[False]
    )
    mixers = {
        True: arch.Layer(modules=blocks.attention(heads), caches=(blocks.cache_of(heads),)),
        False: arch.Layer(modules=mixer.modules("mamba"), caches=(mixer.cache,)),
    }
    around = blocks.norms(hidden, "input_layernorm", "pre_ff_layernorm")
    kinds = zip(
        periodic(section, "attn_layer_period", "attn_layer_offset"),
        periodic(section, "expert_layer_period", "expert_layer_offset"),
        strict=True,
    )
    layers = by_kind(kinds, lambda kind: with_modules(mixers[kind[0]], *bodies[kind[1]], *around))
    return blocks.decoder(
        config,
        heads=heads,
        layers=layers,
        intermediate_size=intermediate,
        tied=section.boolean("tie_word_embeddings", False),
        rotary_tables=(),
        moe=moe,
    )


def periodic(section: Section, period_key: str, offset_key: str) -> tuple[bool, ...]:
    """Which layers a period and an offset choose."""
    period, offset = section.integer(period_key), section.integer(offset_key, minimum=0)
    return tuple(index % period == offset for index in range(section.layers()))


def read_mamba2_sizes(section: Section, hidden: int, heads_key: str = "mamba_n_heads") -> Mamba2:
    """A Mamba 2 mixer under the names that Bamba, Granite and Falcon-H1 use."""
    inner = section.optional_integer("mamba_d_ssm", minimum=1) or int(
        section.number("mamba_expand", 2.0) * hidden
    )
    num_heads = section.integer(heads_key)
    if inner % num_heads:
        raise section.contradicting(heads_key, f"{inner} is not divisible by {num_heads} state heads")
    return Mamba2(
        hidden_size=hidden,
        num_heads=num_heads,
        head_dim=inner // num_heads,
        n_groups=section.integer("mamba_n_groups", 1),
        state_size=section.integer("mamba_d_state"),
        conv_kernel=read_conv_kernel(section, "mamba_d_conv"),
        conv_bias=section.boolean("mamba_conv_bias", True),
        bias=section.boolean("mamba_proj_bias", False),
        chunk_size=section.integer("mamba_chunk_size", 2048, minimum=1),
    )


def read_falcon_h1(config: ModelConfig) -> arch.Architecture:
    """Falcon-H1: attention and Mamba 2 side by side in every layer.

    Source: vllm/model_executor/models/falcon_h1.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section)
    hidden, intermediate = heads.hidden_size, section.integer("intermediate_size")
    mixer = replace(read_mamba2_sizes(section, hidden), has_norm=section.boolean("mamba_rms_norm", False))
    layer = arch.Layer(
        modules=(
            *blocks.attention(heads),
            *mixer.modules("mamba"),
            *blocks.gated_mlp(hidden, intermediate, "feed_forward", bias=section.boolean("mlp_bias", False)),
            *blocks.norms(hidden, "input_layernorm", "pre_ff_layernorm"),
        ),
        caches=(blocks.cache_of(heads), mixer.cache),
    )
    tied = section.boolean("tie_word_embeddings", False)
    return blocks.decoder(
        config,
        heads=heads,
        layers=(layer,) * section.layers(),
        intermediate_size=intermediate,
        final_norm="model.final_layernorm",
        tied=tied,
    )


def read_bamba(config: ModelConfig) -> arch.Architecture:
    """Bamba: Mamba 2, attention at the layers that the config lists.

    Source: vllm/model_executor/models/bamba.py (0.19).
    """
    section = config.language
    heads = blocks.read_heads(section, reads_head_dim=False)
    hidden, intermediate = heads.hidden_size, section.integer("intermediate_size")
    mixer = read_mamba2_sizes(section, hidden)
    body: tuple[arch.Module, ...] = (
        *blocks.gated_mlp(hidden, intermediate, "feed_forward", bias=section.boolean("mlp_bias", False)),
        *blocks.norms(hidden, "input_layernorm", "pre_ff_layernorm"),
    )
    attending = arch.Layer(modules=(*blocks.attention(heads), *body), caches=(blocks.cache_of(heads),))
    mixing = arch.Layer(modules=(*mixer.modules("mamba"), *body), caches=(mixer.cache,))
    chosen = frozenset(section.integers("attn_layer_indices") or ())
    tied = section.boolean("tie_word_embeddings", False)
    return blocks.decoder(
        config,
        heads=heads,
        layers=tuple(attending if index in chosen else mixing for index in range(section.layers())),
        intermediate_size=intermediate,
        final_norm="model.final_layernorm",
        tied=tied,
    )


GRANITE_EXPERTS: Final = ExpertTraits(
    experts_key="num_local_experts", intermediate_key="intermediate_size", prefix=BLOCK_SPARSE
)


def read_granite_hybrid(config: ModelConfig) -> arch.Architecture:
    """Granite 4: Mamba 2 and attention by `layer_types`, experts and a shared MLP.

    Source: vllm/model_executor/models/granitemoehybrid.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section, reads_head_dim=False)
    hidden, intermediate = heads.hidden_size, section.integer("intermediate_size")
    kinds = section.strings("layer_types") or section.strings("layers_block_type")
    count = section.layers()
    if kinds is None or len(kinds) < count:
        raise section.missing("layer_types")
    moe = optional_moe(GRANITE_EXPERTS, section, minimum=0)
    shared = section.integer("shared_intermediate_size", 0, minimum=0)
    body: list[arch.Module] = [*blocks.norms(hidden, *blocks.TWO_NORMS)]
    if moe:
        body += expert_modules(GRANITE_EXPERTS, section, hidden, moe)
        moe = replace(moe, shared_intermediate_size=shared)
    if shared:
        body += [
            arch.Linear(
                name="shared_mlp.input_linear",
                in_features=hidden,
                outputs=(arch.Output(units=shared), arch.Output(units=shared)),
                split=arch.Split.COLUMN,
            ),
            blocks.row("shared_mlp.output_linear", shared, hidden),
        ]
    mixer = read_mamba2_sizes(section, hidden)
    bias = section.boolean("attention_bias", False)
    attending = blocks.attention(heads, qkv_bias=bias, out_bias=bias)
    layers: dict[str, arch.Layer] = {
        "attention": arch.Layer(modules=(*attending, *body), caches=(blocks.cache_of(heads),)),
        "mamba": arch.Layer(modules=(*mixer.modules("mamba"), *body), caches=(mixer.cache,)),
    }
    unknown = set(kinds[:count]) - set(layers)
    if unknown:
        raise section.invalid("layer_types", sorted(unknown), "expected mamba and attention")
    uses_rope = section.string("position_embedding_type", "nope") == "rope"
    return blocks.decoder(
        config,
        heads=heads,
        layers=tuple(layers[kind] for kind in kinds[:count]),
        intermediate_size=max(intermediate, shared),
        tied=section.boolean("tie_word_embeddings", False),
        rotary_tables=None if uses_rope else (),
        moe=moe,
    )


READERS: Final = blocks.named(
    (read_mamba, "MambaForCausalLM", "FalconMambaForCausalLM", "mamba", "falcon_mamba"),
    (read_mamba2, "Mamba2ForCausalLM", "mamba2"),
    (read_jamba, "JambaForCausalLM", "jamba"),
    (read_falcon_h1, "FalconH1ForCausalLM", "falcon_h1"),
    (read_bamba, "BambaForCausalLM", "bamba"),
    (read_granite_hybrid, "GraniteMoeHybridForCausalLM", "granitemoehybrid"),
)
