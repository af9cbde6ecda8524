"""Room that all clients share, and of which one client has at most a part."""

from __future__ import annotations

from collections import Counter

from kvcore.base.errors import ScenarioError


class Room:
    """How much of something is taken, in all and by each client.

    Example:
        >>> room = Room(most=3, each=2)
        >>> room.take("192.0.2.1", 2)
        >>> room.take("192.0.2.1", 1)
        Traceback (most recent call last):
        ...
        kvcore.base.errors.ScenarioError: more is asked from this address at the same time than the server takes
        >>> room.take("192.0.2.2", 2)
        Traceback (most recent call last):
        ...
        kvcore.base.errors.ScenarioError: the server is working on as many requests as it takes at a time
        >>> room.give_back("192.0.2.1", 2)
        >>> room.taken
        0
    """

    def __init__(self, *, most: int, each: int) -> None:
        self.most, self.each = most, each
        self.taken = 0
        self._by_client: Counter[str] = Counter()

    def take(self, client: str, amount: int) -> None:
        """Raises ScenarioError `too-many-at-once` or `api-busy`, and has then taken nothing."""
        if self._by_client[client] + amount > self.each:
            raise ScenarioError("too-many-at-once")
        if self.taken + amount > self.most:
            raise ScenarioError("api-busy")
        self.taken += amount
        self._by_client[client] += amount

    def give_back(self, client: str, amount: int) -> None:
        """What was taken; a client that has nothing more is forgotten."""
        self.taken -= amount
        self._by_client[client] -= amount
        if not self._by_client[client]:
            del self._by_client[client]
