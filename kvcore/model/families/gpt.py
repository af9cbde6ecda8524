"""Decoders almost whole in their rows of decoders.toml: GPT-2's line, Falcon, OPT, MPT, ChatGLM, Qwen 1, MiniCPM.

DBRX, which has MPT's names, is found here as well, and so are decoders that run their layers several times for a token
(IQuest-Coder Loop, Ouro, HRM-Text): one set of weights, a cache for each time.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from msgspec.structs import replace

from kvcore.model import architecture as arch
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families.decoder import (
    DECODERS,
    by_row,
    feed_forward,
    mlp_width,
    read_decoder,
    with_everywhere,
)
from kvcore.model.parts import blocks
from kvcore.model.parts import encoder as enc
from kvcore.model.parts.experts import MAX_EXPERTS
from kvcore.model.parts.pattern import by_kind
from kvcore.model.rope import Rope

Pieces = tuple[arch.Module, ...]


def read_jais(config: ModelConfig) -> arch.Architecture:
    """Jais: as GPT-2, with ALiBi for the table of positions and a gate with the MLP's first layer.

    Source: vllm/model_executor/models/jais.py (0.22.1, the last that was read with it).
    """
    section, traits = config.language, DECODERS["jais"]
    hidden, inner = section.integer("hidden_size"), mlp_width(traits, section, None)
    mlp = feed_forward(traits, section, hidden, inner, None)
    if section.string("activation_function", "gelu") == "swiglu":
        mlp = (*mlp, blocks.column("mlp.c_fc2", hidden, inner, bias=True))
    if section.string("position_embedding_type", "learned") == "alibi":
        traits = replace(traits, names=replace(traits.names, positions=""))
    return read_decoder(traits, config, mlp=mlp)


def read_gpt_bigcode(config: ModelConfig) -> arch.Architecture:
    """GPT-BigCode (SantaCoder, StarCoder 1): as GPT-2, with one KV head.

    The engine's Transformers backend, which runs it now, divides the attention and leaves the MLP whole on each rank.

    Source: vllm/model_executor/models/transformers/base.py:recursive_replace (0.32); transformers 5.19
    gpt_bigcode, which has no tensor parallel plan.
    """
    section, traits = config.language, DECODERS["gpt_bigcode"]
    heads = blocks.read_heads(section, reads_head_dim=False)
    if section.boolean("multi_query", True):
        heads = blocks.with_kv_heads(section, heads, 1)
    hidden, inner = heads.hidden_size, mlp_width(traits, section, None)
    mlp = (
        blocks.replicated("mlp.c_fc", hidden, inner, bias=True),
        blocks.replicated("mlp.c_proj", inner, hidden, bias=True),
    )
    return read_decoder(traits, config, heads=heads, mlp=mlp)


def read_falcon(config: ModelConfig) -> arch.Architecture:
    """Falcon 7B (one KV head), 40B and 180B (new decoder), RW (ALiBi).

    Source: vllm/model_executor/models/falcon.py (0.32).
    """
    section = config.language
    new_decoder = section.boolean("new_decoder_architecture", section.has("n_head_kv"))
    kv_heads = None
    if new_decoder:
        kv_heads = section.optional_integer("n_head_kv") or section.optional_integer("num_kv_heads")
    elif section.boolean("multi_query", True):
        kv_heads = 1
    heads = blocks.with_kv_heads(section, blocks.read_heads(section, "", reads_head_dim=False), kv_heads)
    parallel = section.boolean("parallel_attn", True)
    norms_in_parallel = section.integer("num_ln_in_parallel_attn", 2 if new_decoder else 1)
    names = ("ln_attn", "ln_mlp") if new_decoder and norms_in_parallel == 2 else ("input_layernorm",)
    if not new_decoder and not parallel:
        names = blocks.TWO_NORMS
    rotary = not section.boolean("alibi", False)
    return read_decoder(replace(DECODERS["falcon"], layer_norms=names, rotary=rotary), config, heads=heads)


def read_opt(config: ModelConfig) -> arch.Architecture:
    """OPT: a position table with two more rows, and projections where the embedding is narrower than the model.

    Source: vllm/model_executor/models/opt.py (0.32).
    """
    section, traits = config.language, DECODERS["opt"]
    hidden = section.integer("hidden_size")
    width = section.integer("word_embed_proj_dim", hidden)
    if width != hidden:
        raise section.contradicting("word_embed_proj_dim", f"an embedding of {width} in a model of {hidden}")
    if not section.boolean("layer_norm_elementwise_affine", True):
        traits = replace(traits, layer_norms=())
    before = section.boolean("do_layer_norm_before", True)
    removed = section.boolean("_remove_final_layer_norm", False)
    if removed or not before:
        traits = replace(traits, names=replace(traits.names, final_norm=""))
    return read_decoder(traits, config)


def read_mpt(config: ModelConfig) -> arch.Architecture:
    """MPT: ALiBi or a position table, no biases unless the config wants them.

    Source: vllm/model_executor/models/mpt.py (0.28).
    """
    section, traits = config.language, DECODERS["mpt"]
    attn = section.optional_section("attn_config") or Section({}, "config.attn_config", "mpt/attn_config")
    heads = heads_of(section, attn)
    if not section.boolean("learned_pos_emb", True) or attn.boolean("alibi", False):
        traits = replace(traits, names=replace(traits.names, positions=""))
    inner = heads.hidden_size * section.integer("expansion_ratio", 4)
    built = read_decoder(traits, config, heads=heads, width=inner)
    if not attn.boolean("qk_ln", False):
        return built
    bias = blocks.flag(section, traits.norm_bias)
    norms = blocks.norms(heads.hidden_size, "attn.q_ln", "attn.k_ln", bias=bias)
    return with_everywhere(built, *norms)


def heads_of(section: Section, attn: Section) -> blocks.Heads:
    """Heads of MPT and DBRX, which write the number of KV heads into the object of attention."""
    heads = blocks.read_heads(section, reads_head_dim=False)
    return blocks.with_kv_heads(section, heads, attn.optional_integer("kv_n_heads"))


def read_dbrx(config: ModelConfig) -> arch.Architecture:
    """DBRX.

    Source: vllm/model_executor/models/dbrx.py (0.32).
    """
    section = config.language
    heads = heads_of(section, section.section("attn_config"))
    return read_decoder(
        DECODERS["dbrx"],
        config,
        heads=heads,
        width=section.section("ffn_config").integer("ffn_hidden_size"),
        rotary_tables=(Rope().table(heads.head_dim, section.integer("max_seq_len")),),
    )


def read_chatglm(config: ModelConfig) -> arch.Architecture:
    """ChatGLM 2 and 3, GLM-4 in its first layout.

    Source: vllm/model_executor/models/chatglm.py (0.32).
    """
    if config.root.has("vision_config"):
        raise config.root.contradicting("vision_config", "the text model of a vision model is not read alone")
    return read_glm(config)


def read_glm(config: ModelConfig) -> arch.Architecture:
    """ChatGLM's decoder: half-rotated heads, a few KV heads by `multi_query_attention`."""
    section, traits = config.language, DECODERS["chatglm"]
    heads = blocks.read_heads(section, "", reads_head_dim=False)
    if section.boolean("multi_query_attention", False):
        heads = replace(heads, num_kv_heads=section.integer("multi_query_group_num"))
    table = Rope(partial_rotary_factor=0.5).table(heads.head_dim, section.integer("seq_length", 8192))
    qkv_bias = section.boolean("add_bias_linear", False) or section.boolean("add_qkv_bias", False)
    if not section.boolean("post_layer_norm", True):
        traits = replace(traits, names=replace(traits.names, final_norm=""))
    return read_decoder(replace(traits, qkv_bias=qkv_bias), config, heads=heads, rotary_tables=(table,))


