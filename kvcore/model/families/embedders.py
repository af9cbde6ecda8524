"""Models that embed, rank and label texts: BERT and its descendants, and decoders with another head or none.

`embedders.toml` lists them, with the modules behind their layers. In BERT and its descendants every token sees every
other, so no layer keeps anything of a request. Their tables of positions and token types are sharded over the ranks
like the vocabulary; RoBERTa's were whole on each rank until 0.28.
"""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from msgspec.structs import replace

from kvcore.base.toml_files import file_text
from kvcore.model import architecture as arch
from kvcore.model.architecture import Architecture
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families import mamba, windows
from kvcore.model.families.decoder import SECTION_READERS
from kvcore.model.families.gemma import read_gemma3
from kvcore.model.parts import blocks
from kvcore.model.parts.blocks import Flag, Reader, flag
from kvcore.model.parts.encoder import Names, block, read_sizes, sharded_table, whole
from kvcore.model.rope import read_ropes
from kvcore.tables import Record, convert, read_toml

Pieces = tuple[arch.Module, ...]

ROWS: Final = "embedders.toml"

HEAD_DTYPE: Final = "float32"
"""Source: vllm/config/model.py:head_dtype (0.32)."""

DEFAULT_LABELS: Final = 2
MAX_LABELS: Final = 65_536


class HeadLayer(Record, frozen=True, kw_only=True):
    """A layer of a head; no quantizer touches it. Sizes are a number, or a key of SIZES."""

    name: str
    of: str | int = "hidden"
    to: str | int = "hidden"
    bias: Flag = False
    split: arch.Split = arch.Split.REPLICATED
    is_norm: bool = False
    dtype: str = HEAD_DTYPE
    """"" for the model's."""

    def __post_init__(self) -> None:
        for size in (self.of, self.to):
            if isinstance(size, str) and size not in SIZES:
                raise ValueError(f"{size!r} is none of {', '.join(SIZES)}")


class Embedder(Record, frozen=True, kw_only=True):
    """One model that embeds."""

    names: tuple[str, ...]
    read: str
    """A key of READ, or the decoder that it is read as."""
    both_ways: Flag = False
    """Every token sees every other, so that a decoder keeps nothing."""
    head: tuple[HeadLayer, ...] | None = None
    gated: bool = True
    """Whether the MLP of a BERT with rotary positions has a gate."""
    bias: bool = True
    up_bias: bool = True
    """Whether the MLP's first layer has a bias; False where it has none although the others have one."""
    inner_key: str = "intermediate_size"

    def __post_init__(self) -> None:
        if self.read not in READ and self.read not in SECTION_READERS:
            raise ValueError(f"{self.read!r} is no decoder and none of {', '.join(READ)}")


class EmbedderTable(Record, frozen=True, kw_only=True):
    """embedders.toml."""

    rows: tuple[Embedder, ...]


def read_embedder(row: Embedder, config: ModelConfig) -> Architecture:
    """The architecture of a row."""
    reader = READ.get(row.read)
    built = reader(row, config) if reader else read_as(row.read, config)
    if flag(config.language, row.both_ways):
        built = without_cache(built)
    return built if row.head is None else with_head(built, *head_of(row.head, config, built.hidden_size))


def head_of(layers: tuple[HeadLayer, ...], config: ModelConfig, hidden: int) -> Pieces:
    """The modules of a head; a layer whose size only the weights show is left out."""
    modules: list[arch.Module] = []
    for layer in layers:
        bias = flag(config.language, layer.bias)
        if layer.is_norm:
            modules.append(replace(blocks.norm(layer.name, hidden, bias=bias), dtype=layer.dtype))
            continue
        of, to = (
            SIZES[size](config, hidden) if isinstance(size, str) else size for size in (layer.of, layer.to)
        )
        if of and to:
            linear = blocks.replicated(layer.name, of, to, bias=bias, quantizable=False, dtype=layer.dtype)
            modules.append(replace(linear, split=layer.split))
    return tuple(modules)


def with_classifier(built: Architecture, config: ModelConfig) -> Architecture:
    """The architecture with a linear layer to the labels in place of lm_head.

    Source: vllm/model_executor/models/adapters.py:as_seq_cls_model (0.32).
    """
    return with_head(built, *head_of((HeadLayer(name="score", to="labels"),), config, built.hidden_size))


def without_cache(built: Architecture) -> Architecture:
    """The architecture with layers that keep nothing: attention in both directions sees the whole prompt at once.

    Source: vllm/v1/worker/gpu_model_runner.py:GPUModelRunner.get_kv_cache_spec (0.11.0, 0.32.0).
    """
    bare = {layer: replace(layer, caches=()) for layer in dict.fromkeys(built.layers)}
    return dataclasses.replace(built, layers=tuple(bare[layer] for layer in built.layers))


