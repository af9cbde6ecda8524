"""What an engine provides: a frozen record, read from the `engine.toml` of its folder (docs/adding-an-engine.md).

Nothing outside the folders asks which engine it is: it asks the record for what it needs to know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from msgspec import Struct, field
from packaging.version import Version

from kvcore.catalogue.accelerators import Accelerator, Vendor
from kvcore.engine.graph_rules import GraphRules
from kvcore.engine.resolved import CardView, Resolved, without_card
from kvcore.flags import FLAGS
from kvcore.scenario import Scenario
from kvcore.versioned import (
    NEVER,
    OLDEST,
    Amount,
    Bounds,
    ByRelease,
    Capability,
    Count,
    Named,
    OneOf,
    Published,
    ReleaseRange,
    Share,
    Source,
)

if TYPE_CHECKING:
    from kvcore.memory.parts import RankMemory
    from kvcore.memory.setting import Setting
    from kvcore.model.architecture import Architecture
    from kvcore.quantity import Quantity

EngineName = Annotated[str, Named("[a-z][a-z0-9-]*", "a name in lower case")]
RunnerKind = Literal["v0", "v1", "v2"]
Link = Literal["single", "unified", "nvlink", "pcie-p2p", "pcie", "hosts"]
WeightsLine = Literal["Model loading took {gib:.2f} GiB", "Loading model weights took {gib:.4f} GB"]
Layers = Literal["dense", "experts", "latent", "sparse"]


ResolveFlags: TypeAlias = "Callable[[Scenario, Architecture, CardView], Resolved]"
"""Every flag as a release fills it in; raises EngineRefusalError for what the engine refuses.

Of the card it reads the view alone: the scenario that it gets names none.
"""
FindMemory: TypeAlias = "Callable[[Setting, Quantity], RankMemory]"
"""Where the memory of one rank goes, given its weights: the parts, the budget, what the KV cache gets."""


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


Variable = Annotated[str, Named("[A-Za-z_][A-Za-z0-9_]*", "an environment variable")]
Text = Annotated[str, Named(r"[A-Za-z0-9_]*", "letters and digits")]
FunctionName = Annotated[str, Named(r"[a-z_.]+:[a-z_]+", "module:function")]


class Functions(Struct, frozen=True, kw_only=True):
    """Where the engine's own functions are, as `module:function`. They are imported when they are first called.

    The defaults follow vLLM: what a plug-in does not change.
    """

    resolve: FunctionName = "kvcore.engine.vllm.defaults:resolve"
    memory: FunctionName = "kvcore.memory.budget:profiled_memory"


class Attention(Struct, frozen=True, kw_only=True):
    """The one attention backend of a platform, and its block size in tokens where no flag says another."""

    backend: Annotated[str, Named(r"[A-Z][A-Z0-9_]*", "a backend in the engine's capitals")]
    block_size: Annotated[int, Bounds(1, 1024)]
    is_fixed: bool = False
    """It is this one whatever is asked, where prefixes are cached or prompts are cut."""


class Combination(StrEnum):
    """What a plug-in's release may not take; the code of its refusal ends so."""

    FIRST_ENGINE = "first-engine"
    CACHED_BLOCKS = "cached-blocks"
    """Prefix caching with blocks of another size than the platform's."""
    LATENT_ATTENTION = "latent-attention"
    SPARSE_ATTENTION = "sparse-attention"
    SPLIT_EXPERTS = "split-experts"
    """Tokens cut over tensor parallel ranks (FlashComm), in a mixture whose experts are cut as well."""
    BLOCKING_LAUNCHES = "blocking-launches"
    """Graphs where a variable makes every launch wait."""


class RefusedCombination(ReleaseRange, frozen=True, kw_only=True):
    """Releases of vLLM on which a plug-in stops for it."""

    source: Source
    what: Combination
    only_310p: bool = False
    """On 310P alone."""


