"""Decoders that differ in values alone: attention, an MLP or routed experts, norms. Their rows are `decoders.toml`.

A class that no family claims is read as a plain decoder where its config has no key that says otherwise: the engine
runs it through its Transformers backend. What its tensors are is assumed, and the architecture says so; what it keeps
of a request follows from its heads. Checked against vLLM's own model classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache, partial
from importlib.resources import files
from typing import Any, Final, assert_never, get_type_hints

from kvcore.model.architecture import Architecture, Layer, Linear, MixtureOfExperts, Module, Parameter
from kvcore.model.config import ModelConfig, Section
from kvcore.model.parts.blocks import (
    DraftTraits,
    Flag,
    Heads,
    QkNorm,
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
    qk_norm,
    read_heads,
    with_drafts,
)
from kvcore.model.parts.experts import ExpertTraits, expert_modules, read_moe
from kvcore.model.parts.pattern import (
    by_kind,
    layer_windows,
    sparse_by_interval,
    sparse_by_step,
    sparse_by_types,
    sparse_from,
)
from kvcore.versioned import convert, read_toml, wrong

ROWS: Final = "decoders.toml"
EXPERT_KEYS: Final = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
"""How newer libraries write the number of experts, whatever the model's own key.

Source: vllm/transformers_utils/model_arch_config_convertor.py:get_num_experts (0.32).
"""


class Sparse(StrEnum):
    """Which layers have experts: all, or by the config key that decides."""

    EVERYWHERE = "everywhere"
    AFTER_FIRST = "first_k_dense_replace"
    AFTER_DENSE = "num_dense_layers"
    BY_TYPES = "mlp_layer_types"
    BY_STEP = "decoder_sparse_step"
    BY_INTERVAL = "moe_layer_interval"


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoder:
    """What sets one decoder apart. A key is one of its config."""

    classes: tuple[str, ...] = ()
    """The entries of `architectures` that are read so, with the model_type that names the row."""
    qkv_bias: Flag = False
    out_bias: Flag = False
    mlp_bias: Flag = False
    up_bias: bool = True
    """Whether a bias of the MLP is that of its first layer too (TeleChat 2: of the second alone)."""
    intermediate_key: str = "intermediate_size"
    gated: bool = True
    mlp_names: tuple[str, ...] = ("up_proj", "down_proj")
    """Of an MLP that is not gated."""
    reads_head_dim: bool = True
    layer_norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    further_norms_key: str = ""
    """The key that switches `further_norms` on."""
    further_norms: tuple[str, ...] = ()
    norm_bias: Flag = False
    norm_weight: bool = True
    """False: norms have no parameters (OLMo 1)."""
    qk_norm: QkNorm = QkNorm.NONE
    qk_norm_key: str = ""
    """The key that switches the norms of queries and keys on; "" when they are always there."""
    tied: bool = False
    """The class's default of tie_word_embeddings."""
    head_bias: Flag = False
    extra_elements: int = 0
    """Further parameter elements a layer (xIELU's two alphas)."""
    uses_window: bool = True
    window_extra: int = 0
    """Tokens that a window keeps beyond `sliding_window`."""
    attention_gate: str = ""
    """The name of a projection, as wide as all heads, that scales what attention gives."""
    sinks: Flag = False
    """One number a head with its keys."""
    experts: ExpertTraits | None = None
    sparse: Sparse = Sparse.EVERYWHERE
    """Which layers have the experts."""
    dense_key: str = "intermediate_size"
    """The width of layers without experts, in a model with some."""
    drafts: DraftTraits | None = None
    """How the layers that predict further tokens are built, where the checkpoint has some."""
    dense_drafts: bool = False
    """Those layers have an MLP instead of experts."""


