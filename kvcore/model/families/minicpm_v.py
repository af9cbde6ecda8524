"""MiniCPM-V and MiniCPM-o: SigLIP and a resampler, or mergers, in front of Llama or Qwen; MiniCPM-o has Whisper too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from kvcore.base.errors import ModelError, shorten
from kvcore.model.architecture import Architecture
from kvcore.model.config import ModelConfig
from kvcore.model.families import qwen
from kvcore.model.families.multimodal import behind_encoders, read_root_as
from kvcore.model.parts import blocks
from kvcore.model.parts import encoder as enc
from kvcore.model.parts.audio_encoders import whisper
from kvcore.model.parts.image_encoders import Seen, read_siglip

MINICPM_LANGUAGES: Final[Mapping[str, str]] = {
    "2.5": "llama",
    "2.6": "qwen2",
    "4.0": "llama",
    "4.5": "qwen3",
}
"""Source: vllm/model_executor/models/minicpmv.py:_SUPPORT_VERSION (0.32)."""


def read_minicpm(config: ModelConfig) -> Architecture:
    """MiniCPM-V's language part.

    Raises ModelError `unknown-architecture` for the versions whose encoder another library builds.
    """
    version = str(config.root.get("version") or "2.0")
    if version not in MINICPM_LANGUAGES:
        raise ModelError(
            "unknown-architecture",
            field="config.version",
            architecture="MiniCPMV",
            reason=f"only {', '.join(MINICPM_LANGUAGES)} are read, not {shorten(version, 20)}",
        )
    return read_root_as(MINICPM_LANGUAGES[version])(config)


def read_vpm(config: ModelConfig, model_type: str | None = None) -> Seen:
    """SigLIP, without its last block where the config drops it; the last norm stays."""
    section = config.root.section("vision_config", model_type)
    is_dropped = config.root.boolean("drop_vision_last_layer", False)
    seen = read_siglip(section, "vpm", section.layers() - is_dropped)
    last = enc.when(is_dropped, enc.norm("vpm.post_layernorm", seen.own.width))
    return replace(seen, modules=(*seen.modules, *last))


def resampler(width: int, queries: int, text: int) -> enc.Modules:
    """Queries, one attention layer and a projection, whole on every rank.

    Source: vllm/model_executor/layers/resampler.py:BaseResampler (0.32).
    """
    return (
        enc.tensor("query", queries, text),
        blocks.replicated("kv_proj", width, text),
        enc.tensor("attn.in_proj", 3, text, text + 1),
        enc.tensor("attn.out_proj", text, text + 1),
        *blocks.norms(text, "ln_q", "ln_kv", "ln_post", bias=True),
        enc.tensor("proj", text, text),
    )


def minicpm_v(config: ModelConfig, text: int) -> enc.Encoder:
    """MiniCPM-V from 2.5 on: SigLIP in Idefics 2's variant and a resampler.

    Source: vllm/model_executor/models/minicpmv.py:MiniCPMV2_6 (0.32).
    """
    root, seen = config.root, read_vpm(config)
    queries, largest = root.integer("query_num"), root.integer("image_size", 448)
    slices = (root.optional_section("slice_config") or root).integer("max_slice_nums", 9, maximum=1024)
    patch = root.section("vision_config").integer("patch_size")
    patches = max(1, (largest // patch) ** 2 // queries)
    modules = (*seen.modules, *enc.behind("resampler", resampler(seen.own.width, queries, text)))
    return enc.seeing(modules, seen.own, queries * (slices + 1), patches)


def minicpm_o(config: ModelConfig, text: int) -> enc.Encoder:
    """MiniCPM-o 2.6 and 4.5: MiniCPM-V with a replicated Whisper encoder and two linear layers.

    30 seconds are drawn: minicpmo.py:MiniCPMOProcessingInfo.get_max_audio_tokens (0.33.0).

    Source: vllm/model_executor/models/minicpmo.py (0.32).
    """
    seen, root = minicpm_v(config, text), config.root
    if not root.boolean("init_audio", True):
        return seen
    section = root.section("audio_config", "whisper")
    pooled = root.integer("audio_pool_step", 2, maximum=50)
    heard = whisper(section, 30 * ((50 - pooled) // pooled + 1), is_whole=True)
    projection = (
        enc.whole("audio_projection_layer.linear1", section.integer("hidden_size"), text),
        enc.whole("audio_projection_layer.linear2", text, text),
    )
    return replace(
        seen, modules=(*seen.modules, *enc.behind("apm", heard.modules), *projection), audio=heard.audio
    )


SLICES: Final = 9
"""Slices of the largest image: the default of `max_slice_nums`."""


def minicpm_v4_6(config: ModelConfig, text: int) -> enc.Encoder:
    """MiniCPM-V 4.6: two mergers, each of windows of 2 x 2 patches; one attends over its windows.

    The last of several mergers behind the encoder gives vectors as wide as the language part's.

    Source: vllm/model_executor/models/minicpmv4_6.py:MiniCPMV4_6ViTWindowAttentionMerger (0.32).
    """
    root, seen = config.root, read_vpm(config, "minicpmv4_6_vision")
    own, width = seen.own, seen.own.width
    times = root.integer("merger_times", 1, maximum=16)

    def merger(between: int, out: int) -> enc.Modules:
        layers = (enc.whole("linear_1", 4 * width, between), enc.whole("linear_2", between, out))
        return (enc.norm("pre_norm", 4 * width), *layers)

    section = root.section("vision_config", "minicpmv4_6_vision")
    window = (
        *enc.attention(enc.read_sizes(section, layers=1), enc.CLIP),
        enc.norm("layer_norm1", width),
        *merger(4 * own.inner, width),
    )
    mergers = (
        enc.behind(f"merger.mlp.{at}", merger(4 * width, text if at == times - 1 else width))
        for at in range(times)
    )
    modules = (
        *seen.modules,
        *enc.behind("vit_merger", window),
        *(module for each in mergers for module in each),
    )
    tokens = (root.integer("image_size", 448) // section.integer("patch_size") // 4) ** 2 * (SLICES + 1)
    return enc.seeing(modules, own, tokens, 16)


READERS: Final = blocks.named(
    (behind_encoders(minicpm_v, read_minicpm, "llm.model.layers"), "MiniCPMV"),
    (behind_encoders(minicpm_o, read_minicpm, "llm.model.layers"), "MiniCPMO minicpmo"),
    (
        behind_encoders(minicpm_v4_6, qwen.read_text, "{}"),
        "MiniCPMV4_6ForConditionalGeneration minicpmv4_6 MiniCPMV4_7ForConditionalGeneration",
        "minicpmv4_7",
    ),
)
