"""Two request logs side by side: how much longer the requests of the second are."""

from __future__ import annotations

from typing import Any, Final

from kvcore.base.units import rounded

LENGTHS: Final = ("prompt", "output", "total")


def compared_traffic(here: dict[str, Any], there: dict[str, Any]) -> dict[str, Any]:
    """The report of another log with `ratios`: its requests and lengths over those of the first; null where one has
    none.

    Example:
        >>> one = {"requests": 2, "prompt": {"p50": 100}, "output": None, "total": {"p50": 100},
        ...        "recommended_max_model_len": 256}
        >>> compared_traffic(one, {**one, "prompt": {"p50": 150}})["ratios"]["prompt"]
        {'p50': 1.5}
    """
    ratios: dict[str, Any] = {
        name: _ratio(here.get(name), there.get(name)) for name in ("requests", "recommended_max_model_len")
    }
    for name in LENGTHS:
        one, other = here.get(name), there.get(name)
        ratios[name] = (
            None if one is None or other is None else {key: _ratio(one[key], other.get(key)) for key in one}
        )
    return {**there, "ratios": ratios}


def _ratio(here: float | None, there: float | None) -> float | None:
    return rounded(there / here) if here and there is not None else None


def compared_table(found: dict[str, Any]) -> str:
    """The ratios as text."""
    ratios = found["ratios"]
    lines = [
        f"the other log: {found['requests']:,} requests, --max-model-len {found['recommended_max_model_len']}"
    ]
    for name in LENGTHS:
        if ratios[name] is not None:
            shares = "".join(f"{key} x{value:.2f}".rjust(12) for key, value in ratios[name].items() if value)
            lines.append(name.ljust(12) + shares)
    return "\n".join(lines)