def number_of_labels(config: ModelConfig) -> int:
    """How many labels the config names, at its root before its language part; 2 when none are named.

    Source: vllm/model_executor/models/adapters.py:_resolve_num_labels (0.32).
    """
    for section in (config.root, config.language):
        count = section.optional_integer("num_labels", minimum=1, maximum=MAX_LABELS)
        names = section.get("id2label")
        if count is None and isinstance(names, Mapping) and names:
            count = len(names)
        if count is not None and count != DEFAULT_LABELS:
            return count
    return DEFAULT_LABELS


COLBERT_KEYS: Final = ("colbert_dim", "dim", "projection_dim")


def colbert_width(config: ModelConfig) -> int | None:
    """The width of ColBERT's vector for each token; None where only the weights show it.

    Source: vllm/model_executor/models/colbert.py:ColBERTMixin.get_colbert_dim_from_config (0.32).
    """
    widths = (config.root.optional_integer(key) for key in COLBERT_KEYS)
    return next(filter(None, widths), None)


SIZES: Final[Mapping[str, Callable[[ModelConfig, int], int | None]]] = {
    "hidden": lambda config, hidden: hidden,
    "half": lambda config, hidden: hidden // 2,
    "labels": lambda config, hidden: number_of_labels(config),
    "vocab": lambda config, hidden: config.language.integer("vocab_size"),
    "colbert": lambda config, hidden: colbert_width(config),
}
"""Sizes that a layer of a head may go from and to, by the config and its hidden size."""


def with_head(built: Architecture, *head: arch.Module) -> Architecture:
    """The architecture with `head` in place of lm_head, on every pipeline stage.

    Source: vllm/model_executor/models/adapters.py:as_seq_cls_model, qwen2_rm.py, internlm2.py (0.32), unguarded.
    """
    kept = tuple(module for module in built.last if not isinstance(module, arch.VocabEmbedding))
    return dataclasses.replace(built, every=(*built.every, *head), last=kept)


def read_as(model_type: str, config: ModelConfig) -> Architecture:
    """The plain decoder of that model_type, with its head."""
    return SECTION_READERS[model_type](config, config.language)


def read_jina_v5(_row: Embedder, config: ModelConfig) -> Architecture:
    """jina-embeddings-v5: Qwen 3, or a Llama both ways where `is_decoder` is false; adapters are merged while it loads.

    Source: vllm/model_executor/models/jina.py:JinaEmbeddingsV5Model, config.py:JinaEmbeddingsV5ModelConfig (0.32).
    """
    if config.root.boolean("is_decoder", True):
        return read_as("qwen3", config)
    return without_cache(read_as("llama", config))


BERT: Final = Names(
    "attention.self.qkv_proj",
    "attention.output.dense",
    "intermediate.dense",
    "output.dense",
    ("attention.output.LayerNorm", "output.LayerNorm"),
    ("query", "key", "value"),
)


def read_bert(row: Embedder, config: ModelConfig) -> Architecture:
    """BERT, RoBERTa and XLM-RoBERTa: positions from a table, a norm behind each half of a layer.

    With rotary positions it is jina-embeddings-v3, whose adapters are merged while it loads.

    Source: vllm/model_executor/models/bert.py, roberta.py (0.32).
    """
    section = config.language
    if section.string("position_embedding_type", "absolute") == "rotary":
        return read_rotated(replace(row, gated=False), config)
    heads = blocks.read_heads(section, "", reads_head_dim=False)
    hidden, inner = heads.hidden_size, section.integer("intermediate_size")
    modules = block(read_sizes(section), BERT)
    words, positions, types = (
        section.integer(key) for key in ("vocab_size", "max_position_embeddings", "type_vocab_size")
    )
    return blocks.decoder(
        config,
        heads=heads,
        layers=(arch.Layer(modules=modules),) * section.layers(),
        intermediate_size=inner,
        first=(
            sharded_table("embeddings.word_embeddings", words, hidden),
            sharded_table("embeddings.position_embeddings", positions, hidden),
            sharded_table("embeddings.token_type_embeddings", types, hidden),
            blocks.norm("embeddings.LayerNorm", hidden, bias=True),
        ),
        last=(),
        tied=True,
        rotary_tables=(),
        layer_prefix="encoder.layer",
    )


