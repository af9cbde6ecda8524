"""A model as SGLang's own configuration reads it: heads, windows, latent vectors, states, the context."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace
from packaging.version import Version

from kvcore.base.kept import kept
from kvcore.cache.kv_formats import state_tensor_bytes
from kvcore.engines.sglang.tables import CLASSES, sglang_release
from kvcore.model.architecture import Architecture
from kvcore.model.caches import ChunkedLocal, CompressedLatent, FullAttention, RecurrentState, SlidingWindow
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families import read_architecture

PER_LAYER_ROPE_SINCE: Final = sglang_release("0.5.11")
"""Transformers 5, whose configs keep a rope by kind of layer, so that no factor stretches the context.

Source: utils/hf_transformers_utils.py:get_context_length (0.5.9 with transformers 4.57), utils/hf_transformers/
common.py (0.5.13, 0.5.23 with transformers 5).
"""
SUBCONFIG_SINCE: Final = sglang_release("0.5.11")
"""From here on a config with a language part of its own is multimodal, whatever its class.

Source: configs/model_config.py:ModelConfig.__init__ (0.5.9 without has_multimodal_subconfig; 0.5.11, 0.5.13 with).
"""
CONTEXT_KEYS: Final = (
    "max_sequence_length",
    "seq_length",
    "max_seq_len",
    "model_max_length",
    "max_position_embeddings",
)
USUAL_CONTEXT: Final = 2048
RENAMED: Final = {"Olmo3ForCausalLM": "Olmo2ForCausalLM"}
"""Classes that are served by another's.

