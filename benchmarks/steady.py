"""Requests that run at once: what a plan says of eight mixes, against the replay of vLLM's own scheduler.

`python -m benchmarks.steady gpt-oss-120b` for one model of `tests/traffic_mixes.py`. For each max_model_len: the error
of the requests that run, in percent (above 0 is hopeful), and the preemptions a request with the advised max_num_seqs.
"""

from __future__ import annotations

import sys

from tests.traffic_mixes import MIXES, MODELS, cell

LIMITS = (32_768, 131_072)


def main(models: tuple[str, ...] = ()) -> None:
    """Prints a line for each model and mix, and how many cells are within 5 %."""
    errors, preempted = [], []
    print("steady state: requests that run, as said, and error at 32K and 128K; preemptions at advised seats")
    for model in models or MODELS:
        for mix in MIXES:
            short, long = (cell(model, mix, limit, with_seats=limit == LIMITS[0]) for limit in LIMITS)
            errors += [short.error, long.error]
            preempted.append(short.preempted or 0.0)
            print(
                f"  {model:<20} {mix:<17} {short.said:7.1f} {short.error:+7.1%} {long.error:+7.1%}"
                f"  {short.seats or 'any':>5} {short.preempted or 0:7.3f}",
                flush=True,
            )
    within = sum(abs(error) <= 0.05 for error in errors)
    print(
        f"  within 5 %: {within} of {len(errors)}; most hopeful {max(errors):+.1%}; most {max(preempted):.3f}"
    )


if __name__ == "__main__":
    main(tuple(sys.argv[1:]))
