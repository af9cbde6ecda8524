"""A client's part of a server: the questions that it may still ask, and what it may have at the same time."""

from __future__ import annotations

import ipaddress
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final

from kvcore.api.limits import CLIENTS
from kvcore.base.errors import ScenarioError

_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
"""Addresses whose last 32 bits are an IPv4 address (RFC 6052)."""


def client_of(host: str) -> str:
    """The client behind an address: for IPv6 its /64 network, since one client has all its addresses.

    An IPv4 address that is written as IPv6, as a socket for both shows it, is that IPv4 address.

    Example:
        >>> [client_of(host) for host in ("192.0.2.1", "::ffff:192.0.2.1", "64:ff9b::c000:201", "2001:db8::9")]
        ['192.0.2.1', '192.0.2.1', '192.0.2.1', '2001:db8::/64']
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        if address in _NAT64:
            return str(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
        return str(ipaddress.IPv6Network((address, 64), strict=False))
    return str(address)


class Allowances:
    """Allowances of the latest clients, refilled with time; a client that is not remembered has a full one.

    Example:
        >>> now = [0.0]
        >>> allowances = Allowances(rate=0.5, burst=2, clock=lambda: now[0])
        >>> [allowances.wait_seconds("192.0.2.1", 1) for _ in range(3)]
        [0, 0, 2]
        >>> now[0] = 2.0
        >>> allowances.wait_seconds("192.0.2.1", 1)
        0
    """

    def __init__(self, *, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self.burst, self.clock = rate, burst, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_seconds(self, address: str, cost: float) -> int:
        """Takes `cost` off the client's allowance and returns 0; where too little is left, the seconds to wait."""
        now = self.clock()
        left, then = self._left.pop(address, (self.burst, now))
        left = min(self.burst, left + (now - then) * self.rate)
        is_allowed = left >= cost
        self._left[address] = (left - cost if is_allowed else left, now)
        if len(self._left) > CLIENTS:
            self._left.popitem(last=False)
        return 0 if is_allowed else math.ceil((cost - left) / self.rate)


class Shares:
    """Amounts in use, in all and by each client, each with a limit.

    Example:
        >>> shares = Shares(most=3, each=2)
        >>> shares.take("192.0.2.1", 2)
        >>> shares.take("192.0.2.1", 1)
        Traceback (most recent call last):
        ...
        kvcore.base.errors.ScenarioError: more is asked from this address at the same time than the server takes
        >>> shares.take("192.0.2.2", 2)
        Traceback (most recent call last):
        ...
        kvcore.base.errors.ScenarioError: the server is working on as many requests as it takes at a time
        >>> shares.give_back("192.0.2.1", 2)
        >>> shares.taken
        0
    """

    def __init__(self, *, most: int, each: int) -> None:
        self.most, self.each = most, each
        self.taken = 0
        self._by_client: Counter[str] = Counter()

    def take(self, client: str, amount: int) -> None:
        """Takes an amount. Raises ScenarioError `too-many-at-once` or `api-busy`, and then takes nothing."""
        if self._by_client[client] + amount > self.each:
            raise ScenarioError("too-many-at-once")
        if self.taken + amount > self.most:
            raise ScenarioError("api-busy")
        self.taken += amount
        self._by_client[client] += amount

    def give_back(self, client: str, amount: int) -> None:
        """Returns an amount; a client that has nothing left is forgotten."""
        self.taken -= amount
        self._by_client[client] -= amount
        if not self._by_client[client]:
            del self._by_client[client]
