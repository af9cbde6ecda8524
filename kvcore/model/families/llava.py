"""LLaVA and models like it: an encoder that the config names, or Pixtral, and a projector of linear layers."""

from __future__ import annotations

from functools import partial
from typing import Final

from msgspec.structs import replace

from kvcore.model.config import ModelConfig, Section
from kvcore.model.families.multimodal import behind_encoders
from kvcore.model.parts import blocks, image_encoders
from kvcore.model.parts import encoder as enc

ONEVISION: Final = replace(enc.CLIP, qkv="self_attn.qkv", out="self_attn.proj", parts=())
PROJECTOR: Final = "multi_modal_projector"
TOWERS: Final = ("clip_vision_model", "siglip_vision_model", "pixtral")


def tower(root: Section, section: Section, last: int) -> tuple[enc.Sizes, int, enc.Modules]:
    """The encoder that the config names, without its last norm, up to the layer whose features are used.

    Its sizes, patches a side, and modules. Raises ModelError `unknown-architecture` for one that is not known.
    """
    name = section.model_type
    if name not in TOWERS:
        raise enc.not_read(section, name, reason="this vision encoder is not known")
    layers = enc.read_feature_layers(root, section.layers(), last)
    own = enc.read_sizes(section, layers=layers, is_checked=name != "siglip_vision_model")
    patch = section.integer("patch_size", maximum=enc.MAX_PATCH)
    side = enc.patches_a_side(section, section.integer("image_size"), patch)
    channels = enc.read_channels(section)
    if name == "pixtral":
        return own, side, enc.behind("vision_tower", image_encoders.pixtral(own, patch, channels))
    modules = (
        image_encoders.clip(own, patch, side, channels, last_norm=False)
        if name == "clip_vision_model"
        else image_encoders.siglip(own, patch, side**2, channels, last_norm=False)
    )
    return own, side, enc.behind("vision_tower.vision_model", modules)


def llava(config: ModelConfig, text: int) -> enc.Encoder:
    """LLaVA.

    Source: vllm/model_executor/models/llava.py (0.32).
    """
    root = config.root
    own, side, modules = tower(root, root.section("vision_config"), -2)
    bias = root.boolean("multimodal_projector_bias", True)
    projector = (
        enc.column(f"{PROJECTOR}.linear_1", own.width, text, bias=bias),
        enc.row(f"{PROJECTOR}.linear_2", text, text, bias=bias),
    )
    return enc.seeing((*modules, *projector), own, side**2)


def llava_next(config: ModelConfig, text: int) -> enc.Encoder:
    """LLaVA-NeXT: a vector marks the end of a row of patches.

    Source: vllm/model_executor/models/llava_next.py (0.32).
    """
    seen = llava(config, text)
    return replace(seen, modules=(*seen.modules, enc.tensor("image_newline", text)))


def llava_whole(
    config: ModelConfig, text: int, last: int, *, inside: int = 1, is_normed: bool = False
) -> enc.Encoder:
    """LLaVA with a projector that every rank has whole, `inside` times as wide as the text, behind a norm or not.

    Source: vllm/model_executor/models/llava_next_video.py (0.32).
    """
    root = config.root
    own, side, modules = tower(root, root.section("vision_config"), last)
    bias = is_normed or root.boolean("multimodal_projector_bias", True)
    projector = (
        *enc.when(is_normed, enc.norm(f"{PROJECTOR}.pre_norm", own.width)),
        enc.whole(f"{PROJECTOR}.linear_1", own.width, inside * text, bias=bias),
        enc.whole(f"{PROJECTOR}.linear_2", inside * text, text, bias=bias),
    )
    return enc.seeing((*modules, *projector), own, side**2)


def llava_onevision(
    config: ModelConfig, text: int, *, inside: int = 1, is_normed: bool = False
) -> enc.Encoder:
    """LLaVA-OneVision; Bee and R-4B with a norm in front, Bee's inside four times as wide as the text.

    Source: vllm/model_executor/models/llava_onevision.py (0.32), bee.py:BeeMultiModalProjector,
    rvl.py:RVLMultiModalProjector (0.33).
    """
    seen = llava_whole(config, text, -1, inside=inside, is_normed=is_normed)
    return replace(seen, modules=(*seen.modules, enc.tensor("image_newline", text)))


