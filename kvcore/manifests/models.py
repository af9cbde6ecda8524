"""The bundled model that a workload's names mean."""

from __future__ import annotations

import re
from typing import Final

from kvcore.base.errors import CatalogueError
from kvcore.catalogue.names import recognized
from kvcore.manifests.workload import Workload

_ADDRESS: Final = re.compile(r"[a-z][a-z0-9+]{1,20}://")
_TAG: Final = re.compile(r":[\w.-]{1,128}$")


def names_of(one: Workload) -> list[str]:
    """The names of a workload's model, the likeliest first; of an address what stands behind its scheme and tag."""
    found = []
    for name in (one.model, *one.fallbacks):
        if name and _ADDRESS.match(name) is not None:
            name = _TAG.sub("", _ADDRESS.sub("/", name, count=1))
        found += [name] if name else []
    return list(dict.fromkeys(found))


def known_model(one: Workload) -> str | None:
    """The id of the bundled model that one of the names means alone; None where none does.

    Example:
        >>> known_model(Workload(name=None, engine="vllm", model="oci://quay.io/models/qwen3-8b:latest"))
        'Qwen/Qwen3-8B'
    """
    return next((found for name in names_of(one) if (found := _bundled(name)) is not None), None)


def best_name(one: Workload) -> str | None:
    """The first name that means a bundled model, as written; else the first name."""
    names = names_of(one)
    return next((name for name in names if _bundled(name) is not None), names[0] if names else None)


def _bundled(name: str) -> str | None:
    is_path = "/" not in name or name.startswith("/") or name.count("/") > 1
    try:
        found = recognized(name, any_owner=is_path)
    except CatalogueError:
        return None
    return None if found is None else found.model
