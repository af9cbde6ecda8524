"""Decoders with routed experts in some or all layers, beside plain attention.

What differs between two of them is data: a row of `MIXTURES`. Checked against vLLM's own model classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from kvcore.model.architecture import (
    Architecture,
    Experts,
    Layer,
    MixtureOfExperts,
    Module,
    Parameter,
)
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families.decoder import (
    ATTENTION_BIAS,
    Decoder,
    layer_norms,
)
from kvcore.model.parts.blocks import (
    DraftTraits,
    Flag,
    attention,
    cache_of,
    decoder,
    flag,
    gated_mlp,
    head,
    is_tied,
    norm,
    read_heads,
    replicated,
    with_drafts,
)
from kvcore.model.parts.pattern import MLP_KINDS, layer_windows

EXPERT_KEYS: Final = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
MAX_EXPERTS: Final = 65_536

SPARSE_EVERYWHERE: Final = "everywhere"
SPARSE_AFTER_FIRST: Final = "first_k_dense_replace"
SPARSE_AFTER_DENSE: Final = "num_dense_layers"
SPARSE_BY_TYPES: Final = "mlp_layer_types"
SPARSE_BY_STEP: Final = "decoder_sparse_step"
SPARSE_BY_INTERVAL: Final = "moe_layer_interval"
SPARSE_BY_LIST: Final = "mlp_layer_types"


@dataclass(frozen=True, kw_only=True, slots=True)
class Mixture:
    """What sets one mixture of experts apart; the keys are those of its config."""

    base: Decoder
    """Attention, norms, and the MLP of layers without experts."""
    experts_key: str = "num_experts"
    intermediate_key: str = "moe_intermediate_size"
    top_k_key: str = "num_experts_per_tok"
    sparse: str = SPARSE_EVERYWHERE
    """Which layers have experts."""
    prefix: str = "mlp"
    router_dtype: str = ""
    router_dtype_key: str = ""
    """The config key that says fp32 for a float32 router; no key or null leaves it in the model's dtype."""
    dense_key: str = "intermediate_size"
    """The width of layers without experts."""
    window_extra: int = 0
    """Tokens that a window holds beyond `sliding_window`."""
    correction_bias: Flag = False
    """A float32 bias an expert that only the routing uses."""
    shared_size_key: str = ""
    """The width of all shared experts together."""
    shared_count_key: str = ""
    """How many shared experts there are, each as wide as a routed one unless `shared_size_key` says otherwise."""
    shared_count: int = 0
    """How many without that key."""
    shared_gate: bool = False
    shared_whole: bool = False
    """Shared experts stay whole when experts are dealt over tensor and data parallel ranks at once."""
    dense_drafts: bool = False
    """Prediction layers have an MLP instead of experts."""


