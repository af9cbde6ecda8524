"""Qwen3-Next, 3.5 and 3.6, gated delta nets with full attention; Olmo Hybrid, which has them too."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvcore.model import architecture as arch
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families import qwen_vl
from kvcore.model.parts import blocks
from kvcore.model.parts.experts import ExpertTraits, Part, expert_modules, optional_moe
from kvcore.model.parts.mixers import DeltaNet, convolution, read_conv_kernel, wide_column
from kvcore.model.parts.pattern import by_kind, sparse_by_step

LINEAR: Final = "linear_attention"
FULL: Final = "full_attention"
INTEGER_METHODS: Final = ("awq", "gptq", "auto-round", "intel/auto-round", "inc")
"""Checkpoints that run on Marlin. Source: qwen_gdn_linear_attn.py:maybe_disable_tp (0.32)."""


def read(config: ModelConfig) -> arch.Architecture:
    """Qwen3-Next and Qwen3.5: mostly gated delta nets, every fourth layer full attention with an output gate.

    Source: vllm/model_executor/models/qwen3_next.py, qwen3_5.py (0.32).
    """
    built, encoder = read_text(config), config.root.optional_section("vision_config")
    if encoder is None:
        return built
    image = qwen_vl.qwen3_encoder(encoder)
    return replace(
        built,
        is_multimodal=True,
        every=image.modules,
        vision=image.vision,
        rotary_tables=(*built.rotary_tables, *image.tables),
    )


def read_text(config: ModelConfig) -> arch.Architecture:
    """The decoder."""
    section = config.language
    heads = blocks.read_heads(section)
    net = read_delta_net(config, section)
    moe = optional_moe(EXPERTS, section, minimum=0)
    kinds = layer_kinds(section)
    sparse = sparse_by_step(section) if moe else (False,) * section.layers()
    layers = by_kind(
        zip(kinds, sparse, strict=True),
        lambda kind: read_layer(section, heads, net, moe if kind[1] else None, kind[0]),
    )
    tied = blocks.is_tied(config, section, default=False)
    published = 1 if section.model_type == "qwen3_next" else 0
    drafts = section.integer(
        "mtp_num_hidden_layers",
        section.integer("num_nextn_predict_layers", published, minimum=0),
        minimum=0,
        maximum=16,
    )
    draft = read_layer(section, heads, net, moe, FULL)
    encoder = config.root.optional_section("vision_config")
    built = blocks.decoder(
        config,
        heads=heads,
        layers=layers,
        intermediate_size=section.optional_integer("intermediate_size", minimum=1)
        or (moe.moe_intermediate_size if moe else heads.hidden_size),
        first=(blocks.embedding(section),),
        tied=tied,
        moe=moe,
        layer_prefix="model.layers" if encoder is None else "model.language_model.layers",
    )
    return replace(
        built,
        draft_layers=(draft,) * drafts,
        draft_prefix="mtp.layers",
        draft_modules=draft_modules(config, heads.hidden_size) if drafts else (),
        draft_steps=drafts,
    )


def read_delta_net(config: ModelConfig, section: Section) -> DeltaNet:
    """The delta net's sizes."""
    method = quantization_method(config)
    is_interleaved = section.model_type == "qwen3_next"
    return DeltaNet(
        hidden_size=section.integer("hidden_size"),
        num_k_heads=section.integer("linear_num_key_heads"),
        num_v_heads=section.integer("linear_num_value_heads"),
        head_k_dim=section.integer("linear_key_head_dim"),
        head_v_dim=section.integer("linear_value_head_dim"),
        conv_kernel=read_conv_kernel(section, "linear_conv_kernel_dim"),
        state_dtype=section.string("mamba_ssm_dtype", ""),
        is_interleaved=is_interleaved,
        replicates_ba=not is_interleaved and method in INTEGER_METHODS,
    )


def layer_kinds(section: Section) -> tuple[str, ...]:
    """linear_attention or full_attention, layer by layer."""
    count = section.layers()
    kinds = section.words("layer_types", (LINEAR, FULL), count)
    if kinds is None:
        every = section.integer("full_attention_interval", 4)
        return tuple(FULL if (index + 1) % every == 0 else LINEAR for index in range(count))
    return kinds


EXPERTS: Final = ExpertTraits(
    shared_size_key="shared_expert_intermediate_size",
    shared="shared_expert",
    shared_gate=True,
    gates_nothing=True,
    shared_whole=True,
    order=(Part.ROUTER, Part.SHARED_GATE, Part.EXPERTS, Part.SHARED),
)


def read_layer(
    section: Section, heads: blocks.Heads, net: DeltaNet, moe: arch.MixtureOfExperts | None, kind: str
) -> arch.Layer:
    """One layer."""
    hidden = heads.hidden_size
    mixer = net.modules("linear_attn") if kind == LINEAR else gated_attention(section, heads)
    if moe is not None:
        body = expert_modules(EXPERTS, section, hidden, moe)
    else:
        body = blocks.gated_mlp(hidden, section.integer("intermediate_size"))
    return arch.Layer(
        modules=(*mixer, *body, *blocks.norms(hidden, *blocks.TWO_NORMS)),
        caches=(net.cache if kind == LINEAR else blocks.cache_of(heads),),
    )


