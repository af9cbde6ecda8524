"""The pieces that decoder models share: attention, MLP, norms, embeddings, and the Architecture around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from kvcore.base.errors import CatalogueError
from kvcore.model import architecture as arch
from kvcore.model.caches import CacheState, FullAttention, SlidingWindow
from kvcore.model.config import ModelConfig, Section
from kvcore.model.rope import derived_max_model_len, read_context_limits, read_ropes
from kvcore.tables import NEVER

Reader: TypeAlias = Callable[[ModelConfig], arch.Architecture]


def named(*rows: tuple[Reader, *tuple[str, ...]]) -> Mapping[str, Reader]:
    """Readers by the names that configs give their model: entries of `architectures` and model_types, spaces between.

    Raises CatalogueError `duplicate-reader` for a name in two rows.
    """
    readers: dict[str, Reader] = {}
    for reader, *names in rows:
        for name in " ".join(names).split():
            if name in readers:
                raise CatalogueError("duplicate-reader", field=reader.__module__, name=name)
            readers[name] = reader
    return readers


Flag: TypeAlias = bool | str | tuple[str, bool]
"""Always so, or a key of the config, false without it, or a key with the class's default. "not KEY" is its opposite."""


def flag(section: Section, value: Flag) -> bool:
    """A flag as written in the table or, by its key, in the config.

    Example:
        >>> flag(Section({"no_bias": True}), "not no_bias")
        False
    """
    if isinstance(value, bool):
        return value
    key, default = (value, False) if isinstance(value, str) else value
    name = key.removeprefix("not ")
    return section.boolean(name, default) is (name == key)


class Heads(Struct, frozen=True, kw_only=True):
    """The attention geometry of one layer."""

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int = 0
    """Width of values, where they are not as wide as keys."""

    @property
    def head_size_v(self) -> int:
        """The width of one head's values."""
        return self.value_dim or self.head_dim

    @property
    def attended(self) -> int:
        """Elements that attention gives back."""
        return self.num_heads * self.head_size_v


def read_heads(
    section: Section, kv_key: str = "num_key_value_heads", *, reads_head_dim: bool = True
) -> Heads:
    """Attention heads of a config; head_dim is hidden_size / heads unless it is read and written."""
    hidden = section.integer("hidden_size")
    heads = section.integer("num_attention_heads")
    kv_heads = section.integer(kv_key, heads) if kv_key else heads
    head_dim = section.optional_integer("head_dim") if reads_head_dim else None
    if not head_dim:
        if hidden % heads:
            raise section.contradicting(
                "hidden_size", f"{hidden} is not divisible by {heads} attention heads"
            )
        head_dim = hidden // heads
    if heads % kv_heads:
        raise section.contradicting(
            kv_key, f"{heads} attention heads are not divisible by {kv_heads} KV heads"
        )
    return Heads(hidden_size=hidden, num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim)


def with_kv_heads(section: Section, heads: Heads, kv_heads: int | None) -> Heads:
    """`heads` with another number of KV heads, where one is given."""
    if not kv_heads:
        return heads
    if heads.num_heads % kv_heads:
        raise section.contradicting(
            "num_attention_heads",
            f"{heads.num_heads} attention heads are not divisible by {kv_heads} KV heads",
        )
    return replace(heads, num_kv_heads=kv_heads)


def is_tied(config: ModelConfig, section: Section, default: bool) -> bool:
    """Whether lm_head is the embedding: by the language part, else the whole config, else the class."""
    name = "tie_word_embeddings"
    place = section if section.has(name) or not config.root.has(name) else config.root
    return place.boolean(name, default)


