"""A start of the engine: what its flags are judged by, and what a plug-in may judge otherwise."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import ClassVar, NamedTuple

from msgspec import Struct
from packaging.version import Version

from kvcore.base.errors import Notice
from kvcore.engine.cards import CardView
from kvcore.engine.protocol import Engine, Resolved
from kvcore.engine.records import Release
from kvcore.engine.switches import Switches
from kvcore.engine.traits import Traits, traits_of
from kvcore.model.architecture import Architecture
from kvcore.model.quantization import Quantization
from kvcore.scenario import CudagraphMode, Runner, Scenario


class Attention(NamedTuple):
    """The one attention backend of a platform, and its block size in tokens where no flag says another."""

    backend: str
    block_size: int


class OwnScheduler(Struct, frozen=True, kw_only=True):
    """A plug-in's own scheduler in place of vLLM's.

    Source: vllm_ascend/core/schedule_config.py:AscendSchedulerConfig.initialize_from_config (0.7.3, 0.9.1, 0.11.0).
    """

    enable_chunked_prefill: bool = False
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None


class VllmPlatform(Engine):
    """Hooks for plug-ins while flags are resolved: the answers here are vLLM's own."""

    __slots__ = ()

    attention: ClassVar[Attention | None] = None
    """None where the table of attention backends decides."""

    def lists_classes(self, version: Version) -> bool:
        """Whether every model class of the engine is one of vLLM's in `version`."""
        return True

    def checks_format(self, release: Release) -> bool:
        """Whether what the release takes of storage formats is known."""
        return release.is_exact

    @abstractmethod
    def takes_format(self, method: str, card: CardView, version: Version) -> bool:
        """Whether the platform of `card` lists a storage format of weights."""

    def check_format(self, start: Start) -> None:
        """Raises EngineRefusalError where the platform lists the format of the weights, and has no methods for it."""

    def format_notices(self, start: Start) -> tuple[Notice, ...]:
        """Notices about the format of the weights on this platform."""
        return ()

    def loaded(self, scenario: Scenario, stored: Quantization) -> Quantization:
        """The storage format of the weights once they are loaded, of a checkpoint in `stored`."""
        return stored

    def check_card(self, start: Start) -> None:
        """Raises EngineRefusalError on a card that no release has a platform for."""

    def check(self, start: Start, *, prefix_caching: bool, method: str) -> None:
        """Raises EngineRefusalError for what the platform does not take together; `method` is the speculative one."""

    def notices(self, start: Start, block_size: int) -> Iterator[Notice]:
        """Notices about flags on this platform."""
        yield from ()

    def additional_notices(self, start: Start) -> Iterator[Notice]:
        """Notices about keys of `--additional-config` that are read."""
        yield from ()

    def scheduler(self, scenario: Scenario, version: Version) -> OwnScheduler | None:
        """The plug-in's scheduler where it runs in place of vLLM's."""
        return None

    def cuts_prompts(self, start: Start) -> bool:
        """Whether prompts may be cut; else a batch has room for max_model_len."""
        return True

    def counts_in_flight(self, start: Start) -> bool:
        """Whether windows keep every batch in flight, whatever the vLLM release does."""
        return False

    def own_block_size(self, start: Start, fixed: bool) -> int | None:
        """Tokens per block on a platform with one backend, before hybrid alignment; None without such. `fixed`:
        prefixes are cached or prompts cut."""
        asked = start.scenario.block_size
        return None if self.attention is None else asked or self.attention.block_size

    def graph_modes(
        self, modes: tuple[str, ...], mixed_full: bool, asked: CudagraphMode | None, start: Start
    ) -> tuple[tuple[str, ...], bool]:
        """The sets of graphs that are captured, and whether full ones are of mixed batches too."""
        return modes, mixed_full

    def captures_requests(self, version: Version) -> bool:
        """Whether the largest graph is that of the widest batch that only decodes, not of twice that."""
        return False

    def largest_graph(self, start: Start, resolved: Resolved) -> int | None:
        """The largest size that the plug-in asks for itself; None where it leaves that to vLLM."""
        return None

    def divided_sizes(self, sizes: tuple[int, ...], start: Start) -> tuple[int, ...]:
        """The sizes that ranks which cut the tokens of a step can have."""
        return sizes

    def limited_sizes(self, sizes: tuple[int, ...], start: Start, resolved: Resolved) -> tuple[int, ...]:
        """The sizes that are captured piecewise with what the card has."""
        return sizes


class Start(Struct, frozen=True, kw_only=True, dict=True):
    """One start: what is asked for, of which model, on which card, in which release."""

    engine: VllmPlatform
    scenario: Scenario
    architecture: Architecture
    card: CardView
    release: Release
    quantization: Quantization
    runner: Runner
    scheduling: Runner
    """The runner whose schedule is planned."""
    is_v0: bool

    @property
    def version(self) -> Version:
        """The vLLM release."""
        return self.release.version

    @property
    def switches(self) -> Switches:
        """Switches of the release."""
        return self.release.switches

    @cached_property
    def own_scheduler(self) -> OwnScheduler | None:
        """The plug-in's scheduler where it runs in place of vLLM's."""
        return None if self.is_v0 else self.engine.scheduler(self.scenario, self.version)

    @cached_property
    def traits(self) -> Traits:
        """Traits of the model."""
        return traits_of(self.architecture)

    @property
    def is_pooling(self) -> bool:
        """Whether the schedule is that of the pooling runner."""
        return self.scheduling is Runner.POOLING
