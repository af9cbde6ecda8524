"""How a checkpoint names its modules."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

WRAPPERS: Final = (
    ("model.language_model.model.", "model."),
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head", "lm_head"),
    ("language_model.", "model."),
    ("model.visual.", "visual."),
    ("model.vision_tower", "vision_tower"),
    ("model.embed_vision", "embed_vision"),
    ("model.embed_audio", "embed_audio"),
    ("model.multi_modal_projector.", "multi_modal_projector."),
    ("thinker.model.", "model."),
    ("thinker.lm_head", "lm_head"),
)
"""Prefixes of a language model inside a multimodal checkpoint, and what the bare model calls the same thing."""

EXPERT_PROJECTIONS: Final = (
    ("gate_proj", "up_proj", "down_proj"),
    ("w1", "w3", "w2"),
    ("up_proj", "down_proj"),
)


ENCODERS: Final = (
    "visual",
    "vision_tower",
    "vision_model",
    "vision_encoder",
    "audio_tower",
    "multi_modal_projector",
    "mm_projector",
    "vision_adapter",
)
"""Components of the names of encoders and projectors."""


class Kind(StrEnum):
    """What a module is to a quantizer."""

    LINEAR = "linear"
    EXPERTS = "experts"
    VOCAB = "vocab"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleName:
    """A module by its full checkpoint name and, where the engine fuses several tensors, theirs."""

    name: str
    parts: tuple[str, ...] = ()
    kind: Kind = Kind.LINEAR

    @property
    def shards(self) -> tuple[str, ...]:
        """The names of the checkpoint's own modules."""
        return self.parts or (self.name,)

    @property
    def expert_shards(self) -> tuple[tuple[str, ...], ...]:
        """The projections of the first expert, by each of the usual spellings."""
        return tuple(tuple(f"{self.name}.0.{part}" for part in parts) for parts in EXPERT_PROJECTIONS)


def is_encoder(module: ModuleName) -> bool:
    """Whether the module belongs to an encoder or its projector.

    Example:
        >>> is_encoder(ModuleName(name="visual.blocks.0.attn.qkv"))
        True
    """
    return not set(ENCODERS).isdisjoint(module.name.split("."))


QUANTIZED_ENCODERS: Final = ("vision_tower.transformer.", "multi_modal_projector.linear_")
"""Beginnings of the names in Pixtral and its projector, which the engine quantizes like the language model."""


def is_quantized_encoder(module: ModuleName) -> bool:
    """Whether the engine hands its quantization to this part of an encoder.

    Source: vllm/model_executor/models/pixtral.py:PixtralHFTransformer, llava.py:LlavaMultiModalProjector (0.32).

    Example:
        >>> is_quantized_encoder(ModuleName(name="vision_tower.transformer.layers.0.attention.o_proj"))
        True
    """
    return module.name.startswith(QUANTIZED_ENCODERS)


def canonical(name: str) -> str:
    """`name` without what a multimodal checkpoint wraps around its language model.

    Example:
        >>> canonical("model.language_model.layers.3.mlp.experts")
        'model.layers.3.mlp.experts'
    """
    for wrapper, bare in WRAPPERS:
        if name.startswith(wrapper):
            return bare + name[len(wrapper) :]
    return name