def llava_onevision2(config: ModelConfig, text: int) -> enc.Encoder:
    """LLaVA-OneVision 2: a tower in 16 bits whose patches are normed, and a sharded merger, in front of Qwen3.

    Source: vllm/model_executor/models/llava_onevision2.py (0.33).
    """
    section = config.root.section("vision_config")
    own, patch = enc.read_sizes(section), section.integer("patch_size", maximum=enc.MAX_PATCH)
    merge, channels = enc.read_merge(section), enc.read_channels(section)
    merged = own.width * merge**2
    merger = (enc.column("merger.mlp.0", merged, merged), enc.row("merger.mlp.2", merged, text))
    modules = (
        enc.convolution("embeddings.patch_embedding", channels, own.width, patch, patch, bias=False),
        enc.norm("layernorm_pre", own.width),
        *enc.repeated(
            "encoder.layers", own.layers, enc.changed(enc.block(own, ONEVISION), quantizable=False)
        ),
        enc.norm("merger.ln_q", own.width),
        *enc.changed(merger, quantizable=False),
    )
    return enc.seeing(enc.behind("visual", modules), own, 16384, merge**2)


def mistral3(config: ModelConfig, text: int) -> enc.Encoder:
    """Mistral 3, Mistral Small 4, LightOnOCR: Pixtral (the class's own when none is written), a merger, two layers.

    Source: vllm/model_executor/models/mistral3.py, lightonocr.py (0.32).
    """
    root = config.root
    section = root.optional_section("vision_config")
    if section is None:
        section = Section({"model_type": "pixtral"}, f"{root.path}.vision_config", "mistral3/vision_config")
    own, side, modules = tower(root, section, -1)
    merge = enc.read_merge(root, default=2)
    bias = root.boolean("multimodal_projector_bias", False)
    projector = (
        enc.tensor("norm", own.width),
        enc.whole("patch_merger.merging_layer", own.width * merge**2, own.width, bias=False),
        enc.column("linear_1", own.width, text, bias=bias),
        enc.row("linear_2", text, text, bias=bias),
    )
    return enc.seeing((*modules, *enc.behind(PROJECTOR, projector)), own, (side // merge) ** 2, merge**2)


def pixtral(config: ModelConfig, text: int) -> enc.Encoder:
    """Pixtral as Mistral writes it: an optional norm and merger.

    Source: vllm/model_executor/models/pixtral.py:PixtralForConditionalGeneration (0.32).
    """
    section = config.root.section("vision_config")
    own, patch = enc.read_sizes(section), section.integer("patch_size", maximum=enc.MAX_PATCH)
    side = enc.patches_a_side(section, section.integer("image_size"), patch)
    width, merge, bias = own.width, enc.read_merge(section, default=1), section.boolean("adapter_bias", True)
    merging = enc.whole("patch_merger.merging_layer", width * merge**2, width, bias=False)
    modules = (
        *enc.behind("vision_encoder", image_encoders.pixtral(own, patch, enc.read_channels(section))),
        enc.whole("vision_language_adapter.w_in", width, text, bias=bias),
        enc.whole("vision_language_adapter.w_out", text, text, bias=bias),
        *enc.when(
            section.boolean("add_pre_mm_projector_layer_norm", False),
            enc.tensor("pre_mm_projector_norm", width),
        ),
        *enc.when(section.string("mm_projector_id", "") == "patch_merge", merging),
    )
    return enc.seeing(modules, own, (side // merge) ** 2, merge**2)


READERS: Final = blocks.named(
    (behind_encoders(llava), "LlavaForConditionalGeneration llava"),
    (behind_encoders(llava_next), "LlavaNextForConditionalGeneration llava_next"),
    (
        behind_encoders(partial(llava_whole, last=-2)),
        "LlavaNextVideoForConditionalGeneration llava_next_video",
    ),
    (behind_encoders(llava_onevision), "LlavaOnevisionForConditionalGeneration llava_onevision"),
    (behind_encoders(partial(llava_onevision, inside=4, is_normed=True)), "BeeForConditionalGeneration"),
    (behind_encoders(partial(llava_onevision, is_normed=True)), "RForConditionalGeneration"),
    (behind_encoders(llava_onevision2), "LlavaOnevision2ForConditionalGeneration"),
    (
        behind_encoders(mistral3),
        "Mistral3ForConditionalGeneration LightOnOCRForConditionalGeneration mistral3",
    ),
    (behind_encoders(pixtral), "PixtralForConditionalGeneration"),
)
