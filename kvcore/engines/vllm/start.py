"""A start of the engine: what its flags are judged by."""

from __future__ import annotations

from functools import cached_property

from msgspec import Struct
from packaging.version import Version

from kvcore.engine.cards import CardView
from kvcore.engine.facts import CacheRules
from kvcore.engine.graph_rules import GraphRules
from kvcore.engine.protocol import Engine
from kvcore.engine.records import Release
from kvcore.engine.switches import Switches
from kvcore.engine.traits import Traits, traits_of
from kvcore.engines.vllm.additional import OwnScheduler, additional_of
from kvcore.model.architecture import Architecture
from kvcore.model.quantization import Quantization
from kvcore.scenario import Runner, Scenario


class Start(Struct, frozen=True, kw_only=True, dict=True):
    """One start: what is asked for, of which model, on which card, in which release."""

    engine: Engine
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
        """Of the release."""
        return self.release.version

    @property
    def switches(self) -> Switches:
        """What the release does."""
        return self.release.switches

    @cached_property
    def kept(self) -> CacheRules:
        """Where the engine's cache differs from that of the release that it runs on."""
        return self.engine.facts.cache.at(self.version)

    @cached_property
    def graphs(self) -> GraphRules:
        """Where the engine's graphs differ from those of the release that it runs on."""
        return self.engine.facts.graphs.at(self.version)

    @cached_property
    def own_scheduler(self) -> OwnScheduler | None:
        """The plug-in's scheduler where it runs in place of vLLM's."""
        return None if self.is_v0 else additional_of(self.engine, self.scenario, self.version).scheduler

    @cached_property
    def traits(self) -> Traits:
        """Of the model."""
        return traits_of(self.architecture)

    @property
    def is_pooling(self) -> bool:
        """Whether the schedule is that of the pooling runner."""
        return self.scheduling is Runner.POOLING
