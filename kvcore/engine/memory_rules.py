"""What an engine does to memory in its own way: rows of `engine.toml`, each by release."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta
from packaging.version import Version

from kvcore.catalogue.accelerators import Vendor
from kvcore.tables import NEVER, OLDEST, Amount, Capability, Count, Record, ReleaseRange, Share, Source

RunnerKind = Literal["v0", "v1", "v2"]
Link = Literal["single", "unified", "nvlink", "pcie-p2p", "pcie", "hosts"]
Layers = Literal["dense", "experts", "latent", "sparse"]
Variable = Annotated[str, Meta(pattern="^[A-Za-z_][A-Za-z0-9_]*$")]
Text = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_]*$")]


class Budget(StrEnum):
    """What is taken off the budget before the KV cache."""

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


class ExchangeRow(Record, frozen=True, kw_only=True):
    """How cards pass each other the tokens of experts that are whole on one rank."""

    card: Text = ""
    """A part of their names; "" for any."""
    exchanges: bool
    """Of a large batch ranks send each other what the experts need; else each gathers all tokens."""
    dispatch_ranks: Count
    """From so many ranks on, small batches go through a group of their own; 0: never."""


class Communicators(Record, frozen=True, kw_only=True):
    """Buffers of a collective library of which each communicator has its own pair, allotted when it is first used."""

    source: Source
    variable: Variable
    """Says the size of one buffer, in MiB."""
    default_mib: Count
    gathered_mib: Count
    """Of the group of data parallel ranks."""
    sized_since: Version = NEVER
    """From this vLLM on, the variable is for the group that dispatches tokens to experts alone."""
    shared_since: Version = NEVER
    shared_below: Version = NEVER
    """Between these, groups of the same ranks share a communicator, the dispatching one apart."""
    own_gib: Amount
    """What a communicator takes in addition to its buffers."""
    spread_gib: Amount
    more_groups: Count
    """How many groups of the default size there may be in addition where experts are whole on one rank."""
    dispatched_experts: Count
    """The most experts of a rank that tokens are dispatched to where the number of ranks decides."""
    cards: tuple[ExchangeRow, ...]
    """The first that matches a card."""


class GraphEstimates(ReleaseRange, frozen=True, kw_only=True):
    """Releases of vLLM on which the engine takes an estimate of its graphs off the budget."""

    source: Source
    without: tuple[Text, ...] = ()
    """Kinds of models that it takes none for."""


class Streams(Record, frozen=True, kw_only=True):
    """Models with several residual streams keep those of a whole batch for their draft, and peak by them."""

    source: Source
    spread_share: Share
    """Of the peak: how far off it may be where streams set it."""


class HalvedPool(ReleaseRange, frozen=True, kw_only=True):
    """Cards on which half of what is left becomes the KV cache."""

    source: Source
    card: Text
    """A part of their names."""


class AbsoluteBudget(ReleaseRange, frozen=True, kw_only=True):
    """Releases of vLLM on which everything on the device is taken off, and not what the start added to it."""

    source: Source
    card: Text = ""
    """A part of the names of the cards; empty: any."""


class WithoutEncoder(ReleaseRange, frozen=True, kw_only=True):
    """Releases of vLLM on which the profile run of the V1 engine embeds no images, video or recordings."""

    source: Source


class BalancingGroup(ReleaseRange, frozen=True, kw_only=True):
    """The group that moves experts, in releases whose profile run uses it."""

    source: Source
    mib: Count | None = None
    """Of one of its buffers; None: as the variable of communicators says."""


class Balancing(Record, frozen=True, kw_only=True):
    """Experts that move between ranks while an engine serves pass through as many buffers as a rank has experts of one
    layer."""

    source: Source
    profiled_since: Version
    """From this vLLM on they are there before the profile run, else they come after the KV cache."""
    group: tuple[BalancingGroup, ...]


class LostOnLoading(ReleaseRange, frozen=True, kw_only=True):
    """Mixtures in a storage format whose loading took so much that no source explains: in the interval, not in the
    figure."""

    source: Source
    storage: Text
    """A part of the format's name."""
    gib: Amount


