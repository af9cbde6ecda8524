"""KV memory of a plan as it would be if its links, its host or its installation were known to be others."""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec.structs import replace

from kvcore.base.quantity import Quantity
from kvcore.engine.overheads import OverheadRow, SamplerRow
from kvcore.engine.protocol import Setting
from kvcore.engine.rank_memory import RankMemory, given_kv
from kvcore.engine.setting import links_of
from kvcore.memory.activations import sampler_rows
from kvcore.memory.budget import available_of, measured_activations, measured_framework
from kvcore.memory.framework import overhead_rows


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


class OtherSurroundings:
    """KV memory of one rank under other surroundings; each case of the same terms is worked out once."""

    def __init__(self, setting: Setting, memory: RankMemory) -> None:
        """`memory` is that of `setting`, whose KV memory may have been given."""
        self.setting, self.memory = setting, memory
        self._now = surrounding_terms(setting)
        self._framework = {self._now.framework: memory.framework}
        self._activations = {self._now.sampler: memory.activations}
        self._kv = {self._now: memory.available_kv}
        self._is_joined = setting.ranks > 1

    def kv(self, field: str, case: Any) -> Quantity:
        """KV memory with one field of the surroundings known to be `case`, in bytes."""
        if field == "link" and not self._is_joined:
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
