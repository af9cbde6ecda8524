"""Phi-3 vision and Phi-4 multimodal: encoders of fixed sizes in front of Phi-3; Phi-4 has a Conformer as well."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from kvcore.model.config import ModelConfig, Section
from kvcore.model.families.multimodal import behind_encoders, read_root_as
from kvcore.model.parts import blocks, image_encoders
from kvcore.model.parts import encoder as enc

PHI3_SIDE: Final = 336 // 14
PHI3_CROPS: Final = 16
"""Source: preprocessor_config.json of Phi-3-vision-128k-instruct."""


def phi3_v(config: ModelConfig, text: int) -> enc.Encoder:
    """Phi-3 vision and Phi-3.5 vision: CLIP ViT-L/14 for images of 336 pixels without its last block.

    A square of four patches becomes one token.

    Source: vllm/model_executor/models/phi3v.py:CLIP_VIT_LARGE_PATCH14_336_CONFIG, Phi3HDImageEmbedding (0.32).
    """
    section = config.root.section("img_processor")
    own, features = enc.read_sizes(section, 1024, 4096, 16, 23), section.integer("image_dim_out")
    modules = (
        *enc.behind("img_processor", image_encoders.clip(own, 14, PHI3_SIDE, last_norm=False)),
        enc.whole("img_projection.0", 4 * features, text),
        enc.whole("img_projection.2", text, text),
        enc.tensor("glb_GN", 4 * features),
        enc.tensor("sub_GN", 4 * features),
    )
    tokens = PHI3_SIDE**2 // 4 * (PHI3_CROPS + 1)
    return enc.seeing(enc.behind("vision_embed_tokens", modules), own, tokens, 4)


PHI4_SIDE: Final = 448 // 14
PHI4_CROPS: Final = 36
"""Source: preprocessor_config.json of Phi-4-multimodal-instruct, dynamic_hd."""


def phi4_mm(config: ModelConfig, text: int) -> enc.Encoder:
    """Phi-4 multimodal: SigLIP without its last block, vectors that separate rows and views, and a Conformer.

    Source: vllm/model_executor/models/phi4mm.py:Phi4MMImageEncoder, get_navit_vision_model (0.32).
    """
    root = config.root
    own = enc.read_sizes(root, 1152, 4304, 16, 26)
    vision = (
        *enc.behind("img_processor", image_encoders.siglip(own, 14, PHI4_SIDE**2, last_norm=False)),
        enc.tensor("glb_GN", own.width),
        enc.tensor("sub_GN", own.width),
        enc.whole("img_projection.0", own.width, text),
        enc.whole("img_projection.2", text, text),
    )
    heard = conformer(root.section("audio_processor").section("config"), text)
    return replace(
        heard,
        modules=(*enc.behind("vision_encoder", vision), *enc.behind("embed_tokens_extend", heard.modules)),
        vision=enc.images(own, PHI4_SIDE**2 // 4 * (PHI4_CROPS + 1), 4),
    )


def conformer(section: Section, text: int) -> enc.Encoder:
    """A Conformer, whole on every rank, and two projections: for audio alone, and for audio with images.

    Two gated half MLPs are around attention and a convolution. The convolutions in front divide the rows of a
    spectrogram by 8, rounded up.

    Source: vllm/model_executor/models/phi4mm_audio.py:ConformerEncoder, AudioEmbedding (0.32),
    phi4mm.py:_AUDIO_MAX_SOUNDFILE_SIZE, get_audio_num_frames, _process_audio_input (0.11.0, 0.33.0).
    """
    own = enc.read_sizes(section, "attention_dim", "linear_units", "attention_heads", "num_blocks", head=1)
    width, mels = own.width, section.integer("input_size")
    starts = section.optional_section("nemo_conv_settings")
    channels = starts.integer("conv_channels", 256) if starts else 256
    relative, positions = section.optional_section("relative_attention_bias_args"), 0
    if relative:
        is_symmetric = relative.boolean("t5_bias_symmetric", False)
        positions = relative.integer("t5_bias_max_distance", 1000) * (1 if is_symmetric else 2)
    halvings = section.integer("time_reduction", 8, maximum=1024).bit_length() - 2
    start = (
        enc.convolution("0", 1, channels, 3, 3),
        *(enc.convolution(f"{3 * at + 2}", 1, channels, 3, 3) for at in range(halvings)),
        *(enc.convolution(f"{3 * at + 3}", channels, channels) for at in range(halvings)),
    )
    half = (
        enc.whole("net.0.linear", width, 2 * own.inner),
        enc.whole("net.2", own.inner, width),
        enc.norm("layer_norm", width),
    )
    layer = (
        *(enc.whole(f"self_attn.linear_{name}", width, width) for name in ("q", "k", "v", "out")),
        *enc.behind("feed_forward_in", half),
        *enc.behind("feed_forward_out", half),
        enc.norm("conv.layer_norm", width),
        enc.norm("layer_norm_att", width),
        enc.norm("layer_norm", width),
        enc.tensor("conv.glu.b", 2, width),
        enc.convolution("conv.glu.ext_pw_conv_1d", width, 2 * width),
        enc.convolution("conv.ext_pw_conv_1d", width, width),
        enc.convolution(
            "conv.dw_sep_conv_1d.dw_conv", 1, width, section.integer("kernel_size", maximum=4096)
        ),
        enc.convolution("conv.dw_sep_conv_1d.pw_conv", width, width),
    )
    encoder = (
        *enc.behind("embed.conv", start),
        enc.whole("embed.out", channels * ((mels + 7) // 8), width),
        enc.tensor("encoder_embedding", 2, mels),
        enc.tensor("relative_attention_bias_layer", positions, own.heads),
        *enc.repeated("encoders", own.layers, layer),
    )
    projections = (
        layer
        for name in ("audio_projection", "audio_projection_for_vision")
        for layer in (enc.whole(f"{name}.0", width, text), enc.whole(f"{name}.2", text, text))
    )
    audio = enc.sound(
        replace(own, inner=2 * own.inner),
        188,
        188,
        1504 * mels,
        chunks_at_once=1,
        is_whole=True,
        windows_per_chunk=1,
        window_elements=2 * channels * 752 * ((mels + 1) // 2),
        most_windows=1,
    )
    return enc.Encoder(modules=(*enc.behind("encoder", encoder), *projections), audio=audio)


READERS: Final = blocks.named(
    (behind_encoders(phi3_v, read_root_as("phi3"), "{}"), "Phi3VForCausalLM phi3_v"),
    (behind_encoders(phi4_mm, read_root_as("phi3"), "{}"), "Phi4MMForCausalLM phi4mm"),
)
