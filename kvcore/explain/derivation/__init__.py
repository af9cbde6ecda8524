"""The derivation of a plan in eight steps, for a class: question, guess, formula, numbers, result, something to try."""

from kvcore.explain.derivation.equation import Equation, equation
from kvcore.explain.derivation.lesson import STEPS, Step, StepName
from kvcore.explain.derivation.sequence import derivation, step_of

__all__ = ["STEPS", "Equation", "Step", "StepName", "derivation", "equation", "step_of"]
