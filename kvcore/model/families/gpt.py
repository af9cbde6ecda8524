"""GPT-2 and decoders of its line: layer norms with biases, plain MLPs, position tables instead of or with rotation.

gpt-oss, with windows and experts, is found here by its name.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvcore.model import architecture as arch
from kvcore.model.config import ModelConfig, Section
from kvcore.model.parts import blocks
from kvcore.model.parts.experts import ExpertTraits, expert_modules, read_moe

Pieces = tuple[arch.Module, ...]


def build(
    config: ModelConfig,
    section: Section,
    *,
    heads: blocks.Heads,
    modules: Pieces,
    intermediate_size: int,
    first: Pieces = (),
    last: Pieces,
    tied: bool,
    head_bias: bool = False,
    rotary: bool = False,
    prefix: str = "transformer.h",
) -> arch.Architecture:
    """An Architecture of equal layers with full attention."""
    layer = arch.Layer(modules=modules, caches=(blocks.cache_of(heads),))
    return blocks.decoder(
        config,
        section=section,
        heads=heads,
        layers=(layer,) * section.layers(),
        intermediate_size=intermediate_size,
        first=(blocks.embedding(section), *first),
        last=last if tied else (*last, blocks.head(section, bias=head_bias)),
        tied=tied,
        rotary_tables=None if rotary else (),
        layer_prefix=prefix,
    )


def gpt_attention(heads: blocks.Heads, prefix: str, names: tuple[str, str], *, bias: bool = True) -> Pieces:
    """A fused qkv and an output projection under the names of that model."""
    fused, out = names
    return (
        blocks.qkv(heads, f"{prefix}.{fused}", (fused,), bias=bias),
        blocks.row(f"{prefix}.{out}", heads.num_heads * heads.head_dim, heads.hidden_size, bias=bias),
    )


def read_gpt2(config: ModelConfig) -> arch.Architecture:
    """GPT-2.

    Source: vllm/model_executor/models/gpt2.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section, reads_head_dim=False)
    mlp = blocks.plain_mlp(heads.hidden_size, inner_size(section), "mlp.c_fc", "mlp.c_proj", bias=True)
    return build_gpt2(config, section, heads, mlp)


def read_jais(config: ModelConfig) -> arch.Architecture:
    """Jais: as GPT-2, with ALiBi for the table of positions and a gate with the MLP's first layer.

    Source: vllm/model_executor/models/jais.py (0.22.1, the last that was read with it).
    """
    section = config.language
    heads = blocks.read_heads(section, reads_head_dim=False)
    hidden, inner = heads.hidden_size, inner_size(section)
    mlp: Pieces = blocks.plain_mlp(hidden, inner, "mlp.c_fc", "mlp.c_proj", bias=True)
    if section.string("activation_function", "gelu") == "swiglu":
        mlp = (*mlp, blocks.column("mlp.c_fc2", hidden, inner, bias=True))
    built = build_gpt2(config, section, heads, mlp)
    is_learned = section.string("position_embedding_type", "learned") != "alibi"
    return built if is_learned else replace(built, first=built.first[:1])


def read_gpt_bigcode(config: ModelConfig) -> arch.Architecture:
    """GPT-BigCode (SantaCoder, StarCoder 1): as GPT-2, with one KV head.

    The engine's Transformers backend, which runs it now, divides the attention and leaves the MLP whole on each rank.

    Source: vllm/model_executor/models/transformers/base.py:recursive_replace (0.32); transformers 5.19
    gpt_bigcode, which has no tensor parallel plan.
    """
    section = config.language
    heads = blocks.read_heads(section, reads_head_dim=False)
    if section.boolean("multi_query", True):
        heads = blocks.with_kv_heads(section, heads, 1)
    hidden, inner = heads.hidden_size, inner_size(section)
    mlp = (
        blocks.replicated("mlp.c_fc", hidden, inner, bias=True),
        blocks.replicated("mlp.c_proj", inner, hidden, bias=True),
    )
    return build_gpt2(config, section, heads, mlp)


def inner_size(section: Section) -> int:
    """The width of the MLP."""
    return section.integer("n_inner", 4 * section.integer("hidden_size"))


def build_gpt2(config: ModelConfig, section: Section, heads: blocks.Heads, mlp: Pieces) -> arch.Architecture:
    """GPT-2 with the given MLP."""
    hidden = heads.hidden_size
    positions = section.integer("n_positions", section.optional_integer("max_position_embeddings") or None)
    modules: Pieces = (
        *gpt_attention(heads, "attn", ("c_attn", "c_proj")),
        *mlp,
        *blocks.norms(hidden, "ln_1", "ln_2", bias=True),
    )
    return build(
        config,
        section,
        heads=heads,
        modules=modules,
        intermediate_size=inner_size(section),
        first=(arch.Parameter(name="transformer.wpe", replicated=positions * hidden),),
        last=(blocks.norm("transformer.ln_f", hidden, bias=True),),
        tied=blocks.is_tied(config, section, True),
    )


