"""Constants that are fitted on starts of an engine, and how it makes up its budget."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta
from packaging.version import Version

from kvcore.catalogue.accelerators import Vendor
from kvcore.tables import NEVER, Amount, Capability, Record, ReleaseRange, Share, Source

RunnerKind = Literal["v0", "v1", "v2"]
Link = Literal["single", "unified", "nvlink", "pcie-p2p", "pcie", "hosts"]
Layers = Literal["dense", "experts", "latent", "sparse"]
Variable = Annotated[str, Meta(pattern="^[A-Za-z_][A-Za-z0-9_]*$")]
Text = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_]*$")]


class Budget(StrEnum):
    """Amounts that are subtracted from the budget before the KV cache."""

    ABSOLUTE = "absolute"
    """Everything on the device."""
    PARTS = "parts"
    """Weights, activations and what torch does not allocate."""
    CONSUMED = "consumed"
    """All that was lost since the snapshot."""


class GraphApi(StrEnum):
    """How the platform records the steps that run as graphs."""

    CUDA = "CUDA"
    ACL = "ACL"


class SamplerRow(ReleaseRange, frozen=True, kw_only=True):
    """Memory of sampling in one era of one runner."""

    source: Source
    bytes_per_logit: Amount
    vocabulary_rows_per_multiprocessor: Amount
    bytes_per_token: Amount
    spread_gib: Amount
    spread_share: Share
    runner: RunnerKind | None = None
    is_flashinfer: bool = False


class OverheadRow(ReleaseRange, frozen=True, kw_only=True, eq=False):
    """A figure in GiB for one era, runner, vendor, link and compute capability; None matches any. It is itself the key
    of what is made of it: a table has it once."""

    source: Source
    gib: Amount
    spread_gib: Amount
    runner: RunnerKind | None = None
    vendor: Vendor | None = None
    link: Link | None = None
    capability: Capability | None = None
    card: Text | None = None
    """A part of the card's name."""


class GraphRate(Record, frozen=True, kw_only=True):
    """Memory that the driver keeps of one graph of one layer."""

    source: Source
    bytes_per_graph_and_layer: Amount
    spread_share: Share
    bytes_per_hidden: Amount = 0.0
    """For each element of the hidden state in addition."""
    kind: Layers | None = None

    def of(self, hidden_size: int) -> float:
        """Bytes of one graph of one layer of a model."""
        return self.bytes_per_graph_and_layer + self.bytes_per_hidden * hidden_size


class Overheads(Record, frozen=True, kw_only=True):
    """Constants fitted on starts of the engine; of each table the first row that matches, then those of vLLM."""

    sampler: tuple[SamplerRow, ...]
    """The newest row of a release."""
    non_torch: tuple[OverheadRow, ...]
    context: tuple[OverheadRow, ...]
    graph_rate: GraphRate
    expert_graph_rate: GraphRate | None = None
    """The rate for a mixture of experts; None: as others."""
    sparse_graph_rate: GraphRate | None = None
    """The rate with an indexer of sparse attention; None: as others."""
    communication: tuple[OverheadRow, ...] = ()

    def graph_rate_of(self, *, is_sparse: bool, is_mixture: bool) -> GraphRate:
        """The rate of a model's graphs."""
        own = self.sparse_graph_rate if is_sparse else None
        return own or (self.expert_graph_rate if is_mixture else None) or self.graph_rate


class MemoryVariables(Record, frozen=True, kw_only=True):
    """Environment variables by which an engine is given the memory of a card, and what applies without them; releases
    on vLLM from `below` on look at the card themselves.

    A GB is 2**30 bytes, as the engines read them.
    """

    source: Source
    total: Variable
    """Names the variable: the physical memory of one card, in GB."""
    model: Variable
    """Names the variable: what weights, activations and framework may take of one card, in GB."""
    default_total_gb: Amount
    default_model_gb: Amount
    system_gib: Amount
    """Memory of a card that system and driver take."""
    framework_gib: Amount
    """The most that the framework takes."""
    below: Version = NEVER

    @property
    def names(self) -> tuple[str, str]:
        """Both variables."""
        return self.total, self.model

    def defaults(self) -> Mapping[str, str]:
        """Each variable with the text that stands for its default."""
        return {self.total: f"{self.default_total_gb:g}", self.model: f"{self.default_model_gb:g}"}


def written_gb(text: str) -> float | None:
    """The gigabytes that a variable says, None for a text that is no positive number below 1,000,000.

    Example:
        >>> written_gb("64"), written_gb("x4"), written_gb("nan")
        (64.0, None, None)
    """
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < 1e6 else None
