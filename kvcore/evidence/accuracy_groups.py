"""Groups of published starts: by release, card, family and era, with and without a campaign."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final

from msgspec.structs import replace

from kvcore.engines.registry import find_engine
from kvcore.evidence.accuracy import Check, PublishedStart, our_points

CAMPAIGN: Final = "llm-d-incubation/llm-d-planner"
ERAS: Final = ("0.11", "0.18", "0.24")
"""Releases at which budgets, samplers and runners changed most."""
LEAST_GROUP: Final = 8
"""Least starts of a group whose shares are shown."""


def off_platform(starts: Iterable[PublishedStart]) -> list[PublishedStart]:
    """The starts without those of plug-ins with overheads of their own, which rest on few publications."""
    return [start for start in starts if find_engine(start.engine).facts.overheads is None]


def era_name(start: PublishedStart) -> str:
    """Ranks and release era of a start.

    Example:
        >>> from kvcore.evidence.accuracy import load_accuracy
        >>> sorted({era_name(start) for start in load_accuracy().starts})[1]
        'TP 1, vLLM 0.11–0.17'
    """
    ranks = "TP > 1" if start.tensor_parallel_size > 1 else "TP 1"
    if start.engine_version is None:
        return f"{ranks}, ?"
    numbers = [int(part) for part in re.findall(r"\d+", start.engine_version)[:2]]
    below = [name for name in ERAS if numbers < [int(part) for part in name.split(".")]]
    if not below:
        return f"{ranks}, vLLM ≥ {ERAS[-1]}"
    major, minor = below[0].split(".")
    since = ERAS[ERAS.index(below[0]) - 1] if below[0] != ERAS[0] else None
    return (
        f"{ranks}, vLLM < {ERAS[0]}" if since is None else f"{ranks}, vLLM {since}–{major}.{int(minor) - 1}"
    )


def era_order(name: str) -> tuple[bool, bool, int]:
    """Sort key of an `era_name`: fewer ranks first, then older releases, unknown releases last.

    Example:
        >>> sorted(("TP > 1, vLLM < 0.11", "TP 1, ?", "TP 1, vLLM ≥ 0.24", "TP 1, vLLM 0.18–0.23"), key=era_order)
        ['TP 1, vLLM 0.18–0.23', 'TP 1, vLLM ≥ 0.24', 'TP 1, ?', 'TP > 1, vLLM < 0.11']
    """
    place = (
        -1
        if "<" in name
        else max((index for index, era in enumerate(ERAS) if era in name), default=len(ERAS))
    )
    return name.startswith("TP >"), name.endswith("?"), place


def elsewhere(starts: Iterable[PublishedStart]) -> list[PublishedStart]:
    """The starts without the largest campaign, which is one host: fitted constants suit it too well."""
    return [start for start in starts if CAMPAIGN not in start.source]


def held_out(starts: Iterable[PublishedStart]) -> list[PublishedStart]:
    """The starts predicted as if their own publication had taken part in no fit.

    Points whose constants rest on their own publication alone drop out: their error elsewhere is unknown.
    """
    return [
        replace(one, points={check: left for check, point in one.points.items() if (left := point.held_out)})
        for one in starts
    ]


def of_one_source(starts: Iterable[PublishedStart], check: Check) -> int:
    """Number of points of a check whose constants rest on their own publication alone."""
    return sum(point.held_out is None for point in our_points(starts, check))


def mixed(starts: Iterable[PublishedStart]) -> list[PublishedStart]:
    """The starts of models whose layers are not all plain attention."""
    return [start for start in starts if start.layout != "uniform"]


def groups(starts: Sequence[PublishedStart], by: str) -> dict[str, list[PublishedStart]]:
    """Starts by `version` (of the engine, two parts), `card` or `family`, the largest group first."""
    found: dict[str, list[PublishedStart]] = {}
    for start in starts:
        found.setdefault(_GROUPS[by](start), []).append(start)
    return dict(sorted(found.items(), key=lambda item: (-len(item[1]), item[0])))


def release_name(start: PublishedStart) -> str:
    """Engine and the first two parts of its version; a question mark for an unknown version."""
    if start.engine_version is None:
        return f"{start.engine} ?"
    return f"{start.engine} {'.'.join(start.engine_version.split('.')[:2])}"


_GROUPS: Final[Mapping[str, Callable[[PublishedStart], str]]] = {
    "version": release_name,
    "card": attrgetter("card"),
    "family": attrgetter("family"),
    "era": era_name,
}