Source: configs/olmo3.py:Olmo3Config (0.5.9, 0.5.18).
"""
KV_HEAD_KEYS: Final = (
    "n_head_kv",
    "num_kv_heads",
    "num_key_value_heads",
    "multi_query_group_num",
    "num_attention_groups",
)


class Heads(Struct, frozen=True, kw_only=True):
    """KV heads of the whole model, and the widths of their keys and values."""

    number: int
    key: int
    value: int

    def on_rank(self, ranks: int) -> int:
        """Heads of a rank: at least one, and never refused.

        Source: configs/model_config.py:ModelConfig.get_num_kv_heads (0.4.6.post5, 0.5.23).
        """
        return max(1, self.number // ranks)


class Compressed(Struct, frozen=True, kw_only=True):
    """DeepSeek-V4: latent vectors of a window, and of every fourth and 128th token."""

    ratios: tuple[int, ...]
    nope: int
    rope: int
    index: int
    window: int
    has_low_ratios: bool
    """DeepSeek-V4.1, whose layers compress by one or two."""


class Shape(Struct, frozen=True, kw_only=True):
    """A model as one release reads it."""

    name: str
    """The first of `architectures`."""
    layers: int
    heads: Heads
    window_heads: Heads
    windows: tuple[bool, ...] = ()
    """Of each layer, whether its keys are in the pool of windows; empty where there is one pool alone."""
    window: int = 0
    latent: tuple[int, int] | None = None
    """Widths of a latent vector and of its position."""
    index_width: int = 0
    index_layers: tuple[bool, ...] = ()
    """Of each layer, whether it has an index of its own."""
    states: tuple[tuple[int, RecurrentState], ...] = ()
    """Layers with recurrent states, and what they keep."""
    attention: tuple[int, ...] = ()
    """Layers with keys and values."""
    compressed: Compressed | None = None
    context: int
    is_multimodal: bool = False
    has_parts: bool = False
    """The config has a language part of its own."""
    vision: tuple[int, int] | None = None
    """Layers and width of the encoder, as the default of the memory fraction sees them."""
    draft_layers: int | None = None
    """`num_nextn_predict_layers`."""
    block_indexer: tuple[int, int, int] | None = None
    """MiniMax: layers with an indexer, how many of them keep keys alone, and its width."""
    is_hopper_vision: bool = False
    has_sinks: bool = False

    @property
    def is_hybrid(self) -> bool:
        """Whether some layers keep states."""
        return bool(self.states)

    def state_bytes(self, ranks: int, conv: str, ssm: str) -> tuple[int, int]:
        """Bytes of a request's convolution rows and of its states, all layers of a rank.

        Source: configs/mamba_utils.py:BaseLinearStateParams.mamba_cache_per_req (0.5.9, 0.5.23).
        """
        rows = states = 0
        for _, state in self.states:
            sizes = state_tensor_bytes(_typed(state, conv, ssm), ranks, conv, 0)
            for shape, size in zip(state.shapes, sizes, strict=True):
                if shape.is_ssm:
                    states += size
                else:
                    rows += size
        return rows, states


@lru_cache(maxsize=256)
def _typed(state: RecurrentState, conv: str, ssm: str) -> RecurrentState:
    shapes = tuple(replace(shape, dtype=ssm if shape.is_ssm else conv) for shape in state.shapes)
    return replace(state, shapes=shapes)


def shape_of(config: ModelConfig, version: Version, is_multimodal: bool | None = None) -> Shape:
    """`config` as `version` reads it; `is_multimodal` is what `--enable-multimodal` says.

    Example:
        >>> from kvcore import catalogue
        >>> gemma = catalogue.find_model("google/gemma-3-27b-it").config
        >>> [shape_of(gemma, Version(release)).context for release in ("0.5.9", "0.5.13")]
        [1048576, 131072]
    """
    return _shape(read_architecture(config), config, version, is_multimodal)


@kept
def _shape(architecture: Architecture, config: ModelConfig, version: Version, asked: bool | None) -> Shape:
    text, classes = config.language, CLASSES.load()
    name = config.architectures[0] if config.architectures else ""
    name = RENAMED.get(name, name)
    layers = architecture.num_layers
    uniform = _heads(text)
    found: dict[str, Any] = {}
    windows, full, sliding = _windows(architecture, text, layers, uniform)
    is_listed = classes.sliding_pools.has(name, version) or text.get("is_hybrid_swa") is True
    if is_listed and any(windows):
        found |= {"windows": windows, "window": _window(architecture, text)}
        uniform, heads = full, sliding
    else:
        heads = uniform
    if classes.latent.has(name, version) and text.get("kv_lora_rank") is not None:
        found["latent"] = text.integer("kv_lora_rank"), text.integer("qk_rope_head_dim", minimum=0)
        if classes.sparse.has(name, version) and text.get("index_topk") is not None:
            found["index_width"] = text.integer("index_head_dim")
            found["index_layers"] = _index_layers(text, layers)
    states = tuple(
        (place, cache)
        for place, layer in enumerate(architecture.layers)
        for cache in layer.caches
        if isinstance(cache, RecurrentState)
    )
    if states:
        found["states"] = states
        found["attention"] = tuple(
            place
            for place, layer in enumerate(architecture.layers)
            if any(not isinstance(cache, RecurrentState) for cache in layer.caches)
        )
    if any(isinstance(cache, CompressedLatent) for layer in architecture.layers for cache in layer.caches):
        found["compressed"] = _compressed(config.root, layers)
    return Shape(
        name=name,
        layers=_attention_layers(name, text, layers),
        heads=uniform,
        window_heads=heads,
        context=_context(text, version),
        is_multimodal=_is_multimodal(config, name, version, asked),
        has_parts=config.language is not config.root,
        vision=_vision(config.root),
        draft_layers=text.optional_integer("num_nextn_predict_layers"),
        block_indexer=_block_indexer(text),
        is_hopper_vision=config.model_type in ("qwen3_vl", "qwen3_vl_moe"),
        has_sinks=_has_sinks(name, text),
        **found,
    )


def _heads(text: Section) -> Heads:
    """Source: configs/model_config.py:ModelConfig._derive_model_shapes, get_total_num_kv_heads (0.5.9, 0.5.23)."""
    attention = text.optional_integer("num_attention_heads") or 0
    width = text.optional_integer("head_dim")
    if width is None:
        width = text.integer("hidden_size") // attention if attention else 0
    value = text.optional_integer("v_head_dim") or width
    number = next((found for key in KV_HEAD_KEYS if (found := text.optional_integer(key))), attention)
    new = text.model_type in ("falcon", "RefinedWeb", "RefinedWebModel") and text.get(
        "new_decoder_architecture"
    )
    if text.get("multi_query") is True and not new:
        number = 1
    return Heads(number=number, key=width, value=value)


def _attention_layers(name: str, text: Section, layers: int) -> int:
    """Layers with keys and values as SGLang counts them: twice in LongCat, and every round of a loop.

    Source: configs/model_config.py:ModelConfig._derive_model_shapes (0.5.9, 0.5.23: num_attention_layers).
    """
    if name == "LongcatFlashForCausalLM":
        return layers * 2
    if name == "IQuestLoopCoderForCausalLM":
        return layers * text.integer("loop_num", 1, maximum=64)
    if name == "NanbeigeForCausalLM":
        return layers * text.integer("num_loops", 1, maximum=64)
    return layers


def _windows(
    architecture: Architecture, text: Section, layers: int, uniform: Heads
) -> tuple[tuple[bool, ...], Heads, Heads]:
    """Of each layer whether it looks at a window alone; the heads of full layers and of the others."""
    full, sliding = uniform, uniform
    found: list[bool] = []
    for layer in architecture.layers:
        is_window = False
        for cache in layer.caches:
            if isinstance(cache, SlidingWindow | ChunkedLocal):
                is_window = True
                sliding = Heads(number=cache.num_kv_heads, key=cache.head_size, value=cache.head_size_v)
            elif isinstance(cache, FullAttention):
                full = Heads(number=cache.num_kv_heads, key=cache.head_size, value=cache.head_size_v)
        found.append(is_window)
    kinds = text.sequence("layer_types")
    if kinds is not None and len(kinds) >= layers and "sliding_attention" in kinds:
        found = [kind == "sliding_attention" for kind in kinds[:layers]]
    return tuple(found), full, sliding


def _window(architecture: Architecture, text: Section) -> int:
    """Tokens before the last one that a layer looks at, as SGLang counts a window.

    Source: models/gpt_oss.py, gemma4_causal.py, mimo_v2.py:get_attention_sliding_window_size (0.5.18, 0.5.23).
    """
    for layer in architecture.layers:
        for cache in layer.caches:
            if isinstance(cache, SlidingWindow):
                return cache.sliding_window - 1
            if isinstance(cache, ChunkedLocal):
                return cache.attention_chunk_size
    return text.integer("sliding_window", 0, minimum=0)


def _index_layers(text: Section, layers: int) -> tuple[bool, ...]:
    """Of each layer whether it has keys to pick tokens by, or takes the choice of one before it.

    Source: configs/model_config.py:dsa_layer_skips_topk (0.5.18, 0.5.23).
    """
    kinds = text.sequence("indexer_types")
    if kinds is not None:
        return tuple(not (place < len(kinds) and kinds[place] == "shared") for place in range(layers))
    factor = text.integer("cli_factor", 1)
    if factor > 1:
        return tuple(place % factor == 0 for place in range(layers))
    pattern = text.get("index_topk_pattern")
    if isinstance(pattern, str | list):
        return tuple(not (place < len(pattern) and pattern[place] == "S") for place in range(layers))
    every, offset = text.integer("index_topk_freq", 1), text.optional_integer("index_skip_topk_offset")
    first = 1 if offset is None else offset - 1
    return tuple(max(place - first, 0) % every == 0 for place in range(layers))


def _compressed(root: Section, layers: int) -> Compressed:
    rope = root.integer("qk_rope_head_dim")
    ratios = root.integers("compress_ratios") or ()
    return Compressed(
        ratios=ratios[:layers],
        nope=root.integer("head_dim") - rope,
        rope=rope,
        index=root.integer("index_head_dim"),
        window=root.integer("sliding_window"),
        has_low_ratios=any(ratio in (1, 2) for ratio in ratios),
    )


def _block_indexer(text: Section) -> tuple[int, int, int] | None:
    """Source: configs/model_config.py:get_minimax_sparse_layer_ids (0.5.18, 0.5.23)."""
    sparse = text.optional_section("sparse_attention_config")
    if sparse is None or sparse.get("sparse_index_dim") is None:
        return None
    often = sparse.sequence("sparse_attention_freq") or ()
    off = sparse.sequence("sparse_disable_index_value") or ()
    layers = [place for place, value in enumerate(often) if value]
    keys_only = sum(1 for place in layers if place < len(off) and off[place])
    return len(layers), keys_only, sparse.integer("sparse_index_dim")


def _context(text: Section, version: Version) -> int:
    """Source: utils/hf_transformers_utils.py:get_context_length (0.5.9), utils/hf_transformers/common.py (0.5.23)."""
    rope = text.get("rope_scaling")
    if version >= PER_LAYER_ROPE_SINCE:
        rope = text.get("rope_parameters") or rope
        if text.get("rope_local_base_freq") is not None or text.model_type.startswith("gemma3"):
            rope = None
    factor: float = 1
    if isinstance(rope, Mapping):
        kind = rope.get("rope_type", rope.get("type"))
        given = rope.get("factor", 1)
        is_stretched = "original_max_position_embeddings" not in rope and kind != "llama3"
        factor = given if is_stretched and isinstance(given, int | float) else 1
    for key in CONTEXT_KEYS:
        stated = text.optional_integer(key)
        if stated is not None:
            return int(factor * stated)
    return USUAL_CONTEXT


def _is_multimodal(config: ModelConfig, name: str, version: Version, asked: bool | None) -> bool:
    """Source: configs/model_config.py:ModelConfig.__init__ (0.5.9, 0.5.13, 0.5.23)."""
    classes = CLASSES.load()
    if asked is None:
        asked = not classes.text_only_by_default.has(name, version)
    has_parts = version >= SUBCONFIG_SINCE and config.language is not config.root
    return asked and (classes.multimodal.has(name, version) or has_parts)


def _vision(root: Section) -> tuple[int, int] | None:
    """Source: server_args.py:ServerArgs.adjust_mem_fraction_for_vlm (0.5.9), arg_groups/memory_hook.py (0.5.23)."""
    vision = root.optional_section("vision_config")
    if vision is None:
        return None
    return vision.integer("num_hidden_layers", 24), vision.integer("hidden_size", 1024)


def _has_sinks(name: str, text: Section) -> bool:
    """Source: configs/model_config.py:ModelConfig._detect_attention_sinks (0.5.13, 0.5.23)."""
    if name.startswith("MiMoV2"):
        return bool(text.get("add_swa_attention_sink_bias") or text.get("add_full_attention_sink_bias"))
    return name in ("GptOssForCausalLM", "GraniteSWAForCausalLM", "GraniteMoeSWAForCausalLM")