def read_mixture(traits: Mixture, config: ModelConfig, section: Section | None = None) -> Architecture:
    """A decoder with routed experts. `section` is the language part; without one it is found in the config."""
    section = section or config.language
    heads = read_heads(section, reads_head_dim=traits.base.reads_head_dim)
    experts = read_experts(traits, section, heads.hidden_size)
    shared = shared_size(traits, section)
    common = (
        *attention(
            heads, qkv_bias=flag(section, traits.base.qkv_bias), out_bias=flag(section, traits.base.out_bias)
        ),
        *layer_norms(traits.base, section, heads),
    )
    sparse_layers = which_layers_are_sparse(traits, section)
    bodies: dict[bool, tuple[Module, ...]] = {}
    if True in sparse_layers:
        bodies[True] = (*common, *expert_modules(traits, section, experts, shared))
    intermediate = section.optional_integer("intermediate_size") or experts.intermediate_size
    if False in sparse_layers:
        dense = section.integer(traits.dense_key, section.integer("intermediate_size"))
        bodies[False] = (
            *common,
            *gated_mlp(heads.hidden_size, dense, bias=flag(section, traits.base.mlp_bias)),
        )
    windows = tuple(window and window + traits.window_extra for window in layer_windows(section))
    kinds = list(zip(sparse_layers, windows, strict=True))
    layers = {
        (sparse, window): Layer(modules=bodies[sparse], caches=(cache_of(heads, window),))
        for sparse, window in set(kinds)
    }
    tied = is_tied(config, section, traits.base.tied)
    last: tuple[Module, ...] = (
        norm("model.norm", heads.hidden_size, bias=flag(section, traits.base.norm_bias)),
    )
    if not tied:
        last = (*last, head(section, bias=flag(section, traits.base.head_bias)))
    built = decoder(
        config,
        section,
        heads=heads,
        layers=tuple(layers[kind] for kind in kinds),
        intermediate_size=intermediate,
        last=last,
        tied=tied,
        moe=MixtureOfExperts(
            num_experts=experts.num_experts,
            top_k=experts.top_k,
            moe_intermediate_size=experts.intermediate_size,
            shared_intermediate_size=shared,
        ),
    )
    if traits.base.drafts is None:
        return built
    body = built.layers[-1]
    if traits.dense_drafts:
        mlp = gated_mlp(heads.hidden_size, intermediate, bias=flag(section, traits.base.mlp_bias))
        body = replace(body, modules=(*common, *mlp))
    return with_drafts(built, section, traits.base.drafts, body)


def read_experts(traits: Mixture, section: Section, hidden_size: int) -> Experts:
    """The routed experts of one layer."""
    return Experts(
        name=f"{traits.prefix}.experts",
        num_experts=number_of_experts(traits, section),
        hidden_size=hidden_size,
        intermediate_size=section.integer(traits.intermediate_key),
        top_k=section.integer(traits.top_k_key, maximum=MAX_EXPERTS),
    )


def number_of_experts(traits: Mixture, section: Section) -> int:
    """Routed experts, under the model's own key or, as newer libraries write it, under a common one.

    Source: vllm/transformers_utils/model_arch_config_convertor.py:get_num_experts (0.32).
    """
    key = next((name for name in (traits.experts_key, *EXPERT_KEYS) if section.has(name)), traits.experts_key)
    return section.integer(key, maximum=MAX_EXPERTS)


def expert_modules(traits: Mixture, section: Section, experts: Experts, shared: int) -> tuple[Module, ...]:
    """Router, routed and shared experts of one layer."""
    modules: list[Module] = [
        replicated(
            f"{traits.prefix}.gate",
            experts.hidden_size,
            experts.num_experts,
            quantizable=False,
            dtype=router_dtype(traits, section),
        ),
        experts,
    ]
    if flag(section, traits.correction_bias):
        bias = Parameter(
            name=f"{traits.prefix}.gate.e_score_correction_bias",
            replicated=experts.num_experts,
            dtype="float32",
        )
        modules.append(bias)
    if shared:
        name = "shared_expert" if traits.shared_gate else "shared_experts"
        modules += gated_mlp(
            experts.hidden_size,
            shared,
            f"{traits.prefix}.{name}",
            bias=flag(section, traits.base.mlp_bias),
            whole_beside_expert_ranks=traits.shared_whole,
        )
        if traits.shared_gate:
            modules.append(
                replicated(f"{traits.prefix}.shared_expert_gate", experts.hidden_size, 1, quantizable=False)
            )
    return tuple(modules)


ROUTER_DTYPES: Final[Mapping[str, str]] = {"": "", "fp32": "float32"}
"""Any other name means bfloat16. Source: vllm/model_executor/models/bailing_moe.py:BailingMoE (0.32)."""


def router_dtype(traits: Mixture, section: Section) -> str:
    """The dtype of the router, "" for the model's."""
    if not traits.router_dtype_key:
        return traits.router_dtype
    return ROUTER_DTYPES.get(section.string(traits.router_dtype_key, ""), "bfloat16")


