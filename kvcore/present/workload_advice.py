"""What a workload says about the flags: the post-mortem's advice, corrected, with today's numbers."""

from __future__ import annotations

from kvcore.planning import Plan
from kvcore.present.text import DASH, Words, count
from kvcore.units import ceil_div, round_up
from kvcore.workload.limits import LimitChoice
from kvcore.workload.mix import PERCENT, ROUND_TO, Mix


def advice_lines(
    plan: Plan, mix: Mix, recommended: LimitChoice, now: LimitChoice, t: Words
) -> tuple[tuple[str, str], ...]:
    """A flag or a field, and what to do with it."""
    lines = [
        (
            "--max-model-len",
            t(
                "The P99 of prompt + max_tokens, rounded up: {limit}. It is a promise for the "
                "worst case, not a reservation: a request of {mean} tokens takes {blocks} blocks "
                "of {block} under any limit. A shorter limit starts in less memory, and no single"
                " request can preempt the others.",
                limit=count(recommended.limit_tokens),
                mean=count(recommended.mean_tokens),
                blocks=count(ceil_div(max(1, round(recommended.mean_tokens)), plan.resolved.block_size)),
                block=count(plan.resolved.block_size),
            ),
        ),
        (
            "--max-num-seqs",
            t(
                "As many as fit in the cache in 95 % of the batches of your mix: {seats}. Too "
                "many do not run out of memory: requests wait, or are preempted and computed "
                "again.",
                seats=DASH if recommended.batches is None else count(recommended.batches.requests_in(95)),
            ),
        ),
        ("max_tokens", _max_tokens(mix, t)),
        (
            "--block-size",
            t(
                "Leave it: the last block of a request is on average half empty. At {mean} tokens that is {waste} % "
                "with blocks of {block}, and {large} % with blocks of 64.",
                mean=count(recommended.mean_tokens),
                waste=_waste(plan.resolved.block_size, recommended.mean_tokens),
                large=_waste(64, recommended.mean_tokens),
                block=count(plan.resolved.block_size),
            ),
        ),
        (
            "messages",
            t(
                "History grows with each turn: keep the last turns only, or summarise them, in the client. A smaller "
                "max_tokens does not shorten the history that is already there."
            ),
        ),
        (
            "--enable-prefix-caching",
            t(
                "Saves computing a common prefix again, and keeps its blocks once. It does not lower max_model_len: "
                "the prefix counts in the length of every request."
            ),
        ),
    ]
    return tuple(lines)


def _waste(block: int, tokens: float) -> str:
    return f"{100 * block / 2 / (tokens + block / 2):.1f}" if tokens else "0"


def _max_tokens(mix: Mix, t: Words) -> str:
    """Clients that ask for far more than answers take make the limit longer than it need be."""
    needed, taken = mix.needed.percentile_tokens(PERCENT), mix.taken.percentile_tokens(PERCENT)
    shorter = round_up(max(1, taken), ROUND_TO)
    if shorter < round_up(max(1, needed), ROUND_TO):
        return t(
            "It takes no memory in advance, but it counts against max_model_len. 99 % of the requests end at {taken} "
            "tokens and ask for {needed}: if clients ask for less, {shorter} is enough.",
            taken=count(taken),
            needed=count(needed),
            shorter=count(shorter),
        )
    return t(
        "It takes no memory in advance: blocks are allocated as the answer grows. Here it asks for "
        "little more than answers take."
    )
