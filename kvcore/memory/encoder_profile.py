"""The items that the profile run draws for an encoder of images, video or recordings, of the largest size, as the
model's processor counts them; and the memory that the encoder takes on them."""

import math
from collections.abc import Mapping
from typing import Annotated, Final, NamedTuple

from msgspec import Meta
from packaging.version import Version

from kvcore.base.units import ceil_div
from kvcore.engine.protocol import Setting
from kvcore.memory.stages import takes_audio, takes_images_or_video
from kvcore.model.architecture import AudioEncoder, VisionEncoder
from kvcore.tables import Amount, Record, ReleaseRange, Share, Source

MAX_ASPECT: Final = 200
"""Bounds of an image that the processor takes. Source: transformers, models/qwen2_vl/image_processing_qwen2_vl.py."""

AUDIO_WHOLE_VECTORS: Final = 2
"""The residual and its norm, the same on every rank. Source: vllm/model_executor/models/whisper.py:
WhisperEncoderLayer.forward (0.33.0)."""

AUDIO_INNER_VECTORS: Final = 2
"""Vectors inside an MLP, and its GELU. Source: vllm/model_executor/models/whisper.py:WhisperMLP (0.33.0)."""


class VideoRow(ReleaseRange, frozen=True, kw_only=True):
    """Most frames of a video that the profile run draws."""

    source: Source
    frames: Annotated[int, Meta(ge=1, le=4096)]


class Unexplained(Record, frozen=True, kw_only=True):
    """How much more mixtures may take than predicted on cards of one major compute capability."""

    source: Source
    major: Annotated[int, Meta(ge=1, le=99)]
    more_share: Share


class EncoderConstants(Record, frozen=True, kw_only=True):
    """Vectors of its hidden size that an encoder keeps for each patch, and how items are drawn."""

    source: Source
    sharded_vectors: Amount
    """Cut over the ranks: queries, keys, values, what is inside an MLP."""
    whole_vectors: Amount
    """The same on every rank: the residual, its norm, what comes out of a sharded layer."""
    spread_share: Share
    factored_since: Version
    """From here on an image has as many tokens as its pixels allow; before it is a square."""
    video: tuple[VideoRow, ...]
    unexplained: tuple[Unexplained, ...]


class AudioConstants(Record, frozen=True, kw_only=True):
    """Up to which release attention of Granite's encoder keeps the products of its queries with all of a block."""

    source: Source
    pairs_below: Version


class Drawn(NamedTuple):
    """The items of the profile run: how many, and the tokens of each."""

    items: int
    tokens: int


def profiled_bytes(setting: Setting, images: EncoderConstants, audio: AudioConstants) -> tuple[int, int]:
    """The largest encoder while it runs, and what of it stays. Images and video have more tokens than recordings.

    Source: vllm/multimodal/encoder_budget.py:MultiModalBudget.get_modality_with_max_tokens (0.33.0).
    """
    embeds = setting.resolved.is_v0 or setting.engine.embeds_in_profile(setting.resolved.version)
    if setting.scenario.skip_mm_profiling or not embeds:
        return 0, 0
    return encoder_bytes(setting, images) if sees(setting) else audio_bytes(setting, audio)


