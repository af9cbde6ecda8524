"""The cards of a sweep, and what is the same of them for all models: which are alike, totals, budgets, terms."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from kvcore.catalogue.accelerators import Accelerator
from kvcore.engine.resolved import CardView, Resolved, view_of
from kvcore.memory.activations import activation_card_terms
from kvcore.memory.after_pool import after_pool_card_terms
from kvcore.memory.budget import budget_of, remainder_card_terms, total_of
from kvcore.memory.framework import framework_card_terms, system_card_terms
from kvcore.memory.graphs import graph_card_terms
from kvcore.memory.setting import Setting, links_of
from kvcore.quantity import Quantity


class Terms(NamedTuple):
    """What the parts of the memory take from a card whose flags are known: numbers that equal terms share."""

    framework: int
    system: int
    activations: int
    graphs: int
    after_pool: int
    remainder: int
    total: int
    """Cards that agree in all of it have the same cell."""

    @property
    def of_remainder(self) -> tuple[int, int, int, int]:
        """Those on which it depends what is left for the KV cache, but for the budget."""
        return self.framework, self.activations, self.graphs, self.remainder


class Cards:
    """The cards of one sweep. Everything here is found once, whatever the number of models."""

    def __init__(self, cards: Sequence[Accelerator]) -> None:
        self.cards = tuple(cards)
        self.totals = tuple(map(total_of, self.cards))
        self._views: dict[tuple[int, ...], dict[CardView, tuple[int, ...]]] = {}
        self._budgets: dict[Hashable, tuple[Quantity, ...]] = {}
        self._terms: dict[Hashable, dict[int, Terms]] = {}
        self._numbers: dict[Hashable, int] = {}

    def views(self, indices: Sequence[int]) -> dict[CardView, tuple[int, ...]]:
        """The indices by the view of their cards."""
        key = tuple(indices)
        if key not in self._views:
            found: dict[CardView, list[int]] = {}
            for index in indices:
                found.setdefault(view_of(self.cards[index]), []).append(index)
            self._views[key] = {view: tuple(alike) for view, alike in found.items()}
        return self._views[key]

    def budgets(self, resolved: Resolved) -> tuple[Quantity, ...]:
        """The budget of each card."""
        key = (resolved.version, resolved.gpu_memory_utilization)
        if key not in self._budgets:
            self._budgets[key] = tuple(budget_of(total, resolved) for total in self.totals)
        return self._budgets[key]

    def terms(self, setting: Setting, index: int) -> Terms:
        """The terms of one card with the engine, ranks and kind of model of `setting`.

        Terms know nothing else of a model than whether it has experts.
        """
        resolved, has_experts = setting.resolved, setting.architecture.moe is not None
        key = (resolved.engine, resolved.version, setting.runner, setting.parallel, has_experts)
        known = self._terms.setdefault(key, {})
        if index not in known:
            known[index] = self._terms_of(setting, index)
        return known[index]

    def _terms_of(self, setting: Setting, index: int) -> Terms:
        card = self.cards[index]
        own = replace(setting, accelerator=card, links=links_of(setting.scenario, card))
        parts = (
            framework_card_terms(own),
            system_card_terms(own),
            activation_card_terms(own),
            graph_card_terms(own),
            after_pool_card_terms(own),
            remainder_card_terms(own),
            self.totals[index].bounds,
        )
        return Terms(*(self._numbers.setdefault(part, len(self._numbers)) for part in parts))
