"""The recordings that the profile run draws for an audio encoder, and the memory that they take."""

from typing import Final

from packaging.version import Version

from kvcore.base.units import ceil_div
from kvcore.engine.protocol import Setting
from kvcore.memory.encoder_profile import EncoderConstants, encoder_bytes, sees
from kvcore.memory.stages import takes_audio
from kvcore.model.architecture import AudioEncoder
from kvcore.tables import Record, Source

WHOLE_VECTORS: Final = 2
"""The residual and its norm, the same on every rank. Source: vllm/model_executor/models/whisper.py:
WhisperEncoderLayer.forward (0.33.0)."""

INNER_VECTORS: Final = 2
"""Vectors inside an MLP, and its GELU. Source: vllm/model_executor/models/whisper.py:WhisperMLP (0.33.0)."""


class AudioConstants(Record, frozen=True, kw_only=True):
    """Up to which release attention of Granite's encoder keeps the products of its queries with all of a block."""

    source: Source
    pairs_below: Version


def profiled_bytes(setting: Setting, images: EncoderConstants, audio: AudioConstants) -> tuple[int, int]:
    """The largest encoder while it runs, and what of it stays. Images and video have more tokens than recordings.

    Source: vllm/multimodal/encoder_budget.py:MultiModalBudget.get_modality_with_max_tokens (0.33.0).
    """
    embeds = setting.resolved.is_v0 or setting.engine.embeds_in_profile(setting.resolved.version)
    if setting.scenario.skip_mm_profiling or not embeds:
        return 0, 0
    return encoder_bytes(setting, images) if sees(setting) else audio_bytes(setting, audio)


def audio_bytes(setting: Setting, constants: AudioConstants) -> tuple[int, int]:
    """The encoder on the recordings of the profile run, and what stays: outputs, and in V0 and V1 what went in.

    Of a position two vectors, and two as wide as the MLP that ranks share. Convolutions of
    windows that come first may take more.

    Source: vllm/v1/worker/gpu_model_runner.py:GPUModelRunner.profile_run (0.20.0); vllm/model_executor/models/
    whisper.py:WhisperEncoder, qwen3_omni_moe_thinker.py:Qwen3OmniMoeAudioEncoder.forward, granite_speech.py:
    GraniteSpeechConformerAttention.forward (0.20.0, 0.33.0), ultravox.py:_audio_features_to_embeddings (0.27.0).
    """
    audio, element = setting.architecture.audio, setting.element_bytes
    if audio is None or not takes_audio(setting.scenario):
        return 0, 0
    items = recordings(setting, audio)
    chunks = items * chunks_of(setting, audio)
    positions = min(chunks, audio.chunks_at_once or chunks) * audio.positions_per_chunk
    ranks = 1 if audio.is_whole else setting.parallel.tensor_parallel_size
    layer = WHOLE_VECTORS * audio.hidden_size + INNER_VECTORS * audio.intermediate_size // ranks
    if setting.resolved.version < constants.pairs_below:
        layer = max(layer, audio.pair_elements)
    windows = min(chunks * audio.windows_per_chunk, audio.most_windows)
    running = max(positions * layer, windows * audio.window_elements) * element
    values = chunks * audio.values_per_chunk * element
    outputs = items * tokens_of(setting, audio) * setting.architecture.hidden_size * element
    return (running + values, outputs) if setting.runner == "v2" else (running, outputs + values)


def recordings(setting: Setting, audio: AudioEncoder) -> int:
    """As many of the longest recordings as fit in the encoder's budget and in the batch's requests, at least one.

    Source: vllm/multimodal/encoder_budget.py:MultiModalBudget (0.19.0, 0.33.0).
    """
    resolved, tokens = setting.resolved, tokens_of(setting, audio)
    asked = (setting.scenario.limit_mm_per_prompt or {}).get("audio")
    per_prompt = max(1, resolved.max_model_len // tokens)
    for most in (audio.items_per_prompt, asked):
        per_prompt = min(per_prompt, most or per_prompt)
    budget = max(resolved.max_num_batched_tokens, tokens)
    return max(1, min(budget // tokens, resolved.max_num_seqs * per_prompt))


def tokens_of(setting: Setting, audio: AudioEncoder) -> int:
    """Tokens of the longest recording."""
    if not audio.chunks_per_item:
        return setting.resolved.max_model_len
    return audio.chunks_per_item * audio.tokens_per_chunk


def chunks_of(setting: Setting, audio: AudioEncoder) -> int:
    """Chunks of the longest recording."""
    return audio.chunks_per_item or ceil_div(setting.resolved.max_model_len, audio.tokens_per_chunk)
