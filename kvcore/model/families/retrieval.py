"""Models that search and rank with what another family reads: a projection of each token behind it, or none.

Checked against vLLM's own model classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from kvcore.model.architecture import Architecture, Module
from kvcore.model.config import ModelConfig
from kvcore.model.families.decoder import SECTION_READERS
from kvcore.model.families.encoder import float32_layer, read_bert, read_jina, read_modernbert
from kvcore.model.families.gpt import read_gpt2
from kvcore.model.families.pooling import number_of_labels, with_classifier, with_head, without_cache
from kvcore.model.parts.blocks import replicated

JINA_WIDTH: Final = 512
"""Of jina-reranker-v3's vectors. Source: vllm/model_executor/models/config.py:JinaForRankingConfig (0.32)."""

COLBERT_KEYS: Final = ("colbert_dim", "dim", "projection_dim")
"""Source: vllm/model_executor/models/colbert.py:ColBERTMixin.get_colbert_dim_from_config (0.32)."""


def colbert_head(config: ModelConfig, hidden: int) -> tuple[Module, ...]:
    """ColBERT's vector for each token; nothing where only the weights say how wide it is.

    Source: vllm/model_executor/models/colbert.py:ColBERTMixin (0.32).
    """
    widths = (config.root.optional_integer(key) for key in COLBERT_KEYS)
    width = next(filter(None, widths), None)
    return () if width is None else (float32_layer("linear", hidden, width, bias=False),)


def read_qwen3(config: ModelConfig) -> Architecture:
    """Qwen 3, with its head."""
    return SECTION_READERS["qwen3"](config, config.language)


def read_jina_reranker(config: ModelConfig) -> Architecture:
    """jina-reranker-v3: Qwen 3 and a projector of two layers in the model's dtype.

    Source: vllm/model_executor/models/jina.py:JinaForRanking (0.32).
    """
    built = read_qwen3(config)
    hidden = built.hidden_size
    return with_head(
        built,
        replicated("projector.0", hidden, hidden // 2, quantizable=False),
        replicated("projector.2", hidden // 2, JINA_WIDTH, quantizable=False),
    )


def read_jina_v5(config: ModelConfig) -> Architecture:
    """jina-embeddings-v5: Qwen 3, or a Llama both ways where `is_decoder` is false; adapters are merged while it loads.

    Source: vllm/model_executor/models/jina.py:JinaEmbeddingsV5Model, config.py:JinaEmbeddingsV5ModelConfig (0.32).
    """
    if config.root.boolean("is_decoder", True):
        return with_head(read_qwen3(config))
    return with_head(without_cache(SECTION_READERS["llama"](config, config.language)))


def read_voyage(config: ModelConfig) -> Architecture:
    """voyage-4: Qwen 3 both ways, projected to as many elements as there are labels.

    Source: vllm/model_executor/models/voyage.py (0.32).
    """
    built = without_cache(read_qwen3(config))
    width = number_of_labels(config)
    return with_head(built, replicated("linear", built.hidden_size, width, quantizable=False))


def read_gpt2_labels(config: ModelConfig) -> Architecture:
    """GPT-2 with labels: a class of its own, that is not cut into stages.

    Source: vllm/model_executor/models/gpt2.py:GPT2ForSequenceClassification (0.32).
    """
    return with_classifier(read_gpt2(config), config)


READERS: Final[Mapping[str, Callable[[ModelConfig], Architecture]]] = {
    "HF_ColBERT": partial(read_bert, colbert_head),
    "ColBERTModernBertModel": partial(read_modernbert, colbert_head),
    "ColBERTJinaRobertaModel": partial(read_jina, colbert_head),
    "JinaForRanking": read_jina_reranker,
    "JinaEmbeddingsV5Model": read_jina_v5,
    "VoyageQwen3BidirectionalEmbedModel": read_voyage,
    "GPT2ForSequenceClassification": read_gpt2_labels,
}
