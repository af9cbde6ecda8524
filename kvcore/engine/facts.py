"""The facts of an engine that its `engine.toml` lists: releases, images, marks in a log, fitted constants."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

from msgspec import Meta, field
from packaging.version import Version

from kvcore.catalogue.accelerators import Vendor
from kvcore.engine.cards import Chip
from kvcore.engine.graph_rules import GraphRules
from kvcore.engine.overheads import MemoryVariables, Overheads, Text
from kvcore.engine.records import Role
from kvcore.flags import FlagName, check_fields
from kvcore.tables import NEVER, Amount, ByRelease, Record, ReleaseRange, Releases, Source

ADDITIONAL: Final = "additional_config"
"""The field of a request whose keys a plug-in reads."""
SWITCH: Final = "enabled"
"""A key of an object of them: without it nothing of the object counts."""
WeightsLine = Literal["Model loading took {gib:.2f} GiB", "Loading model weights took {gib:.4f} GB"]


class Attention(Record, frozen=True, kw_only=True):
    """The one attention backend of a platform, and its block size in tokens where no flag says another."""

    backend: Annotated[str, Meta(pattern=r"^[A-Z][A-Z0-9_]*$")]
    block_size: Annotated[int, Meta(ge=1, le=1024)]
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
    NODE_KEYS = "node-keys"
    """Keys of `--additional-config` that servers of another role take alone."""
    MODULE_RANKS = "module-ranks"
    """Single modules cut over groups that the data parallel ranks do not make."""
    CONTEXT_WITHOUT_FLASHCOMM = "context-without-flashcomm"
    """Sparse attention of a part of the tokens on each rank, whose tokens are not cut."""
    XLITE_STAGES = "xlite-stages"
    XLITE_DRAFTS = "xlite-drafts"
    XLITE_BLOCKS = "xlite-blocks"


class RefusedCombination(ReleaseRange, frozen=True, kw_only=True):
    """Releases of vLLM on which a plug-in stops for it."""

    source: Source
    what: Combination
    only_310p: bool = False
    """On 310P alone."""
    key: Annotated[str, Meta(pattern=r"^[a-z_.]*$")] = ""
    """What `node-keys` is about."""
    roles: tuple[Role, ...] = ()
    """The servers that take it."""


class Refusals(Record, frozen=True, kw_only=True):
    """Which of vLLM's tables of refusals apply."""

    source: Source = ""
    model_classes_since: Version = NEVER
    """From this vLLM release on, every model class of the engine is one of vLLM's."""
    platform: Annotated[str, Meta(pattern="^[a-z]*$")] = ""
    """Whose storage formats of weights it takes (`quantization_methods.toml`); "" for those of the card's vendor."""
    checks_weight_shapes: bool = True
    """Blocks and groups of quantized weights that tensor parallelism would cut stop the start."""
    unsupported_chips: tuple[Chip, ...] = ()
    """Generations of chips that none of its releases has a platform for."""
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


class CompressedBlocks(Record, frozen=True, kw_only=True):
    """Blocks of DeepSeek-V4's caches where they are counted in vectors, and nothing is packed or aligned."""

    counts_vectors: bool = False
    """A block has room for so many stored vectors, not for the vectors of so many tokens."""
    overlapping_share: Annotated[int, Meta(ge=1, le=1024)] = 1
    """A block of what waits for a compressor that looks at two windows is this part of a block."""
    single_share: Annotated[int, Meta(ge=1, le=1024)] = 1
    """The same for one that looks at one."""
    sizes: tuple[Annotated[int, Meta(ge=1, le=1024)], ...] = ()
    """Block sizes that are taken; the first stands for any other."""


class CacheRules(Record, frozen=True, kw_only=True):
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


class ContextParallel(StrEnum):
    """When ranks with FlashComm attend to a part of the tokens each in models with sparse attention."""

    NEVER = "never"
    WITH_FLASHCOMM = "with-flashcomm"
    ASKED = "asked"
    """By `enable_dsa_cp`."""


