"""BERT and its descendants, RoBERTa, ModernBERT, Nomic, GTE, ColBERT: encoders that embed, rank and label texts.

Every token sees every other, so no layer keeps anything of a request.

Tables of positions and token types are sharded over the ranks like the vocabulary; RoBERTa's were whole on each rank
until 0.28.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from kvcore.model import architecture as arch
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families.embedders import HEAD_DTYPE, number_of_labels
from kvcore.model.parts import blocks, vision
from kvcore.model.parts.encoder import read_encoder
from kvcore.model.rope import read_ropes

Pieces = tuple[arch.Module, ...]
Head = Callable[[ModelConfig, int], Pieces]
"""What stands behind the layers, of a config and a width."""


def float32_layer(name: str, in_features: int, out_features: int, *, bias: bool = True) -> arch.Linear:
    """A layer of a pooling head: float32, and whole on each rank."""
    return blocks.replicated(name, in_features, out_features, bias=bias, quantizable=False, dtype=HEAD_DTYPE)


def no_head(config: ModelConfig, hidden: int) -> Pieces:
    """Embeddings are pooled from the last layer as they are."""
    return ()


def token_head(config: ModelConfig, hidden: int) -> Pieces:
    """Labels for each token: one layer.

    Source: vllm/model_executor/models/bert.py:BertForTokenClassification (0.32).
    """
    return (float32_layer("classifier", hidden, number_of_labels(config)),)


def pooled_head(prefix: str, config: ModelConfig, hidden: int) -> Pieces:
    """Labels for a text: the pooler and a layer.

    Source: vllm/model_executor/models/bert.py:BertForSequenceClassification, BertPooler, bert_with_rope.py:
    GteNewForSequenceClassification (0.32).
    """
    return (float32_layer(f"{prefix}.pooler.dense", hidden, hidden), *token_head(config, hidden))


def roberta_head(config: ModelConfig, hidden: int) -> Pieces:
    """Labels for a text: two layers.

    Source: vllm/model_executor/models/roberta.py:RobertaClassificationHead (0.32).
    """
    labels = number_of_labels(config)
    dense = float32_layer("classifier.dense", hidden, hidden)
    return (dense, float32_layer("classifier.out_proj", hidden, labels))


def bge_m3_head(config: ModelConfig, hidden: int) -> Pieces:
    """A weight for each token, and a vector for each token.

    Source: vllm/model_executor/models/roberta.py:BgeM3EmbeddingModel (0.32).
    """
    return (
        float32_layer("sparse_linear", hidden, 1),
        float32_layer("colbert_linear", hidden, hidden),
    )


def mask_head(config: ModelConfig, hidden: int) -> Pieces:
    """Scores of the whole vocabulary, in the model's dtype; the table is a copy of the embedding.

    Source: vllm/model_executor/models/bert.py:BertMLMHead (0.32).
    """
    vocab = config.language.integer("vocab_size")
    return (
        vision.whole("cls.predictions.transform.dense", hidden, hidden),
        blocks.norm("cls.predictions.transform.LayerNorm", hidden, bias=True),
        vision.whole("cls.predictions.decoder", hidden, vocab),
    )


COLBERT_KEYS: Final = ("colbert_dim", "dim", "projection_dim")
"""Source: vllm/model_executor/models/colbert.py:ColBERTMixin.get_colbert_dim_from_config (0.32)."""


def colbert_head(config: ModelConfig, hidden: int) -> tuple[arch.Module, ...]:
    """ColBERT's vector for each token; nothing where only the weights say how wide it is.

    Source: vllm/model_executor/models/colbert.py:ColBERTMixin (0.32).
    """
    widths = (config.root.optional_integer(key) for key in COLBERT_KEYS)
    width = next(filter(None, widths), None)
    return () if width is None else (float32_layer("linear", hidden, width, bias=False),)


def encoder(
    config: ModelConfig,
    *,
    heads: blocks.Heads,
    layers: tuple[arch.Layer, ...],
    intermediate_size: int,
    first: Pieces,
    prefix: str,
    every: Pieces = (),
    last: Pieces = (),
    rotary_tables: tuple[arch.RotaryTable, ...] = (),
) -> arch.Architecture:
    """An Architecture without a head over the vocabulary."""
    return blocks.decoder(
        config,
        section=config.language,
        heads=heads,
        layers=layers,
        intermediate_size=intermediate_size,
        first=first,
        every=every,
        last=last,
        tied=True,
        rotary_tables=rotary_tables,
        layer_prefix=prefix,
    )


def read_bert(head: Head, config: ModelConfig) -> arch.Architecture:
    """BERT, RoBERTa and XLM-RoBERTa: positions from a table, a norm behind each half of a layer.

    Source: vllm/model_executor/models/bert.py, roberta.py (0.32).
    """
    section = config.language
    if section.string("position_embedding_type", "absolute") == "rotary":
        return read_jina(head, config)
    heads = blocks.read_heads(section, "", reads_head_dim=False)
    hidden, inner = heads.hidden_size, section.integer("intermediate_size")
    modules = read_encoder("bert_block", section).modules
    words, positions, types = (
        section.integer(key) for key in ("vocab_size", "max_position_embeddings", "type_vocab_size")
    )
    return encoder(
        config,
        heads=heads,
        layers=(arch.Layer(modules=modules),) * section.layers(),
        intermediate_size=inner,
        first=(
            vision.sharded_table("embeddings.word_embeddings", words, hidden),
            vision.sharded_table("embeddings.position_embeddings", positions, hidden),
            vision.sharded_table("embeddings.token_type_embeddings", types, hidden),
            blocks.norm("embeddings.LayerNorm", hidden, bias=True),
        ),
        every=head(config, hidden),
        prefix="encoder.layer",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Rotated:
    """What sets one BERT with rotary positions apart."""

    gated: bool
    bias: bool = True
    up_bias: bool = True
    """Of the MLP's first layer; False where it has none although the others have one."""
    inner_key: str = "intermediate_size"


