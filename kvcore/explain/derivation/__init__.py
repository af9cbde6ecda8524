"""The derivation of a plan in eight steps, for a class: question, guess, formula, numbers, result, something to try."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kvcore.explain.derivation.equation import Equation, equation
from kvcore.explain.derivation.experiments import experiment
from kvcore.explain.derivation.lesson import STEPS, Content, Step, StepName
from kvcore.explain.derivation.limits_step import limits_content
from kvcore.explain.derivation.overheads_step import overheads_content
from kvcore.explain.derivation.parts_step import budget_content, parts_content
from kvcore.explain.derivation.pool_step import pool_content
from kvcore.explain.derivation.requests_step import requests_content
from kvcore.explain.derivation.token_step import token_content
from kvcore.explain.derivation.weights_step import weights_content
from kvcore.planning import Plan
from kvcore.texts.words import Words

__all__ = ["STEPS", "Equation", "Step", "StepName", "derivation", "equation", "step_of"]

CONTENTS: Final[dict[StepName, Callable[[Plan, Words], Content]]] = {
    StepName.PARTS: parts_content,
    StepName.BUDGET: budget_content,
    StepName.WEIGHTS: weights_content,
    StepName.OVERHEADS: overheads_content,
    StepName.TOKEN: token_content,
    StepName.POOL: pool_content,
    StepName.REQUESTS: requests_content,
    StepName.LIMITS: limits_content,
}
CORRECTED: Final[dict[StepName, tuple[str, ...]]] = {
    StepName.PARTS: (),
    StepName.BUDGET: ("utilization", "gpu_alarm"),
    StepName.WEIGHTS: ("heads", "rule_of_thumb"),
    StepName.OVERHEADS: ("peak",),
    StepName.TOKEN: ("hidden_size", "batch", "latent"),
    StepName.POOL: ("reserve", "last_block", "log_line"),
    StepName.REQUESTS: ("boundaries", "batched_product"),
    StepName.LIMITS: ("hit_rate", "p99"),
}
"""Corrections of the source documents that belong to a step."""


def step_of(plan: Plan, name: StepName, t: Words) -> Step:
    """One step of the derivation of `plan`."""
    return Step(
        name=name,
        plan=plan,
        content=CONTENTS[name](plan, t),
        experiment=experiment(plan, name, t),
        corrections=CORRECTED[name],
    )


def derivation(plan: Plan, t: Words) -> tuple[Step, ...]:
    """All steps of the derivation of `plan`."""
    return tuple(step_of(plan, name, t) for name in STEPS)
