"""Refits the overhead constants of kvcore/memory/*.toml on published starts, and prints their errors.

    python tools/fit_overheads.py [benchmarks/data/starts.jsonl] [--rows] [--constant PART]

Each line of the input is one start: `request` in the contract's fields, `config` naming a line of
start_configs.jsonl with it, `measured` in GiB, `checks` naming the parts that may fairly be compared, `group` the
publication that it comes from. Each part is predicted with the constants as they are, and each constant gets the step
that its residuals propose (tools/residuals.py). Next to it stands the leave-one-publication-out residual: what
the other
publications' constant leaves unexplained, the half-width that contains 80 % of it, and what share of the
prediction that
is.
Nothing is written: constants are changed by hand, with their source.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kvcore.base.units import GIB
from tools.residuals import STARTS, Residual, balanced, by_constant, predict, read_starts, residuals_of

COVERED: Final = 0.8


def main() -> None:
    """Read starts, print one line for each constant, and how well intervals cover."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("starts", nargs="?", type=Path, default=STARTS)
    parser.add_argument("--rows", action="store_true", help="also print every residual")
    parser.add_argument("--constant", default="", help="only constants whose name contains this")
    arguments = parser.parse_args()
    starts = list(read_starts(arguments.starts))
    residuals = [item for start in starts for item in residuals_of(start)]
    print(f"{'constant':72s} {'n':>3s} {'from':>4s} {'add':>12s} {'left out, 80 %':>15s}")
    for constant, items in sorted(by_constant(residuals).items()):
        if arguments.constant not in constant:
            continue
        groups = {item.group for item in items}
        held_out = [abs(value) for value in left_out(items)]
        width = f"{quantile(held_out, COVERED):.3f} GiB"
        if all(item.predicted_gib > 0 for item in items):
            shares = [value / item.predicted_gib for value, item in zip(held_out, items, strict=True)]
            width += f" {quantile(shares, COVERED):4.0%}"
        print(
            f"{constant[:72]:72s} {len(items):3d} {len(groups):4d} {balanced(items):+12.4g} "
            f"{width if len(groups) > 1 else 'one source':>15s}"
        )
        if arguments.rows:
            for item in items:
                print(
                    f"    {item.label[:60]:60s} {item.predicted_gib:7.2f} {item.measured_gib:7.2f} {item.gib:+6.2f}"
                )
    covered = [is_covered(start) for start in starts if "kv_gib" in start["checks"]]
    print(
        f"\nintervals hold {sum(covered)} of {len(covered)} measured KV figures ({sum(covered) / len(covered):.0%})"
    )


def left_out(items: list[Residual]) -> Iterator[float]:
    """Residuals in GiB with constants fitted without the start's own publication."""
    for item in items:
        others = [other for other in items if other.group != item.group]
        yield item.gib - (balanced(others) * item.coefficient if others else 0.0)


def quantile(values: Iterable[float], share: float) -> float:
    """The value below which `share` of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def is_covered(start: dict[str, Any]) -> bool:
    """Whether the interval of the KV memory, given the weights, contains the printed figure."""
    if "weights_gib" not in start["measured"]:
        return True
    interval = predict(start).memory.available_kv.interval
    return interval is not None and interval[0] <= start["measured"]["available_kv_gib"] * GIB <= interval[1]


if __name__ == "__main__":
    main()
