"""Where the config of a plan comes from, as far as a person should know: a name that was recognized, a storage format
that is known by the name alone, a stub, a config that contradicts the catalogue's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from kvcore import catalogue
from kvcore.base.errors import CatalogueError, Notice, notice
from kvcore.base.kept import kept
from kvcore.catalogue.models import ModelEntry, Rank
from kvcore.catalogue.names import Named, Recognition, recognized, recognized_notice
from kvcore.model.quantization import Quantization
from kvcore.scenario import Scenario

SPREAD_BY_NAME: Final = 0.015
"""Share by which the weights may be off where the format is known by name: which modules stay in 16 bits varies.

Source: tests/test_siblings.py: formats by name against the configs of published checkpoints that the catalogue has.
"""
MOST_KEYS: Final = 4
"""Differing keys that are named."""
COSMETIC: Final = frozenset(
    ("architectures", "dtype", "torch_dtype", "model_type", "transformers_version", "nulls")
)
"""Keys that releases of one model spell differently without meaning another size."""


class Origin(NamedTuple):
    """The catalogue's entry of a scenario's model, and how its name was recognized."""

    entry: ModelEntry
    how: Recognition


def origin_of(scenario: Scenario) -> Origin | None:
    """The entry that the model's name means; None where nothing bundled has that name, or several have it."""
    named = _named(scenario.model)
    if named is None:
        return None
    model, how = named
    entry = catalogue.bundled_model(model)
    return None if entry is None else Origin(entry, how)


def _named(model: str) -> tuple[str, Recognition] | None:
    try:
        found = recognized(model)
    except CatalogueError:
        return None
    return None if found is None else (found.model, found.how)


def as_known(scenario: Scenario, quantization: Quantization) -> Quantization:
    """The storage format, its bytes assumed where the checkpoint's own config was not read."""
    return _assumed(quantization) if is_format_by_name(scenario) else quantization


def is_format_by_name(scenario: Scenario) -> bool:
    """Whether the storage format is known by the checkpoint's name alone."""
    origin = origin_of(scenario)
    return origin is not None and origin.entry.rank is Rank.FORMAT and _is_its(scenario, origin)


@kept
def _assumed(quantization: Quantization) -> Quantization:
    return replace(quantization, spread=max(quantization.spread, SPREAD_BY_NAME))


def origin_notices(scenario: Scenario) -> Iterator[Notice]:
    """What is not the checkpoint's own in the config of the plan."""
    origin = origin_of(scenario)
    if origin is None:
        return
    entry, how = origin
    if not _is_its(scenario, origin):
        keys = differing_keys(entry.config.raw, scenario.config.raw)
        if how is Recognition.ID and keys and entry.rank not in (Rank.FORMAT, Rank.SHAPE):
            yield notice(
                "config-differs-from-catalogue", "config", model=entry.id, keys=", ".join(keys[:MOST_KEYS])
            )
        return
    if how is not Recognition.ID:
        yield recognized_notice(scenario.model, Named(entry.id, how))
    if entry.rank is Rank.FORMAT:
        yield notice("format-known-by-name", "model", model=entry.id, base=entry.base, format=entry.format)
    elif entry.rank is Rank.SHAPE:
        yield notice("config-of-another-model", "model", model=entry.id, base=entry.base)
    elif entry.rank is Rank.STUB:
        yield notice("config-from-stub", "model", model=entry.id, source=entry.source)


def _is_its(scenario: Scenario, origin: Origin) -> bool:
    return scenario.config is origin.entry.config or scenario.config == origin.entry.config


def differing_keys(ours: Mapping[str, Any], given: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Keys that both configs have, with other values; dotted where they lie deeper.

    Example:
        >>> differing_keys({"a": 1, "b": {"c": 2, "d": 3}}, {"a": 1, "b": {"c": 4, "e": 5}})
        ['b.c']
    """
    found: list[str] = []
    for key in ours.keys() & given.keys() - COSMETIC:
        one, other = ours[key], given[key]
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            found += differing_keys(one, other, f"{prefix}{key}.")
        elif not _is_same(one, other):
            found.append(prefix + key)
    return sorted(found)


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values mean the same: lists of names in any order do."""
    if (
        isinstance(one, list)
        and isinstance(other, list)
        and all(isinstance(name, str) for name in one + other)
    ):
        return set(one) == set(other)
    return bool(one == other)