def shared_size(traits: Mixture, section: Section) -> int:
    """The width of all shared experts of a layer together; 0 without."""
    size = section.optional_integer(traits.shared_size_key) if traits.shared_size_key else None
    if not traits.shared_count_key:
        return size or 0
    count = section.integer(traits.shared_count_key, traits.shared_count, minimum=0, maximum=4096)
    if size is not None:
        return size if count else 0
    width = section.optional_integer("moe_shared_expert_intermediate_size")
    return count * (width or section.integer(traits.intermediate_key))


def which_layers_are_sparse(traits: Mixture, section: Section) -> tuple[bool, ...]:
    """Whether each layer has experts."""
    count = section.layers()
    if traits.sparse == SPARSE_BY_TYPES:
        kinds = section.words("mlp_layer_types", MLP_KINDS, count)
        if kinds is not None:
            return tuple(kind == "sparse" for kind in kinds)
    if traits.sparse in (SPARSE_AFTER_FIRST, SPARSE_AFTER_DENSE, SPARSE_BY_TYPES):
        key = SPARSE_AFTER_DENSE if traits.sparse == SPARSE_AFTER_DENSE else SPARSE_AFTER_FIRST
        first = section.integer(key, 0, minimum=0)
        return tuple(index >= first for index in range(count))
    if traits.sparse == SPARSE_BY_STEP:
        step = section.integer("decoder_sparse_step", 1)
        dense = set(section.integers("mlp_only_layers") or ())
        return tuple(index not in dense and (index + 1) % step == 0 for index in range(count))
    if traits.sparse == SPARSE_BY_INTERVAL:
        step = section.integer("moe_layer_interval", 1)
        start = section.integer("moe_layer_start_index", 0, minimum=0)
        end = section.integer("moe_layer_end_index", count - 1, minimum=-1)
        end = count - 1 if end == -1 else end
        return tuple((index + 1) % step == 0 and start <= index <= end for index in range(count))
    kinds = section.words("mlp_layer_types", MLP_KINDS, count) if traits.sparse == SPARSE_BY_LIST else None
    if kinds is None:
        return (True,) * count
    return tuple(kind == "sparse" for kind in kinds)