def qkv(
    heads: Heads,
    name: str = "self_attn.qkv_proj",
    parts: Sequence[str] | None = None,
    *,
    bias: bool = False,
    query_parts: int = 1,
) -> arch.Linear:
    """The fused query, key and value projection; KV heads are replicated where there are fewer than ranks.

    The checkpoint has three tensors for one called qkv_proj, and one for any other, unless `parts` names them.
    `query_parts` is 2 where each head has a gate next to its query.
    """
    prefix, _, last = name.rpartition(".")
    if parts is None:
        parts = ("q_proj", "k_proj", "v_proj") if last == "qkv_proj" else (last,)
    return arch.Linear(
        name=name,
        in_features=heads.hidden_size,
        outputs=(
            arch.Output(units=heads.num_heads, width=heads.head_dim * query_parts),
            arch.Output(units=heads.num_kv_heads, width=heads.head_dim, replicable=True),
            arch.Output(units=heads.num_kv_heads, width=heads.head_size_v, replicable=True),
        ),
        split=arch.Split.COLUMN,
        bias=bias,
        parts=tuple(f"{prefix}.{part}" for part in parts),
    )


def attention(
    heads: Heads,
    prefix: str = "self_attn",
    names: tuple[str, str] = ("qkv_proj", "o_proj"),
    *,
    qkv_bias: bool = False,
    out_bias: bool = False,
    query_parts: int = 1,
) -> tuple[arch.Linear, ...]:
    """Query, key, value and output projections, by default under their usual names."""
    fused, out = (f"{prefix}.{name}" for name in names)
    return (
        qkv(heads, fused, bias=qkv_bias, query_parts=query_parts),
        row(out, heads.attended, heads.hidden_size, bias=out_bias),
    )


def column(name: str, in_features: int, out_features: int, *, bias: bool = False) -> arch.Linear:
    """A linear layer whose output features are divided."""
    return arch.Linear(
        name=name,
        in_features=in_features,
        outputs=(arch.Output(units=out_features),),
        split=arch.Split.COLUMN,
        bias=bias,
    )


def row(name: str, in_features: int, out_features: int, *, bias: bool = False) -> arch.Linear:
    """A linear layer whose input features are divided."""
    return arch.Linear(
        name=name,
        in_features=in_features,
        outputs=(arch.Output(units=out_features),),
        split=arch.Split.ROW,
        bias=bias,
    )


def replicated(
    name: str,
    in_features: int,
    out_features: int,
    *,
    bias: bool = False,
    quantizable: bool = True,
    dtype: str = "",
) -> arch.Linear:
    """A linear layer that every rank stores whole."""
    return arch.Linear(
        name=name,
        in_features=in_features,
        outputs=(arch.Output(units=out_features),),
        bias=bias,
        quantizable=quantizable,
        dtype=dtype,
    )


def gated_mlp(
    hidden_size: int,
    intermediate_size: int,
    prefix: str = "mlp",
    *,
    bias: bool = False,
) -> tuple[arch.Linear, ...]:
    """gate, up (fused) and down projections."""
    up = arch.Linear(
        name=f"{prefix}.gate_up_proj",
        in_features=hidden_size,
        outputs=(arch.Output(units=intermediate_size), arch.Output(units=intermediate_size)),
        split=arch.Split.COLUMN,
        bias=bias,
        parts=(f"{prefix}.gate_proj", f"{prefix}.up_proj"),
    )
    return (up, row(f"{prefix}.down_proj", intermediate_size, hidden_size, bias=bias))


def with_expert_ranks(linears: tuple[arch.Linear, ...]) -> tuple[arch.Linear, ...]:
    """Shared experts that every rank stores whole when tokens are cut before the routed ones."""
    return tuple(replace(linear, whole_with_expert_ranks=True) for linear in linears)


def plain_mlp(
    hidden_size: int,
    intermediate_size: int,
    up: str = "mlp.up_proj",
    down: str = "mlp.down_proj",
    *,
    bias: bool = False,
) -> tuple[arch.Linear, ...]:
    """An MLP without a gate."""
    return (
        column(up, hidden_size, intermediate_size, bias=bias),
        row(down, intermediate_size, hidden_size, bias=bias),
    )


