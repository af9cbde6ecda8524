"""The licenses of bundled models' weights, where a source states them."""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

from kvcore.catalogue.models import model_ids
from kvcore.errors import CatalogueError

FILE: Final = "licenses.toml"
_KEYS: Final = frozenset(("name", "source", "checked", "models"))


def license_of(model: str) -> str:
    """The license of a bundled model's weights, "" where no source states it.

    Example:
        >>> license_of("Qwen/Qwen3-32B"), license_of("no/such-model")
        ('Apache-2.0', '')
    """
    return _by_model().get(model, "")


@cache
def _by_model() -> Mapping[str, str]:
    return read_licenses(files("kvcore.catalogue").joinpath(FILE).read_text("utf-8"))


def read_licenses(text: str) -> dict[str, str]:
    """The licenses of a TOML text by model, checked strictly.

    Raises CatalogueError `invalid-catalogue-entry` for an unknown or missing key, a model that is not bundled, or one
    that is named twice.
    """
    known, found = frozenset(model_ids()), dict[str, str]()
    for entry in tomllib.loads(text).get("license", []):
        if entry.keys() != _KEYS or not isinstance(entry["checked"], datetime.date) or not entry["source"]:
            raise _wrong(entry, "a license has name, source, checked and models")
        for model in entry["models"]:
            if model not in known:
                raise _wrong(entry, f"{model} is not bundled")
            if found.setdefault(model, entry["name"]) is not entry["name"]:
                raise _wrong(entry, f"{model} is named twice")
    return found


def _wrong(entry: Mapping[str, Any], reason: str) -> CatalogueError:
    return CatalogueError("invalid-catalogue-entry", field=f"{FILE}:{entry.get('name')}", reason=reason)
