"""What speculative decoding loads in addition to a model: the layers, modules and tables of a draft."""

from __future__ import annotations

from dataclasses import dataclass

from kvcore.kept import Keeper
from kvcore.model.architecture import Architecture, Layer, Module, RotaryTable, VocabEmbedding
from kvcore.model.quantization import Quantization


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Draft(Keeper):
    """A draft as the engine stores it, on the last pipeline stage: without what it shares with the model.

    Compared by identity, as architectures are.
    """

    layers: tuple[Layer, ...]
    quantization: Quantization
    layer_prefix: str = "model.layers"
    first_index: int = 0
    """The number of its first layer in the checkpoint."""
    modules: tuple[Module, ...] = ()
    """With the layers, under full checkpoint names."""
    embedding: VocabEmbedding | None = None
    """The embedding that it shares with the model; with pipeline stages it keeps a copy."""
    rotary_tables: tuple[RotaryTable, ...] = ()
    """Those that it does not share with the model."""
    is_assumed: bool = False
    """Its config is not known: it is as published heads for such models are."""


def checkpoint_draft(architecture: Architecture, quantization: Quantization) -> Draft:
    """The multi-token-prediction layers of the model's own checkpoint; embedding, lm_head and rope are the model's.

    Source: vllm/v1/worker/gpu/spec_decode/eagle/utils.py:load_eagle_model (0.32).
    """
    continues = not architecture.draft_prefix
    return Draft(
        layers=architecture.draft_layers,
        quantization=quantization if architecture.drafts_are_quantized else Quantization(),
        layer_prefix=architecture.layer_prefix if continues else architecture.draft_prefix,
        first_index=architecture.num_layers if continues else 0,
        modules=architecture.draft_modules,
        embedding=first_embedding(architecture),
    )


def whole_model_draft(architecture: Architecture, quantization: Quantization) -> Draft:
    """A smaller model that drafts on its own; it shares nothing.

    Source: vllm/v1/worker/gpu/spec_decode/standalone_ar/speculator.py (0.32).
    """
    return Draft(
        layers=architecture.layers,
        quantization=quantization,
        layer_prefix=architecture.layer_prefix,
        modules=(*architecture.first, *architecture.every, *architecture.last),
        rotary_tables=architecture.rotary_tables,
    )


def first_embedding(architecture: Architecture) -> VocabEmbedding | None:
    """The token embedding of a model."""
    return next((module for module in architecture.first if isinstance(module, VocabEmbedding)), None)