MIXTURES: Final[Mapping[str, Mixture]] = {
    "mixtral": Mixture(
        base=Decoder(),
        experts_key="num_local_experts",
        intermediate_key="intermediate_size",
        prefix="block_sparse_moe",
    ),
    "granitemoe": Mixture(
        base=Decoder(reads_head_dim=False, tied=True),
        experts_key="num_local_experts",
        intermediate_key="intermediate_size",
        prefix="block_sparse_moe",
    ),
    "granitemoe_swa": Mixture(
        base=Decoder(reads_head_dim=False, sinks=("attention_sinks", True)),
        experts_key="num_local_experts",
        intermediate_key="intermediate_size",
        prefix="block_sparse_moe",
        shared_size_key="shared_intermediate_size",
    ),
    "granitemoeshared": Mixture(
        base=Decoder(reads_head_dim=False, tied=True),
        experts_key="num_local_experts",
        intermediate_key="intermediate_size",
        prefix="block_sparse_moe",
        shared_size_key="shared_intermediate_size",
    ),
    "phimoe": Mixture(
        base=Decoder(qkv_bias=True, out_bias=True, norm_bias=True, head_bias=True),
        experts_key="num_local_experts",
        intermediate_key="intermediate_size",
        prefix="block_sparse_moe",
    ),
    "olmoe": Mixture(
        base=Decoder(reads_head_dim=False, qk_norm="whole"),
        intermediate_key="intermediate_size",
    ),
    "qwen2_moe": Mixture(
        base=Decoder(qkv_bias=True, reads_head_dim=False),
        sparse=SPARSE_BY_STEP,
        shared_size_key="shared_expert_intermediate_size",
        shared_gate=True,
    ),
    "qwen3_moe": Mixture(
        base=Decoder(qkv_bias=ATTENTION_BIAS, qk_norm="per_head"),
        sparse=SPARSE_BY_STEP,
        shared_size_key="shared_expert_intermediate_size",
        shared_gate=True,
    ),
    "mellum": Mixture(
        base=Decoder(qkv_bias=ATTENTION_BIAS, out_bias=ATTENTION_BIAS, qk_norm="per_head"),
        sparse=SPARSE_BY_LIST,
    ),
    "glm4_moe": Mixture(
        base=Decoder(
            qkv_bias=ATTENTION_BIAS, qk_norm="per_head", qk_norm_key="use_qk_norm", drafts=DraftTraits()
        ),
        experts_key="n_routed_experts",
        sparse=SPARSE_AFTER_FIRST,
        router_dtype="float32",
        correction_bias=True,
        shared_count_key="n_shared_experts",
    ),
    "dots1": Mixture(
        base=Decoder(qkv_bias=ATTENTION_BIAS, qk_norm="per_head"),
        experts_key="n_routed_experts",
        sparse=SPARSE_AFTER_FIRST,
        correction_bias=True,
        shared_count_key="n_shared_experts",
    ),
    "ernie4_5_moe": Mixture(
        base=Decoder(
            qkv_bias=("use_bias", False),
            mlp_bias=("use_bias", False),
            tied=True,
            drafts=DraftTraits(projection="mtp_linear_proj", norms=("mtp_emb_norm", "mtp_hidden_norm")),
        ),
        dense_drafts=True,
        experts_key="moe_num_experts",
        top_k_key="moe_k",
        sparse=SPARSE_BY_INTERVAL,
        router_dtype="float32",
        correction_bias=True,
        shared_count_key="moe_num_shared_experts",
    ),
    "bailing_moe": Mixture(
        base=Decoder(
            qkv_bias=("use_qkv_bias", False),
            out_bias=("use_bias", False),
            mlp_bias=("use_bias", False),
            qk_norm="per_head",
            qk_norm_key="use_qk_norm",
        ),
        sparse=SPARSE_AFTER_FIRST,
        router_dtype_key="router_dtype",
        correction_bias=("moe_router_enable_expert_bias", False),
        shared_count_key="num_shared_experts",
    ),
    "aria_text": Mixture(
        base=Decoder(qkv_bias=ATTENTION_BIAS),
        experts_key="moe_num_experts",
        intermediate_key="intermediate_size",
        top_k_key="moe_topk",
        shared_count_key="moe_num_shared_experts",
    ),
    "deepseek": Mixture(
        base=Decoder(qkv_bias=ATTENTION_BIAS),
        experts_key="n_routed_experts",
        sparse=SPARSE_AFTER_FIRST,
        shared_count_key="n_shared_experts",
        shared_whole=True,
    ),
}
"""By model_type."""

ARCHITECTURES: Final[Mapping[str, str]] = {
    "MixtralForCausalLM": "mixtral",
    "GraniteMoeForCausalLM": "granitemoe",
    "GraniteMoeSharedForCausalLM": "granitemoeshared",
    "GraniteMoeSWAForCausalLM": "granitemoe_swa",
    "PhiMoEForCausalLM": "phimoe",
    "OlmoeForCausalLM": "olmoe",
    "Qwen2MoeForCausalLM": "qwen2_moe",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "MellumForCausalLM": "mellum",
    "Glm4MoeForCausalLM": "glm4_moe",
    "Dots1ForCausalLM": "dots1",
    "Ernie4_5_MoeForCausalLM": "ernie4_5_moe",
    "Ernie4_5_MoEForCausalLM": "ernie4_5_moe",
    "BailingMoeForCausalLM": "bailing_moe",
    "BailingMoeV2ForCausalLM": "bailing_moe",
    "SarvamMoEForCausalLM": "bailing_moe",
    "DeepseekForCausalLM": "deepseek",
}

SECTION_READERS: Final[Mapping[str, Callable[[ModelConfig, Section], Architecture]]] = {
    name: partial(read_mixture, traits) for name, traits in MIXTURES.items()
}
"""For multimodal models, by the model_type of their language part."""

READERS: Final = {
    **SECTION_READERS,
    **{name: SECTION_READERS[kind] for name, kind in ARCHITECTURES.items()},
}