class Refusals(Struct, frozen=True, kw_only=True):
    """Which of vLLM's tables of refusals apply."""

    source: Source = ""
    model_classes_since: Published = NEVER
    """From this vLLM release on, every model class of the engine is one of vLLM's."""
    platform: Annotated[str, Named("[a-z]*", "a platform in lower case")] = ""
    """Whose storage formats of weights it takes (`quantization_methods.toml`); "" for those of the card's vendor."""
    checks_weight_shapes: bool = True
    """Blocks and groups of quantized weights that tensor parallelism would cut stop the start."""
    combinations: tuple[RefusedCombination, ...] = ()
    """What is not taken together, in the order of the checks."""


class SparseKeys(StrEnum):
    """How the keys of a sparse indexer are stored."""

    PACKED = "packed"
    """In layers of their own, in fp8 with scales."""
    PLAIN = "plain"
    """In layers of their own, in the model's dtype."""
    JOINED = "joined"
    """Behind the latent vector of the same layer, in the model's dtype."""
    DOUBLED = "doubled"
    """In a second latent vector's room: the layer counts as full attention, with keys and values."""


class CompressedBlocks(Struct, frozen=True, kw_only=True):
    """Blocks of DeepSeek-V4's caches where they are counted in vectors, and nothing is packed or aligned."""

    counts_vectors: bool = False
    """A block has room for so many stored vectors, not for the vectors of so many tokens."""
    overlapping_share: Annotated[int, Bounds(1, 1024)] = 1
    """A block of what waits for a compressor that looks at two windows is this part of a block."""
    single_share: Annotated[int, Bounds(1, 1024)] = 1
    """The same for one that looks at one."""
    sizes: tuple[Annotated[int, Bounds(1, 1024)], ...] = ()
    """Block sizes that are taken; the first stands for any other."""


class CacheRules(Struct, frozen=True, kw_only=True):
    """Where KV cache and schedule differ from those of the vLLM release that the engine runs on."""

    aligns_to_kernel_block: bool = False
    """Blocks of hybrid models are multiples of the backend's smallest kernel block, in every release."""
    contiguous_states: bool = False
    """A hybrid model's keys are as large as a state's largest tensor, the smallest behind them."""
    keeps_windows: bool = True
    """Layers with a window or chunks have caches of their own kind; else they keep the whole context."""
    sparse_keys: SparseKeys = SparseKeys.PACKED
    compressed: CompressedBlocks = CompressedBlocks()
    states_last: bool = False
    """Layers with recurrent states come after all others, so that attention is the first group."""
    counts_in_flight: bool = False
    """A window keeps every batch in flight, before vLLM itself does so; candidates of the release do not."""
    caches_states: bool = True
    """Prefix caching takes models with recurrent states."""
    drafts_for_states: bool = True
    """Speculative decoding takes any model with recurrent states, not Qwen3-Next alone."""
    cuts_prompts: bool = True
    """Chunked prefill of text models without latent attention; else a batch has room for max_model_len."""
    pipelines_drafts: bool = True
    """The model's own drafts (MTP) run with pipeline parallelism where prompts are not processed apart."""


class ExchangeRow(Struct, frozen=True, kw_only=True):
    """How cards pass each other the tokens of experts that are whole on one rank."""

    card: Text = ""
    """A part of their names; "" for any."""
    exchanges: bool
    """Of a large batch ranks send each other what the experts need; else each gathers all tokens."""
    dispatch_ranks: Count
    """From so many ranks on, small batches go through a group of their own; 0: never."""


class Communicators(Struct, frozen=True, kw_only=True):
    """Buffers of a collective library of which each communicator has its own pair, allotted when it is first used."""

    source: Source
    variable: Variable
    """Says the size of one buffer, in MiB."""
    default_mib: Count
    gathered_mib: Count
    """Of the group of data parallel ranks."""
    sized_since: Published = NEVER
    """From this vLLM on, the variable is for the group that dispatches tokens to experts alone."""
    shared_since: Published = NEVER
    shared_below: Published = NEVER
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


class Streams(Struct, frozen=True, kw_only=True):
    """Models with several residual streams keep those of a whole batch for their draft, and peak by them."""

    source: Source
    more_share: Share
    """How far above the figure the peak may be."""


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


class Mask(ReleaseRange, frozen=True, kw_only=True):
    """An attention mask of max_model_len × max_model_len, made after the KV cache; bytes for each pair of tokens."""

    source: Source
    card: Text
    """A part of the names of the cards."""
    bytes_per_pair: Amount
    least: Amount
    most: Amount