def encoder_bytes(setting: Setting, constants: EncoderConstants) -> tuple[int, int]:
    """The encoder on the items of the profile run, and what stays: outputs, and in V0 and V1 the items' pixels.

    With `--mm-encoder-tp-mode data` a rank runs whole items.

    Source: vllm/v1/worker/gpu_model_runner.py:GPUModelRunner.profile_run (0.19.0), vllm/v1/worker/gpu/mm/
    encoder_runner.py:EncoderRunner.profile_encoder_cache (0.28.0), vllm/model_executor/models/vision.py:
    run_dp_sharded_mrope_vision_model (0.19.0).
    """
    vision, element = setting.architecture.vision, setting.element_bytes
    if vision is None:
        return 0, 0
    drawn = drawn_items(setting, vision, constants)
    ranks = setting.parallel.tensor_parallel_size
    is_whole = setting.scenario.mm_encoder_tp_mode == "data"
    own = ceil_div(drawn.items, ranks) if is_whole else drawn.items
    shared = constants.sharded_vectors / (1 if is_whole else ranks)
    vectors = (constants.whole_vectors + shared) * vision.hidden_size
    patches = drawn.tokens * vision.patches_per_token
    running = int(own * patches * vectors * element)
    pixels = drawn.items * patches * vision.values_per_patch * element
    widths = (1 + vision.deepstack_levels) * setting.architecture.hidden_size
    outputs = drawn.items * drawn.tokens * widths * element
    return (running + pixels, outputs) if setting.runner == "v2" else (running, outputs + pixels)


def sees(setting: Setting) -> bool:
    """Whether the profile run draws images or video."""
    architecture = setting.architecture
    return architecture.vision is not None and takes_images_or_video(architecture, setting.scenario)


def unexplained_share(setting: Setting, constants: EncoderConstants) -> float:
    """Share of the peak that a start with images may take more for a reason that is not known."""
    major = (setting.accelerator.compute_capability or (0,))[0]
    rows = constants.unexplained if setting.architecture.moe is not None else ()
    return max((row.more_share for row in rows if row.major == major), default=0.0)


def takes_pixel_bounds(setting: Setting) -> bool:
    """Whether the processor scales what is drawn down to a `max_pixels`."""
    vision = setting.architecture.vision
    return sees(setting) and vision is not None and vision.unit > 0


