"""KV memory of a plan as it would be if its links, its host or its installation were known to be others."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cache, cached_property
from typing import Any, NamedTuple

from msgspec import Struct, convert
from msgspec.structs import replace

from kvcore.base.errors import KvPlannerError
from kvcore.base.parts import KV_CACHE
from kvcore.base.quantity import Quantity
from kvcore.catalogue.accelerators import Accelerator
from kvcore.engine.overheads import OverheadRow, SamplerRow
from kvcore.engine.protocol import Resolved, Setting
from kvcore.engine.rank_memory import RankMemory, given_kv
from kvcore.engine.setting import links_of, setting_of
from kvcore.flags import fields_of
from kvcore.memory.activations import sampler_rows
from kvcore.memory.budget import available_of, measured_activations, measured_framework
from kvcore.memory.framework import overhead_rows
from kvcore.model.architecture import Architecture
from kvcore.scenario import Origin, Scenario, Surroundings


class Framework(NamedTuple):
    """Everything that the framework of a start takes from its link and host."""

    links: tuple[str, ...]
    rows: tuple[tuple[OverheadRow, ...], ...]


class Terms(NamedTuple):
    """Everything that the memory of a start takes from its link, host and installation."""

    framework: Framework
    sampler: tuple[SamplerRow, ...]


def surrounding_terms(setting: Setting) -> Terms:
    """The terms of a setting. Settings that differ in link, host or installation and agree in these have one memory."""
    return Terms(_framework_terms(setting), sampler_rows(setting))


def _framework_terms(setting: Setting) -> Framework:
    rows = overhead_rows(setting)
    return Framework(setting.links, tuple(tuple(of_link.values()) for of_link in rows))


class OtherSurroundings(Struct, frozen=True, kw_only=True, dict=True):
    """The KV memory of a rank of one stage under other surroundings than those of its `memory`."""

    scenario: Scenario
    architecture: Architecture
    resolved: Resolved
    accelerator: Accelerator
    stage: int
    memory: RankMemory
    """With a KV memory that may have been given."""

    @cached_property
    def assumed(self) -> Mapping[str, str]:
        """The unknown surroundings that change the KV memory, each with the case that the figure assumes.

        Empty where everything that matters is given, and without a card.

        Example:
            >>> from kvcore.planning import plan
            >>> from kvcore.wire.request import scenario_from_request
            >>> request = {"model": "Qwen/Qwen3-8B", "accelerator": "RTX-3090-24GB", "tensor_parallel_size": 2}
            >>> plan(scenario_from_request(request)).surroundings.assumed["link"]
            'pcie'
        """
        if self.scenario.accelerator is None or self._is_settled:
            return {}
        setting, now = self._setting, self.memory.available_kv
        known = _Known(setting, self.memory)
        found: dict[str, str] = {}
        for key, values in _cases().items():
            if getattr(self.scenario.surroundings, key) is not None:
                continue
            cases: dict[str, Quantity] = {}
            for case, value in values.items():
                with suppress(KvPlannerError):
                    cases[case] = known.kv(key, value)
            if any((kv.value, kv.interval) != (now.value, now.interval) for kv in cases.values()):
                likely = setting.links[:1]
                found[key] = min(
                    cases, key=lambda case: (abs(cases[case].value - now.value), case not in likely)
                )
        return found

    @property
    def _is_settled(self) -> bool:
        """Whether surroundings cannot change the KV memory: it was measured, or variables declare it."""
        measured, resolved = self.scenario.measured, self.resolved
        is_given = measured.available_kv_gib is not None
        is_measured = is_given and measured.origin(KV_CACHE.field) is Origin.MEASURED
        return is_measured or not resolved.engine.measures_memory_in(resolved.version)

    @property
    def _setting(self) -> Setting:
        return setting_of(self.scenario, self.architecture, self.resolved, self.accelerator, self.stage)


@cache
def _cases() -> Mapping[str, Mapping[str, Any]]:
    """The cases of each field of the surroundings that has some, by their spelling in a request."""
    return {
        key: {case: getattr(convert({key: case}, Surroundings), key) for case in flag.choices}
        for key, flag in fields_of("surroundings").items()
        if flag.choices
    }


class _Known:
    """The memory that is known of a rank already; each case of the same terms is worked out once."""

    def __init__(self, setting: Setting, memory: RankMemory) -> None:
        self.setting, self.memory = setting, memory
        self._now = surrounding_terms(setting)
        self._framework = {self._now.framework: memory.framework}
        self._activations = {self._now.sampler: memory.activations}
        self._kv = {self._now: memory.available_kv}

    def kv(self, field: str, case: Any) -> Quantity:
        """KV memory with one field of the surroundings known to be `case`, in bytes."""
        if field == "link" and self.setting.ranks == 1:
            return self.memory.available_kv
        scenario, now = self.setting.scenario, self.setting
        scenario = replace(scenario, surroundings=replace(scenario.surroundings, **{field: case}))
        other = replace(now, scenario=scenario)
        if field == "installation":
            terms = self._now._replace(sampler=sampler_rows(other))
        else:
            links = links_of(scenario, now.accelerator, now.ranks)
            other = replace(other, links=links)
            terms = self._now._replace(framework=_framework_terms(other))
        found = self._kv.get(terms)
        if found is None:
            found = self._kv[terms] = self._worked_out(other, terms)
        return found

    def _worked_out(self, other: Setting, terms: Terms) -> Quantity:
        framework = self._framework.get(terms.framework)
        if framework is None:
            framework = self._framework[terms.framework] = measured_framework(other)
        activations = self._activations.get(terms.sampler)
        if activations is None:
            activations = self._activations[terms.sampler] = measured_activations(other)
        memory = self.memory
        inside = memory.weights, activations, framework, memory.counted_graphs
        return given_kv(other.scenario.measured, available_of(other, memory.budget, *inside))