def read_decoder(traits: Decoder, config: ModelConfig, section: Section | None = None) -> Architecture:
    """A decoder of a row. `section` is the language part; without one it is found in the config."""
    section = section or config.language
    heads = read_heads(section, reads_head_dim=traits.reads_head_dim)
    hidden = heads.hidden_size
    moe = read_moe(traits.experts, section) if traits.experts else None
    width = section.optional_integer("intermediate_size") if moe else section.integer(traits.intermediate_key)
    intermediate = width or (moe.moe_intermediate_size if moe else 0)
    attends = attention(
        heads, qkv_bias=flag(section, traits.qkv_bias), out_bias=flag(section, traits.out_bias)
    )
    around = layer_norms(traits, section, heads)
    sparse = sparse_layers(traits, section)
    bodies: dict[bool, tuple[Module, ...]] = {
        has_experts: (
            *attends,
            *(around if moe else ()),
            *feed_forward(traits, section, hidden, moe if has_experts else None),
            *(() if moe else around),
        )
        for has_experts in dict.fromkeys(sparse)
    }
    windows = layer_windows(section) if traits.uses_window else (None,) * section.layers()
    layers = by_kind(
        zip(sparse, (window and window + traits.window_extra for window in windows), strict=True),
        lambda kind: Layer(modules=bodies[kind[0]], caches=(cache_of(heads, kind[1]),)),
    )
    tied = is_tied(config, section, traits.tied)
    last: tuple[Module, ...] = ()
    if traits.norm_weight:
        last = (norm("model.norm", hidden, bias=flag(section, traits.norm_bias)),)
    if not tied:
        last = (*last, head(section, bias=flag(section, traits.head_bias)))
    built = decoder(
        config,
        section=section,
        heads=heads,
        layers=layers,
        intermediate_size=intermediate,
        last=last,
        tied=tied,
        moe=moe,
    )
    if traits.drafts is None:
        return built
    body = built.layers[-1]
    if traits.dense_drafts:
        body = replace(body, modules=(*attends, *around, *mlp(traits, section, hidden, intermediate)))
    return with_drafts(built, section, traits.drafts, body)


def sparse_layers(traits: Decoder, section: Section) -> tuple[bool, ...]:
    """Whether each layer has experts."""
    match traits.sparse:
        case _ if traits.experts is None:
            return (False,) * section.layers()
        case Sparse.EVERYWHERE:
            return (True,) * section.layers()
        case Sparse.AFTER_FIRST | Sparse.AFTER_DENSE:
            return sparse_from(section, traits.sparse)
        case Sparse.BY_TYPES:
            return sparse_by_types(section) or sparse_from(section)
        case Sparse.BY_STEP:
            return sparse_by_step(section)
        case Sparse.BY_INTERVAL:
            return sparse_by_interval(section)
        case _ as never:
            assert_never(never)


def feed_forward(
    traits: Decoder, section: Section, hidden_size: int, moe: MixtureOfExperts | None
) -> tuple[Module, ...]:
    """Experts, or an MLP as wide as the model's layers without experts have it."""
    if moe and traits.experts:
        bias = flag(section, traits.mlp_bias)
        return expert_modules(traits.experts, section, hidden_size, moe, shared_bias=bias)
    width = section.integer(traits.intermediate_key)
    if traits.experts:
        width = section.integer(traits.dense_key, width)
    return mlp(traits, section, hidden_size, width)


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
        names, key = traits.layer_norms, traits.further_norms_key
        if key and section.boolean(key, False):
            names = (*names, *traits.further_norms)
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


def read_exaone_moe(config: ModelConfig, section: Section | None = None) -> Architecture:
    """K-EXAONE, with its prediction layers: each like the layer of its number, with an MLP instead of experts.

    Source: vllm/model_executor/models/exaone_moe.py, exaone_moe_mtp.py (0.32).
    """
    section = section or config.language
    built = read_decoder(DECODERS["exaone_moe"], config, section)
    count = section.integer("num_nextn_predict_layers", 0, minimum=0, maximum=built.num_layers)
    if not count:
        return built
    hidden = built.hidden_size
    mlp = gated_mlp(hidden, built.intermediate_size, bias=section.boolean("mlp_bias", False))
    return replace(
        built,
        draft_layers=tuple(
            replace(layer, modules=(*(each for each in layer.modules if not is_of_mlp(each)), *mlp))
            for layer in built.layers[:count]
        ),
        draft_prefix="mtp.layers",
        draft_modules=(
            column("mtp.fc", 2 * hidden, hidden),
            *norms(hidden, "mtp.norm", "mtp.pre_fc_norm_hidden", "mtp.pre_fc_norm_embedding"),
        ),
        draft_steps=count,
    )


def is_of_mlp(module: Module) -> bool:
    """Whether a module belongs to the MLP or the experts."""
    return module.name.startswith("mlp.")


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind)