def drawn_items(setting: Setting, vision: VisionEncoder, constants: EncoderConstants) -> Drawn:
    """As many of the largest items, of images or video, as fit in the encoder's budget and in the batch's requests.

    Source: vllm/multimodal/budget.py, encoder_budget.py:MultiModalBudget (0.19.0, 0.28.0).
    """
    resolved, limits = setting.resolved, setting.scenario.limit_mm_per_prompt or {}
    image = image_tokens(vision, setting.scenario.mm_processor_kwargs or {}, resolved.version, constants)
    pair = vision.pair_tokens or image
    grids = video_grids(setting, vision, constants, pair)
    kind = "video" if grids and (grids * pair > image or limits.get("image", 1) == 0) else "image"
    per_item = pair * grids if kind == "video" else image
    budget = max(resolved.max_num_batched_tokens, per_item)
    per_prompt = max(1, resolved.max_model_len // per_item)
    per_prompt = min(per_prompt, max(1, limits.get(kind, per_prompt)))
    items = max(1, min(budget // per_item, resolved.max_num_seqs * per_prompt))
    return Drawn(
        items=items, tokens=_as_asked(vision, limits, kind, pair if kind == "video" else image, grids)
    )


def image_tokens(
    vision: VisionEncoder, asked: Mapping[str, float], version: Version, constants: EncoderConstants
) -> int:
    """Tokens of the largest image under `max_pixels` of `--mm-processor-kwargs`.

    Source: vllm/model_executor/models/qwen2_vl.py:Qwen2VLProcessingInfo.get_image_size_with_most_features (0.11.0: a
    square; 0.13.0, 0.28.0: factors).
    """
    pixels = asked.get("max_pixels")
    if pixels is None or not vision.unit:
        return max(1, vision.max_tokens_per_item)
    most = max(1, int(pixels) // vision.unit**2)
    if version < constants.factored_since:
        return max(1, math.isqrt(int(pixels)) // vision.unit) ** 2
    return next(tokens for tokens in range(most, 0, -1) if is_taken(tokens))


def is_taken(tokens: int) -> bool:
    """Whether an image of so many tokens has sides that the processor takes.

    Example:
        >>> [tokens for tokens in range(325, 340) if not is_taken(tokens)]
        [331, 337]
    """
    short = next(side for side in range(math.isqrt(tokens), 0, -1) if tokens % side == 0)
    return tokens // short / short <= MAX_ASPECT


def video_grids(setting: Setting, vision: VisionEncoder, constants: EncoderConstants, pair: int) -> int:
    """Pairs of frames, of `pair` tokens each, of the longest video that is drawn; 0 without video.

    As many as the context has room for, at least one.

    Source: vllm/model_executor/models/qwen2_vl.py:Qwen2VLProcessingInfo.get_num_frames_with_most_features (0.10.2,
    0.28.0); vllm/models/minimax_m3/common/mm_preprocess.py:MiniMaxM3VLProcessingInfo (0.33.0).
    """
    limits = setting.scenario.limit_mm_per_prompt or {}
    if not vision.draws_video or setting.runner == "v0" or limits.get("video", 1) == 0:
        return 0
    rows = (row for row in constants.video if row.covers(setting.resolved.version))
    frames = vision.most_frames or next((row.frames for row in rows), 1)
    return max(1, min(ceil_div(frames, 2), setting.resolved.max_model_len // pair))


def _as_asked(vision: VisionEncoder, limits: Mapping[str, int], kind: str, image: int, grids: int) -> int:
    """Tokens of an item under the sizes of `--limit-mm-per-prompt`, which only shrink what is drawn."""
    frames = limits.get(f"{kind}.num_frames")
    pairs = min(grids, ceil_div(max(1, frames), 2)) if frames is not None else grids
    width, height = limits.get(f"{kind}.width"), limits.get(f"{kind}.height")
    if vision.unit and width is not None and height is not None:
        sides = (max(1, round(side / vision.unit)) for side in (width, height))
        image = min(image, math.prod(sides))
    return image * (pairs if kind == "video" else 1)


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
    chunks = items * recording_chunks(setting, audio)
    positions = min(chunks, audio.chunks_at_once or chunks) * audio.positions_per_chunk
    ranks = 1 if audio.is_whole else setting.parallel.tensor_parallel_size
    layer = AUDIO_WHOLE_VECTORS * audio.hidden_size + AUDIO_INNER_VECTORS * audio.intermediate_size // ranks
    if setting.resolved.version < constants.pairs_below:
        layer = max(layer, audio.pair_elements)
    windows = min(chunks * audio.windows_per_chunk, audio.most_windows)
    running = max(positions * layer, windows * audio.window_elements) * element
    values = chunks * audio.values_per_chunk * element
    outputs = items * recording_tokens(setting, audio) * setting.architecture.hidden_size * element
    return (running + values, outputs) if setting.runner == "v2" else (running, outputs + values)


def recordings(setting: Setting, audio: AudioEncoder) -> int:
    """As many of the longest recordings as fit in the encoder's budget and in the batch's requests, at least one.

    Source: vllm/multimodal/encoder_budget.py:MultiModalBudget (0.19.0, 0.33.0).
    """
    resolved, tokens = setting.resolved, recording_tokens(setting, audio)
    asked = (setting.scenario.limit_mm_per_prompt or {}).get("audio")
    per_prompt = max(1, resolved.max_model_len // tokens)
    for most in (audio.items_per_prompt, asked):
        per_prompt = min(per_prompt, most or per_prompt)
    budget = max(resolved.max_num_batched_tokens, tokens)
    return max(1, min(budget // tokens, resolved.max_num_seqs * per_prompt))


def recording_tokens(setting: Setting, audio: AudioEncoder) -> int:
    """Tokens of the longest recording."""
    if not audio.chunks_per_item:
        return setting.resolved.max_model_len
    return audio.chunks_per_item * audio.tokens_per_chunk


def recording_chunks(setting: Setting, audio: AudioEncoder) -> int:
    """Chunks of the longest recording."""
    return audio.chunks_per_item or ceil_div(setting.resolved.max_model_len, audio.tokens_per_chunk)
