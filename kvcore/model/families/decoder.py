"""Plain decoders: attention and an MLP between norms, every layer alike but for its window.

What differs between two of them is data: a row of `DECODERS`. Checked against vLLM's own model classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from kvcore.model.architecture import Architecture, Layer, Linear, Module, Parameter
from kvcore.model.config import ModelConfig, Section
from kvcore.model.parts.blocks import (
    DraftTraits,
    Flag,
    Heads,
    attention,
    cache_of,
    column,
    decoder,
    flag,
    gated_mlp,
    head,
    is_tied,
    norm,
    norms,
    plain_mlp,
    read_heads,
    with_drafts,
)
from kvcore.model.parts.pattern import layer_windows


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoder:
    """What sets one plain decoder apart."""

    qkv_bias: Flag = False
    out_bias: Flag = False
    mlp_bias: Flag = False
    up_bias: bool = True
    """Whether a bias of the MLP is that of its first layer too (TeleChat 2: of the second alone)."""
    intermediate_key: str = "intermediate_size"
    gated: bool = True
    mlp_names: tuple[str, str] = ("up_proj", "down_proj")
    """Of an MLP that is not gated."""
    reads_head_dim: bool = True
    layer_norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    optional_norms: tuple[str, tuple[str, ...]] = ("", ())
    """Further norms, behind the config key that switches them on."""
    norm_bias: Flag = False
    norm_weight: bool = True
    """False: norms have no parameters (OLMo 1)."""
    qk_norm: str = ""
    """per_head: one vector of head_dim; biased: one with a bias; whole: one of all heads; sharded: one a head, divided
    like the heads."""
    qk_norm_key: str = ""
    """The config key that switches the norms of queries and keys on; "" when they are always there."""
    tied: bool = False
    """The class's default of tie_word_embeddings."""
    head_bias: Flag = False
    extra_elements: int = 0
    """Further parameter elements a layer (xIELU's two alphas)."""
    uses_window: bool = True
    attention_gate: str = ""
    """The name of a projection, as wide as all heads, that scales what attention gives."""
    sinks: Flag = False
    """One number a head beside its keys."""
    drafts: DraftTraits | None = None
    """How the layers that predict further tokens are built, where the checkpoint has some."""


def read_decoder(traits: Decoder, config: ModelConfig, section: Section | None = None) -> Architecture:
    """A plain decoder. `section` is the language part; without one it is found in the config."""
    section = section or config.language
    heads = read_heads(section, reads_head_dim=traits.reads_head_dim)
    intermediate = section.integer(traits.intermediate_key)
    modules = (
        *attention(heads, qkv_bias=flag(section, traits.qkv_bias), out_bias=flag(section, traits.out_bias)),
        *mlp(traits, section, heads.hidden_size, intermediate),
        *layer_norms(traits, section, heads),
    )
    windows = layer_windows(section) if traits.uses_window else (None,) * section.layers()
    layers = {window: Layer(modules=modules, caches=(cache_of(heads, window),)) for window in set(windows)}
    tied = is_tied(config, section, traits.tied)
    last: tuple[Module, ...] = ()
    if traits.norm_weight:
        last = (norm("model.norm", heads.hidden_size, bias=flag(section, traits.norm_bias)),)
    if not tied:
        last = (*last, head(section, bias=flag(section, traits.head_bias)))
    built = decoder(
        config,
        section,
        heads=heads,
        layers=tuple(layers[window] for window in windows),
        intermediate_size=intermediate,
        last=last,
        tied=tied,
    )
    return built if traits.drafts is None else with_drafts(built, section, traits.drafts, built.layers[-1])


def mlp(traits: Decoder, section: Section, hidden_size: int, intermediate_size: int) -> tuple[Linear, ...]:
    """The feed-forward part."""
    bias = flag(section, traits.mlp_bias)
    if traits.gated:
        up_and_gate, down_part = gated_mlp(hidden_size, intermediate_size, bias=bias)
        return (replace(up_and_gate, bias=bias and traits.up_bias), down_part)
    up, down = traits.mlp_names
    return plain_mlp(hidden_size, intermediate_size, f"mlp.{up}", f"mlp.{down}", bias=bias)