def norm(name: str, size: int, *, bias: bool = False) -> arch.Parameter:
    """A norm of `size` elements; with a bias it is a layer norm."""
    return arch.Parameter(name=name, replicated=size * (2 if bias else 1))


def norms(size: int, *names: str, bias: bool = False) -> tuple[arch.Parameter, ...]:
    """Several norms of the same size."""
    return tuple(norm(name, size, bias=bias) for name in names)


TWO_NORMS: Final = ("input_layernorm", "post_attention_layernorm")
"""Both norms of a layer, as Llama and most after it call them."""


def cache_of(heads: Heads, sliding_window: int | None = None) -> CacheState:
    """The cache of an attention layer: everything, or a window."""
    kv, size, size_v = heads.num_kv_heads, heads.head_dim, heads.head_size_v
    if sliding_window is None:
        return FullAttention(num_kv_heads=kv, head_size=size, head_size_v=size_v)
    return SlidingWindow(num_kv_heads=kv, head_size=size, head_size_v=size_v, sliding_window=sliding_window)


def embedding(
    section: Section, name: str = "model.embed_tokens", vocab_size: int | None = None
) -> arch.VocabEmbedding:
    """The token embedding."""
    return arch.VocabEmbedding(
        name=name,
        num_embeddings=vocab_size or section.integer("vocab_size"),
        embedding_dim=section.integer("hidden_size"),
    )


def head(
    section: Section, name: str = "lm_head", *, bias: bool = False, vocab_size: int | None = None
) -> arch.VocabEmbedding:
    """The output projection to the vocabulary."""
    return arch.VocabEmbedding(
        name=name,
        num_embeddings=vocab_size or section.integer("vocab_size"),
        embedding_dim=section.integer("hidden_size"),
        bias=bias,
        quantizable=True,
    )


def decoder(
    config: ModelConfig,
    *,
    section: Section | None = None,
    heads: Heads,
    layers: tuple[arch.Layer, ...],
    intermediate_size: int,
    first: tuple[arch.Module, ...] | None = None,
    last: tuple[arch.Module, ...] | None = None,
    final_norm: str = "model.norm",
    every: tuple[arch.Module, ...] = (),
    tied: bool | None = None,
    rotary_tables: tuple[arch.RotaryTable, ...] | None = None,
    layer_prefix: str = "model.layers",
    moe: arch.MixtureOfExperts | None = None,
    vision: arch.VisionEncoder | None = None,
    is_multimodal: bool = False,
    is_mla: bool = False,
    uncounted: tuple[str, ...] = (),
    vocab_size: int | None = None,
) -> arch.Architecture:
    """An Architecture around `layers`, as in Llama unless given: one embedding, one norm, one lm_head.

    `section` is the language part, where it is another than the config's.
    """
    section = section or config.language
    limits = read_context_limits(section, config.model_type)
    embeddings_tied = is_tied(config, section, True) if tied is None else tied
    if first is None:
        first = (embedding(section, vocab_size=vocab_size),)
    if last is None:
        last = (
            norm(final_norm, heads.hidden_size),
            *(() if embeddings_tied else (head(section, vocab_size=vocab_size),)),
        )
    if rotary_tables is None:
        positions = section.integer("max_position_embeddings", 8192)
        rotary_tables = tuple(rope.table(heads.head_dim, positions) for rope in read_ropes(section))
    return arch.Architecture(
        model_type=config.model_type,
        hidden_size=heads.hidden_size,
        intermediate_size=intermediate_size,
        vocab_size=vocab_size or section.integer("vocab_size"),
        num_attention_heads=heads.num_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        max_model_len=derived_max_model_len(limits, NEVER),
        context=limits,
        dtype=config.dtype,
        layers=layers,
        layer_prefix=layer_prefix,
        first=first,
        last=last,
        every=every,
        tied_embeddings=embeddings_tied,
        rotary_tables=rotary_tables,
        moe=moe,
        vision=vision,
        is_multimodal=is_multimodal,
        is_mla=is_mla,
        uncounted=uncounted,
    )
