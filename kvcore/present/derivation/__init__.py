"""The derivation of a plan in eight steps, for a class: question, guess, formula, numbers, result, something to try."""

from kvcore.present.derivation.equation import Equation, equation
from kvcore.present.derivation.sequence import derivation, step_of
from kvcore.present.derivation.step import STEPS, Step, StepName

__all__ = ["STEPS", "Equation", "Step", "StepName", "derivation", "equation", "step_of"]