GLM_VISION: Final = enc.Names(
    "attention.query_key_value", "attention.dense", "mlp.fc1", "mlp.fc2", blocks.TWO_NORMS
)


def read_glm_vision(config: ModelConfig) -> arch.Architecture:
    """GLM-4V: ChatGLM behind a ViT, a convolution and a gated projector. Four patches become one token.

    Source: vllm/model_executor/models/glm4v.py (0.32).
    """
    built, section = read_glm(config), config.root.section("vision_config")
    hidden, wide = built.hidden_size, built.intermediate_size
    own = enc.read_sizes(section, heads="num_heads")
    patch = section.integer("patch_size", maximum=enc.MAX_PATCH)
    width, positions = own.width, section.integer("num_positions")
    gate = ("linear_proj.gate_proj", "linear_proj.dense_h_to_4h")
    modules = (
        enc.tensor("boi", hidden),
        enc.tensor("eoi", hidden),
        enc.tensor("patch_embedding.cls_embedding", width),
        enc.convolution("patch_embedding.proj", section.integer("in_channels", 3), width, patch, patch),
        enc.tensor("patch_embedding.position_embedding", positions, width),
        enc.convolution("conv", width, hidden, 2, 2),
        blocks.replicated("linear_proj.linear_proj", hidden, hidden),
        blocks.norm("linear_proj.norm1", hidden, bias=True),
        enc.merged("linear_proj.merged_proj", hidden, wide, gate, bias=False),
        blocks.row("linear_proj.dense_4h_to_h", wide, hidden),
        *enc.repeated("transformer.layers", own.layers, enc.block(own, GLM_VISION)),
    )
    seen = enc.seeing(modules, own, (positions - 1) // 4 + 2, 4)
    return enc.with_encoders(built, enc.under("transformer.vision", seen))


def read_qwen(config: ModelConfig) -> arch.Architecture:
    """Qwen 1; of Qwen-VL the language part, its encoder named as not counted.

    Source: vllm/model_executor/models/qwen.py (0.28).
    """
    section = config.language
    double = section.integer("intermediate_size")
    if double % 2:
        raise section.contradicting("intermediate_size", f"{double} is two halves, and odd")
    heads = blocks.read_heads(section, "", reads_head_dim=False)
    built = read_decoder(DECODERS["qwen"], config, heads=heads, width=double // 2)
    has_encoder = config.root.has("visual")
    return dataclasses.replace(built, is_multimodal=has_encoder, uncounted=("visual",) if has_encoder else ())


def read_step1(config: ModelConfig) -> arch.Architecture:
    """Step 1, which has names of its own for KV heads."""
    section = config.language
    kv_key = "num_attention_groups" if section.has("num_attention_groups") else "num_key_value_heads"
    heads = blocks.read_heads(section, kv_key, reads_head_dim=False)
    return read_decoder(DECODERS["step1"], config, heads=heads)


def read_minicpm(config: ModelConfig) -> arch.Architecture:
    """MiniCPM; its experts are plain tensors that no quantizer touches.

    Source: vllm/model_executor/models/minicpm.py (0.32).
    """
    section, traits = config.language, DECODERS["minicpm"]
    experts = section.optional_integer("num_experts", maximum=MAX_EXPERTS)
    if not experts:
        return read_decoder(traits, config)
    hidden, inner = section.integer("hidden_size"), section.integer("intermediate_size")
    top_k = section.integer("num_experts_per_tok", maximum=experts)
    mlp = (
        blocks.replicated("mlp.gate", hidden, experts, quantizable=False),
        arch.Parameter(name="mlp.ws", replicated=experts * 2 * hidden, sharded=inner),
        arch.Parameter(name="mlp.w2s", replicated=experts * hidden, sharded=inner),
    )
    moe = arch.MixtureOfExperts(num_experts=experts, top_k=top_k, moe_intermediate_size=inner)
    return dataclasses.replace(read_decoder(traits, config, mlp=mlp), moe=moe)


MAX_LOOPS: Final = 64


def read_loop_coder(config: ModelConfig) -> arch.Architecture:
    """IQuest-Coder Loop: every further time a layer looks at a short window too, mixed in by a gate for each head.

    Source: vllm/model_executor/models/iquest_loopcoder.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section, reads_head_dim=False)
    further = section.integer("loop_num", 2, maximum=MAX_LOOPS) - 1
    local = blocks.cache_of(heads, section.integer("loop_window_size", 64))
    mixer = arch.Layer(modules=blocks.attention(heads), caches=(blocks.cache_of(heads), *(local,) * further))
    built = read_decoder(DECODERS["iquestloopcoder"], config, heads=heads, mixers=(mixer,) * section.layers())
    gate = blocks.column("gate_projections.gate_proj", heads.head_dim, heads.num_heads, bias=True)
    return with_everywhere(built, gate)


def read_ouro(config: ModelConfig) -> arch.Architecture:
    """Ouro: four norms a layer, and a gate behind the last that may end a token early.

    Source: vllm/model_executor/models/ouro.py (0.26.0, the last with it).
    """
    section = config.language
    heads = blocks.read_heads(section, reads_head_dim=False)
    caches = (blocks.cache_of(heads),) * section.integer("total_ut_steps", 4, maximum=MAX_LOOPS)
    mixer = arch.Layer(modules=blocks.attention(heads), caches=caches)
    built = read_decoder(DECODERS["ouro"], config, heads=heads, mixers=(mixer,) * section.layers())
    gate = blocks.row("model.early_exit_gate", heads.hidden_size, 1, bias=True)
    norm, *head = built.last
    return dataclasses.replace(built, last=(norm, gate, *head))


def read_hrm_text(config: ModelConfig) -> arch.Architecture:
    """HRM-Text: a low stack that runs several times for each time that a high one does; gated attention, bare norms.

    Source: vllm/model_executor/models/hrm_text.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section, "")
    bias = section.boolean("attention_bias", False)
    # Gate, queries, keys and values in one projection, each as wide as all heads.
    names, each = ("gqkv_proj", "o_proj"), arch.Output(units=heads.num_heads, width=heads.head_dim)
    fused, out = blocks.attention(heads, names=names, qkv_bias=bias, out_bias=bias)
    modules = (replace(fused, outputs=(each,) * 4), out)
    high = section.integer("H_cycles", 2, maximum=MAX_LOOPS)
    low = high * section.integer("L_cycles", 3, maximum=MAX_LOOPS)
    stack = section.layers("num_layers_per_stack")
    kinds = (arch.Layer(modules=modules, caches=(blocks.cache_of(heads),) * times) for times in (low, high))
    mixers = tuple(layer for layer in kinds for _ in range(stack))
    built = read_decoder(DECODERS["hrm_text"], config, heads=heads, mixers=mixers)
    start = arch.Parameter(name="model.z_L_init", replicated=heads.hidden_size)
    return dataclasses.replace(built, first=(*built.first, start))


DORY_KINDS: Final = ("full_attention", "sliding_attention", "mlp")


def read_dory(config: ModelConfig) -> arch.Architecture:
    """Dory: each layer is attention or an MLP, weighed by vectors in place of norms; layers in the middle run several
    times, with a cache for each time unless the last one's serves all.

    Source: vllm/model_executor/models/dory.py, transformers_utils/configs/dory.py (0.33).
    """
    section = config.language
    heads, count = blocks.read_heads(section), section.layers()
    usual = ["mlp" if at % 2 else DORY_KINDS[at % 8 != 6] for at in range(count)]
    kinds = section.words("layer_types", DORY_KINDS, count) or tuple(usual)
    loops = section.integer("n_recurrent_loops", 1, maximum=MAX_LOOPS)
    if section.string("recurrent_kv_cache_mode", "per_loop") != "per_loop":
        loops = 1
    start = section.integer("n_input_layers", 0, minimum=0)
    outer = start + section.integer("n_output_layers", 0, minimum=0)
    looped = range(start, start + section.integer("n_recurrent_layers", max(0, count - outer), minimum=0))
    hidden, inner = heads.hidden_size, section.integer("intermediate_size")
    attends: tuple[arch.Module, ...] = (
        *blocks.attention(heads, "mixer"),
        blocks.column("mixer.g_proj", hidden, heads.attended),
        *(arch.Parameter(name=f"mixer.{name}", sharded=heads.attended) for name in ("sqk", "s_gate")),
        arch.Parameter(name="attn_alpha", replicated=hidden),
    )
    feeds: tuple[arch.Module, ...] = (
        *blocks.gated_mlp(hidden, inner, "mixer"),
        *(arch.Parameter(name=f"mixer.suv_{name}", sharded=inner) for name in ("gate", "up")),
        arch.Parameter(name="mlp_alpha", replicated=hidden),
    )

    def layer(kind: str, times: int) -> arch.Layer:
        if kind == "mlp":
            return arch.Layer(modules=feeds)
        window = section.integer("sliding_window", 1024) if kind == DORY_KINDS[1] else None
        return arch.Layer(modules=attends, caches=(blocks.cache_of(heads, window),) * times)

    shapes = ((kind, loops if at in looped else 1) for at, kind in enumerate(kinds))
    vocab = section.integer("vocab_size")
    return blocks.decoder(
        config,
        heads=heads,
        layers=by_kind(shapes, lambda shape: layer(*shape)),
        intermediate_size=inner,
        first=(blocks.embedding(section, "backbone.embeddings"),),
        last=(blocks.head(section), arch.Parameter(name="lm_head.logit_scale", replicated=vocab)),
        tied=False,
        layer_prefix="backbone.layers",
    )


READERS: Final = by_row(
    {
        "jais": read_jais,
        "gpt_bigcode": read_gpt_bigcode,
        "falcon": read_falcon,
        "opt": read_opt,
        "mpt": read_mpt,
        "dbrx": read_dbrx,
        "chatglm": read_chatglm,
        "GLM4VForCausalLM": read_glm_vision,
        "qwen": read_qwen,
        "step1": read_step1,
        "minicpm": read_minicpm,
        "iquestloopcoder": read_loop_coder,
        "ouro": read_ouro,
        "hrm_text": read_hrm_text,
        "dory": read_dory,
    }
)