def read_rotated(traits: Rotated, head: Head, config: ModelConfig) -> arch.Architecture:
    """BERT with rotary positions, every so many layers with routed experts.

    Source: vllm/model_executor/models/bert_with_rope.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section, "", reads_head_dim=False)
    hidden, inner = heads.hidden_size, section.integer(traits.inner_key)
    bias = traits.bias
    shared: Pieces = (
        blocks.qkv(heads, "attn.qkv_proj", ("Wqkv",), bias=bias),
        blocks.row("attn.out_proj", hidden, hidden, bias=bias),
        *blocks.norms(hidden, "attn_ln", "mlp_ln", bias=True),
    )
    if traits.gated:
        up, down = blocks.gated_mlp(hidden, inner, bias=bias)
        mlp: Pieces = (replace(up, bias=bias and traits.up_bias), down)
    else:
        mlp = blocks.plain_mlp(hidden, inner, bias=bias)
    dense = arch.Layer(modules=(*shared, *mlp))
    period = section.integer("moe_every_n_layers", 0, minimum=0)
    routed = arch.Layer(modules=(*shared, *nomic_experts(section, hidden, inner))) if period else dense
    count = section.layers()
    kinds = tuple(routed if period and index % period == 1 else dense for index in range(count))
    types = section.integer("type_vocab_size", 0, minimum=0)
    positions = section.integer("max_position_embeddings", section.integer("n_positions", 2048))
    tables = [vision.sharded_table("embeddings.word_embeddings", section.integer("vocab_size"), hidden)]
    if types:
        tables.append(vision.sharded_table("embeddings.token_type_embeddings", types, hidden))
    return encoder(
        config,
        heads=heads,
        layers=kinds,
        intermediate_size=inner,
        first=(*tables, blocks.norm("embeddings.LayerNorm", hidden, bias=True)),
        every=head(config, hidden),
        prefix="encoder.layers",
        rotary_tables=tuple(rope.table(heads.head_dim, positions) for rope in read_ropes(section)),
    )


def nomic_experts(section: Section, hidden: int, inner: int) -> Pieces:
    """Routed experts without a gate, each cut over the ranks; no quantizer knows them.

    Source: vllm/model_executor/models/bert_with_rope.py:NomicMoE (0.32).
    """
    experts = section.integer("num_experts")
    return (
        vision.whole("mlp.router", hidden, experts, bias=False),
        arch.Parameter(name="mlp.experts.w1", replicated=experts * hidden, sharded=inner),
        arch.Parameter(name="mlp.experts.w2", replicated=experts * hidden, sharded=inner),
        arch.Parameter(name="mlp.experts.bias", replicated=hidden),
    )


def read_nomic(config: ModelConfig) -> arch.Architecture:
    """Nomic's BERT: the config says which MLP and which biases.

    Source: vllm/model_executor/models/config.py:NomicBertModelConfig (0.32).
    """
    section = config.language
    gated = section.string("activation_function", "swiglu") == "swiglu"
    bias = section.boolean("qkv_proj_bias", True)
    return read_rotated(Rotated(gated=gated, bias=bias, inner_key="n_inner"), no_head, config)


GTE: Final = Rotated(gated=True, up_bias=False)


def read_jina(head: Head, config: ModelConfig) -> arch.Architecture:
    """jina-embeddings-v3: XLM-RoBERTa with rotary positions; its adapters are merged while it loads.

    Source: vllm/model_executor/models/bert_with_rope.py:JinaRobertaModel (0.32).
    """
    return read_rotated(Rotated(gated=False), head, config)


def modernbert_pooler(config: ModelConfig, hidden: int) -> Pieces:
    """Labels for a text: a layer and a norm, then the labels.

    Source: vllm/model_executor/models/modernbert.py:ModernBertForSequenceClassification (0.32).
    """
    section = config.language
    bias = section.boolean("norm_bias", False)
    return (
        float32_layer("head.dense", hidden, hidden, bias=section.boolean("classifier_bias", False)),
        replace(blocks.norm("head.norm", hidden, bias=bias), dtype=HEAD_DTYPE),
        *token_head(config, hidden),
    )


def modernbert_tokens(config: ModelConfig, hidden: int) -> Pieces:
    """Labels for each token: as for a text, but for the first layer's dtype.

    Source: vllm/model_executor/models/modernbert.py:ModernBertPredictionHead (0.32).
    """
    section = config.language
    bias = section.boolean("classifier_bias", False)
    return (
        vision.whole("head.dense", hidden, hidden, bias=bias),
        blocks.norm("head.norm", hidden, bias=section.boolean("norm_bias", False)),
        *token_head(config, hidden),
    )


def read_modernbert(head: Head, config: ModelConfig) -> arch.Architecture:
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
        blocks.qkv(heads, "attn.Wqkv", ("Wqkv",), bias=bias),
        blocks.row("attn.Wo", hidden, hidden, bias=bias),
        replace(up, name="mlp.Wi", parts=("mlp.Wi",)),
        replace(down, name="mlp.Wo"),
        blocks.norm("mlp_norm", hidden, bias=norm_bias),
    )
    others = arch.Layer(modules=(*modules, blocks.norm("attn_norm", hidden, bias=norm_bias)))
    positions = section.integer("max_position_embeddings")
    return encoder(
        config,
        heads=heads,
        layers=(arch.Layer(modules=modules), *(others,) * (section.layers() - 1)),
        intermediate_size=inner,
        first=(
            vision.sharded_table("embeddings.tok_embeddings", section.integer("vocab_size"), hidden),
            blocks.norm("embeddings.norm", hidden, bias=norm_bias),
        ),
        every=head(config, hidden),
        last=(blocks.norm("final_norm", hidden, bias=norm_bias),),
        prefix="layers",
        rotary_tables=(arch.RotaryTable(max_positions=positions, rotary_dim=heads.head_dim),) * 2,
    )


BERT: Final = partial(read_bert, no_head)
MODERNBERT: Final = partial(read_modernbert, no_head)
SEQUENCE_LABELS: Final = partial(read_bert, roberta_head)
TOKEN_LABELS: Final = partial(read_bert, token_head)

READERS: Final[Mapping[str, Callable[[ModelConfig], arch.Architecture]]] = {
    **dict.fromkeys(("BertModel", "RobertaModel", "XLMRobertaModel", "RobertaForMaskedLM"), BERT),
    **dict.fromkeys(("bert", "roberta", "xlm-roberta"), BERT),
    "BertForSequenceClassification": partial(read_bert, partial(pooled_head, "bert")),
    "RobertaForSequenceClassification": SEQUENCE_LABELS,
    "XLMRobertaForSequenceClassification": SEQUENCE_LABELS,
    "BertForTokenClassification": TOKEN_LABELS,
    "RobertaForTokenClassification": TOKEN_LABELS,
    "XLMRobertaForTokenClassification": TOKEN_LABELS,
    "BertForMaskedLM": partial(read_bert, mask_head),
    "BertSpladeSparseEmbeddingModel": partial(read_bert, mask_head),
    "BgeM3EmbeddingModel": partial(read_bert, bge_m3_head),
    "NomicBertModel": read_nomic,
    "nomic_bert": read_nomic,
    **dict.fromkeys(
        ("GteNewModel", "NewModel", "new", "GteModel", "gte"), partial(read_rotated, GTE, no_head)
    ),
    "GteNewForSequenceClassification": partial(read_rotated, GTE, partial(pooled_head, "new")),
    "ModernBertModel": MODERNBERT,
    "modernbert": MODERNBERT,
    "ModernBertForSequenceClassification": partial(read_modernbert, modernbert_pooler),
    "ModernBertForTokenClassification": partial(read_modernbert, modernbert_tokens),
    "HF_ColBERT": partial(read_bert, colbert_head),
    "ColBERTModernBertModel": partial(read_modernbert, colbert_head),
    "ColBERTJinaRobertaModel": partial(read_jina, colbert_head),
}