def layer_norms(traits: Decoder, section: Section, heads: Heads) -> tuple[Module, ...]:
    """The norms of one layer, and what else it has of its own."""
    modules: list[Module] = []
    if traits.norm_weight:
        key, further = traits.optional_norms
        names = (*traits.layer_norms, *further) if key and section.boolean(key, False) else traits.layer_norms
        modules += norms(heads.hidden_size, *names, bias=flag(section, traits.norm_bias))
    if traits.qk_norm and (not traits.qk_norm_key or section.boolean(traits.qk_norm_key, False)):
        for name, count in (("q_norm", heads.num_heads), ("k_norm", heads.num_kv_heads)):
            modules.append(qk_norm(traits.qk_norm, f"self_attn.{name}", count, heads.head_dim))
    if traits.attention_gate:
        width = heads.num_heads * heads.head_dim
        modules.append(column(f"self_attn.{traits.attention_gate}", heads.hidden_size, width))
    if flag(section, traits.sinks):
        modules.append(Parameter(name="self_attn.sinks", sharded=heads.num_heads))
    if traits.extra_elements:
        modules.append(Parameter(name="mlp.act_fn", replicated=traits.extra_elements))
    return tuple(modules)


def qk_norm(kind: str, name: str, heads: int, head_dim: int) -> Parameter:
    """A norm of queries or keys."""
    if kind == "per_head":
        return Parameter(name=name, replicated=head_dim)
    if kind == "biased":
        return Parameter(name=name, replicated=2 * head_dim)
    if kind == "whole":
        return Parameter(name=name, replicated=heads * head_dim)
    return Parameter(name=name, replicated=head_dim, sharded=heads)


ATTENTION_BIAS: Final = ("attention_bias", False)
MLP_BIAS: Final = ("mlp_bias", False)

LLAMA: Final = Decoder(qkv_bias=ATTENTION_BIAS, out_bias=ATTENTION_BIAS, mlp_bias=MLP_BIAS)
PLAIN: Final = Decoder()