def load_rows(text: str) -> Mapping[str, Decoder]:
    r"""The rows of a table of decoders, by model_type.

    Raises TableError `invalid-catalogue-entry`, which names the row, for an unknown key or value.

    Example:
        >>> load_rows('[my_model]\nclasses = ["MyForCausalLM"]\nqk_norm = "per_head"')["my_model"].gated
        True
    """
    document = read_toml(text, ROWS)
    rows: dict[str, Decoder] = {}
    for name, own in document.items():
        liked = own.get("like", name)
        if liked not in document:
            raise wrong(f"{ROWS} {name} like", f"{liked!r} is no row")
        base = document[liked]
        values = {**base, "classes": [], **own}
        if "experts" in values:
            values["experts"] = {**base.get("experts", {}), **own.get("experts", {})}
        values.pop("like", None)
        row = convert(values, Decoder, f"{ROWS} {name}")
        if row.experts is not None:
            keys = (str(row.experts.experts_key), *EXPERT_KEYS)
            row = replace(row, experts=replace(row.experts, experts_key=keys))
        rows[name] = row
    return rows


DECODERS: Final = load_rows(files(__package__).joinpath(ROWS).read_text("utf-8"))
"""By model_type."""

LLAMA: Final = DECODERS["llama"]


SUFFIX: Final = "ForCausalLM"
DRAFTS: Final = ("eagle", "medusa", "mtp", "speculator", "draft", "dflash")
"""In the name of what only proposes tokens for another model."""

PLAIN_KEYS: Final = frozenset(
    "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim vocab_size"
    " max_position_embeddings rope_theta rope_scaling rope_parameters partial_rotary_factor rms_norm_eps norm_eps"
    " layer_norm_eps layer_norm_epsilon tie_word_embeddings attention_bias mlp_bias hidden_act sliding_window"
    " use_sliding_window max_window_layers layer_types quantization_config".split()
)
"""Of which every one is read, or changes no tensor."""

HARMLESS_KEYS: Final = frozenset(
    "architectures model_type auto_map torch_dtype dtype transformers_version _name_or_path bos_token_id eos_token_id"
    " pad_token_id unk_token_id use_cache initializer_range attention_dropout residual_dropout hidden_dropout"
    " resid_pdrop attn_pdrop embd_pdrop pretraining_tp is_causal id2label label2id task_specific_params"
    " output_attentions output_hidden_states return_dict tokenizer_class use_flash_attn _attn_implementation"
    " _attn_implementation_autoset attn_implementation is_decoder is_encoder_decoder add_cross_attention"
    " chunk_size_feed_forward finetuning_task name_or_path problem_type unsloth_version unsloth_fixed".split()
)

WINDOWS: Final = frozenset({"full_attention", "sliding_attention"})

GATED: Final = frozenset({"silu", "swish", "swiglu"})
"""Activations of a gated feed-forward part. With others it may be plain."""


def strange_keys(config: ModelConfig) -> tuple[str, ...]:
    """What in a config is not of a plain decoder: keys, an activation that may be no gate, other kinds of layers.

    Example:
        >>> config = {"architectures": ["NewForCausalLM"], "hidden_act": "silu", "num_experts": 8}
        >>> strange_keys(ModelConfig.from_mapping(config))
        ('num_experts',)
    """
    root = config.root
    given = {key for key, value in config.raw.items() if value is not None and value is not False}
    strange = sorted(given - PLAIN_KEYS - HARMLESS_KEYS)
    if root.string("hidden_act", "silu") not in GATED:
        strange.append("hidden_act")
    if not WINDOWS.issuperset(root.strings("layer_types") or ()):
        strange.append("layer_types")
    return tuple(strange)


def is_named_like_a_decoder(config: ModelConfig) -> bool:
    """Whether the class's name is that of a model that generates text by itself."""
    name = config.architectures[0] if config.architectures else ""
    return name.endswith(SUFFIX) and not any(draft in name.lower() for draft in DRAFTS)


def read_unknown(config: ModelConfig) -> Architecture:
    """The plain decoder that the config describes, marked as assumed.

    Raises ModelError for a missing or unusable size.
    """
    return replace(read_decoder(LLAMA, config), is_assumed=True)


SECTION_READERS: Final[Mapping[str, Callable[[ModelConfig, Section], Architecture]]] = {
    **{name: partial(read_decoder, traits) for name, traits in DECODERS.items()},
    "exaone_moe": read_exaone_moe,
}
"""For multimodal models, by the model_type of their language part."""

READERS: Final = {
    spelling: SECTION_READERS[name]
    for name, traits in DECODERS.items()
    for spelling in (name, *traits.classes)
}
