"""Decoders that differ in values alone: attention, an MLP or routed experts, norms. Their rows are `decoders.toml`.

A function of this folder reads the rows marked `code`. All are checked against vLLM's own model classes.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, Final, TypeVar

from msgspec.structs import replace

from kvcore.base.toml_files import file_text
from kvcore.model import architecture as arch
from kvcore.model.config import ModelConfig, Section
from kvcore.model.parts import blocks
from kvcore.model.parts.blocks import Flag, Heads, flag
from kvcore.model.parts.experts import ExpertTraits, expert_modules, read_moe
from kvcore.model.parts.pattern import SPARSE_BY, by_kind, crossed, layer_windows, with_modules
from kvcore.tables import Record, convert, one_of, read_toml, wrong

Read = TypeVar("Read")

ROWS: Final = "decoders.toml"
EXPERT_KEYS: Final = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
"""How newer libraries write the number of experts, whatever the model's own key.

Source: vllm/transformers_utils/model_arch_config_convertor.py:get_num_experts (0.32).
"""


class QkNorm(StrEnum):
    """The norms of queries and keys."""

    NONE = ""
    PER_HEAD = "per_head"
    """One vector of head_dim."""
    BIASED = "biased"
    """One with a bias."""
    WHOLE = "whole"
    """One of all heads."""
    SHARDED = "sharded"
    """One a head, divided like the heads."""


class TiedBy(StrEnum):
    """Where it is decided whether lm_head is the embedding."""

    CONFIG = "config"
    """The language part, else the whole config, else the class."""
    SECTION = "section"
    """The language part, else the class."""
    CLASS = "class"


class Names(Record, frozen=True, kw_only=True):
    """Names of a decoder's tensors in its checkpoint, where they are not Llama's."""

    layers: str = "model.layers"
    embedding: str = "model.embed_tokens"
    embedding_norm: str = ""
    """A layer norm behind the embedding; "" without."""
    positions: str = ""
    """A table of positions; "" without."""
    attention: tuple[str, str, str] = ("self_attn", "qkv_proj", "o_proj")
    """Where attention is, its first projection, and its last."""
    mlp: tuple[str, ...] = ()
    """First and last layer of the MLP, where `mlp_prefix` does not give them."""
    mlp_prefix: str = "mlp"
    final_norm: str = "model.norm"
    """ "" without one."""
    head: str = "lm_head"


class DraftTraits(Record, frozen=True, kw_only=True):
    """Modules that a family's multi-token-prediction layers add to one of its decoder layers."""

    projection: str = "eh_proj"
    """From two hidden states to one; whole on every rank, as a rule never quantized."""
    is_quantized: bool = False
    norms: tuple[str, ...] = ("enorm", "hnorm", "shared_head.norm")
    prefix: str = ""
    """As `Architecture.draft_prefix`."""
    count_key: str = "num_nextn_predict_layers"
    usual_count: int = 0
    """How many without that key."""


class Decoder(Record, frozen=True, kw_only=True):
    """A decoder's differences from Llama. A key is one of its config."""

    classes: tuple[str, ...] = ()
    """Other names of such a model: entries of `architectures`, or a model_type besides the row's name."""
    code: bool = False
    """A function of this folder reads it, starting from the row."""
    names: Names = Names()
    vocab_key: str = "vocab_size"
    position_keys: tuple[str, ...] = ("max_position_embeddings",)
    """Rows of the table of positions, by the first of these keys that gives a number."""
    position_extra: int = 0
    """Rows of that table beyond these."""
    rotary: bool = True
    """False: no table of rotary positions."""
    qkv_bias: Flag = False
    out_bias: Flag = False
    mlp_bias: Flag = False
    up_bias: bool = True
    """Whether a bias of the MLP is that of its first layer too (TeleChat 2: of the second alone)."""
    intermediate_keys: tuple[str, ...] = ("intermediate_size",)
    """The width of the MLP, by the first of these keys that gives a number."""
    intermediate_times: int = 0
    """That width as a multiple of the hidden size, where no key gives it."""
    gated: bool = True
    reads_head_dim: bool = True
    layer_norms: tuple[str, ...] = blocks.TWO_NORMS
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
    tied_by: TiedBy = TiedBy.CONFIG
    head_bias: Flag = False
    extra_elements: int = 0
    """Further parameter elements a layer (xIELU's two alphas)."""
    uses_window: bool = True
    window_extra: int = 0
    """Tokens that a window keeps beyond `sliding_window`."""
    attention_gate: str = ""
    """The name of a projection, as wide as all heads, that scales the output of attention."""
    sinks: Flag = False
    """One number a head with its keys."""
    experts: ExpertTraits | None = None
    experts_at: str = ""
    """The object of the config with their keys; "" where they are among the others."""
    sparse: Annotated[str, one_of(tuple(SPARSE_BY))] = "everywhere"
    """Which layers have the experts: all, or by the config key that decides."""
    norms_last: bool = False
    """The norms of a layer with experts come after these, as in layers without."""
    dense_key: str = "intermediate_size"
    """The width of layers without experts, in a model with some."""
    drafts: DraftTraits | None = None
    """How the layers that predict further tokens are built, where the checkpoint has some."""
    dense_drafts: bool = False
    """Those layers have an MLP instead of experts."""