def read_bloom(config: ModelConfig) -> arch.Architecture:
    """BLOOM: ALiBi, a norm behind the embedding.

    Source: vllm/model_executor/models/bloom.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section, reads_head_dim=False)
    hidden = heads.hidden_size
    modules: Pieces = (
        *gpt_attention(heads, "self_attention", ("query_key_value", "dense")),
        *blocks.plain_mlp(hidden, 4 * hidden, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias=True),
        *blocks.norms(hidden, "input_layernorm", "post_attention_layernorm", bias=True),
    )
    return build(
        config,
        section,
        heads=heads,
        modules=modules,
        intermediate_size=4 * hidden,
        first=(blocks.norm("transformer.word_embeddings_layernorm", hidden, bias=True),),
        last=(blocks.norm("transformer.ln_f", hidden, bias=True),),
        tied=blocks.is_tied(config, section, True),
    )


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
    hidden = heads.hidden_size
    bias = section.boolean("bias", False)
    parallel = section.boolean("parallel_attn", True)
    norms_in_parallel = section.integer("num_ln_in_parallel_attn", 2 if new_decoder else 1)
    names = ("ln_attn", "ln_mlp") if new_decoder and norms_in_parallel == 2 else ("input_layernorm",)
    if not new_decoder and not parallel:
        names = ("input_layernorm", "post_attention_layernorm")
    modules: Pieces = (
        *gpt_attention(heads, "self_attention", ("query_key_value", "dense"), bias=bias),
        *blocks.plain_mlp(hidden, 4 * hidden, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias=bias),
        *blocks.norms(hidden, *names, bias=True),
    )
    return build(
        config,
        section,
        heads=heads,
        modules=modules,
        intermediate_size=4 * hidden,
        last=(blocks.norm("transformer.ln_f", hidden, bias=True),),
        tied=blocks.is_tied(config, section, True),
        rotary=not section.boolean("alibi", False),
    )


def read_phi(config: ModelConfig) -> arch.Architecture:
    """Phi-1.5 and Phi-2: attention and MLP side by side behind one norm.

    The engine's Transformers backend, which runs them now, leaves out the bias of lm_head.

    Source: vllm/model_executor/models/transformers (0.32), phi.py (0.28).
    """
    section = config.language
    heads = blocks.read_heads(section, reads_head_dim=False)
    hidden = heads.hidden_size
    inner = section.optional_integer("intermediate_size", minimum=1) or section.integer("n_inner", 4 * hidden)
    modules: Pieces = (
        blocks.qkv(heads, bias=True),
        blocks.row("self_attn.dense", hidden, hidden, bias=True),
        *blocks.plain_mlp(hidden, inner, "mlp.fc1", "mlp.fc2", bias=True),
        blocks.norm("input_layernorm", hidden, bias=True),
    )
    return build(
        config,
        section,
        heads=heads,
        modules=modules,
        intermediate_size=inner,
        last=(blocks.norm("model.final_layernorm", hidden, bias=True),),
        tied=blocks.is_tied(config, section, False),
        rotary=True,
        prefix="model.layers",
    )


def read_gpt_neox(config: ModelConfig) -> arch.Architecture:
    """GPT-NeoX, Pythia, RedPajama-INCITE.

    Source: vllm/model_executor/models/gpt_neox.py (0.28).
    """
    section = config.language
    heads = blocks.read_heads(section, reads_head_dim=False)
    hidden, inner = heads.hidden_size, section.integer("intermediate_size")
    modules: Pieces = (
        *gpt_attention(
            heads, "attention", ("query_key_value", "dense"), bias=section.boolean("attention_bias", True)
        ),
        *blocks.plain_mlp(hidden, inner, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias=True),
        *blocks.norms(hidden, "input_layernorm", "post_attention_layernorm", bias=True),
    )
    return build(
        config,
        section,
        heads=heads,
        modules=modules,
        intermediate_size=inner,
        last=(blocks.norm("gpt_neox.final_layer_norm", hidden, bias=True),),
        tied=blocks.is_tied(config, section, False),
        rotary=True,
        prefix="gpt_neox.layers",
    )


def read_gptj(config: ModelConfig) -> arch.Architecture:
    """GPT-J: no biases on attention, one norm a layer, an lm_head with a bias.

    Source: vllm/model_executor/models/gpt_j.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section, reads_head_dim=False)
    hidden = heads.hidden_size
    inner = section.integer("n_inner", 4 * hidden)
    modules: Pieces = (
        *blocks.attention(heads, "attn"),
        *blocks.plain_mlp(hidden, inner, "mlp.fc_in", "mlp.fc_out", bias=True),
        blocks.norm("ln_1", hidden, bias=True),
    )
    return build(
        config,
        section,
        heads=heads,
        modules=modules,
        intermediate_size=inner,
        last=(blocks.norm("transformer.ln_f", hidden, bias=True),),
        tied=blocks.is_tied(config, section, False),
        head_bias=True,
        rotary=True,
    )


