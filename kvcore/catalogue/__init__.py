"""The bundled facts: models and accelerators, each with its source and the date it was checked."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from kvcore.catalogue.accelerators import (
    accelerator_from_facts,
    bundled_accelerator,
    checked_name,
    find_accelerator,
    load_accelerators,
    with_interconnect,
)
from kvcore.catalogue.models import load_models, model_ids
from kvcore.catalogue.names import find_model
from kvcore.catalogue.siblings import bundled_model, known_ids

__all__ = [
    "accelerator_from_facts",
    "bundled_accelerator",
    "bundled_model",
    "checked_name",
    "find_accelerator",
    "find_model",
    "known_ids",
    "license_of",
    "load_accelerators",
    "load_models",
    "model_ids",
    "search_accelerators",
    "search_models",
    "with_interconnect",
]

_HOMES: Final = {"license_of": "documented", "search_accelerators": "search", "search_models": "search"}
"""The modules of names that a plan does not need: imported when they are first asked for."""

if TYPE_CHECKING:
    from kvcore.catalogue.documented import license_of
    from kvcore.catalogue.search import search_accelerators, search_models
else:

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
