"""Which recurrent states are cached, and what that takes, in words."""

from __future__ import annotations

from kvcore.cache.spec import CacheKind
from kvcore.planning import Plan
from kvcore.present.text import Words, count


def state_mode_text(plan: Plan, t: Words) -> str:
    """One sentence on the Mamba cache mode that is in force; "" for a model without recurrent states."""
    resolved = plan.resolved
    spec = next((spec for specs in plan.specs for spec in specs if spec.kind is CacheKind.MAMBA), None)
    if spec is None:
        return ""
    if resolved.mamba_cache_mode == "all":
        return t(
            "Mamba cache mode all: the recurrent state is kept every {size} tokens, so that a request takes as many "
            "blocks for it as for attention.",
            size=count(spec.block_size),
        )
    if resolved.mamba_cache_mode == "align":
        return t(
            "Mamba cache mode align: a request keeps its last recurrent states, and prefixes are shared in steps of "
            "{size} tokens.",
            size=count(spec.block_size),
        )
    return t(
        "Mamba cache mode none: a request keeps one recurrent state, and later requests cannot use it again."
    )
