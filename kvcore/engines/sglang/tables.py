"""The tables of this folder: model classes by release, and what a release fills in by the memory of a card."""

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Annotated, Final

from msgspec import Meta
from packaging.version import Version

from kvcore.engine.facts import EngineFacts
from kvcore.tables import NEVER, Count, Record, ReleaseRange, Reviewed, Share, Source, TableFile

ClassName = Annotated[str, Meta(pattern=r"^[A-Z][A-Za-z0-9_]*$")]


class Listed(Record, frozen=True, kw_only=True):
    """Classes of a list, each since the first release read that has it."""

    source: Source
    since: Mapping[ClassName, Version]
    below: Mapping[ClassName, Version] = {}
    """The first release that lists a class no longer."""

    def has(self, name: str, version: Version) -> bool:
        """Whether `version` lists the class."""
        since = self.since.get(name)
        return since is not None and since <= version < self.below.get(name, NEVER)


class Classes(Reviewed, frozen=True, kw_only=True):
    """model_classes.toml."""

    sliding_pools: Listed
    """Windows have a pool of their own; of all other classes every layer keeps every token."""
    multimodal: Listed
    text_only_by_default: Listed
    without_piecewise: Listed
    images_piecewise: Listed
    images_breakable: Listed
    latent: Listed
    sparse: Listed
    keeps_prefixes: Listed
    """Classes with recurrent states whose prefixes are kept."""
    extra_buffer: Listed
    whole_prompts: Listed
    """Multimodal classes whose prompts are never cut."""
    own_draft: Listed
    """Classes whose draft is the model's own checkpoint where none is named."""


class Band(Record, frozen=True, kw_only=True):
    """Cards with less memory than `below_mib`."""

    below_mib: Count
    chunk: Count
    graph: Count
    """Largest decode graph with fewer than four ranks."""
    graph_of_four: Count


class Bands(ReleaseRange, frozen=True, kw_only=True):
    """The bands of some releases, by memory."""

    source: Source
    rows: tuple[Band, ...]


class DriverTotal(Record, frozen=True, kw_only=True):
    """MiB of a card as the driver's tool prints them."""

    source: Source
    kept_share: Share
    mib: Mapping[Annotated[str, Meta(pattern="^[A-Za-z0-9-]+$")], Count]


class Defaults(Reviewed, frozen=True, kw_only=True):
    """card_defaults.toml."""

    bands: tuple[Bands, ...]
    driver_total: DriverTotal


CLASSES: Final = TableFile("kvcore.engines.sglang", "model_classes.toml", Classes)
DEFAULTS: Final = TableFile("kvcore.engines.sglang", "card_defaults.toml", Defaults)
FACTS: Final = TableFile("kvcore.engines", "sglang/engine.toml", EngineFacts)


@cache
def own_releases() -> tuple[Version, ...]:
    """The releases that were read, oldest first."""
    return tuple(FACTS.load().releases)


@lru_cache(maxsize=64)
def sglang_release(number: str) -> Version:
    """A release that was read. Raises ValueError for any other number.

    Example:
        >>> sglang_release("0.5.18")
        <Version('0.5.18')>
    """
    version = Version(number)
    if version not in own_releases():
        raise ValueError(f"{number} is no release of SGLang that was read")
    return version


def band_of(memory_mib: float, version: Version) -> Band:
    """The band of a card in `version`.

    Example:
        >>> band_of(24_564, Version("0.5.18")).chunk, band_of(24_564, Version("0.5.23")).chunk
        (2048, 4096)
    """
    bands = next(one for one in DEFAULTS.load().bands if one.covers(version))
    return next(row for row in bands.rows if memory_mib < row.below_mib)
