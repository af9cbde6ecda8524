"""Models that judge or embed a text with another family's decoder: a small head, or none, in place of lm_head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from kvcore.model.architecture import Architecture, Linear, VocabEmbedding
from kvcore.model.config import ModelConfig
from kvcore.model.families.decoder import SECTION_READERS
from kvcore.model.families.gemma import read_gemma3
from kvcore.model.parts import vision
from kvcore.model.parts.blocks import column, named, replicated, row

HEAD_DTYPE: Final = "float32"
"""Source: vllm/config/model.py:head_dtype (0.32)."""

CLASSIFYING_SUFFIXES: Final = ("ForSequenceClassification", "ForTokenClassification")
"""Source: vllm/config/model.py:_SUFFIX_TO_DEFAULTS (0.32)."""

BIDIRECTIONAL_CLASSES: Final = frozenset(
    {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
)
"""Classes that read `is_causal`. Source: vllm/model_executor/models/llama.py, qwen2.py, qwen3.py (0.11.0, 0.32.0)."""

DEFAULT_LABELS: Final = 2
MAX_LABELS: Final = 65_536


def with_classifier(built: Architecture, config: ModelConfig) -> Architecture:
    """The architecture with a linear layer to the labels in place of lm_head.

    Source: vllm/model_executor/models/adapters.py:as_seq_cls_model (0.32).
    """
    head = replicated(
        "score", built.hidden_size, number_of_labels(config), quantizable=False, dtype=HEAD_DTYPE
    )
    return with_head(built, head)


def without_cache(built: Architecture) -> Architecture:
    """The architecture with layers that keep nothing: attention in both directions sees the whole prompt at once.

    Source: vllm/v1/worker/gpu_model_runner.py:GPUModelRunner.get_kv_cache_spec (0.11.0, 0.32.0).
    """
    bare = {layer: replace(layer, caches=()) for layer in dict.fromkeys(built.layers)}
    return replace(built, layers=tuple(bare[layer] for layer in built.layers))


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


def with_head(built: Architecture, *head: Linear) -> Architecture:
    """The architecture with `head` in place of lm_head, on every pipeline stage.

    Source: vllm/model_executor/models/adapters.py:as_seq_cls_model, qwen2_rm.py, internlm2.py (0.32), unguarded.
    """
    kept = tuple(module for module in built.last if not isinstance(module, VocabEmbedding))
    return replace(built, every=(*built.every, *head), last=kept)


def read_as(model_type: str, config: ModelConfig) -> Architecture:
    """The plain decoder of that model_type, with its head."""
    return SECTION_READERS[model_type](config, config.language)


def read_internlm2_reward(config: ModelConfig) -> Architecture:
    """InternLM2's reward models: one number a token.

    Source: vllm/model_executor/models/internlm2.py:InternLM2ForRewardModel (0.32).
    """
    built = read_as("internlm2", config)
    return with_head(built, in_float32(row("v_head", built.hidden_size, 1)))


def read_qwen2_reward(labels: int, config: ModelConfig) -> Architecture:
    """Qwen2's reward models: two layers, to one number a token or to two a step.

    Source: vllm/model_executor/models/qwen2_rm.py (0.32).
    """
    built = read_as("qwen2", config)
    hidden = built.hidden_size
    first = column("score.0", hidden, hidden, bias=True)
    return with_head(built, in_float32(first), in_float32(row("score.2", hidden, labels, bias=True)))


def in_float32(linear: Linear) -> Linear:
    """`linear` as the engine keeps a head."""
    return replace(linear, dtype=HEAD_DTYPE, quantizable=False)


def read_gemma3_embedding(config: ModelConfig) -> Architecture:
    """EmbeddingGemma: Gemma 3, where its config says so with attention in both directions.

    Source: vllm/model_executor/models/config.py:Gemma3TextModelConfig (0.32).
    """
    built = read_gemma3(config)
    return without_cache(built) if config.language.boolean("use_bidirectional_attention", False) else built


def read_llama_both_ways(config: ModelConfig) -> Architecture:
    """Llama that embeds, with attention in both directions whatever its config says.

    Source: vllm/model_executor/models/llama.py:LlamaBidirectionalModel, config.py:LlamaBidirectionalConfig (0.32).
    """
    return without_cache(read_as("llama", config))


def read_llama_ranker(config: ModelConfig) -> Architecture:
    """The same with labels.

    Source: vllm/model_executor/models/llama.py:LlamaBidirectionalForSequenceClassification (0.32).
    """
    return with_classifier(read_llama_both_ways(config), config)


JINA_WIDTH: Final = 512
"""Of jina-reranker-v3's vectors. Source: vllm/model_executor/models/config.py:JinaForRankingConfig (0.32)."""


def read_jina_reranker(config: ModelConfig) -> Architecture:
    """jina-reranker-v3: Qwen 3 and a projector of two layers in the model's dtype.

    Source: vllm/model_executor/models/jina.py:JinaForRanking (0.32).
    """
    built = read_as("qwen3", config)
    hidden = built.hidden_size
    return with_head(
        built,
        vision.whole("projector.0", hidden, hidden // 2, bias=False),
        vision.whole("projector.2", hidden // 2, JINA_WIDTH, bias=False),
    )


def read_jina_v5(config: ModelConfig) -> Architecture:
    """jina-embeddings-v5: Qwen 3, or a Llama both ways where `is_decoder` is false; adapters are merged while it loads.

    Source: vllm/model_executor/models/jina.py:JinaEmbeddingsV5Model, config.py:JinaEmbeddingsV5ModelConfig (0.32).
    """
    if config.root.boolean("is_decoder", True):
        return with_head(read_as("qwen3", config))
    return with_head(without_cache(read_as("llama", config)))


def read_voyage(config: ModelConfig) -> Architecture:
    """voyage-4: Qwen 3 both ways, projected to as many elements as there are labels.

    Source: vllm/model_executor/models/voyage.py (0.32).
    """
    built = without_cache(read_as("qwen3", config))
    width = number_of_labels(config)
    return with_head(built, vision.whole("linear", built.hidden_size, width, bias=False))


def read_gpt2_labels(config: ModelConfig) -> Architecture:
    """GPT-2 with labels: a class of its own, that is not cut into stages.

    Source: vllm/model_executor/models/gpt2.py:GPT2ForSequenceClassification (0.32).
    """
    return with_classifier(read_as("gpt2", config), config)


READERS: Final = named(
    (read_internlm2_reward, "InternLM2ForRewardModel"),
    (partial(read_qwen2_reward, 1), "Qwen2ForRewardModel"),
    (partial(read_qwen2_reward, 2), "Qwen2ForProcessRewardModel"),
    (read_gemma3_embedding, "Gemma3TextModel"),
    (read_llama_both_ways, "LlamaBidirectionalModel"),
    (read_llama_ranker, "LlamaBidirectionalForSequenceClassification"),
    (read_jina_reranker, "JinaForRanking"),
    (read_jina_v5, "JinaEmbeddingsV5Model"),
    (read_voyage, "VoyageQwen3BidirectionalEmbedModel"),
    (read_gpt2_labels, "GPT2ForSequenceClassification"),
)