def read_decoder(
    traits: Decoder,
    config: ModelConfig,
    section: Section | None = None,
    *,
    heads: Heads | None = None,
    mixers: tuple[arch.Layer, ...] = (),
    sparse: tuple[bool, ...] = (),
    width: int | None = None,
    mlp: tuple[arch.Module, ...] = (),
    rotary_tables: tuple[arch.RotaryTable, ...] | None = None,
) -> arch.Architecture:
    """A decoder of a row. `section` is the language part; without one it is found in the config.

    Arguments replace the values of the row: the heads, attention of each layer with its caches (`mixers`), which layers
    have experts, the width of the MLP, its modules, tables of rotary positions.
    """
    section = section or config.language
    heads = heads or blocks.read_heads(section, reads_head_dim=traits.reads_head_dim)
    hidden = heads.hidden_size
    place = section.section(traits.experts_at) if traits.experts_at else section
    moe = read_moe(traits.experts, place) if traits.experts else None
    intermediate = width or mlp_width(traits, section, moe)
    mixers = mixers or attending(traits, section, heads)
    around = layer_norms(traits, section, heads)
    if not sparse:
        sparse = SPARSE_BY[traits.sparse](section) if moe else (False,) * len(mixers)
    bodies: dict[bool, tuple[arch.Module, ...]] = {}
    for has_experts in dict.fromkeys(sparse):
        body = mlp or feed_forward(traits, section, hidden, intermediate, moe if has_experts else None)
        bodies[has_experts] = (*around, *body) if moe and not traits.norms_last else (*body, *around)
    kinds = zip(map(id, mixers), sparse, strict=True)
    layers = crossed(kinds, {id(mixer): mixer for mixer in mixers}, bodies)
    tied = is_tied(traits, config, section)
    vocab = section.integer(traits.vocab_key)
    built = blocks.decoder(
        config,
        section=section,
        heads=heads,
        layers=layers,
        intermediate_size=intermediate,
        first=before_layers(traits, section, hidden, vocab),
        last=behind_layers(traits, section, hidden, vocab, tied=tied),
        tied=tied,
        rotary_tables=rotary_tables if traits.rotary else (),
        layer_prefix=traits.names.layers,
        moe=moe,
        vocab_size=vocab,
    )
    if traits.drafts is None:
        return built
    draft = built.layers[-1]
    if traits.dense_drafts:
        plain = plain_part(traits, section, hidden, intermediate)
        draft = replace(draft, modules=(*mixers[-1].modules, *around, *plain))
    return with_drafts(built, section, traits.drafts, draft)


def mlp_width(traits: Decoder, section: Section, moe: arch.MixtureOfExperts | None) -> int:
    """The width of the MLP; of a model with experts theirs, where the config gives no other."""
    if moe is None:
        usual = traits.intermediate_times * section.integer("hidden_size")
        return first_integer(section, traits.intermediate_keys, usual)
    return section.optional_integer("intermediate_size") or moe.moe_intermediate_size


def first_integer(section: Section, keys: tuple[str, ...], default: int = 0) -> int:
    """The number of the first of `keys` that gives one. Raises ModelError without any and a default."""
    numbers = (section.optional_integer(key, minimum=1) for key in keys)
    found = next(filter(None, numbers), default)
    if not found:
        raise section.missing(keys[0])
    return found


def attention(traits: Decoder, section: Section, heads: Heads) -> tuple[arch.Linear, ...]:
    """The projections of attention."""
    prefix, fused, out = traits.names.attention
    biases = {"qkv_bias": flag(section, traits.qkv_bias), "out_bias": flag(section, traits.out_bias)}
    return blocks.attention(heads, prefix, (fused, out), **biases)