class PoolBlock(Struct, frozen=True, kw_only=True):
    """A pool of memory that grows by whole blocks; the profile run finds what it has reserved."""

    source: Source
    variable: Variable
    """Says the size of a block, in GB."""
    default_gb: Amount


class MemoryRules(Struct, frozen=True, kw_only=True):
    """What the memory of a rank takes in addition to what vLLM's own runners take on CUDA."""

    source: Source = ""
    overheads: EngineName | None = None
    """The engine whose `overheads` store; None for vLLM's, by its runner (v0, v1, v2)."""
    budget: Budget | None = None
    """How the budget is made up; None as vLLM's release says."""
    absolute: tuple[AbsoluteBudget, ...] = ()
    """Where everything on the device is taken off."""
    graph_estimates: GraphEstimates | None = None
    """None as vLLM's release says."""
    halved_pool: HalvedPool | None = None
    masks: tuple[Mask, ...] = ()
    """The first that matches; none where attention masks take nothing to speak of."""
    doubles_hybrid_pool_below: Published = OLDEST
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
    expands_segments_since: Published = NEVER
    """From this vLLM on, the allocator grows its segments where no variable says otherwise."""
    has_graph_workspace: bool = True
    """The capture gets a workspace of the matrix library on its stream."""
    pieces_with_full_graphs: bool = True
    """Where batches are captured in full, every size is captured piecewise as well."""
    table_copies: Annotated[int, Bounds(0, 16)] = 0
    """Further copies of the plain cos/sin table that a model keeps, from `table_copies_since` on."""
    table_copies_since: Published = NEVER
    """A release of vLLM."""

    def budget_in(self, version: Version, card_label: str) -> Budget | None:
        """How the budget is made up on vLLM `version` and a card; None as vLLM's release says."""
        is_absolute = any(row.covers(version) and row.card in card_label for row in self.absolute)
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


class OverheadRow(ReleaseRange, frozen=True, kw_only=True):
    """A figure in GiB for one era, runner, vendor, link and compute capability; None matches any."""

    source: Source
    gib: Amount
    spread_gib: Amount
    runner: RunnerKind | None = None
    vendor: Vendor | None = None
    link: Link | None = None
    capability: Capability | None = None
    card: Text | None = None
    """A part of the card's name."""


class GraphRate(Struct, frozen=True, kw_only=True):
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


class Overheads(Struct, frozen=True, kw_only=True):
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


class MemoryVariables(Struct, frozen=True, kw_only=True):
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
    below: Published = NEVER

    @property
    def names(self) -> tuple[str, str]:
        """Both variables."""
        return self.total, self.model

    def defaults(self) -> Mapping[str, str]:
        """Each variable with the text that stands for its default."""
        return {self.total: f"{self.default_total_gb:g}", self.model: f"{self.default_model_gb:g}"}


class ChipTag(Struct, frozen=True, kw_only=True):
    """What the tags of an image end with for cards whose id begins so, from one of the engine's own releases on."""

    card: Annotated[str, Named("[A-Za-z0-9-]+", "the beginning of a card's id")]
    suffix: Annotated[str, Named("-[a-z0-9]+", "the end of a tag")]
    since: Published


class Image(Struct, frozen=True, kw_only=True):
    """A container image of the engine, for the cards of one vendor; its tags are v and the release."""

    vendor: Vendor
    name: Annotated[str, Named("[a-z0-9./-]+", "an image without its tag")]
    tags: tuple[ChipTag, ...] = ()
    """Of cards whose image has a tag of its own."""

    def suffix_of(self, card_id: str, engine_version: str) -> str:
        """What the tag of a release ends with on a card."""
        own = (tag for tag in self.tags if card_id.startswith(tag.card))
        return next((tag.suffix for tag in own if Version(engine_version) >= tag.since), "")


class Launch(Struct, frozen=True, kw_only=True):
    """How it is started."""

    program: tuple[str, ...]
    """The words before the model."""
    module: Annotated[str, Named("[a-z_.]*", "a Python module")] = ""
    """What the Python modules of its server begin with."""
    source: Source = ""
    images: tuple[Image, ...] = ()
    image_starts_server: bool = True
    """The image's entry point is the server: a container gets its flags alone."""

    def image_for(self, vendor: Vendor) -> Image | None:
        """The image for cards of `vendor`; None where none is known."""
        return next((image for image in self.images if image.vendor is vendor), None)


