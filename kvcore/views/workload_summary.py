"""The Workload page in words: one sentence, the table of limits, and both as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvcore.planning import Verdict
from kvcore.texts.words import DASH, Words, concurrency_text, count, msg
from kvcore.views.summary import Outcome, Sentence
from kvcore.workload.limits import LimitChoice, is_above_model, refuses_longer
from kvcore.workload.mix import PERCENT, Mix
from kvcore.workload.random_batch import Share
from kvcore.workload.requests import Unusable

ENOUGH_SHARE = 0.01
_VERDICTS = {
    Verdict.FITS: msg("starts"),
    Verdict.TIGHT: msg("starts, but tight"),
    Verdict.CONTEXT_TOO_LONG: msg("does not start: one request of this length is too long"),
    Verdict.NO_KV_MEMORY: msg("does not start: no memory is left"),
    Verdict.WEIGHTS_DO_NOT_FIT: msg("does not start: the weights are too big"),
}
REASONS = {
    Unusable.NOT_A_RECORD: msg("not a record"),
    Unusable.NO_LENGTH: msg("no prompt length"),
    Unusable.ABSURD_LENGTH: msg("an impossible length"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ChoiceRow:
    """One limit of the table, as text."""

    limit: str
    marks: tuple[str, ...]
    verdict: str
    left_out: str
    worst_case: str
    at_mean: str
    risk: str


def share_text(share: float, t: Words) -> str:
    """A share in percent: never rounded to none or to all where it is neither.

    Example:
        >>> from kvcore.texts.words import Language, words
        >>> [share_text(share, words(Language.ENGLISH)) for share in (0.0, 0.0004, 0.0123, 0.5, 0.9996)]
        ['0 %', '< 0.1 %', '1.2 %', '50 %', '> 99.9 %']
    """
    if share in (0, 1):
        number = f"{100 * share:.0f}"
    elif share < 0.001:
        number = "< 0.1"
    elif share > 0.999:
        number = "> 99.9"
    else:
        number = f"{100 * share:.0f}" if 0.1 <= share <= 0.9 else f"{100 * share:.1f}"
    return t("{number} %", number=number)


def risk_text(share: Share | None, t: Words) -> str:
    """A drawn share with its interval; without one where all batches agree."""
    if share is None:
        return DASH
    if share.value == 0:
        return t("below {share}", share=_bound(share.high, t))
    if share.value == 1:
        return t("above {share}", share=_bound(share.low, t))
    return t(
        "{share} ({low} to {high})",
        share=share_text(share.value, t),
        low=share_text(share.low, t),
        high=share_text(share.high, t),
    )


def _bound(share: float, t: Words) -> str:
    return t("{number} %", number=f"{100 * share:.1f}")


def sentence(mix: Mix, recommended: LimitChoice, now: LimitChoice, t: Words) -> Sentence:
    """What 99 % of the requests need, what that length and the present one have room for, and what fits of the
    real mix.
    """
    words = {
        "need": count(mix.needed.percentile_tokens(PERCENT)),
        "limit": count(recommended.limit_tokens),
        "held": concurrency_text(recommended.worst_case_requests),
        "now": count(now.limit_tokens),
        "held_now": concurrency_text(now.worst_case_requests),
        "left_out": share_text(now.share_left_out, t),
    }
    if not recommended.starts:
        text = t(
            "99 % of the requests need {need} tokens, and this deployment does not start with {limit}",
            **words,
        )
        return Sentence(outcome=Outcome.FAILS, text=text)
    if now.limit_tokens == recommended.limit_tokens:
        text = t("99 % of the requests need {need} tokens: your {now} is right, and fits {held_now} "
                 "of that length at once", **words)  # fmt: skip
        return Sentence(outcome=Outcome.FITS, text=text)
    if not now.starts:
        text = t("99 % of the requests need {need} tokens: with max_model_len {limit} this "
                 "deployment starts and fits {held} of that length at once; with your {now} it does "
                 "not start", **words)  # fmt: skip
        return Sentence(outcome=Outcome.CAUTION, text=text)
    if now.share_left_out > ENOUGH_SHARE:
        text = t("99 % of the requests need {need} tokens: {left_out} of them exceed your {now}; "
                 "max_model_len {limit} fits {held} of its length at once", **words)  # fmt: skip
        return Sentence(outcome=Outcome.CAUTION, text=text)
    if now.limit_tokens < recommended.limit_tokens:
        text = t("99 % of the requests need {need} tokens: your {now} is enough, and fits {held_now} "
                 "of that length at once", **words)  # fmt: skip
        return Sentence(outcome=Outcome.FITS, text=text)
    text = t(
        "99 % of the requests need {need} tokens: at max_model_len {limit} this deployment fits "
        "{held} of that length at once; your {now} fits {held_now}",
        **words,
    )
    return Sentence(outcome=Outcome.FITS, text=text)


def mix_sentence(recommended: LimitChoice, now: LimitChoice, t: Words) -> str:
    """What fits of the requests as they are: a limit does not make short requests shorter. "" without batches."""
    here, there = recommended.batches, now.batches
    if here is None:
        return ""
    typical = concurrency_text(here.mean_requests)
    if recommended.limit_tokens == now.limit_tokens:
        return t(
            "With your real lengths, about {count} fit at once: most are shorter than the limit.",
            count=typical,
        )
    if there is not None and math.isclose(here.mean_requests, there.mean_requests, rel_tol=0.02):
        return t(
            "With your real lengths, about {count} fit at once under either limit: a request takes "
            "blocks for its own tokens, not for max_model_len.",
            count=typical,
        )
    return t("With your real lengths, about {count} fit at once under that limit.", count=typical)


def left_out_note(choice: LimitChoice, t: Words) -> str:
    """What the engine does with a request that needs more than the limit."""
    if choice.plan is None:
        return ""
    refuses = refuses_longer(choice.plan.resolved.version)
    version = f"{choice.plan.resolved.engine} {choice.plan.resolved.engine_version}"
    if refuses is None:
        return t(
            "Over the limit: refused with an error up to vLLM 0.28, its answer stopped at the limit "
            "from 0.32 on."
        )
    if refuses:
        return t(
            "Over the limit: {version} refuses a request whose prompt + max_tokens exceeds the limit.",
            version=version,
        )
    return t(("Over the limit: {version} stops the answer at the limit; only a prompt that is too "
             "long is refused."),
             version=version)  # fmt: skip


def choice_rows(
    choices: Sequence[LimitChoice], recommended: int, now: int, tried: int, t: Words
) -> tuple[ChoiceRow, ...]:
    """The table of limits as text."""
    names = ((now, t("now")), (recommended, t("recommended")), (tried, t("tried")))
    return tuple(
        ChoiceRow(
            limit=count(choice.limit_tokens),
            marks=tuple(name for tokens, name in names if tokens == choice.limit_tokens),
            verdict=verdict_text(choice, t),
            left_out=share_text(choice.share_left_out, t),
            worst_case=concurrency_text(choice.worst_case_requests) if choice.starts else DASH,
            at_mean=concurrency_text(choice.mean_requests) if choice.starts else DASH,
            risk=risk_text(choice.risk, t),
        )
        for choice in choices
    )


def verdict_text(choice: LimitChoice, t: Words) -> str:
    """Whether the engine starts with a limit, in words."""
    if choice.error is not None:
        return t.error(choice.error)
    if choice.plan is None:
        return DASH
    if is_above_model(choice.plan):
        return t(
            "does not start: the model itself allows {tokens}",
            tokens=count(choice.plan.resolved.derived_max_model_len),
        )
    return t(_VERDICTS[choice.plan.verdict])


def choices_csv(choices: Sequence[LimitChoice]) -> str:
    """The table for a spreadsheet: numbers and fixed words only, so that no cell can be a formula.

    Source of the columns: `kvcore.workload.limits.LimitChoice`.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ("max_model_len", "verdict", "share_left_out", "requests_at_limit", "mean_tokens", "requests_at_mean",
         "max_num_seqs", "preemption_risk", "preemption_risk_low", "preemption_risk_high")
    )  # fmt: skip
    for choice in choices:
        risk = choice.risk
        drawn = ("", "", "") if risk is None else (risk.value, risk.low, risk.high)
        verdict = choice.plan.verdict.value if choice.plan is not None else "refused"
        seats = choice.plan.resolved.max_num_seqs if choice.plan is not None else ""
        writer.writerow(
            (choice.limit_tokens, verdict, f"{choice.share_left_out:.6f}", f"{choice.worst_case_requests:.4f}",
             f"{choice.mean_tokens:.2f}", f"{choice.mean_requests:.4f}", seats, *drawn)
        )  # fmt: skip
    return out.getvalue()


def histogram_csv(mix: Mix) -> str:
    """Both histograms for a spreadsheet: a length, and how many requests take and need it; numbers only."""
    taken = dict(zip(mix.taken.lengths, mix.taken.counts, strict=True))
    needed = dict(zip(mix.needed.lengths, mix.needed.counts, strict=True))
    lines = ["tokens,requests_taking,requests_needing"]
    lines += [
        f"{length},{taken.get(length, 0)},{needed.get(length, 0)}" for length in sorted({*taken, *needed})
    ]
    return "\n".join(lines) + "\n"