class WeightRules(Record, frozen=True, kw_only=True):
    """Where a plug-in stores weights otherwise than the vLLM release that it runs on."""

    whole_with_flashcomm: Text = ""
    """A piece of the names of shared experts that each rank stores whole where tokens are cut over the ranks, and cut
    otherwise; empty: as vLLM stores them."""
    reads_former_flashcomm: bool = False
    """FlashComm is asked for by its former variable too."""
    context_parallel: ContextParallel = ContextParallel.NEVER
    cuts_tokens_for_whole: bool = False
    """Shared experts that are to be whole on each rank ask for FlashComm too."""
    unpacks_blocks: bool = False
    """FP8 checkpoints with a scale for each block are kept in 16 bits once they are loaded, but on Ascend 950."""
    unpacks_fp8_of: Annotated[str, Meta(pattern="^[a-z0-9_]*$")] = ""
    """A type of model whose FP8 checkpoints are loaded in 16 bits; empty: none."""


class ReadKeys(ReleaseRange, frozen=True, kw_only=True):
    """Releases of vLLM on which a plug-in reads these keys of `--additional-config`."""

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        check_fields(self.names, ADDITIONAL)


class UnsizedKeys(Record, frozen=True, kw_only=True):
    """Keys of `--additional-config`, and by how much one of them may move memory, on either side."""

    source: Source
    names: tuple[str, ...]
    gib: Amount

    def __post_init__(self) -> None:
        check_fields(self.names, ADDITIONAL)


class AdditionalRules(Record, frozen=True, kw_only=True):
    """What an engine makes of `--additional-config`; vLLM itself passes it on."""

    source: Source = ""
    reads: tuple[ReadKeys, ...] = ()
    unsized: tuple[UnsizedKeys, ...] = ()
    """What moves memory by an amount that no source gives a formula for."""
    redundant_need_balancing_since: Version = NEVER
    """From then on redundant experts are there only where their load is balanced while it runs."""
    refuses_unread_since: Version = NEVER
    """From then on a key that is not read stops the start."""
    scheduler_switch_since: Version = NEVER
    """Before it the object alone puts the plug-in's scheduler in vLLM's place, from then on its `enabled`."""

    def keys(self, version: Version) -> frozenset[str]:
        """The keys that are read on vLLM `version`."""
        return frozenset(name for row in self.reads if row.covers(version) for name in row.names)


class ChipTag(Record, frozen=True, kw_only=True):
    """What the tags of an image end with for cards whose id begins so, from one of the engine's own releases on."""

    card: Annotated[str, Meta(pattern="^[A-Za-z0-9-]+$")]
    suffix: Annotated[str, Meta(pattern="^-[a-z0-9]+$")]
    since: Version


class Image(Record, frozen=True, kw_only=True):
    """A container image of the engine, for the cards of one vendor; its tags are v and the release."""

    vendor: Vendor
    name: Annotated[str, Meta(pattern="^[a-z0-9./-]+$")]
    tags: tuple[ChipTag, ...] = ()
    """Of cards whose image has a tag of its own."""

    def suffix_of(self, card_id: str, engine_version: str) -> str:
        """What the tag of a release ends with on a card."""
        own = (tag for tag in self.tags if card_id.startswith(tag.card))
        return next((tag.suffix for tag in own if Version(engine_version) >= tag.since), "")


class RankTable(ReleaseRange, frozen=True, kw_only=True):
    """Releases of vLLM on which a connector of KV caches wants a file with the cards of all servers."""

    source: Source
    connector: Annotated[str, Meta(pattern="^[A-Za-z0-9_]+$")]
    variable: Annotated[str, Meta(pattern="^[A-Z_]+$")]
    """Names the variable with the path of the file."""
    script: Annotated[str, Meta(pattern="^/[a-z0-9_./-]+$")]
    """What writes it, in the image, and into whose folder."""

    @property
    def path(self) -> str:
        """Of the file."""
        return f"{self.script.rpartition('/')[0]}/ranktable.json"