def gated_attention(section: Section, heads: blocks.Heads) -> tuple[arch.Module, ...]:
    """Full attention; with an output gate, queries are twice as wide."""
    gate = 2 if section.boolean("attn_output_gate", True) else 1
    return (
        arch.Linear(
            name="self_attn.qkv_proj",
            in_features=heads.hidden_size,
            outputs=(
                arch.Output(units=heads.num_heads, width=heads.head_dim * gate),
                arch.Output(units=heads.num_kv_heads, width=heads.head_dim, replicable=True),
                arch.Output(units=heads.num_kv_heads, width=heads.head_dim, replicable=True),
            ),
            split=arch.Split.COLUMN,
            bias=section.boolean("qkv_bias", False),
            parts=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        ),
        blocks.row("self_attn.o_proj", heads.num_heads * heads.head_dim, heads.hidden_size),
        *blocks.norms(heads.head_dim, "self_attn.q_norm", "self_attn.k_norm"),
    )


def draft_modules(config: ModelConfig, hidden: int) -> tuple[arch.Module, ...]:
    """What the prediction layers share: a projection of two hidden states, and norms.

    NVIDIA's 4-bit checkpoints leave the projection alone without saying so.

    Source: vllm/model_executor/models/qwen3_next_mtp.py, qwen3_5_mtp.py (0.32).
    """
    names_it = not quantization_method(config).startswith("modelopt")
    return (
        replace(blocks.column("mtp.fc", 2 * hidden, hidden), quantizable=names_it),
        *blocks.norms(hidden, "mtp.pre_fc_norm_hidden", "mtp.pre_fc_norm_embedding", "mtp.norm"),
    )


def quantization_method(config: ModelConfig) -> str:
    """What the checkpoint calls its quantization, "" when it says nothing."""
    section = config.root.optional_section("quantization_config")
    section = section or config.language.optional_section("quantization_config")
    if section is None:
        return "modelopt" if config.hf_quant_config else ""
    return section.string("quant_method", "")


def read_olmo_hybrid(config: ModelConfig) -> arch.Architecture:
    """Olmo Hybrid: delta nets with norms before, full attention with norms behind; rotary positions are optional.

    Source: vllm/model_executor/models/olmo_hybrid.py, layers/mamba/gdn/olmo_gdn_linear_attn.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section, reads_head_dim=False)
    hidden = heads.hidden_size
    intermediate = section.integer("intermediate_size")
    body = blocks.gated_mlp(hidden, intermediate)
    net = read_delta_net(config, section)
    layers = {
        LINEAR: arch.Layer(
            modules=(
                *olmo_delta_net(net),
                *body,
                *blocks.norms(hidden, *blocks.TWO_NORMS),
            ),
            caches=(net.cache,),
        ),
        FULL: arch.Layer(
            modules=(
                *blocks.attention(heads),
                blocks.norm("self_attn.q_norm", hidden),
                blocks.norm("self_attn.k_norm", heads.num_kv_heads * heads.head_dim),
                *body,
                *blocks.norms(hidden, "post_attention_layernorm", "post_feedforward_layernorm"),
            ),
            caches=(blocks.cache_of(heads),),
        ),
    }
    rope = section.optional_section("rope_parameters")
    return blocks.decoder(
        config,
        heads=heads,
        layers=tuple(layers[kind] for kind in layer_kinds(section)),
        intermediate_size=intermediate,
        tied=blocks.is_tied(config, section, default=False),
        rotary_tables=None if rope is not None and rope.get("rope_theta") is not None else (),
    )


def olmo_delta_net(net: DeltaNet) -> tuple[arch.Module, ...]:
    """Projections, convolution, norm and gate vectors of one delta net, all in the model's dtype."""
    prefix, steps = "linear_attn", arch.Output(units=net.num_v_heads)
    return (
        convolution(f"{prefix}.conv1d", net.conv_kernel, (net.keys, net.keys, net.values), bias=False),
        arch.Linear(
            name=f"{prefix}.in_proj_qkvg",
            in_features=net.hidden_size,
            outputs=(net.keys, net.keys, net.values, net.values),
            split=arch.Split.COLUMN,
            parts=tuple(f"{prefix}.{part}_proj" for part in "qkvg"),
        ),
        *(wide_column(f"{prefix}.{name}_proj", net.hidden_size, (steps,)) for name in "ba"),
        arch.Parameter(name=f"{prefix}.dt_bias", sharded=net.num_v_heads),
        arch.Parameter(name=f"{prefix}.A_log", sharded=net.num_v_heads),
        blocks.norm(f"{prefix}.o_norm", net.head_v_dim),
        blocks.row(f"{prefix}.o_proj", net.num_v_heads * net.head_v_dim, net.hidden_size),
    )


READERS: Final = blocks.named(
    (
        read,
        "Qwen3NextForCausalLM",
        "qwen3_next",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5ForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
        "Qwen3_5MoeForCausalLM",
        "qwen3_5",
        "qwen3_5_text",
        "qwen3_5_moe",
        "qwen3_5_moe_text",
    ),
    (read_olmo_hybrid, "OlmoHybridForCausalLM", "olmo_hybrid"),
)