def attending(traits: Decoder, section: Section, heads: Heads) -> tuple[arch.Layer, ...]:
    """Attention of each layer, with its cache."""
    modules = attention(traits, section, heads)
    windows = layer_windows(section) if traits.uses_window else (None,) * section.layers()
    return by_kind(
        (window and window + traits.window_extra for window in windows),
        lambda window: arch.Layer(modules=modules, caches=(blocks.cache_of(heads, window),)),
    )


def is_tied(traits: Decoder, config: ModelConfig, section: Section) -> bool:
    """Whether lm_head is the embedding."""
    if traits.tied_by is TiedBy.CLASS:
        return traits.tied
    if traits.tied_by is TiedBy.SECTION:
        return section.boolean("tie_word_embeddings", traits.tied)
    return blocks.is_tied(config, section, traits.tied)


def before_layers(traits: Decoder, section: Section, hidden_size: int, vocab: int) -> tuple[arch.Module, ...]:
    """The embedding, with its norm and position table."""
    names = traits.names
    modules: list[arch.Module] = [blocks.embedding(section, names.embedding, vocab)]
    if names.embedding_norm:
        modules.append(blocks.norm(names.embedding_norm, hidden_size, bias=True))
    if names.positions:
        rows = first_integer(section, traits.position_keys) + traits.position_extra
        modules.append(arch.Parameter(name=names.positions, replicated=rows * hidden_size))
    return tuple(modules)


def behind_layers(
    traits: Decoder, section: Section, hidden_size: int, vocab: int, *, tied: bool
) -> tuple[arch.Module, ...]:
    """The last norm, and the head over the vocabulary where it is not the embedding."""
    name, modules = traits.names.final_norm, list[arch.Module]()
    if traits.norm_weight and name:
        modules.append(blocks.norm(name, hidden_size, bias=flag(section, traits.norm_bias)))
    if not tied:
        bias = flag(section, traits.head_bias)
        modules.append(blocks.head(section, traits.names.head, bias=bias, vocab_size=vocab))
    return tuple(modules)


def feed_forward(
    traits: Decoder, section: Section, hidden_size: int, width: int, moe: arch.MixtureOfExperts | None
) -> tuple[arch.Module, ...]:
    """Experts, or an MLP as wide as the model's layers without experts have it."""
    if moe and traits.experts:
        bias = flag(section, traits.mlp_bias)
        return expert_modules(traits.experts, section, hidden_size, moe, shared_bias=bias)
    if traits.experts:
        width = section.integer(traits.dense_key, first_integer(section, traits.intermediate_keys))
    return plain_part(traits, section, hidden_size, width)


def plain_part(traits: Decoder, section: Section, hidden_size: int, width: int) -> tuple[arch.Linear, ...]:
    """The MLP."""
    bias, names = flag(section, traits.mlp_bias), traits.names.mlp
    if not traits.gated:
        return blocks.plain_mlp(hidden_size, width, *names, bias=bias)
    up, down = blocks.gated_mlp(hidden_size, width, traits.names.mlp_prefix, bias=bias)
    up = replace(up, bias=bias and traits.up_bias)
    return (replace(up, name=names[0], parts=()), replace(down, name=names[1])) if names else (up, down)


def layer_norms(traits: Decoder, section: Section, heads: Heads) -> tuple[arch.Module, ...]:
    """The norms of one layer, and its other parameters."""
    modules: list[arch.Module] = []
    if traits.norm_weight:
        names, key = traits.layer_norms, traits.further_norms_key
        if key and section.boolean(key, False):
            names = (*names, *traits.further_norms)
        modules += blocks.norms(heads.hidden_size, *names, bias=flag(section, traits.norm_bias))
    if traits.qk_norm and (not traits.qk_norm_key or section.boolean(traits.qk_norm_key, False)):
        for name, count in (("q_norm", heads.num_heads), ("k_norm", heads.num_kv_heads)):
            modules.append(qk_norm(traits.qk_norm, f"self_attn.{name}", count, heads.head_dim))
    if traits.attention_gate:
        modules.append(blocks.column(f"self_attn.{traits.attention_gate}", heads.hidden_size, heads.attended))
    if flag(section, traits.sinks):
        modules.append(arch.Parameter(name="self_attn.sinks", sharded=heads.num_heads))
    if traits.extra_elements:
        modules.append(arch.Parameter(name="mlp.act_fn", replicated=traits.extra_elements))
    return tuple(modules)


