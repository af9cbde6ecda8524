"""The facts of an engine that its `engine.toml` lists: releases, images, marks in a log, fitted constants."""

from typing import Annotated, Final, Literal

from msgspec import Meta, field
from packaging.version import Version

from kvcore.catalogue.accelerators import Vendor
from kvcore.engine.overheads import MemoryVariables, Overheads
from kvcore.flags import FlagName, check_fields
from kvcore.tables import NEVER, Record, ReleaseRange, Releases, Source

ADDITIONAL: Final = "additional_config"
"""The field of a request whose keys a plug-in reads."""
SWITCH: Final = "enabled"
"""A key of an object of them: without it nothing of the object counts."""
WeightsLine = Literal[
    "Model loading took {gib:.2f} GiB", "Loading model weights took {gib:.4f} GB", "mem usage={gib:.2f} GB"
]


class ChipTag(Record, frozen=True, kw_only=True):
    """Suffix of image tags for cards whose id begins so, from one of the engine's own releases on."""

    card: Annotated[str, Meta(pattern="^[A-Za-z0-9-]+$")]
    suffix: Annotated[str, Meta(pattern="^-[a-z0-9]+$")]
    since: Version


class Image(Record, frozen=True, kw_only=True):
    """A container image of the engine, for the cards of one vendor; its tags are v and the release."""

    vendor: Vendor
    name: Annotated[str, Meta(pattern="^[a-z0-9./-]+$")]
    tags: tuple[ChipTag, ...] = ()
    """Cards whose image has a tag of its own."""

    def suffix_of(self, card_id: str, engine_version: str) -> str:
        """The suffix of a release's tag on a card."""
        own = (tag for tag in self.tags if card_id.startswith(tag.card))
        return next((tag.suffix for tag in own if Version(engine_version) >= tag.since), "")


class RankTable(ReleaseRange, frozen=True, kw_only=True):
    """Releases of vLLM on which a connector of KV caches wants a file with the cards of all servers."""

    source: Source
    connector: Annotated[str, Meta(pattern="^[A-Za-z0-9_]+$")]
    variable: Annotated[str, Meta(pattern="^[A-Z_]+$")]
    """Names the variable with the path of the file."""
    script: Annotated[str, Meta(pattern="^/[a-z0-9_./-]+$")]
    """The script in the image that writes the file, into its own folder."""

    @property
    def path(self) -> str:
        """The path of the file."""
        return f"{self.script.rpartition('/')[0]}/ranktable.json"


class Launch(Record, frozen=True, kw_only=True):
    """How it is started."""

    program: tuple[Annotated[str, Meta(pattern="^-{0,2}[a-z][a-z._-]*$")], ...]
    """The words before the model."""
    module: Annotated[str, Meta(pattern="^[a-z_.]*$")] = ""
    """Prefix of the Python modules of its server."""
    source: Source = ""
    images: tuple[Image, ...] = ()
    image_starts_server: bool = True
    """The image's entry point is the server: a container gets its flags alone."""
    nodes_since: Version = NEVER
    """The vLLM from which on machines that share a replica find each other by `--nnodes` and `--master-addr`; before it
    they join a Ray cluster."""
    rank_tables: tuple[RankTable, ...] = ()
    longer_variable: Annotated[str, Meta(pattern="^[A-Z_]+$")] = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
    """Set to 1, it lets a context be longer than the model's."""

    def image_for(self, vendor: Vendor) -> Image | None:
        """The image for cards of `vendor`; None where none is known."""
        return next((image for image in self.images if image.vendor is vendor), None)


class ConnectorNames(ReleaseRange, frozen=True, kw_only=True):
    """Releases of vLLM on which these connectors of KV caches know groups of layers."""

    source: Source
    names: tuple[Annotated[str, Meta(pattern="^[A-Za-z0-9_]+$")], ...]


class Unstated(Record, frozen=True, kw_only=True):
    """Releases that may be meant where none is stated."""

    source: Source
    since: Version
    """The vLLM that the oldest of them runs on."""


class LogFormat(Record, frozen=True, kw_only=True):
    """The engine's own part of a start-up log."""

    source: Source = ""
    marks: tuple[Annotated[str, Meta(pattern="^[!-~]+$")], ...] = ()
    """Texts without spaces that only this engine prints; a log without any engine's marks is vLLM's."""
    arguments_line: Annotated[str, Meta(pattern="^[!-~]*$")] = ""
    """What its arguments follow, up to the closing bracket; "" where they are written as vLLM's."""
    weights_line: WeightsLine = "Model loading took {gib:.2f} GiB"
    available_in_bytes_until: Version | None = None
    """The last release of vLLM on which it states available and total memory in bytes; None: never."""
    figures: tuple[Annotated[str, Meta(pattern="^[a-z_]+$")], ...] = (
        "weights_gib",
        "available_kv_gib",
        "kv_tokens",
        "max_concurrency",
    )
    """Figures that a whole log of a start states, by the fields of its readings."""
    charges_others_until: Version | None = None
    """The last release of vLLM on which memory of other processes is taken off the budget; None: never."""
    charges_graph_estimate_since: Version | None = None
    """From this release on an estimate of the graphs is taken off the budget without a line about it; None: never."""


class Watching(Record, frozen=True, kw_only=True):
    """How a running engine is watched."""

    source: Source = ""
    product: Annotated[str, Meta(pattern="^[A-Za-z]+$")] = "vLLM"
    """Its name in titles."""
    prefix: Annotated[str, Meta(pattern="^[a-z]+$")] = "vllm"
    """Before the colon of its metrics' names."""
    has_own_release: bool = False
    """Titles say its own release, not that of the engine below it."""
    latency_steps: tuple[Annotated[float, Meta(gt=0, le=1e5)], ...] = ()
    """Bounds of its latency buckets in seconds; empty where they are vLLM's."""


class EngineFacts(Record, frozen=True, kw_only=True):
    """`engine.toml`."""

    reviewed: Version
    """The newest of its own releases that this file and the code with it were compared with."""
    source: Source
    """Where its releases are listed."""
    vendors: tuple[Vendor, ...]
    """Vendors of the cards it has a platform for."""
    launch: Launch
    assumed_card: Annotated[str, Meta(pattern="^[A-Za-z0-9-]+$")] = "H100-80GB"
    """The card of the catalogue that stands for one that nobody named."""
    releases: Releases[Version] = field(default_factory=Releases)
    """Its own releases, oldest first, each with the vLLM release that it runs on; empty for vLLM itself."""
    unstated: Unstated | None = None
    """None where a start without a release is one of the newest."""
    main_flags: tuple[FlagName, ...] = ()
    """Fields of a request whose controls stand among the main ones, for a mixture of experts."""
    weight_precisions: tuple[Annotated[str, Meta(pattern="^[a-z0-9_-]+$")], ...] = ()
    """Values of `--quantization` that are offered before those of vLLM."""
    overheads: Overheads | None = None
    """None where those of `kvcore.memory` apply."""
    memory_variables: MemoryVariables | None = None
    """Where the engine does not look at the memory of the card, but is given it."""
    connectors_with_groups: tuple[ConnectorNames, ...] = ()
    connectors_without_groups: tuple[ConnectorNames, ...] = ()
    log: LogFormat = LogFormat()
    watching: Watching = Watching()

    def __post_init__(self) -> None:
        check_fields(self.main_flags)