def read_opt(config: ModelConfig) -> arch.Architecture:
    """OPT: a position table with two more rows, and projections where the embedding is narrower than the model.

    Source: vllm/model_executor/models/opt.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section, reads_head_dim=False)
    hidden, inner = heads.hidden_size, section.integer("ffn_dim")
    bias = section.boolean("enable_bias", True)
    width = section.integer("word_embed_proj_dim", hidden)
    if width != hidden:
        raise section.contradicting("word_embed_proj_dim", f"an embedding of {width} in a model of {hidden}")
    affine = section.boolean("layer_norm_elementwise_affine", True)
    layer_norms = (
        blocks.norms(hidden, "self_attn_layer_norm", "final_layer_norm", bias=True) if affine else ()
    )
    final = section.boolean("do_layer_norm_before", True) and not section.boolean(
        "_remove_final_layer_norm", False
    )
    positions = section.integer("max_position_embeddings") + 2
    modules: Pieces = (
        blocks.qkv(heads, "self_attn.qkv_proj", bias=bias),
        blocks.row("self_attn.out_proj", hidden, hidden, bias=bias),
        *blocks.plain_mlp(hidden, inner, "fc1", "fc2", bias=bias),
        *layer_norms,
    )
    return build(
        config,
        section,
        heads=heads,
        modules=modules,
        intermediate_size=inner,
        first=(arch.Parameter(name="model.decoder.embed_positions", replicated=positions * hidden),),
        last=(blocks.norm("model.decoder.final_layer_norm", hidden, bias=True),) if final else (),
        tied=blocks.is_tied(config, section, True),
        prefix="model.decoder.layers",
    )


OSS_EXPERTS: Final = ExpertTraits(
    experts_key="num_local_experts", intermediate_key="intermediate_size", router="router", biased=True
)


def read_gpt_oss(config: ModelConfig) -> arch.Architecture:
    """gpt-oss: every other layer slides, attention sinks, experts with biases, float32 rotary table.

    Source: vllm/model_executor/models/gpt_oss.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section)
    hidden = heads.hidden_size
    moe = read_moe(OSS_EXPERTS, section)
    modules: tuple[arch.Module, ...] = (
        *blocks.attention(heads, qkv_bias=True, out_bias=True),
        arch.Parameter(name="self_attn.sinks", sharded=heads.num_heads),
        *expert_modules(OSS_EXPERTS, section, hidden, moe),
        *blocks.norms(hidden, *blocks.TWO_NORMS),
    )
    window = section.integer("sliding_window")
    layers = (
        arch.Layer(modules=modules, caches=(blocks.cache_of(heads, window),)),
        arch.Layer(modules=modules, caches=(blocks.cache_of(heads),)),
    )
    built = blocks.decoder(
        config,
        heads=heads,
        layers=tuple(layers[index % 2] for index in range(section.layers())),
        intermediate_size=moe.moe_intermediate_size,
        tied=section.boolean("tie_word_embeddings", False),
        moe=moe,
    )
    tables = tuple(replace(table, dtype="float32") for table in built.rotary_tables)
    return replace(built, rotary_tables=tables)


READERS: Final = blocks.named(
    (read_gpt2, "GPT2LMHeadModel", "gpt2"),
    (read_jais, "JAISLMHeadModel", "jais"),
    (read_gpt_bigcode, "GPTBigCodeForCausalLM", "gpt_bigcode"),
    (read_bloom, "BloomForCausalLM", "bloom"),
    (read_falcon, "FalconForCausalLM", "RWForCausalLM", "falcon", "RefinedWeb", "RefinedWebModel"),
    (read_phi, "PhiForCausalLM", "phi", "phi-msft"),
    (read_gpt_neox, "GPTNeoXForCausalLM", "gpt_neox"),
    (read_gptj, "GPTJForCausalLM", "gptj"),
    (read_opt, "OPTForCausalLM", "opt"),
    (read_gpt_oss, "GptOssForCausalLM", "gpt_oss"),
)