class Mask(ReleaseRange, frozen=True, kw_only=True):
    """An attention mask of max_model_len × max_model_len, made after the KV cache; bytes for each pair of tokens."""

    source: Source
    card: Text
    """A part of the names of the cards."""
    bytes_per_pair: Amount
    least: Amount
    most: Amount


class PoolBlock(Record, frozen=True, kw_only=True):
    """A pool of memory that grows by whole blocks; the profile run finds what it has reserved."""

    source: Source
    variable: Variable
    """Says the size of a block, in GB."""
    default_gb: Amount


class MemoryRules(Record, frozen=True, kw_only=True):
    """What the memory of a rank takes in addition to what vLLM's own runners take on CUDA."""

    source: Source = ""
    budget: Budget | None = None
    """How the budget is made up; None as vLLM's release says."""
    absolute: tuple[AbsoluteBudget, ...] = ()
    """Where everything on the device is taken off."""
    graph_estimates: GraphEstimates | None = None
    """None as vLLM's release says."""
    halved_pool: HalvedPool | None = None
    without_encoder: WithoutEncoder | None = None
    """None where the profile run embeds what the model takes."""
    balancing: Balancing | None = None
    """None where experts move in no buffers of their own, or nobody knows."""
    lost_on_loading: LostOnLoading | None = None
    masks: tuple[Mask, ...] = ()
    """The first that matches; none where attention masks take nothing to speak of."""
    doubles_hybrid_pool_below: Version = OLDEST
    """Before this vLLM, the pool of a hybrid model is allotted twice: for attention, and for states."""
    communicators: Communicators | None = None
    """None for NCCL, by the tables of `kvcore/memory/framework.toml`."""
    pool_block: PoolBlock | None = None
    """None where memory that the profile run finds is what tensors take, and not what the pool has reserved."""
    graphs: GraphApi = GraphApi.CUDA
    has_expert_workspace: bool = True
    """The profile run sees buffers of fused experts."""
    has_indexer_buffer: bool = True
    """The profile run sees the gather buffer of a sparse indexer."""
    profiles_attention: bool = True
    """Latent attention expands the keys of a prefix in the profile run."""
    streams: Streams | None = None
    """None where the profile run sees nothing of residual streams, and none are kept."""
    expands_segments_since: Version = NEVER
    """From this vLLM on, the allocator grows its segments where no variable says otherwise."""
    has_graph_workspace: bool = True
    """The capture gets a workspace of the matrix library on its stream."""
    pieces_with_full_graphs: bool = True
    """Where batches are captured in full, every size is captured piecewise as well."""
    table_copies: Annotated[int, Meta(ge=0, le=16)] = 0
    """Further copies of the plain cos/sin table that a model keeps, from `table_copies_since` on."""
    table_copies_since: Version = NEVER
    """A release of vLLM."""

    def budget_in(self, version: Version, card_label: str) -> Budget | None:
        """How the budget is made up on vLLM `version` and a card; None as vLLM's release says."""
        is_absolute = any(row.card in card_label and row.covers(version) for row in self.absolute)
        return Budget.ABSOLUTE if is_absolute else self.budget

    def table_copies_in(self, version: Version) -> int:
        """Further copies of the plain cos/sin table on vLLM `version`."""
        return self.table_copies if version >= self.table_copies_since else 0


class SamplerRow(ReleaseRange, frozen=True, kw_only=True):
    """What sampling takes in one era of one runner."""

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
    """What the driver keeps of one graph of one layer."""

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
    """Of a mixture of experts; None: as others."""
    sparse_graph_rate: GraphRate | None = None
    """With an indexer of sparse attention; None: as others."""
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
    """What system and driver take of a card."""
    framework_gib: Amount
    """What the framework takes at most."""
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
