"""Rules of the tier of KV caches in the host's memory by release, `tier.toml`."""

from enum import StrEnum
from typing import Final

from packaging.version import Version

from kvcore.tables import ByRelease, Record, Reviewed, TableFile


class FlagRule(StrEnum):
    """The fate of `--kv-offloading-size` with the engine's own connector."""

    NO_BLOCKS = "no-blocks"
    """It sets a number of blocks that the connector refuses."""
    AFTER_CHECK = "after-check"
    """It is read after the check whether the connector knows groups of layers, which the connector does not."""
    TAKEN = "taken"


class GivenIn(StrEnum):
    """Unit of the tier's size in the settings of the connector."""

    BLOCKS = "blocks"
    """Of each rank: num_cpu_blocks."""
    BYTES = "bytes"
    """Of all ranks together: cpu_bytes_to_use."""


class Place(StrEnum):
    """Where the tier is kept."""

    PINNED = "pinned"
    """Tensors of every rank, each rounded up to a power of two."""
    REGION = "region"
    """One file in /dev/shm for all ranks, rows of whole pages."""


class Tensors(StrEnum):
    """What one pinned tensor holds."""

    LAYERS = "layers"
    ALL = "all"
    """All layers of a single group with pages of one size."""
    ALL_OF_HEADS = "all-of-heads"
    """The same of keys and values in heads alone, with the first runner."""


class SharedCopies(StrEnum):
    """Caches that all ranks store alike, of which one copy is kept."""

    NONE = "none"
    PLAIN_LATENT = "plain-latent"
    """A single group of latent vectors, without an indexer."""
    LATENT = "latent"


class TierRules(Record, frozen=True, kw_only=True):
    """Rules of one release."""

    flag: FlagRule
    given_in: GivenIn
    place: Place
    place_amd: Place
    place_intel: Place
    tensors: Tensors
    splits_keys: bool
    """Keys and values are tensors of their own."""
    adds_pages: bool
    """A block of layers with pages of several sizes is their sum, not the first one's size for each."""
    shared_copies: SharedCopies
    tiering_in_region: bool
    """A tier with others under it is a file in /dev/shm already."""
    checks_shm: bool
    """A file that /dev/shm has no room for is refused by name, not by a fault of the address."""
    checks_rings: bool
    """The queues between the processes of an engine are refused too."""
    names_allocation: bool
    """The refusal says what for."""
    bounds_rounding: bool
    """torch can be told above which size a pinned tensor is not rounded."""
    p2p_pool: bool
    """P2pNcclConnector is there, whose ranks pin a pool each."""
    lmcache_server: bool
    """`--kv-offloading-backend lmcache` leaves the tier to a server of its own."""


class LmcacheRules(Record, frozen=True, kw_only=True):
    """Rules of one version of LMCache."""

    rounds_up: bool
    """torch pins its memory, in powers of two."""


class TierTable(Reviewed, frozen=True, kw_only=True):
    """tier.toml."""

    rules: ByRelease[TierRules]
    lmcache: ByRelease[LmcacheRules]


_TABLE: Final = TableFile("kvcore.host", "tier.toml", TierTable)


def tier_rules(version: Version) -> TierRules:
    """The rules of a release of vLLM."""
    return _TABLE.load().rules.at(version)


def lmcache_rounds_up(version: Version) -> bool:
    """Whether a version of LMCache takes the next power of two of its size."""
    return _TABLE.load().lmcache.at(version).rounds_up
