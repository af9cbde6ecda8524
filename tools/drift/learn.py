"""News of a release that kvcore's tables lack, each as a line of Markdown."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from packaging.version import Version

from kvcore.engines.vllm.availability import is_available
from kvcore.engines.vllm.classes import Absence
from kvcore.flags import Flag
from tools.drift.citations import Change, Citation
from tools.drift.source import FORMER_CLASSES, TEXT_CLASSES, Source

CONFIG_FIELDS: Final = {"kv_cache_dtype": "cache_dtype"}
"""Fields whose name in a request differs from that in the engine's config class."""


def releases(project: str, known: Collection[Version], offered: Iterable[Version]) -> Iterator[str]:
    """Published releases that no table lists, from the oldest known one on."""
    for release in sorted(offered):
        if release >= min(known) and release not in known:
            yield f"{project} {release} is on the index and in no table"


def classes(
    before: Source,
    after: Source,
    release: Version,
    absences: Mapping[str, tuple[Absence, ...]],
    is_read: AbstractSet[str],
) -> Iterator[str]:
    """Classes that came or went without a row, and rows that the release contradicts."""
    named = after.supported_classes | after.model_classes.get(FORMER_CLASSES, frozenset())
    if not after.supported_classes:
        yield "the registry of model classes was not found where it was"
        return
    for name, rows in sorted(absences.items()):
        absent = any(row.covers(release) for row in rows)
        if absent and name in after.supported_classes:
            yield f"`{name}` is there again, and classes.toml says that it is not"
        elif not absent and name not in named and name in before.supported_classes:
            yield f"`{name}` is gone, and classes.toml says that it is there"
    for name in sorted(before.supported_classes - after.supported_classes - absences.keys()):
        yield f"`{name}` is gone"
    new = after.supported_classes - before.supported_classes
    judged = after.model_classes.get(TEXT_CLASSES, frozenset()) | is_read
    for name in sorted((new & judged) - absences.keys()):
        yield f"`{name}` is new, and in no row of classes.toml"
    if unread := sorted(new - is_read):
        yield f"new, and read by no family: {', '.join(f'`{name}`' for name in unread)}"


def flags(before: Source, after: Source, known: Mapping[str, Flag], release: Version) -> Iterator[str]:
    """Flags and values that came or went, first those that a request has."""
    for flag in known.values():
        spelled = [spelling for spelling in flag.cli if spelling.startswith("--")]
        had = [spelling for spelling in spelled if spelling in before.flags]
        if had and not after.flags.intersection(spelled) and is_available(flag.name, "", release):
            yield f"`{had[0]}` is gone from the argument parser"
        taken = after.choices.get(flag.name)
        if taken and flag.choices:
            for value in sorted(set(taken) - set(flag.choices)):
                yield f"`{flag.spelling} {value}` is taken and not offered"
            for value in flag.choices:
                had_it = value in before.choices.get(flag.name, ())
                if had_it and value not in taken and is_available(flag.name, value, release):
                    yield f"`{flag.spelling} {value}` is taken no more and offered"
    ours = {spelling for flag in known.values() for spelling in flag.cli}
    for spelling in sorted(before.flags - after.flags - ours):
        yield f"`{spelling}` is gone"
    if new := sorted(after.flags - before.flags - ours):
        yield f"new, and no field of a request: {', '.join(f'`{spelling}`' for spelling in new)}"


def defaults(before: Source, after: Source, known: Mapping[str, Flag]) -> Iterator[str]:
    """Default values that changed: those of a request's fields first, then the rest in one line."""
    names = {CONFIG_FIELDS.get(flag.key, flag.key) for flag in known.values()}
    others = []
    for place, value in sorted(after.defaults.items()):
        was = before.defaults.get(place)
        if was is None or was == value:
            continue
        if place.rsplit(".", 1)[-1] in names:
            yield f"`{place}` is `{value}`, was `{was}`"
        else:
            others.append(f"`{place}`")
    if others:
        yield f"other defaults that changed: {', '.join(others)}"


def citations(found: Mapping[Citation, tuple[Change, str]]) -> Iterator[str]:
    """Cited places that read otherwise now."""
    for place, (change, where) in sorted(found.items(), key=lambda item: str(item[0])):
        if change is Change.CHANGED:
            yield f"changed: `{place}`"
        elif change is Change.MOVED:
            yield f"moved, unchanged: `{place}` to `{where}`"
        elif change is Change.GONE:
            yield f"gone: `{place}`" + (f", now in {where}" if where else "")
