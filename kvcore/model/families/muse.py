"""Muse Glimmer: a dense decoder with gated attention and windows, behind an image encoder that nothing quantizes."""

from __future__ import annotations

from typing import Final

from kvcore.model import architecture as arch
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families.decoder import DECODERS, by_row, read_decoder
from kvcore.model.parts import encoder as enc

BLOCK: Final = enc.Names("attn.qkv_proj", "attn.o_proj", "mlp.c_fc", "mlp.c_proj", ("ln_1", "ln_2"))


IMAGE_TOKENS: Final = 4096
"""Of the largest image; a video has up to FRAMES, PAIR_TOKENS of each pair.

Source: transformers/models/muse_glimmer/modular_muse_glimmer.py: its processors of images and video (5.24.0).
"""
PAIR_TOKENS: Final = 144
FRAMES: Final = 96


def image_encoder(root: Section, text: int) -> enc.Encoder:
    """Blocks whose MLP, like patches, adapter and projection, is whole on every rank.

    Source: vllm/model_executor/models/muse_glimmer.py:MuseGlimmerVisionEncoder, MuseGlimmerVisionAdapter (0.33).
    """
    section = root.section("vision_config")
    own, patch = enc.read_sizes(section), section.integer("patch_size", maximum=enc.MAX_PATCH)
    time, merge = enc.read_merge(section, "patch_temporal", 2), enc.read_merge(section, "merge_size", 2)
    sides = [section.integer(f"pos_emb_{name}") for name in ("height", "width")]
    values, out, inner = (
        3 * time * patch**2,
        root.integer("out_hidden_size"),
        root.integer("projector_hidden_size"),
    )
    layer = (
        *enc.changed(enc.attention(own, BLOCK), quantizable=False),
        *enc.never_sharded(enc.mlp(own, BLOCK)),
        *enc.norms(own, BLOCK),
    )
    modules = (
        enc.whole("vision_encoder.conv1_linear", values, own.width, bias=False),
        enc.tensor("vision_encoder.positional_embedding_vlm", *sides, own.width),
        *(enc.norm(f"vision_encoder.{name}", own.width) for name in ("ln_pre", "ln_post")),
        *enc.repeated("vision_encoder.transformer", own.layers, layer),
        enc.whole("vision_adapter.c_fc", out, inner, bias=False),
        enc.whole("vision_adapter.c_proj", inner, inner, bias=False),
        enc.whole("vision_projection", inner, text, bias=False),
    )
    return enc.seeing(
        modules,
        own,
        IMAGE_TOKENS,
        merge**2,
        values_per_patch=values,
        draws_video=True,
        pair_tokens=PAIR_TOKENS,
        most_frames=FRAMES,
    )


def read_glimmer(config: ModelConfig) -> arch.Architecture:
    """Muse Glimmer, alone or behind its encoder.

    Source: vllm/model_executor/models/muse_glimmer.py:MuseGlimmerForCausalLM (0.33).
    """
    built = read_decoder(DECODERS["muse_glimmer"], config)
    if config.root.optional_section("vision_config") is None:
        return built
    return enc.with_encoders(built, image_encoder(config.root, built.hidden_size))


READERS: Final = by_row({"muse_glimmer": read_glimmer})