DECODERS: Final[Mapping[str, Decoder]] = {
    "llama": LLAMA,
    "mistral": LLAMA,
    "ministral3": LLAMA,
    "phi3": LLAMA,
    "granite": LLAMA,
    "granite_swa": Decoder(
        qkv_bias=ATTENTION_BIAS,
        out_bias=ATTENTION_BIAS,
        mlp_bias=MLP_BIAS,
        sinks=("attention_sinks", True),
        tied=True,
    ),
    "smollm3": Decoder(qkv_bias=ATTENTION_BIAS, out_bias=ATTENTION_BIAS, mlp_bias=MLP_BIAS, tied=True),
    "cwm": LLAMA,
    "helium": Decoder(qkv_bias=ATTENTION_BIAS, mlp_bias=MLP_BIAS),
    "seed_oss": Decoder(
        qkv_bias=("attention_bias", True), out_bias=("attention_out_bias", False), mlp_bias=MLP_BIAS
    ),
    "qwen2": Decoder(qkv_bias=True, reads_head_dim=False),
    "mimo": Decoder(
        qkv_bias=True,
        reads_head_dim=False,
        uses_window=False,
        drafts=DraftTraits(
            projection="input_proj",
            norms=("token_layernorm", "hidden_layernorm", "final_layernorm"),
            prefix="model.mtp_layers",
        ),
    ),
    "qwen3": Decoder(qkv_bias=ATTENTION_BIAS, qk_norm="per_head"),
    "gemma": Decoder(tied=True),
    "glm": Decoder(qkv_bias=ATTENTION_BIAS),
    "glm4": Decoder(
        qkv_bias=ATTENTION_BIAS,
        layer_norms=(
            "input_layernorm",
            "post_attention_layernorm",
            "post_self_attn_layernorm",
            "post_mlp_layernorm",
        ),
    ),
    "stablelm": Decoder(qkv_bias=("use_qkv_bias", False), norm_bias=True, reads_head_dim=False),
    "olmo": Decoder(norm_weight=False, qkv_bias=ATTENTION_BIAS, out_bias=ATTENTION_BIAS),
    "olmo2": Decoder(
        qkv_bias=ATTENTION_BIAS,
        out_bias=ATTENTION_BIAS,
        layer_norms=("post_attention_layernorm", "post_feedforward_layernorm"),
        qk_norm="whole",
    ),
    "olmo3": Decoder(
        qkv_bias=ATTENTION_BIAS,
        out_bias=ATTENTION_BIAS,
        layer_norms=("post_attention_layernorm", "post_feedforward_layernorm"),
        qk_norm="whole",
    ),
    "starcoder2": Decoder(
        qkv_bias=("use_bias", True),
        out_bias=("use_bias", True),
        mlp_bias=("use_bias", True),
        gated=False,
        mlp_names=("c_fc", "c_proj"),
        norm_bias=True,
        tied=True,
    ),
    "arcee": Decoder(qkv_bias=ATTENTION_BIAS, out_bias=ATTENTION_BIAS, mlp_bias=MLP_BIAS, gated=False),
    "nemotron": Decoder(
        qkv_bias=ATTENTION_BIAS, out_bias=ATTENTION_BIAS, mlp_bias=MLP_BIAS, gated=False, norm_bias=True
    ),
    "apertus": Decoder(
        qkv_bias=ATTENTION_BIAS,
        out_bias=ATTENTION_BIAS,
        mlp_bias=MLP_BIAS,
        gated=False,
        layer_norms=("attention_layernorm", "feedforward_layernorm"),
        qk_norm="per_head",
        extra_elements=2,
    ),
    "exaone": LLAMA,
    "exaone4": Decoder(
        qkv_bias=ATTENTION_BIAS,
        out_bias=ATTENTION_BIAS,
        layer_norms=("post_attention_layernorm", "post_feedforward_layernorm"),
        qk_norm="per_head",
    ),
    "cohere": Decoder(
        qkv_bias=ATTENTION_BIAS,
        out_bias=ATTENTION_BIAS,
        layer_norms=("input_layernorm",),
        qk_norm="sharded",
        qk_norm_key="use_qk_norm",
        tied=True,
    ),
    "cohere2": Decoder(
        qkv_bias=ATTENTION_BIAS, out_bias=ATTENTION_BIAS, layer_norms=("input_layernorm",), tied=True
    ),
    "ernie4_5": Decoder(
        qkv_bias=("use_bias", False), out_bias=("use_bias", False), mlp_bias=("use_bias", False), tied=True
    ),
    "hunyuan_v1_dense": Decoder(
        qkv_bias=ATTENTION_BIAS,
        out_bias=ATTENTION_BIAS,
        mlp_bias=MLP_BIAS,
        qk_norm="per_head",
        qk_norm_key="use_qk_norm",
    ),
    "internlm": Decoder(qkv_bias=("bias", True), out_bias=("bias", True), reads_head_dim=False),
    "internlm2": Decoder(reads_head_dim=False),
    "baichuan": Decoder(reads_head_dim=False, uses_window=False),
    "orion": Decoder(norm_bias=True, reads_head_dim=False),
    "xverse": Decoder(reads_head_dim=False),
    "PanguEmbedded": Decoder(qkv_bias=("bias", True), out_bias=("bias", True)),
    "hyperclovax": Decoder(
        qkv_bias=ATTENTION_BIAS,
        out_bias=ATTENTION_BIAS,
        mlp_bias=MLP_BIAS,
        optional_norms=("use_post_norm", ("post_norm1", "post_norm2")),
    ),
    "solar": LLAMA,
    "telechat": Decoder(
        out_bias=True, mlp_bias=True, up_bias=False, intermediate_key="ffn_hidden_size", reads_head_dim=False
    ),
    "telechat3": LLAMA,
    "TeleFLM": LLAMA,
    "iquestcoder": LLAMA,
    "jais2": Decoder(
        qkv_bias=("attention_bias", True),
        out_bias=("attention_bias", True),
        mlp_bias=("mlp_bias", True),
        gated=False,
        norm_bias=True,
    ),
    "vaultgemma": Decoder(
        qkv_bias=ATTENTION_BIAS,
        out_bias=ATTENTION_BIAS,
        layer_norms=("input_layernorm", "pre_feedforward_layernorm"),
        tied=True,
    ),
    "rnj1": Decoder(
        qkv_bias=ATTENTION_BIAS,
        out_bias=ATTENTION_BIAS,
        layer_norms=(
            "input_layernorm",
            "post_attention_layernorm",
            "pre_feedforward_layernorm",
            "post_feedforward_layernorm",
        ),
        qk_norm="per_head",
        tied=True,
    ),
    "plamo3": Decoder(
        layer_norms=("pre_mixer_norm", "post_mixer_norm", "pre_mlp_norm", "post_mlp_norm"), qk_norm="per_head"
    ),
    "persimmon": Decoder(
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        gated=False,
        mlp_names=("dense_h_to_4h", "dense_4h_to_h"),
        reads_head_dim=False,
        norm_bias=True,
        qk_norm="biased",
        qk_norm_key="qk_layernorm",
    ),
    "phi3small": Decoder(
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        intermediate_key="ff_intermediate_size",
        reads_head_dim=False,
        norm_bias=True,
        tied=True,
    ),
}
"""By model_type."""

