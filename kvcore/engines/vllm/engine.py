"""VllmEngine: vLLM's answers, which its plug-ins take over or change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from packaging.version import Version

from kvcore.base.errors import Notice
from kvcore.base.quantity import Quantity
from kvcore.engine.cards import CardView, without_card
from kvcore.engine.facts import EngineFacts
from kvcore.engine.protocol import Resolved, Setting
from kvcore.engine.rank_memory import RankMemory
from kvcore.engine.records import Adaptable, End, FormerFlag, LoadGenerator, Metric, Release, Transfer
from kvcore.engine.switches import AttentionBackend, Switches
from kvcore.engines.vllm import classes, versions
from kvcore.engines.vllm.availability import benchmark_program, exported_metrics, former_flag, is_available
from kvcore.engines.vllm.backends import backend_to_ask_for
from kvcore.engines.vllm.connectors import transfer_of
from kvcore.engines.vllm.defaults import resolve, unread_keys
from kvcore.engines.vllm.draft import draft_notices, read_draft
from kvcore.engines.vllm.exchange import EXCHANGED_TOKENS, exchange_of, gathers_tokens
from kvcore.engines.vllm.recurrent import check_aligned_block
from kvcore.engines.vllm.runner import runner_flag
from kvcore.engines.vllm.start import VllmPlatform
from kvcore.engines.vllm.storage import is_listed, storage_of
from kvcore.memory.budget import profiled_memory
from kvcore.model.architecture import Architecture
from kvcore.model.config import ModelConfig
from kvcore.model.families.drafts import Draft
from kvcore.model.quantization import Quantization
from kvcore.scenario import Parallel, Runner, Scenario, SpeculativeConfig
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

    def releases(self) -> tuple[tuple[Version, Version], ...]:
        return versions.releases_of(self)

    def release(self, engine_version: str | None) -> Release:
        return versions.find_release(self, engine_version)

    def planned_release(self, scenario: Scenario) -> Release:
        return versions.planned_release(self, scenario)

    def assumed_version(self, scenario: Scenario) -> str:
        return versions.assumed_version(self, scenario)

    def other_versions(self, scenario: Scenario) -> tuple[Version, ...]:
        return versions.other_versions(self, scenario)

    def switches(self, version: Version) -> Switches:
        return versions.switches_of(version)

    def resolve(self, scenario: Scenario, architecture: Architecture, card: CardView) -> Resolved:
        return resolve(self, without_card(scenario), architecture, card)

    def check_block(self, resolved: Resolved) -> None:
        check_aligned_block(resolved)

    def is_available(self, field: str, value: str, version: Version) -> bool:
        return is_available(field, value, version)

    def former_flag(self, flag: str) -> FormerFlag | None:
        return former_flag(flag)

    def runner_flag(self, scenario: Scenario, runner: Runner, version: Version) -> tuple[str, str]:
        return runner_flag(scenario, runner, version)

    def backend_to_ask_for(self, architecture: Architecture) -> AttentionBackend | None:
        return backend_to_ask_for(architecture)

    def transfer(self, scenario: Scenario) -> Transfer:
        return transfer_of(scenario)

    def exchange(self, scenario: Scenario) -> str | None:
        return exchange_of(scenario)

    def gathers_tokens(self, scenario: Scenario) -> bool:
        return gathers_tokens(scenario)

    def unread_keys(self, scenario: Scenario) -> tuple[str, ...]:
        return unread_keys(self, scenario, self.planned_release(scenario).version)

    def takes_format(self, method: str, card: CardView, version: Version) -> bool:
        return is_listed(method, card, version)

    def storage(self, scenario: Scenario) -> Quantization:
        return storage_of(self, scenario)

    def stored_architecture(self, scenario: Scenario, architecture: Architecture) -> Architecture:
        return architecture

    def draft(
        self,
        speculative: SpeculativeConfig | None,
        architecture: Architecture,
        quantization: Quantization,
        parallel: Parallel,
        max_model_len: int,
    ) -> Draft | None:
        return read_draft(speculative, architecture, quantization, parallel, max_model_len)

    def draft_notices(self, speculative: SpeculativeConfig | None, draft: Draft | None) -> tuple[Notice, ...]:
        return draft_notices(speculative, draft)

    def ends_on_every_stage(self, architecture: Architecture, version: Version) -> frozenset[End]:
        return classes.ends_on_every_stage(architecture, version)

    def compiles(self, architecture: Architecture, version: Version) -> bool:
        return not classes.CLASSES.load().uncompiled.covers(architecture.read_as, version)

    def adaptable(self, config: ModelConfig, version: Version) -> Adaptable:
        return classes.adaptable(config, version)

    def rank_memory(self, setting: Setting, weights: Quantity) -> RankMemory:
        return profiled_memory(setting, weights)

    def metrics(self, version: Version, is_v0: bool) -> Mapping[str, Metric]:
        return exported_metrics(version, is_v0)

    def load_generator(self, version: Version) -> LoadGenerator:
        return benchmark_program(version)
