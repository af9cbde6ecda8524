"""How much may still be done for one log: a count of steps, the same on every machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_STEPS: Final = 1_000_000
"""Of one log, beyond one look at each of its characters. A step is about a microsecond; a start of 64 ranks takes
some 60,000."""


@dataclass(slots=True)
class Steps:
    """The steps that are left.

    Example:
        >>> steps = Steps(left=10)
        >>> steps.take(8), steps.take(8), steps.are_spent
        (True, False, True)
    """

    left: int = MAX_STEPS

    def take(self, steps: int) -> bool:
        """Whether these steps may be done; from the first that may not on, none may."""
        self.left = self.left - steps if steps <= self.left else -1
        return self.left >= 0

    @property
    def are_spent(self) -> bool:
        """Whether anything was left undone."""
        return self.left < 0
