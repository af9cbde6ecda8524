"""The cards of a sweep, and what is the same of them for all models: which are alike, totals, budgets, terms."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
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


class Terms(NamedTuple):
    """What the parts of the memory take from a card whose flags are known: numbers that equal terms share. Cards that
    agree in all of them differ in their budget alone."""

    framework: int
    activations: int
    graphs: int
    system: int
    after_pool: int
    remainder: int

    @property
    def inside(self) -> tuple[int, ...]:
        """Of the parts inside the budget."""
        return self[:3]

    @property
    def taken(self) -> tuple[int, ...]:
        """Of all parts."""
        return self[:5]


class Budget(NamedTuple):
    """Bytes of one card that an engine may spend, out of its total."""

    total: int
    bytes: int
    most: float
    """Where the total is as much higher as it may be."""


class Cards:
    """The cards of one sweep. Everything here is found once, whatever the number of models."""

    def __init__(self, cards: Sequence[Accelerator]) -> None:
        self.cards = tuple(cards)
        self._views: dict[tuple[int, ...], dict[CardView, tuple[int, ...]]] = {}
        self._budgets: dict[Hashable, tuple[Budget, ...]] = {}
        self._terms: dict[Hashable, Mapping[int, Terms]] = {}
        self.numbers: dict[Hashable, int] = {}
        """Of what terms stand for."""

    def views(self, indices: Sequence[int]) -> dict[CardView, tuple[int, ...]]:
        """The indices by the view of their cards."""
        key = tuple(indices)
        if key not in self._views:
            found: dict[CardView, list[int]] = {}
            for index in indices:
                found.setdefault(view_of(self.cards[index]), []).append(index)
            self._views[key] = {view: tuple(alike) for view, alike in found.items()}
        return self._views[key]

    def budgets(self, resolved: Resolved) -> tuple[Budget, ...]:
        """The budget of each card."""
        key = (resolved.version, resolved.gpu_memory_utilization)
        if key not in self._budgets:
            found = ((total, budget_of(total, resolved)) for total in map(total_of, self.cards))
            self._budgets[key] = tuple(
                Budget(int(total.value), int(budget.value), budget.bounds[1]) for total, budget in found
            )
        return self._budgets[key]

    def terms(self, setting: Setting) -> Mapping[int, Terms]:
        """The terms of each card, by its index, with the engine, ranks and kind of model of `setting`.

        Terms know nothing else of a model than whether it has experts.
        """
        resolved, has_experts = setting.resolved, setting.architecture.moe is not None
        key = (resolved.engine, resolved.version, setting.runner, setting.parallel, has_experts)
        return self._terms.setdefault(key, _Terms(self, setting))

    def on(self, setting: Setting, index: int) -> Setting:
        """`setting` on another card."""
        card = self.cards[index]
        return replace(
            setting, accelerator=card, links=links_of(setting.scenario, card, setting.architecture)
        )


class _Terms(dict[int, Terms]):
    """The terms of cards, found when they are first asked for."""

    def __init__(self, cards: Cards, setting: Setting) -> None:
        super().__init__()
        self._cards, self._setting = cards, setting

    def __missing__(self, index: int) -> Terms:
        own = self._cards.on(self._setting, index)
        parts = (
            framework_card_terms(own),
            activation_card_terms(own),
            graph_card_terms(own),
            system_card_terms(own),
            after_pool_card_terms(own),
            remainder_card_terms(own),
        )
        numbers = self._cards.numbers
        self[index] = found = Terms(*(numbers.setdefault(part, len(numbers)) for part in parts))
        return found
