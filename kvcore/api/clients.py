"""How much each client may still ask: an allowance that fills up with time, by the client's address."""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from kvcore.api.settings import CLIENTS

_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
"""Whose last 32 bits are an IPv4 address (RFC 6052)."""


def client_of(host: str) -> str:
    """The client that an address is one of: for IPv6 its network, since who has one of its addresses has all.

    An IPv4 address in the clothes of IPv6, as a socket for both shows it, is that IPv4 address.

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


class Clients:
    """Allowances of the clients that asked last; whoever is not remembered has a full one.

    Example:
        >>> now = [0.0]
        >>> clients = Clients(rate=0.5, burst=2, clock=lambda: now[0])
        >>> [clients.wait_seconds("192.0.2.1", 1) for _ in range(3)]
        [0, 0, 2]
        >>> now[0] = 2.0
        >>> clients.wait_seconds("192.0.2.1", 1)
        0
    """

    def __init__(self, *, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self.burst, self.clock = rate, burst, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_seconds(self, address: str, cost: float) -> int:
        """0 where the client may ask, and its allowance is then less by `cost`; else the seconds until it may."""
        now = self.clock()
        left, then = self._left.pop(address, (self.burst, now))
        left = min(self.burst, left + (now - then) * self.rate)
        is_allowed = left >= cost
        self._left[address] = (left - cost if is_allowed else left, now)
        if len(self._left) > CLIENTS:
            self._left.popitem(last=False)
        return 0 if is_allowed else math.ceil((cost - left) / self.rate)