def read_rotated(row: Embedder, config: ModelConfig) -> Architecture:
    """BERT with rotary positions, every so many layers with routed experts.

    Source: vllm/model_executor/models/bert_with_rope.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section, "", reads_head_dim=False)
    hidden, inner = heads.hidden_size, section.integer(row.inner_key)
    bias = row.bias
    shared: Pieces = (
        blocks.qkv(heads, "attn.qkv_proj", ("Wqkv",), bias=bias),
        blocks.row("attn.out_proj", hidden, hidden, bias=bias),
        *blocks.norms(hidden, "attn_ln", "mlp_ln", bias=True),
    )
    if row.gated:
        up, down = blocks.gated_mlp(hidden, inner, bias=bias)
        mlp: Pieces = (replace(up, bias=bias and row.up_bias), down)
    else:
        mlp = blocks.plain_mlp(hidden, inner, bias=bias)
    dense = arch.Layer(modules=(*shared, *mlp))
    period = section.integer("moe_every_n_layers", 0, minimum=0)
    routed = arch.Layer(modules=(*shared, *nomic_experts(section, hidden, inner))) if period else dense
    count = section.layers()
    kinds = tuple(routed if period and index % period == 1 else dense for index in range(count))
    types = section.integer("type_vocab_size", 0, minimum=0)
    positions = section.integer("max_position_embeddings", section.integer("n_positions", 2048))
    tables = [sharded_table("embeddings.word_embeddings", section.integer("vocab_size"), hidden)]
    if types:
        tables.append(sharded_table("embeddings.token_type_embeddings", types, hidden))
    return blocks.decoder(
        config,
        heads=heads,
        layers=kinds,
        intermediate_size=inner,
        first=(*tables, blocks.norm("embeddings.LayerNorm", hidden, bias=True)),
        last=(),
        tied=True,
        layer_prefix="encoder.layers",
        rotary_tables=tuple(rope.table(heads.head_dim, positions) for rope in read_ropes(section)),
    )


def nomic_experts(section: Section, hidden: int, inner: int) -> Pieces:
    """Routed experts without a gate, each cut over the ranks; no quantizer knows them.

    Source: vllm/model_executor/models/bert_with_rope.py:NomicMoE (0.32).
    """
    experts = section.integer("num_experts")
    return (
        whole("mlp.router", hidden, experts, bias=False),
        arch.Parameter(name="mlp.experts.w1", replicated=experts * hidden, sharded=inner),
        arch.Parameter(name="mlp.experts.w2", replicated=experts * hidden, sharded=inner),
        arch.Parameter(name="mlp.experts.bias", replicated=hidden),
    )


def read_nomic(row: Embedder, config: ModelConfig) -> Architecture:
    """Nomic's BERT: the config says which MLP and which biases.

    Source: vllm/model_executor/models/config.py:NomicBertModelConfig (0.32).
    """
    section = config.language
    gated = section.string("activation_function", "swiglu") == "swiglu"
    return read_rotated(replace(row, gated=gated, bias=section.boolean("qkv_proj_bias", True)), config)


def read_modernbert(_row: Embedder, config: ModelConfig) -> Architecture:
    """ModernBERT: gated MLPs, norms before each half of a layer but the very first.

    Source: vllm/model_executor/models/modernbert.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section, "", reads_head_dim=False)
    hidden, inner = heads.hidden_size, section.integer("intermediate_size")
    bias = section.boolean("attention_bias", False)
    mlp_bias = section.boolean("mlp_bias", False)
    norm_bias = section.boolean("norm_bias", False)
    up, down = blocks.gated_mlp(hidden, inner, bias=mlp_bias)
    modules: Pieces = (
        blocks.qkv(heads, "attn.Wqkv", bias=bias),
        blocks.row("attn.Wo", hidden, hidden, bias=bias),
        replace(up, name="mlp.Wi", parts=("mlp.Wi",)),
        replace(down, name="mlp.Wo"),
        blocks.norm("mlp_norm", hidden, bias=norm_bias),
    )
    others = arch.Layer(modules=(*modules, blocks.norm("attn_norm", hidden, bias=norm_bias)))
    positions = section.integer("max_position_embeddings")
    return blocks.decoder(
        config,
        heads=heads,
        layers=(arch.Layer(modules=modules), *(others,) * (section.layers() - 1)),
        intermediate_size=inner,
        first=(
            sharded_table("embeddings.tok_embeddings", section.integer("vocab_size"), hidden),
            blocks.norm("embeddings.norm", hidden, bias=norm_bias),
        ),
        last=(blocks.norm("final_norm", hidden, bias=norm_bias),),
        tied=True,
        layer_prefix="layers",
        rotary_tables=(arch.RotaryTable(max_positions=positions, rotary_dim=heads.head_dim),) * 2,
    )


READ: Final[Mapping[str, Callable[[Embedder, ModelConfig], Architecture]]] = {
    "bert": read_bert,
    "rotated": read_rotated,
    "nomic": read_nomic,
    "modernbert": read_modernbert,
    "gemma3": lambda row, config: read_gemma3(config),
    "jina_v5": read_jina_v5,
    "lfm2": lambda row, config: mamba.read_lfm2(config),
    "gpt_oss": lambda row, config: windows.read_gpt_oss(config),
}
"""Readers, by the word in a row."""


def load_rows(text: str) -> Mapping[str, Reader]:
    """The readers of a table of models that embed, by name.

    Raises CatalogueError `invalid-catalogue-entry` for an unknown key or value, `duplicate-reader` for a name twice.
    """
    rows = convert(read_toml(text, ROWS), EmbedderTable, ROWS).rows
    return blocks.named(*((partial(read_embedder, row), *row.names) for row in rows))


READERS: Final = load_rows(file_text(__package__, ROWS))