class Launch(Record, frozen=True, kw_only=True):
    """How it is started."""

    program: tuple[Annotated[str, Meta(pattern="^[a-z][a-z-]*$")], ...]
    """The words before the model."""
    module: Annotated[str, Meta(pattern="^[a-z_.]*$")] = ""
    """What the Python modules of its server begin with."""
    source: Source = ""
    images: tuple[Image, ...] = ()
    image_starts_server: bool = True
    """The image's entry point is the server: a container gets its flags alone."""
    nodes_since: Version = NEVER
    """The vLLM from which on machines that share a replica find each other by `--nnodes` and `--master-addr`; before it
    they join a Ray cluster."""
    rank_tables: tuple[RankTable, ...] = ()

    def image_for(self, vendor: Vendor) -> Image | None:
        """The image for cards of `vendor`; None where none is known."""
        return next((image for image in self.images if image.vendor is vendor), None)


class ConnectorNames(ReleaseRange, frozen=True, kw_only=True):
    """Releases of vLLM on which these connectors of KV caches know groups of layers."""

    source: Source
    names: tuple[Annotated[str, Meta(pattern="^[A-Za-z0-9_]+$")], ...]


class Unstated(Record, frozen=True, kw_only=True):
    """Which releases may be meant where nobody states one."""

    source: Source
    since: Version
    """The vLLM that the oldest of them runs on."""


class LogFormat(Record, frozen=True, kw_only=True):
    """What is the engine's own in a start-up log."""

    source: Source = ""
    marks: tuple[Annotated[str, Meta(pattern="^[!-~]+$")], ...] = ()
    """Texts without spaces that only this engine prints; a log without any engine's marks is vLLM's."""
    weights_line: WeightsLine = "Model loading took {gib:.2f} GiB"
    available_in_bytes_until: Version | None = None
    """The last release of vLLM on which it states available and total memory in bytes; None: never."""
    figures: tuple[Annotated[str, Meta(pattern="^[a-z_]+$")], ...] = (
        "weights_gib",
        "available_kv_gib",
        "kv_tokens",
        "max_concurrency",
    )
    """What a whole log of a start states, by the fields of its readings."""
    charges_graph_estimate_since: Version | None = None
    """From this release on an estimate of the graphs is taken off the budget without a line about it; None: never."""


class EngineFacts(Record, frozen=True, kw_only=True):
    """`engine.toml`."""

    reviewed: Version
    """The newest of its own releases that this file and the code with it were compared with."""
    source: Source
    """Where its releases are listed."""
    vendors: tuple[Vendor, ...]
    """Of the cards it has a platform for."""
    launch: Launch
    releases: Releases[Version] = field(default_factory=Releases)
    """Its own releases, oldest first, each with the vLLM release that it runs on; empty for vLLM itself."""
    unstated: Unstated | None = None
    """None where a start without a release is one of the newest."""
    main_flags: tuple[FlagName, ...] = ()
    """Fields of a request whose controls stand among the main ones, for a mixture of experts."""
    weight_precisions: tuple[Annotated[str, Meta(pattern="^[a-z0-9_-]+$")], ...] = ()
    """Values of `--quantization` that are offered before those of vLLM."""
    attention: Attention | None = None
    """None where the table of attention backends decides."""
    overheads: Overheads | None = None
    """None where those of `kvcore.memory` apply."""
    memory_variables: MemoryVariables | None = None
    """Where the engine does not look at the memory of the card, but is given it."""
    refusals: Refusals = Refusals()
    weights: ByRelease[WeightRules] = field(default_factory=lambda: ByRelease(WeightRules, {}))
    cache: ByRelease[CacheRules] = field(default_factory=lambda: ByRelease(CacheRules, {}))
    graphs: ByRelease[GraphRules] = field(default_factory=lambda: ByRelease(GraphRules, {}))
    additional: AdditionalRules = AdditionalRules()
    connectors_with_groups: tuple[ConnectorNames, ...] = ()
    log: LogFormat = LogFormat()

    def __post_init__(self) -> None:
        check_fields(self.main_flags)