class LogFormat(Struct, frozen=True, kw_only=True):
    """What is the engine's own in a start-up log."""

    source: Source = ""
    marks: tuple[str, ...] = ()
    """Texts without spaces that only this engine prints; a log without any engine's marks is vLLM's."""
    weights_line: WeightsLine = "Model loading took {gib:.2f} GiB"
    available_in_bytes_until: Published | None = None
    """The last release of vLLM on which it states available and total memory in bytes; None: never."""
    figures: tuple[str, ...] = ("weights_gib", "available_kv_gib", "kv_tokens", "max_concurrency")
    """What a whole log of a start states, by the fields of its readings."""
    charges_graph_estimate_since: Published | None = None
    """From this release on an estimate of the graphs is taken off the budget without a line about it; None: never."""


class Engine(Struct, frozen=True, kw_only=True):
    """One engine."""

    name: EngineName
    """As a request says it."""
    order: Annotated[int, Bounds(0, 99)]
    """Of several engines that run on a card, the first serves where nobody names one."""
    reviewed: Version
    """The newest of its own releases that this file and the code with it were compared with."""
    source: Source
    """Where its releases are listed."""
    vendors: tuple[Vendor, ...]
    """Of the cards it has a platform for."""
    launch: Launch
    names: frozenset[str] = frozenset()
    """The names that come from outside, once more."""
    releases: tuple[tuple[Version, Published], ...] = ()
    """Its own releases, oldest first, each with the vLLM release that it runs on; empty for vLLM itself."""
    main_flags: tuple[Annotated[str, OneOf(tuple(FLAGS))], ...] = ()
    """Fields of a request whose controls stand among the main ones, for a mixture of experts."""
    weight_precisions: tuple[Annotated[str, Named("[a-z0-9_-]+", "a storage format")], ...] = ()
    """Values of `--quantization` that are offered before those of vLLM."""
    attention: Attention | None = None
    """None where the table of attention backends decides."""
    overheads: Overheads | None = None
    """None where those of another engine store."""
    memory_variables: MemoryVariables | None = None
    """Where the engine does not look at the memory of the card, but is given it."""
    refusals: Refusals = Refusals()
    cache: ByRelease[CacheRules] = field(default_factory=lambda: ByRelease(CacheRules, {}))
    graphs: ByRelease[GraphRules] = field(default_factory=lambda: ByRelease(GraphRules, {}))
    memory: MemoryRules = MemoryRules()
    log: LogFormat = LogFormat()
    functions: Functions = field(default_factory=Functions)

    def variables_in(self, version: Version) -> MemoryVariables | None:
        """The variables by which it is given the memory of a card on vLLM `version`; None where it looks itself."""
        variables = self.memory_variables
        return variables if variables is not None and version < variables.below else None

    def measures_memory_in(self, version: Version) -> bool:
        """Whether it looks at the card at start: free memory, and a profile run that its log takes apart."""
        return self.variables_in(version) is None

    @property
    def last_with_variables(self) -> Version:
        """The newest of its own releases that is given the memory of a card."""
        return next(own for own, host in reversed(self.releases) if self.variables_in(host) is not None)

    @property
    def follows_vllm(self) -> bool:
        """Whether flags and memory are found as vLLM finds them, so that a sweep may plan like cards together."""
        return self.functions == Functions()

    def runs_on(self, card: Accelerator | CardView) -> bool:
        """Whether it has a platform for `card`."""
        return card.vendor in self.vendors

    def resolve(self, scenario: Scenario, architecture: Architecture, card: CardView) -> Resolved:
        """`ResolveFlags` of this engine."""
        function: ResolveFlags = resolve_name(self.functions.resolve)
        return function(without_card(scenario), architecture, card)

    def rank_memory(self, setting: Setting, weights: Quantity) -> RankMemory:
        """`FindMemory` of this engine."""
        function: FindMemory = resolve_name(self.functions.memory)
        return function(setting, weights)


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
