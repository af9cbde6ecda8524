"""The clock of a replay, fitted to one benchmark of an engine with known step times, against other traffic of it.

`python -m benchmarks.clock`: for each prompt, budget and rate the error of TTFT and of TPOT at P50, P95 and P99 in
percent, and the error that the fit itself states for requests held out. The engine is that of
`tests/test_replay_clock.py`.
"""

from __future__ import annotations

from itertools import product

from kvcore.replay.fitting import fitted_clock
from tests.test_replay_clock import (
    engine,
    long,
    mixed,
    of_vllm,
    replayed_percentiles,
    served,
    true_percentiles,
)

LOADS = (("5,000", long, 8192), ("5,000", long, 2048), ("log-normal", mixed, 2048))
RATES = (2, 5, 9)
OFF = (1e-6, 2e-3)
"""Seconds by which the streams of a step come apart at most."""


def main() -> None:
    """Prints a line for each load, and the largest errors."""
    print("clock: error of other traffic's TTFT and TPOT at P50, P95, P99; as stated for requests held out")
    most = [0.0, 0.0]
    for name, prompt, budget in LOADS:
        for rate, off in product(RATES, OFF):
            clock = fitted_clock(of_vllm(served(1, rate, prompt, budget=budget), off=off), engine(budget))
            other = served(2, rate, prompt, budget=budget, number=240)
            pairs = zip(
                replayed_percentiles(other, clock, engine(budget)), true_percentiles(other), strict=True
            )
            errors = [[a / b - 1 for a, b in zip(found, true, strict=True)] for found, true in pairs]
            most = [max(before, *map(abs, part)) for before, part in zip(most, errors, strict=True)]
            shown = "   ".join(" ".join(f"{one:+6.2%}" for one in part) for part in errors)
            print(
                f"  {name:<10} {budget:>5} tokens a step {rate} a second, {1e3 * off:5.3f} ms apart   {shown}"
                f"   {clock.held_out.ttft:6.2%} {clock.held_out.tpot:6.2%}",
                flush=True,
            )
    print(f"  most: TTFT {most[0]:.2%}, TPOT {most[1]:.2%}")


if __name__ == "__main__":
    main()
