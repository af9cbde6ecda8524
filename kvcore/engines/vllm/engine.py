"""VllmEngine: vLLM's answers, which its plug-ins take over or change."""

from __future__ import annotations

from typing import ClassVar, Final

from packaging.version import Version

from kvcore.engine.cards import CardView, without_card
from kvcore.engine.facts import EngineFacts
from kvcore.engine.protocol import Resolved
from kvcore.engine.records import Adaptable
from kvcore.engines.vllm import availability, classes, versions
from kvcore.engines.vllm.backends import backend_to_ask_for
from kvcore.engines.vllm.connectors import transfer_of
from kvcore.engines.vllm.defaults import resolve, unread_keys
from kvcore.engines.vllm.draft import draft_notices, read_draft
from kvcore.engines.vllm.recurrent import check_aligned_block
from kvcore.engines.vllm.runner import EXCHANGED_TOKENS, exchange_of, gathers_tokens, runner_flag
from kvcore.engines.vllm.start import VllmPlatform
from kvcore.engines.vllm.storage import is_listed, storage_of
from kvcore.memory.budget import profiled_memory
from kvcore.model.architecture import Architecture
from kvcore.model.config import ModelConfig
from kvcore.scenario import Scenario
from kvcore.tables import TableFile

FACTS: Final = TableFile("kvcore.engines", "vllm/engine.toml", EngineFacts)


class VllmEngine(VllmPlatform):
    """vLLM itself."""

    __slots__ = ()

    name: ClassVar[str] = "vllm"
    follows_vllm: ClassVar[bool] = True
    format_refusals: ClassVar[frozenset[str]] = frozenset({"quantization-not-on-platform"})
    exchanged_tokens: ClassVar[int] = EXCHANGED_TOKENS

    @property
    def facts(self) -> EngineFacts:
        return FACTS.load()

    releases = versions.releases_of
    release = versions.find_release
    planned_release = versions.planned_release
    assumed_version = versions.assumed_version
    other_versions = versions.other_versions
    switches = staticmethod(versions.switches_of)

    is_available = staticmethod(availability.is_available)
    former_flag = staticmethod(availability.former_flag)
    metrics = staticmethod(availability.exported_metrics)
    load_generator = staticmethod(availability.load_generator)

    check_block = staticmethod(check_aligned_block)
    runner_flag = staticmethod(runner_flag)
    backend_to_ask_for = staticmethod(backend_to_ask_for)
    transfer = staticmethod(transfer_of)
    exchange = staticmethod(exchange_of)
    gathers_tokens = staticmethod(gathers_tokens)

    takes_format = staticmethod(is_listed)
    storage = storage_of
    draft = staticmethod(read_draft)
    draft_notices = staticmethod(draft_notices)
    ends_on_every_stage = staticmethod(classes.ends_on_every_stage)
    compiles = staticmethod(classes.compiles)
    rank_memory = staticmethod(profiled_memory)

    def resolve(self, scenario: Scenario, architecture: Architecture, card: CardView) -> Resolved:
        return resolve(self, without_card(scenario), architecture, card)

    def unread_keys(self, scenario: Scenario) -> tuple[str, ...]:
        return unread_keys(self, scenario, self.planned_release(scenario).version)

    def stored_architecture(self, scenario: Scenario, architecture: Architecture) -> Architecture:
        return architecture

    def adaptable(self, config: ModelConfig, version: Version) -> Adaptable:
        return classes.adaptable(config, version)
