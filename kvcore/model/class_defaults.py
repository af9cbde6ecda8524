"""The defaults that a `model_type`'s config class fills in for keys that config.json leaves out.

`class_defaults.json` is written by tools/class_defaults.py: `values` are the keys that decide a size, a count or a
length.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from kvcore.errors import CatalogueError

FILE: Final = "class_defaults.json"


@lru_cache(maxsize=1)
def load_class_defaults() -> Mapping[str, Mapping[str, Any]]:
    """All bundled class defaults, by model_type."""
    document = json.loads(Path(__file__).with_name(FILE).read_text("utf-8"))
    tables: dict[str, Mapping[str, Any]] = {}
    for model_type, table in document.items():
        if set(table) != {"source", "values"}:
            raise CatalogueError(
                "invalid-catalogue-entry",
                field=f"{FILE}:{model_type}",
                reason="expected exactly source and values",
            )
        tables[model_type] = MappingProxyType(table["values"])
    return MappingProxyType(tables)


def class_defaults(model_type: str) -> Mapping[str, Any]:
    """The defaults of one model_type; empty for a type whose class is not known.

    Source: transformers 5.19, the config class of that model_type.

    Example:
        >>> class_defaults("gemma")["head_dim"]
        256
    """
    return load_class_defaults().get(model_type, {})