def qk_norm(kind: QkNorm, name: str, heads: int, head_dim: int) -> arch.Parameter:
    """A norm of queries or keys."""
    if kind is QkNorm.SHARDED:
        return arch.Parameter(name=name, replicated=head_dim, sharded=heads)
    vectors = {QkNorm.BIASED: 2, QkNorm.WHOLE: heads}.get(kind, 1)
    return arch.Parameter(name=name, replicated=vectors * head_dim)


def with_drafts(
    built: arch.Architecture, section: Section, traits: DraftTraits, body: arch.Layer
) -> arch.Architecture:
    """The architecture with the draft layers of its checkpoint, each around `body`.

    Source: vllm/model_executor/models/glm4_moe_mtp.py, mimo_mtp.py, ernie_mtp.py, bailing_moe_mtp.py (0.32).
    """
    count = section.integer(traits.count_key, traits.usual_count, minimum=0, maximum=64)
    hidden = built.hidden_size
    projection = blocks.replicated(traits.projection, 2 * hidden, hidden, quantizable=traits.is_quantized)
    start: tuple[arch.Module, ...] = (projection, *blocks.norms(hidden, *traits.norms))
    draft = replace(body, modules=(*start, *body.modules))
    return dataclasses.replace(
        built, draft_layers=(draft,) * count, draft_prefix=traits.prefix, draft_steps=count
    )


class Decoders(Mapping[str, Decoder]):
    r"""The rows of a table of decoders, by model_type, each read when it is first asked for.

    A row raises TableError `invalid-catalogue-entry`, which names it, for an unknown key or value.

    Example:
        >>> Decoders('[my_model]\nclasses = ["MyForCausalLM"]\nqk_norm = "per_head"')["my_model"].gated
        True
    """

    def __init__(self, text: str) -> None:
        self.document = read_toml(text, ROWS)
        self._rows: dict[str, Decoder] = {}

    def __getitem__(self, name: str) -> Decoder:
        if name not in self._rows:
            self._rows[name] = self._row(name)
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.document)

    def __len__(self) -> int:
        return len(self.document)

    def said(self, name: str) -> Mapping[str, Any]:
        """A row with the values that it takes over, unchecked. Raises TableError for one that is like no other."""
        own = self.document[name]
        liked = own.get("like", name)
        if liked not in self.document:
            raise wrong(f"{ROWS} {name} like", f"{liked!r} is no row")
        base = self.document[liked]
        values = {**base, "classes": [], **own}
        for part in ("names", "experts"):
            if part in values:
                values[part] = {**base.get(part, {}), **own.get(part, {})}
        values.pop("like", None)
        return values

    def _row(self, name: str) -> Decoder:
        row: Decoder = convert(self.said(name), Decoder, f"{ROWS} {name}")
        if row.experts is None or not isinstance(row.experts.experts_key, str):
            return row
        keys = (row.experts.experts_key, *EXPERT_KEYS)
        return replace(row, experts=replace(row.experts, experts_key=keys))


DECODERS: Final = Decoders(file_text(__package__, ROWS))
"""By model_type."""


def experts_of(row: str) -> ExpertTraits:
    """The experts of a row."""
    return DECODERS[row].experts or ExpertTraits()


def with_everywhere(built: arch.Architecture, *modules: arch.Module) -> arch.Architecture:
    """The architecture with more modules in each layer; all of them are alike."""
    return dataclasses.replace(built, layers=(with_modules(built.layers[0], *modules),) * built.num_layers)


def by_row(readers: Mapping[str, Read]) -> Mapping[str, Read]:
    """Readers of rows, by every name that a config may give such a model."""
    spelled = ((name, (name, *DECODERS.said(name)["classes"])) for name in readers)
    return {spelling: readers[name] for name, spellings in spelled for spelling in spellings}


def _read_row(name: str, config: ModelConfig, section: Section | None = None) -> arch.Architecture:
    return read_decoder(DECODERS[name], config, section)


SECTION_READERS: Final[Mapping[str, Callable[[ModelConfig, Section], arch.Architecture]]] = {
    name: partial(_read_row, name) for name in DECODERS if not DECODERS.said(name).get("code")
}
"""For multimodal models, by the model_type of their language part."""

READERS: Final = by_row(SECTION_READERS)
