"""Default max_num_batched_tokens and max_num_seqs of `vllm serve`, by version and card."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvcore.engine.card import CardView, MemoryTier
from kvcore.engine.vllm.switches import BatchTiers
from kvcore.model.config import ModelConfig

BIG_BATCH: Final = (8192, 1024)
HUGE_BATCH: Final = (16_384, 1024)
SMALL_BATCH: Final = (2048, 256)
"""(tokens, sequences) of the API server. Source: vllm/engine/arg_utils.py:EngineArgs.get_batch_defaults (0.8.5,
0.32.0)."""

V0_TOKENS: Final = 2048
V0_MULTIMODAL_TOKENS: Final = 5120
V0_POOLING_TOKENS: Final = 32_768
"""Source: vllm/config.py:_POOLING_MODEL_MAX_NUM_BATCHED_TOKENS (0.8.5)."""
V0_SEQUENCES: Final = 256
V0_CHUNKED_LENGTH: Final = 32_768
"""V0 turns chunked prefill on above this length. Source: vllm/engine/arg_utils.py:_set_default_args_v0 (0.8.5)."""

GB10_CAPABILITY: Final = (12, 1)
"""NVML names no memory for it, so that every release takes the small defaults; 0.33 says so in words.

Source: vllm/platforms/cuda.py:NvmlCudaPlatform.get_device_total_memory (0.18.0, 0.32.0), vllm/engine/arg_utils.py
(0.33.0). Published starts of 0.18.1 and 0.27.1 capture 35 graphs in full, for 256 sequences.
"""


GEMMA4_VIDEO_TOKENS: Final = 32 * (70 + 2 + 6)
"""Frames of a video, by the tokens of a frame, its two borders and its time.

Source: vllm/model_executor/models/gemma4_mm.py:Gemma4ProcessingInfo.get_mm_max_tokens_per_item (0.22.1, 0.33.0).
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchDefaults:
    """What one version takes when neither flag is given."""

    max_num_batched_tokens: int
    max_num_seqs: int


def batch_defaults(tiers: BatchTiers, card: CardView) -> BatchDefaults:
    """The V1 defaults of a card. `tiers` is the switch `batch_tiers`.

    Source: vllm/engine/arg_utils.py:EngineArgs.get_batch_defaults (0.8.5, 0.9.0.1, 0.28.0, 0.33.0).
    """
    tokens, sequences = SMALL_BATCH
    is_small_a100 = card.is_a100 and tiers != BatchTiers.BY_MEMORY
    is_small = card.memory_tier is MemoryTier.SMALL or card.compute_capability == GB10_CAPABILITY
    if tiers == BatchTiers.HUGE and card.memory_tier is MemoryTier.HUGE:
        tokens, sequences = HUGE_BATCH
    elif not is_small and not is_small_a100:
        tokens, sequences = BIG_BATCH
    return BatchDefaults(max_num_batched_tokens=tokens, max_num_seqs=sequences)


def largest_item_tokens(config: ModelConfig) -> int:
    """Tokens of the largest multimodal item of a model whose items attend to themselves; 0 where the engine asks none.

    Only Gemma 4 says its tokens without trying them out, and only its larger models see items both ways.

    Source: vllm/engine/arg_utils.py:EngineArgs._get_min_mm_batched_tokens, vllm/transformers_utils/
    model_arch_config_convertor.py:Gemma4ModelArchConfigConvertor.is_mm_prefix_lm (0.32.0).

    Example:
        >>> from kvcore.catalogue import find_model
        >>> largest_item_tokens(find_model("google/gemma-4-31B-it").config)
        2496
    """
    if config.model_type != "gemma4" or config.root.optional_section("vision_config") is None:
        return 0
    sees_both_ways = config.language.string("use_bidirectional_attention", "") == "vision"
    return GEMMA4_VIDEO_TOKENS if sees_both_ways else 0


def v0_tokens(
    *, max_model_len: int, enable_chunked_prefill: bool, is_multimodal: bool, is_pooling: bool = False
) -> int:
    """V0's default max_num_batched_tokens: a whole prompt, unless prefills are cut.

    Source: vllm/config.py:SchedulerConfig.__post_init__ (0.6.6, 0.8.5).
    """
    tokens = V0_TOKENS if enable_chunked_prefill else max(max_model_len, V0_TOKENS)
    if is_pooling:
        tokens = max(tokens, V0_POOLING_TOKENS)
    return max(tokens, V0_MULTIMODAL_TOKENS) if is_multimodal else tokens
