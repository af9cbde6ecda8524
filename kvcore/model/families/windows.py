"""Experts beside sliding or chunked attention: gpt-oss, Llama 4, MiMo V2."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvcore.model.architecture import (
    Architecture,
    Layer,
    Linear,
    MixtureOfExperts,
    Module,
    Output,
    Parameter,
    RotaryTable,
    Split,
)
from kvcore.model.cache_state import CacheState, ChunkedLocal, FullAttention, SlidingWindow
from kvcore.model.config import ModelConfig, Section
from kvcore.model.parts import vision as image
from kvcore.model.parts.blocks import (
    Heads,
    attention,
    cache_of,
    column,
    decoder,
    gated_mlp,
    named,
    norm,
    norms,
    read_heads,
    replicated,
    row,
)
from kvcore.model.parts.experts import (
    CORRECTED_FIRST,
    ExpertTraits,
    expert_modules,
    read_moe,
)

TWO_NORMS: Final = ("input_layernorm", "post_attention_layernorm")


OSS_EXPERTS: Final = ExpertTraits(
    experts_key="num_local_experts", intermediate_key="intermediate_size", router="router", biased=True
)


def read_gpt_oss(config: ModelConfig) -> Architecture:
    """gpt-oss: every other layer slides, attention sinks, experts with biases, float32 rotary table.

    Source: vllm/model_executor/models/gpt_oss.py (0.32).
    """
    section = config.language
    heads = read_heads(section)
    hidden = heads.hidden_size
    moe = read_moe(OSS_EXPERTS, section)
    modules: tuple[Module, ...] = (
        *attention(heads, qkv_bias=True, out_bias=True),
        Parameter(name="self_attn.sinks", sharded=heads.num_heads),
        *expert_modules(OSS_EXPERTS, section, hidden, moe),
        *norms(hidden, *TWO_NORMS),
    )
    window = section.integer("sliding_window")
    layers = (
        Layer(modules=modules, caches=(cache_of(heads, window),)),
        Layer(modules=modules, caches=(cache_of(heads),)),
    )
    built = decoder(
        config,
        heads=heads,
        layers=tuple(layers[index % 2] for index in range(section.layers())),
        intermediate_size=moe.moe_intermediate_size,
        tied=section.boolean("tie_word_embeddings", False),
        moe=moe,
    )
    tables = tuple(replace(table, dtype="float32") for table in built.rotary_tables)
    return replace(built, rotary_tables=tables)


LLAMA4_EXPERTS: Final = ExpertTraits(
    experts_key="num_local_experts",
    intermediate_key="intermediate_size",
    shared_count=1,
    shared_width_key="intermediate_size",
    prefix="feed_forward",
    router="router",
    shared="shared_expert",
    shared_whole=True,
)


def read_llama4(config: ModelConfig) -> Architecture:
    """Llama 4: chunked attention on layers with rotary positions, full on the others; experts every n-th layer.

    Source: vllm/model_executor/models/llama4.py, mllama4.py (0.32).
    """
    section = config.language
    heads = read_heads(section)
    hidden = heads.hidden_size
    moe = read_moe(LLAMA4_EXPERTS, section)
    count = section.layers()
    step = section.integer("interleave_moe_layer_step", 1, minimum=0)
    written = section.integers("no_rope_layers") or ()
    interval = section.integer("no_rope_layer_interval", 4)
    rotary = written[:count] or tuple(int((index + 1) % interval != 0) for index in range(count))
    if len(rotary) < count:
        raise section.contradicting("no_rope_layers", f"{len(rotary)} entries for {count} layers")
    variants: dict[tuple[bool, bool], Layer] = {}
    order = []
    for index in range(count):
        key = (bool(rotary[index]), step > 0 and (index + 1) % step == 0)
        if key not in variants:
            variants[key] = llama4_layer(section, heads, moe, is_local=key[0], is_sparse=key[1])
        order.append(variants[key])
    vision = config.root.optional_section("vision_config", "llama4_vision_model")
    tied = section.boolean("tie_word_embeddings", False)
    built = decoder(
        config,
        heads=heads,
        layers=tuple(order),
        intermediate_size=section.integer("intermediate_size_mlp"),
        tied=tied,
        layer_prefix="model.layers" if vision is None else "language_model.model.layers",
        moe=moe,
        is_multimodal=vision is not None,
    )
    return built if vision is None else replace(built, every=llama4_vision(vision, hidden))


def llama4_layer(
    section: Section, heads: Heads, moe: MixtureOfExperts, *, is_local: bool, is_sparse: bool
) -> Layer:
    """One layer of Llama 4."""
    hidden = heads.hidden_size
    if is_sparse:
        body = expert_modules(LLAMA4_EXPERTS, section, hidden, moe)
    else:
        body = gated_mlp(hidden, section.integer("intermediate_size_mlp"), "feed_forward")
    chunk = section.optional_integer("attention_chunk_size")
    cache: CacheState = cache_of(heads)
    if is_local and chunk:
        cache = ChunkedLocal(
            num_kv_heads=heads.num_kv_heads,
            head_size=heads.head_dim,
            head_size_v=heads.head_dim,
            attention_chunk_size=chunk,
        )
    return Layer(modules=(*attention(heads), *body, *norms(hidden, *TWO_NORMS)), caches=(cache,))


MIMO_EXPERTS: Final = ExpertTraits(
    experts_key="n_routed_experts", correction_bias=True, order=CORRECTED_FIRST
)


def read_mimo_v2(config: ModelConfig) -> Architecture:
    """MiMo V2: two attention geometries with narrower values, sinks on sliding layers, experts after the first layer.

    Source: vllm/model_executor/models/mimo_v2.py (0.32).
    """
    section = config.language
    count = section.layers()
    pattern = section.integers("hybrid_layer_pattern") or ()
    sparse = section.integers("moe_layer_freq") or ()
    if len(pattern) < count or len(sparse) < count:
        raise section.contradicting("hybrid_layer_pattern", f"patterns shorter than {count} layers")
    heads = read_heads(section)
    local = Heads(
        hidden_size=heads.hidden_size,
        num_heads=section.integer("swa_num_attention_heads", heads.num_heads),
        num_kv_heads=section.integer("swa_num_key_value_heads", heads.num_kv_heads),
        head_dim=section.integer("swa_head_dim", heads.head_dim),
    )
    moe = read_moe(MIMO_EXPERTS, section)
    widths = (
        section.integer("v_head_dim", heads.head_dim),
        section.integer("swa_v_head_dim", local.head_dim),
    )
    variants = {
        (kind, is_sparse): mimo_layer(
            section, (heads, local)[kind], widths[kind], moe, is_sliding=bool(kind), is_sparse=is_sparse
        )
        for kind in (0, 1)
        for is_sparse in (False, True)
    }
    positions = section.integer("max_position_embeddings")
    share = section.number("partial_rotary_factor", 1.0)
    built = decoder(
        config,
        heads=heads,
        layers=tuple(variants[int(pattern[i] == 1), bool(sparse[i])] for i in range(count)),
        intermediate_size=section.integer("intermediate_size"),
        tied=section.boolean("tie_word_embeddings", False),
        rotary_tables=tuple(
            RotaryTable(max_positions=positions, rotary_dim=int(dim * share))
            for dim in (heads.head_dim, local.head_dim)
        ),
        moe=moe,
        uncounted=("vision tower",) if config.root.optional_section("vision_config") is not None else (),
    )
    return replace(
        built,
        draft_layers=(mimo_draft(section, local, widths[1], moe),),
        draft_prefix="model.mtp.layers",
        draft_steps=1,
    )


def mimo_draft(section: Section, heads: Heads, v_dim: int, moe: MixtureOfExperts) -> Layer:
    """The one prediction layer that the engine takes: a sliding layer with an MLP behind a projection of two states.

    Source: vllm/model_executor/models/mimo_v2_mtp.py (0.32).
    """
    hidden = heads.hidden_size
    body = mimo_layer(section, heads, v_dim, moe, is_sliding=True, is_sparse=False)
    plain = tuple(
        replace(module, quantizable=False)
        if isinstance(module, Linear) and module.name == "self_attn.o_proj"
        else module
        for module in body.modules
    )
    start: tuple[Module, ...] = (
        replicated("eh_proj", 2 * hidden, hidden, quantizable=False),
        *norms(hidden, "enorm", "hnorm", "final_layernorm"),
    )
    return replace(body, modules=(*start, *plain))


def mimo_layer(
    section: Section, heads: Heads, v_dim: int, moe: MixtureOfExperts, *, is_sliding: bool, is_sparse: bool
) -> Layer:
    """One layer of MiMo V2."""
    hidden = heads.hidden_size
    modules: list[Module] = [
        qkv_with_narrow_values(heads, v_dim, bias=section.boolean("attention_bias", False)),
        row("self_attn.o_proj", heads.num_heads * v_dim, hidden),
        *norms(hidden, *TWO_NORMS),
    ]
    if is_sliding and section.boolean("add_swa_attention_sink_bias", False):
        modules.append(Parameter(name="self_attn.attention_sink_bias", sharded=heads.num_heads))
    if is_sparse:
        traits = replace(MIMO_EXPERTS, router_dtype=section.string("moe_router_dtype", "float32"))
        modules += expert_modules(traits, section, hidden, moe)
    else:
        modules += gated_mlp(hidden, section.integer("intermediate_size"))
    cache: CacheState = FullAttention(
        num_kv_heads=heads.num_kv_heads, head_size=heads.head_dim, head_size_v=v_dim
    )
    if is_sliding:
        cache = SlidingWindow(
            num_kv_heads=heads.num_kv_heads,
            head_size=heads.head_dim,
            head_size_v=v_dim,
            sliding_window=section.integer("sliding_window_size", section.integer("sliding_window", 128)),
        )
    return Layer(modules=tuple(modules), caches=(cache,))


def qkv_with_narrow_values(heads: Heads, v_dim: int, *, bias: bool = False) -> Linear:
    """A fused projection whose values have another width than queries and keys."""
    return Linear(
        name="self_attn.qkv_proj",
        in_features=heads.hidden_size,
        outputs=(
            Output(units=heads.num_heads, width=heads.head_dim),
            Output(units=heads.num_kv_heads, width=heads.head_dim, replicable=True),
            Output(units=heads.num_kv_heads, width=v_dim, replicable=True),
        ),
        split=Split.COLUMN,
        bias=bias,
        parts=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    )


LLAMA4: Final = image.Block(
    qkv="self_attn.qkv_proj", out="self_attn.o_proj", norms=("input_layernorm", "post_attention_layernorm")
)


def llama4_vision(vision: Section, text: int) -> tuple[Module, ...]:
    """Llama 4's vision model and projector.

    Source: vllm/model_executor/models/mllama4.py (0.32).
    """
    width, intermediate = vision.integer("hidden_size"), vision.integer("intermediate_size")
    patch, prefix = vision.integer("patch_size"), "vision_model"
    positions = (vision.integer("image_size") // patch) ** 2 + 1
    pixels = vision.integer("num_channels", 3) * patch**2
    inner, outer = vision.integer("projector_input_dim"), vision.integer("projector_output_dim")
    bias = vision.boolean("multi_modal_projector_bias", False)
    heads = image.heads_of(width, vision.integer("num_attention_heads"))
    return (
        column(f"{prefix}.patch_embedding.linear", pixels, width),
        Parameter(name=f"{prefix}.class_embedding", replicated=width),
        image.table(f"{prefix}.positional_embedding_vlm", positions, width),
        norm(f"{prefix}.layernorm_pre", width, bias=True),
        norm(f"{prefix}.layernorm_post", width, bias=True),
        *image.sharded_pair(
            f"{prefix}.vision_adapter.mlp", intermediate, inner, outer, ("fc1", "fc2"), bias=bias
        ),
        column("multi_modal_projector.linear_1", vision.integer("vision_output_dim"), text),
        *image.blocks(LLAMA4, f"{prefix}.model.layers", vision.layers(), heads, intermediate),
    )


READERS: Final = named(
    (read_gpt_oss, "GptOssForCausalLM", "gpt_oss"),
    (read_llama4, "Llama4ForCausalLM", "Llama4ForConditionalGeneration", "llama4", "llama4_text"),
    (read_mimo_v2, "MiMoV2FlashForCausalLM", "mimo_v2_flash", "MiMoV2ForCausalLM", "mimo_v2"),
)