ARCHITECTURES: Final[Mapping[str, str]] = {
    "LlamaForCausalLM": "llama",
    "LLaMAForCausalLM": "llama",
    "InternLM3ForCausalLM": "llama",
    "CwmForCausalLM": "cwm",
    "HeliumForCausalLM": "helium",
    "MistralForCausalLM": "mistral",
    "MistralModel": "mistral",
    "Ministral3ForCausalLM": "ministral3",
    "Phi3ForCausalLM": "phi3",
    "GraniteForCausalLM": "granite",
    "GraniteSWAForCausalLM": "granite_swa",
    "SmolLM3ForCausalLM": "smollm3",
    "SeedOssForCausalLM": "seed_oss",
    "Qwen2ForCausalLM": "qwen2",
    "MiMoForCausalLM": "mimo",
    "Qwen3ForCausalLM": "qwen3",
    "GemmaForCausalLM": "gemma",
    "GlmForCausalLM": "glm",
    "Glm4ForCausalLM": "glm4",
    "StableLmForCausalLM": "stablelm",
    "StableLMEpochForCausalLM": "stablelm",
    "OlmoForCausalLM": "olmo",
    "Olmo2ForCausalLM": "olmo2",
    "Olmo3ForCausalLM": "olmo3",
    "Starcoder2ForCausalLM": "starcoder2",
    "ArceeForCausalLM": "arcee",
    "NemotronForCausalLM": "nemotron",
    "ApertusForCausalLM": "apertus",
    "ExaoneForCausalLM": "exaone",
    "Exaone4ForCausalLM": "exaone4",
    "CohereForCausalLM": "cohere",
    "Cohere2ForCausalLM": "cohere2",
    "Ernie4_5ForCausalLM": "ernie4_5",
    "HunYuanDenseV1ForCausalLM": "hunyuan_v1_dense",
    "InternLMForCausalLM": "internlm",
    "InternLM2ForCausalLM": "internlm2",
    "BaichuanForCausalLM": "baichuan",
    "BaiChuanForCausalLM": "baichuan",
    "OrionForCausalLM": "orion",
    "XverseForCausalLM": "xverse",
    "PanguEmbeddedForCausalLM": "PanguEmbedded",
    "HyperCLOVAXForCausalLM": "hyperclovax",
    "SolarForCausalLM": "solar",
    "TeleChatForCausalLM": "telechat",
    "TeleChat2ForCausalLM": "telechat",
    "TeleChat3ForCausalLM": "telechat3",
    "TeleFLMForCausalLM": "TeleFLM",
    "IQuestCoderForCausalLM": "iquestcoder",
    "Jais2ForCausalLM": "jais2",
    "VaultGemmaForCausalLM": "vaultgemma",
    "Plamo3ForCausalLM": "plamo3",
    "Rnj1ForCausalLM": "rnj1",
    "PersimmonForCausalLM": "persimmon",
    "Phi3SmallForCausalLM": "phi3small",
    "AquilaForCausalLM": "llama",
    "Fairseq2LlamaForCausalLM": "llama",
}

SECTION_READERS: Final[Mapping[str, Callable[[ModelConfig, Section], Architecture]]] = {
    name: partial(read_decoder, traits) for name, traits in DECODERS.items()
}
"""For multimodal models, by the model_type of their language part."""

READERS: Final = {
    **SECTION_READERS,
    **{name: SECTION_READERS[kind] for name, kind in ARCHITECTURES.items()},
}
