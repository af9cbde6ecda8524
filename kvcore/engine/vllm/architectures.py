"""Which releases lack a model class: a class came with one release, and may have gone with another."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from packaging.version import Version

from kvcore.engine.rooms import find_engine
from kvcore.engine.vllm.classes import CLASSES, Absence
from kvcore.errors import EngineRefusalError


@cache
def known_absences() -> Mapping[str, tuple[Absence, ...]]:
    """Which releases lack a class, by class."""
    return CLASSES.load().registry.absences()


def check_architectures(names: tuple[str, ...], engine: str, version: Version) -> None:
    """Raises EngineRefusalError where `version` surely has none of the model classes `names` of a config.

    `architecture-not-in-release` for the first of them that it does not have yet, `architecture-gone-from-release` for
    one that it has no more.

    Source: vllm/model_executor/models/registry.py:_ModelRegistry._raise_for_unsupported (0.11.0, 0.32.0).
    """
    absence = absence_of(names, engine, version)
    if absence is None:
        return
    facts = {"value": names[0], "version": str(version)}
    if absence.until is not None:
        raise EngineRefusalError(
            "architecture-gone-from-release", field="engine_version", until=str(absence.until), **facts
        )
    raise EngineRefusalError(
        "architecture-not-in-release", field="engine_version", since=str(absence.since), **facts
    )


def absence_of(names: tuple[str, ...], engine: str, version: Version) -> Absence | None:
    """Why `version` has none of `names`, of the first of them; None where it has one, or that is not known.

    Example:
        >>> absence_of(("Qwen3_5ForConditionalGeneration",), "vllm", Version("0.9.2")).since
        <Version('0.17.1')>
        >>> absence_of(("Qwen3_5ForConditionalGeneration",), "vllm", Version("0.19.1"))
    """
    if version < find_engine(engine).refusals.model_classes_since:
        return None
    absences = known_absences()
    found = [
        next((absence for absence in absences.get(name, ()) if absence.covers(version)), None)
        for name in names
    ]
    return found[0] if found and all(found) else None


def is_surely_there(names: tuple[str, ...], version: Version) -> bool:
    """Whether nothing speaks against a release of vLLM for a config of the classes `names`.

    Example:
        >>> is_surely_there(("BaichuanForCausalLM",), Version("0.23.0"))
        True
        >>> is_surely_there(("BaichuanForCausalLM",), Version("0.24.0"))
        False
    """
    absences = known_absences()
    return not names or any(
        not any(absence.is_unsure(version) for absence in absences.get(name, ())) for name in names
    )
