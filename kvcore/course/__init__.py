"""A plan derived step by step for a class: question, guess, formula, numbers, result, something to try."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kvcore.base.words import Words
from kvcore.course import cache_steps, engine_steps, host_steps, memory_steps, precision_steps, request_steps
from kvcore.course.equation import Equation, equation
from kvcore.course.experiments import experiment
from kvcore.course.lesson import STEPS, Content, Lesson, Step, StepName
from kvcore.planning import Plan

__all__ = ["STEPS", "Equation", "Step", "StepName", "derivation", "equation", "step_of"]

CONTENTS: Final[dict[StepName, tuple[Callable[[Lesson], Content], tuple[str, ...]]]] = {
    StepName.PARTS: (memory_steps.parts_content, ()),
    StepName.BUDGET: (memory_steps.budget_content, ("utilization", "gpu_alarm")),
    StepName.WEIGHTS: (memory_steps.weights_content, ("heads", "rule_of_thumb")),
    StepName.ACTIVATIONS: (memory_steps.activations_content, ("peak",)),
    StepName.FRAMEWORK: (memory_steps.framework_content, ()),
    StepName.TOKEN: (cache_steps.token_content, ("hidden_size", "batch", "latent")),
    StepName.POOL: (cache_steps.pool_content, ("reserve", "last_block", "log_line")),
    StepName.BLOCKS: (request_steps.blocks_content, ("last_block", "reserve")),
    StepName.BATCHING: (request_steps.batching_content, ()),
    StepName.REQUESTS: (request_steps.requests_content, ("boundaries", "batched_product")),
    StepName.LIMITS: (request_steps.limits_content, ("hit_rate", "p99")),
    StepName.CARDS: (request_steps.cards_content, ("latent",)),
    StepName.WEIGHT_BITS: (precision_steps.weight_bits_content, ()),
    StepName.CACHE_BITS: (precision_steps.cache_bits_content, ()),
    StepName.QUALITY: (precision_steps.quality_content, ()),
    StepName.DRAFT: (precision_steps.draft_content, ()),
    StepName.GAIN: (precision_steps.gain_content, ()),
    StepName.LOG: (request_steps.log_content, ("log_line",)),
    StepName.TIER: (host_steps.tier_content, ()),
    StepName.ENGINES: (engine_steps.engines_content, ()),
    StepName.OWN: (request_steps.own_content, ()),
}
"""The content of each step, and the corrections of the source documents that belong to it."""


def step_of(plan: Plan, name: StepName, t: Words) -> Step:
    """One step of the derivation of `plan`."""
    content, corrections = CONTENTS[name]
    lesson = Lesson(plan=plan, t=t)
    return Step(
        name=name,
        plan=plan,
        content=content(lesson),
        experiment=experiment(lesson, name),
        corrections=corrections,
    )


def derivation(plan: Plan, t: Words) -> tuple[Step, ...]:
    """All steps of the derivation of `plan`."""
    return tuple(step_of(plan, name, t) for name in STEPS)
