"""The bundled facts: models and accelerators, each with its source and the date it was checked."""

from kvcore.catalogue.accelerators import (
    accelerator_from_facts,
    bundled_accelerator,
    find_accelerator,
    load_accelerators,
    with_interconnect,
)
from kvcore.catalogue.documented import license_of
from kvcore.catalogue.models import bundled_model, find_model, load_models, model_ids
from kvcore.catalogue.search import search_accelerators, search_models

__all__ = [
    "accelerator_from_facts",
    "bundled_accelerator",
    "bundled_model",
    "find_accelerator",
    "find_model",
    "license_of",
    "load_accelerators",
    "load_models",
    "model_ids",
    "search_accelerators",
    "search_models",
    "with_interconnect",
]
