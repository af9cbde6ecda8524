"""Why two engines hold different numbers of tokens on the same cards, in words with the figures of both plans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvcore.advice.fraction import fraction_limits
from kvcore.advice.vary import Variant
from kvcore.base.numbers import count, gib_text
from kvcore.base.words import Words, sentences
from kvcore.planning import Plan

GIVEN_DIGITS = 3


def why_engines_differ(named: Sequence[tuple[str, Variant]], t: Words) -> Iterator[str]:
    """A sentence for each engine that starts on what its fraction is of and must hold, and what is left of it; then the
    difference between the one with the most tokens and the one with the fewest."""
    plans = [(name, one.plan) for name, one in named if one.plan is not None and one.starts]
    plans = [(name, plan) for name, plan in plans if plan.memory is not None and plan.cache is not None]
    if len(plans) < 2:
        return
    for name, plan in plans:
        yield _budget(name, plan, t)
    ranked = sorted(plans, key=lambda one: tokens_of(one[1]))
    (least, fewest), (most, many) = ranked[0], ranked[-1]
    if tokens_of(fewest):
        yield t(
            "{most} holds {tokens} tokens more than {least}: {share} times as many, from {own} against {other} of "
            "keys and values on each GPU.",
            most=most,
            least=least,
            tokens=count(tokens_of(many) - tokens_of(fewest)),
            share=f"{tokens_of(many) / tokens_of(fewest):.2f}",
            own=gib_text(many.available_kv_bytes or 0),
            other=gib_text(fewest.available_kv_bytes or 0),
        )


def tokens_of(plan: Plan) -> int:
    """Tokens of a plan's cache; 0 without one."""
    return plan.cache.tokens if plan.cache is not None else 0


def _budget(name: str, plan: Plan, t: Words) -> str:
    memory, resolved = plan.memory, plan.resolved
    assert memory is not None
    facts = {
        "name": name,
        "fraction": f"{resolved.gpu_memory_utilization:.{GIVEN_DIGITS}g}",
        "weights": gib_text(memory.weights.value),
        "kv": gib_text(plan.available_kv_bytes or 0),
        "step": gib_text(memory.activations.value),
        "seats": count(resolved.max_num_seqs),
    }
    if resolved.engine.starts_without_room:
        return t(
            "{name}: {fraction} of what is free before the weights holds {weights} of weights and {kv} of keys "
            "and values; the largest step ({step}) and graphs must fit beside it. At most {seats} requests run.",
            **facts,
        )
    return t(
        "{name}: {fraction} of the whole card holds {weights} of weights, the largest step ({step}), the "
        "framework and {kv} of keys and values. At most {seats} requests run.",
        **facts,
    )


def raise_or_lower(plan: Plan, t: Words) -> str:
    """Which way the fraction may go, with its two limits; "" for an engine that measures before it sizes the cache."""
    limits = fraction_limits(plan)
    if limits is None or limits.most is None:
        return ""
    now, length = plan.resolved.gpu_memory_utilization, count(plan.resolved.max_model_len)
    said = {
        "name": plan.resolved.engine.called("gpu_memory_utilization"),
        "value": f"{now:.3f}",
        "length": length,
    }
    said["most"] = f"{limits.most:.3f}"
    if limits.least is None:
        return t(
            "No {name} holds a request of {length} tokens; up to {most} graphs, the largest step and the request table "
            "fit beside the pools.",
            **said,
        )
    said["least"] = f"{limits.least:.3f}"
    if limits.least > limits.most:
        text = t(
            "No {name} does both: a request of {length} tokens needs {least}, and graphs, the largest step and the "
            "request table fit beside the pools up to {most}.",
            **said,
        )
    elif now < limits.least:
        text = t("Raise {name} from {value}: a request of {length} tokens needs {least}.", **said)
    elif now > limits.most:
        text = t("Lower {name} from {value}: beyond {most} memory may run out beside the pools.", **said)
    else:
        text = t("{name} is {value}: lower it to {least} or raise it to {most}, no further.", **said)
    if limits.least > limits.most:
        return text
    why = t(
        "From {least} on the pools hold a request of {length} tokens; up to {most} graphs, the largest step and the "
        "request table fit beside them.",
        **said,
    )
    return sentences(t, (text, why))
