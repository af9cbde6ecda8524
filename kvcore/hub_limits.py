"""What a server lets its visitors ask the Hub: about whose models, and how many questions at once.

KVPLANNER_HUB=off               nobody is asked
KVPLANNER_HUB=Qwen,meta-llama   models of these organisations and users only
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from typing import Final

from kvcore.errors import HubError

SWITCH: Final = "KVPLANNER_HUB"
OFF: Final = ("off", "0", "false", "no")
EVERYBODY: Final = ("", "on", "1", "true", "yes", "*")
MAX_AT_ONCE: Final = 16
"""Look-ups of the process; one that ran out of time counts until its connection is closed."""
MAX_OF_ONE: Final = 2
"""Look-ups of one session."""


def owners() -> frozenset[str] | None:
    """Whose models may be asked about, in lower case: none when it is empty, anybody's when it is None."""
    written = os.environ.get(SWITCH, "").strip().lower()
    if written in EVERYBODY:
        return None
    if written in OFF:
        return frozenset()
    return frozenset(name.strip() for name in written.split(",") if name.strip())


def is_off() -> bool:
    """Whether the server asks nobody."""
    return owners() == frozenset()


def check_owner(model: str) -> None:
    """Raises HubError `hub-off` or `hub-owner-not-allowed` for what the server does not ask about."""
    allowed = owners()
    if allowed is None:
        return
    if not allowed:
        raise HubError("hub-off", field="model", value=model)
    if model.partition("/")[0].lower() not in allowed:
        raise HubError("hub-owner-not-allowed", field="model", value=model, owners=", ".join(sorted(allowed)))


class InFlight:
    """Look-ups that are going on.

    Example:
        >>> going = InFlight(most=2, most_of_one=1)
        >>> going.enter("a/b", "session")
        >>> going.count
        1
    """

    def __init__(self, most: int = MAX_AT_ONCE, most_of_one: int = MAX_OF_ONE) -> None:
        self._most, self._most_of_one = most, most_of_one
        self._lock = threading.Lock()
        self._askers: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """How many there are."""
        return self._askers.total()

    def enter(self, model: str, asker: str) -> None:
        """Takes a place; "" asks for nobody in particular. Raises HubError `hub-busy`."""
        with self._lock:
            if self.count >= self._most or (asker and self._askers[asker] >= self._most_of_one):
                raise HubError("hub-busy", field="model", value=model)
            self._askers[asker] += 1

    def leave(self, asker: str) -> None:
        """Gives the place back."""
        with self._lock:
            self._askers[asker] -= 1
            if not self._askers[asker]:
                del self._askers[asker]
