"""The records that an engine's answers are made of: releases, ends of a model, adapters, metrics, servers."""

from enum import StrEnum
from typing import Annotated, Final, Literal, NamedTuple

from msgspec import Meta, Struct
from packaging.version import Version

from kvcore.base.errors import Notice
from kvcore.base.quantity import Grade, Quantity, figure
from kvcore.engine.switches import Switches
from kvcore.tables import Count, Record, ReleaseRange, Source

APPROXIMATED: Final = "engine-version-approximated"


class Taken(NamedTuple):
    """Bytes that something takes, how far that may be off, and how far the true figure may be above it."""

    value: int
    spread: int = 0
    more: int = 0


class TakenLater(NamedTuple):
    """Bytes that a start takes once the KV cache is allocated: as a rule, and from the least to the most."""

    name: str
    source: str
    value: float
    least: float
    most: float

    @property
    def quantity(self) -> Quantity:
        """The same, in whole bytes."""
        interval = self.least, self.most
        return figure(self.name, int(self.value), grade=Grade.FITTED, source=self.source, interval=interval)


class LayerPeak(NamedTuple):
    """Bytes of the largest layer of the profile run, where an engine finds them in its own way."""

    plain: int
    """While its experts run."""
    streams: int = 0
    """While the residual streams of the model are joined; 0 for a model with one."""
    least_streams: int = 0
    """The same where the draft's mode is not stated: the case that takes least."""
    streams_share: float = 0.0
    """How far off `streams` may be, as a share of the peak."""


class Release(Struct, frozen=True, kw_only=True):
    """A known release, and what it does."""

    version: Version
    switches: Switches
    notices: tuple[Notice, ...] = ()
    """`engine-version-approximated` when another version was asked for; why it is not the newest when none was."""

    @property
    def is_exact(self) -> bool:
        """Whether no other version was asked for: what a development build refuses is not known."""
        return all(notice.code != APPROXIMATED for notice in self.notices)


class End(StrEnum):
    """The modules before and behind the layers of a decoder."""

    EMBEDDING = "embedding"
    """Token embedding, and everything else before the layers."""
    NORM = "norm"
    """Everything behind the layers but lm_head."""
    HEAD = "head"


class LoraLimits(ReleaseRange, frozen=True, kw_only=True):
    """Limits of LoRA in some releases."""

    source: Source
    vocabulary_limit: Count
    extra_vocabulary: Count
    """Rows that adapters could add to the vocabulary."""
    vocabulary_multiple: Annotated[int, Meta(ge=1, le=1 << 16)]
    """The multiple that the vocabulary of lm_head's slots is rounded up to."""
    adapts_experts: bool


class Adaptable(Struct, frozen=True, kw_only=True):
    """How one version adapts one model class."""

    limits: LoraLimits
    is_supported: bool
    embedding: bool
    head: bool
    one_slice: frozenset[str]
    """Fused projections that are one module to an adapter, as they are one in the checkpoint."""
    fused_expert_gates: bool
    """Gate and up projection of the experts are one module to an adapter."""


class CompressedBlocks(Struct, frozen=True, kw_only=True):
    """Blocks of DeepSeek-V4's caches where they have room for so many stored vectors, not for the vectors of so many
    tokens, and nothing is packed or aligned."""

    overlapping_share: int = 1
    """A block of what waits for a compressor that looks at two windows is this part of a block."""
    single_share: int = 1
    """The same for one that looks at one."""
    sizes: tuple[int, ...] = ()
    """Block sizes that are taken; the first stands for any other."""


class Role(StrEnum):
    """The role of a server in passing KV caches on, in the engine's own words."""

    PRODUCER = "kv_producer"
    """It computes prompts for others."""
    CONSUMER = "kv_consumer"
    """It goes on from the prompts of others."""
    BOTH = "kv_both"
    NONE = "none"
    """There is no connector."""


class Transfer(Struct, frozen=True, kw_only=True):
    """`--kv-transfer-config`: the connector of KV caches, and the role of this server."""

    connector: str | None = None
    role: Role = Role.NONE
    inner: tuple[str, ...] = ()
    """Connectors that this one passes everything on to."""

    @property
    def classes(self) -> tuple[str, ...]:
        """All connectors that take part."""
        return () if self.connector is None else (self.connector, *self.inner)


Flag = Annotated[str, Meta(pattern=r"^--[a-z][a-z0-9-]*$")]


class FormerFlag(Record, frozen=True, kw_only=True):
    """`seen`: the last version read that has it, None for a flag that never was; `gone`: the first one without."""

    flag: Flag
    gone: Version
    source: Source
    seen: Version | None = None
    replaced_by: Flag | None = None

    def __post_init__(self) -> None:
        if self.seen is not None and self.seen >= self.gone:
            raise ValueError("seen is before gone")


class MetricRole(StrEnum):
    """The question that a metric answers."""

    RUNNING = "running"
    WAITING = "waiting"
    WAITING_BY_REASON = "waiting_by_reason"
    KV_CACHE_USAGE = "kv_cache_usage"
    PREEMPTIONS = "preemptions"
    REQUEST_LATENCY = "request_latency"
    FIRST_TOKEN = "first_token"
    OUTPUT_TOKEN = "output_token"
    PROMPT_TOKENS = "prompt_tokens"
    GENERATION_TOKENS = "generation_tokens"
    PREFIX_CACHE_QUERIES = "prefix_cache_queries"
    PREFIX_CACHE_HITS = "prefix_cache_hits"


class MetricKind(StrEnum):
    """Prometheus metric types."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Metric(ReleaseRange, frozen=True, kw_only=True):
    """One metric by the name that a scraper sees; a histogram without its suffix."""

    role: MetricRole
    name: Annotated[str, Meta(pattern=r"^[a-z]+:[a-z0-9_]+$")]
    kind: MetricKind
    source: Source
    engine: Literal["any", "v0", "v1"] = "any"

    @property
    def series(self) -> tuple[str, ...]:
        """The names of its time series."""
        if self.kind is MetricKind.HISTOGRAM:
            return tuple(f"{self.name}_{suffix}" for suffix in ("bucket", "sum", "count"))
        return (self.name,)


BareFlag = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9-]*$")]


class LoadGenerator(ReleaseRange, frozen=True, kw_only=True):
    """How a load generator is called, and the flags that a command may use, without dashes."""

    words: tuple[Annotated[str, Meta(pattern=r"^-?[a-z][a-z_./]*$")], ...]
    flags: frozenset[BareFlag]
    source: Source
    backend: Annotated[str, Meta(pattern=r"^[a-z-]*$")] = ""
    """Whom it speaks to, where it is not told as vLLM's."""
    dataset: Annotated[str, Meta(pattern=r"^[a-z-]+$")] = "random"
    """Prompts of random tokens."""
