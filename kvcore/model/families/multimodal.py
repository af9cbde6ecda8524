"""Models that see: a tower and a projector in front of a plain decoder that another family reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from kvcore.errors import ModelError
from kvcore.model.architecture import Architecture, Module, RotaryTable, VisionEncoder
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families import decoder, gemma, gpt, mistral4, mixture, vision
from kvcore.model.parts.blocks import norm, replicated


def read_isaac_text(config: ModelConfig, section: Section) -> Architecture:
    """Isaac's Qwen3. Its `max_sequence_length` is the processor's, not the model's.

    Source: vllm/transformers_utils/configs/isaac.py:IsaacConfig (0.32).
    """
    keys = {name: value for name, value in section.raw.items() if name != "max_sequence_length"}
    return decoder.SECTION_READERS["qwen3"](config, Section(keys, section.path))


LANGUAGE_MODELS: Final[Mapping[str, Callable[[ModelConfig, Section], Architecture]]] = {
    **decoder.SECTION_READERS,
    **mixture.SECTION_READERS,
    "mistral4": mistral4.read_section,
    "qwen2_vl": decoder.SECTION_READERS["qwen2"],
    "qwen2_vl_text": decoder.SECTION_READERS["qwen2"],
    "qwen2_5_vl": decoder.SECTION_READERS["qwen2"],
    "qwen2_5_vl_text": decoder.SECTION_READERS["qwen2"],
    "qwen2_5_omni_text": decoder.SECTION_READERS["qwen2"],
    "qwen3_omni_moe_text": mixture.SECTION_READERS["qwen3_moe"],
    "qwen3_asr_text": decoder.SECTION_READERS["qwen3"],
    "qwen3_vl_text": decoder.SECTION_READERS["qwen3"],
    "qwen3_vl_moe_text": mixture.SECTION_READERS["qwen3_moe"],
    "exaone4_5_text": decoder.SECTION_READERS["exaone4"],
    "glm_ocr_text": decoder.SECTION_READERS["glm4"],
    "dots_ocr": decoder.SECTION_READERS["qwen2"],
    "paddleocr_vl": decoder.SECTION_READERS["ernie4_5"],
    "paddleocr_vl_text": decoder.SECTION_READERS["ernie4_5"],
    "aria_text": mixture.SECTION_READERS["aria_text"],
    "gemma2": lambda config, section: gemma.read_gemma2(config),
    "opt": lambda config, section: gpt.read_opt(config),
    "isaac": read_isaac_text,
    "Keye": decoder.SECTION_READERS["qwen3"],
    "KeyeVL1_5": decoder.SECTION_READERS["qwen3"],
    "glm4v": decoder.SECTION_READERS["glm4"],
    "glm4v_text": decoder.SECTION_READERS["glm4"],
    "glm4v_moe": mixture.SECTION_READERS["glm4_moe"],
    "glm4v_moe_text": mixture.SECTION_READERS["glm4_moe"],
}
"""By the model_type of the language part."""

PIXTRAL: Final[Mapping[str, str]] = {"model_type": "pixtral"}
"""A vision part that writes nothing of its own."""

TOWERS: Final[Mapping[str, Callable[[Section, int], tuple[Module, ...]]]] = {
    "clip_vision_model": vision.clip,
    "siglip_vision_model": vision.siglip,
    "pixtral": vision.pixtral,
}
"""By the model_type of the vision part."""


def read_language(config: ModelConfig) -> Architecture:
    """The language part of a multimodal config.

    Raises ModelError `unknown-architecture` when it is no plain decoder that is known.
    """
    section = config.language
    reader = LANGUAGE_MODELS.get(section.model_type)
    if reader is None:
        raise ModelError(
            "unknown-architecture",
            field=f"{section.path}.model_type",
            architecture=section.model_type or "(none named)",
            reason="no family reads this language part",
        )
    return reader(config, section)


def with_tower(config: ModelConfig, tower: vision.Tower) -> Architecture:
    """The language part with a tower that every pipeline stage holds."""
    return with_encoder(config, tower.modules, tower.encoder, tower.tables)


def with_encoder(
    config: ModelConfig,
    modules: tuple[Module, ...],
    encoder: VisionEncoder | None = None,
    tables: tuple[RotaryTable, ...] = (),
) -> Architecture:
    """The language part with `modules` on every pipeline stage; without `encoder` they hear or are not profiled."""
    language = read_language(config)
    return replace(
        language,
        model_type=config.model_type,
        every=modules,
        rotary_tables=(*language.rotary_tables, *tables),
        vision=encoder,
        is_multimodal=True,
        layer_prefix=f"language_model.{language.layer_prefix}",
    )


def read_qwen(tower: Callable[[Section], vision.Tower], config: ModelConfig) -> Architecture:
    """Qwen2-VL, Qwen2.5-VL, Qwen3-VL, GLM-4.1V: one tower with a merger."""
    return with_tower(config, tower(config.root.section("vision_config")))


def read_llava(config: ModelConfig) -> Architecture:
    """LLaVA: CLIP, SigLIP or Pixtral, and two linear layers.

    Source: vllm/model_executor/models/llava.py (0.32).
    """
    root, section = config.root, config.root.section("vision_config")
    layers = vision.feature_layers(root, section)
    modules = tower_modules(section, layers)
    bias = root.boolean("multimodal_projector_bias", True)
    width, text = section.integer("hidden_size"), config.language.integer("hidden_size")
    modules = (*modules, *vision.llava_projector("multi_modal_projector", width, text, bias=bias))
    return with_tower(config, vision.Tower(modules=modules, encoder=square_encoder(section)))


def read_llava_next(config: ModelConfig) -> Architecture:
    """LLaVA-NeXT: as LLaVA, with a vector that marks the end of a row of patches.

    Source: vllm/model_executor/models/llava_next.py (0.32).
    """
    architecture = read_llava(config)
    newline = norm("image_newline", architecture.hidden_size)
    return replace(architecture, every=(*architecture.every, newline))


def read_mistral3(config: ModelConfig) -> Architecture:
    """Mistral 3 and Mistral Small 4: Pixtral (the class's own when none is written), a merger, two linear layers.

    Source: vllm/model_executor/models/mistral3.py, lightonocr.py (0.32).
    """
    root = config.root
    section = root.optional_section("vision_config") or Section(
        PIXTRAL, "config.vision_config", "mistral3/vision_config"
    )
    layers = vision.feature_layers(root, section, default=-1)
    width, text = section.integer("hidden_size"), config.language.integer("hidden_size")
    merge = root.integer("spatial_merge_size", 2, maximum=64)
    modules = (
        *tower_modules(section, layers),
        norm("multi_modal_projector.norm", width),
        vision.patch_merger_linear("multi_modal_projector.patch_merger.merging_layer", width, merge),
        *vision.llava_projector(
            "multi_modal_projector", width, text, bias=root.boolean("multimodal_projector_bias", False)
        ),
    )
    return with_tower(config, vision.Tower(modules=modules, encoder=square_encoder(section, merge)))


def read_llava_onevision(config: ModelConfig) -> Architecture:
    """LLaVA-OneVision: SigLIP, two replicated linear layers, and a vector that marks the end of a row of patches.

    Source: vllm/model_executor/models/llava_onevision.py (0.32).
    """
    root, section = config.root, config.root.section("vision_config")
    bias = root.boolean("multimodal_projector_bias", True)
    width, text = section.integer("hidden_size"), config.language.integer("hidden_size")
    modules = (
        *tower_modules(section, vision.feature_layers(root, section, default=-1)),
        replicated("multi_modal_projector.linear_1", width, text, bias=bias, quantizable=False),
        replicated("multi_modal_projector.linear_2", text, text, bias=bias, quantizable=False),
        norm("image_newline", text),
    )
    return with_tower(config, vision.Tower(modules=modules, encoder=square_encoder(section)))


def read_idefics3(config: ModelConfig) -> Architecture:
    """Idefics 3 and SmolVLM: SigLIP in Idefics 2's variant, a pixel shuffle and one replicated layer.

    Source: vllm/model_executor/models/idefics3.py (0.32).
    """
    root, section = config.root, config.root.section("vision_config")
    merge = root.integer("scale_factor", 2, maximum=64)
    width, text = section.integer("hidden_size"), config.language.integer("hidden_size")
    modules = (
        *vision.siglip(section, section.layers(), "model.vision_model"),
        replicated("model.connector.modality_projection.proj", width * merge**2, text),
    )
    return with_tower(config, vision.Tower(modules=modules, encoder=square_encoder(section, merge)))


def tower_modules(section: Section, layers: int) -> tuple[Module, ...]:
    """The tower that a vision config names, up to `layers` blocks."""
    tower = TOWERS.get(section.model_type)
    if tower is None:
        raise ModelError(
            "unknown-architecture",
            field=f"{section.path}.model_type",
            architecture=section.model_type or "(none named)",
            reason="this vision tower is not known",
        )
    return tower(section, layers)


def square_encoder(section: Section, merge: int = 1) -> VisionEncoder:
    """The limits of a tower whose largest input is one square image."""
    side = vision.patches_per_side(section, section.integer("image_size"), section.integer("patch_size"))
    return VisionEncoder(
        hidden_size=section.integer("hidden_size"),
        intermediate_size=section.integer("intermediate_size"),
        max_tokens_per_item=(side // merge) ** 2,
        patches_per_token=merge * merge,
    )


READERS: Final[Mapping[str, Callable[[ModelConfig], Architecture]]] = {
    "Qwen2VLForConditionalGeneration": partial(read_qwen, vision.qwen2_tower),
    "Qwen2_5_VLForConditionalGeneration": partial(read_qwen, vision.qwen2_5_tower),
    "Qwen3VLForConditionalGeneration": partial(read_qwen, vision.qwen3_tower),
    "Qwen3VLMoeForConditionalGeneration": partial(read_qwen, vision.qwen3_tower),
    "Glm4vForConditionalGeneration": partial(read_qwen, vision.glm4v_tower),
    "Glm4vMoeForConditionalGeneration": partial(read_qwen, vision.glm4v_tower),
    "OpenCUAForConditionalGeneration": partial(read_qwen, vision.qwen2_5_tower),
    "opencua": partial(read_qwen, vision.qwen2_5_tower),
    "Exaone4_5_ForConditionalGeneration": partial(read_qwen, vision.qwen2_5_tower),
    "exaone4_5": partial(read_qwen, vision.qwen2_5_tower),
    "LlavaForConditionalGeneration": read_llava,
    "LlavaNextForConditionalGeneration": read_llava_next,
    "Mistral3ForConditionalGeneration": read_mistral3,
    "LightOnOCRForConditionalGeneration": read_mistral3,
    "LlavaOnevisionForConditionalGeneration": read_llava_onevision,
    "Idefics3ForConditionalGeneration": read_idefics3,
    "SmolVLMForConditionalGeneration": read_idefics3,
    "qwen2_vl": partial(read_qwen, vision.qwen2_tower),
    "qwen2_5_vl": partial(read_qwen, vision.qwen2_5_tower),
    "qwen3_vl": partial(read_qwen, vision.qwen3_tower),
    "qwen3_vl_moe": partial(read_qwen, vision.qwen3_tower),
    "glm4v": partial(read_qwen, vision.glm4v_tower),
    "glm4v_moe": partial(read_qwen, vision.glm4v_tower),
    "llava": read_llava,
    "llava_next": read_llava_next,
    "mistral3": read_mistral3,
    "llava_onevision": read_llava_onevision,
    "idefics3": read_idefics3,
    "smolvlm": read_idefics3,
}
