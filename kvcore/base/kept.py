"""Results cached with the object that they are about, and bounded in bytes for the whole process.

A plan asks again and again for a model's architecture, its storage format and their sizes. `@kept` caches such results
on the object itself: those of a catalogue model live as long as the process, those of an uploaded config as long as the
visitor's session. No ready-made cache does that. Many results refer to their object, so a cache of the process, even
one with weak keys, would keep uploads alive; and a cache for each object has no bound for all of them together. So the
results are in a dictionary on the object, and a ledger of the process counts their bytes.
"""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import wraps
from types import FunctionType, ModuleType
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from cachetools import LRUCache, cached

MAX_BYTES: Final = 96 << 20
"""For all results of the process; the object that was given a result longest ago loses its results first."""
MAX_RESULTS: Final = 512
"""Results of one object."""
RESULT_BYTES: Final = 400
"""Bytes of a result's entry, its key and its place in the dictionary, added to its own size."""

P = ParamSpec("P")
T = TypeVar("T")
Owner = TypeVar("Owner", bound="Keeper")


class Keeper:
    """An object that results are cached with. In keys it is compared by identity."""

    __slots__ = ("__weakref__", "_kept")

    _kept: Results

    def __getstate__(self) -> object:
        """A copy starts without results."""
        return getattr(self, "__dict__", None)


class Results(dict[Hashable, "Entry"]):
    """The results of one object, by function and arguments."""

    __slots__ = ("__weakref__",)


class Entry:
    """One result. However it goes, it notes that its bytes are free."""

    __slots__ = ("bytes", "freed", "others", "value")

    def __init__(self, value: Any, size: int, freed: deque[int]) -> None:
        self.value, self.bytes, self.freed = value, size, freed
        self.others: list[weakref.ref[Keeper]] = []
        """Further keepers that the result depends on: it goes with the first of them."""

    def __del__(self) -> None:
        self.freed.append(self.bytes)


class Ledger:
    """Counts the bytes of all results, and empties the objects that were given one longest ago."""

    def __init__(self, most_bytes: int = MAX_BYTES) -> None:
        self.most_bytes = most_bytes
        self._lock = threading.Lock()
        self._bytes = 0
        self._freed: deque[int] = deque()
        """Not yet subtracted: garbage is collected at any moment, also under the lock, so entries only note it here."""
        self._by_age: dict[int, weakref.ref[Results]] = {}
        """By id; those that were added to last come last."""

    @property
    def bytes(self) -> int:
        """Bytes of all results."""
        with self._lock:
            return self._counted()

    def _counted(self) -> int:
        while self._freed:
            self._bytes -= self._freed.popleft()
        return self._bytes

    def keep(self, owner: Keeper, key: Hashable, value: Any, others: Sequence[Keeper] = ()) -> None:
        """Caches `value` with `owner` as long as `others` live too; not if it is larger than `most_bytes`."""
        size = RESULT_BYTES + size_of(value)
        if size > self.most_bytes:
            return
        with self._lock:
            results = self._newest(owner)
            if len(results) >= MAX_RESULTS:
                results.clear()
            entry = Entry(value, size, self._freed)
            self._bytes += size
            entry.others += (weakref.ref(other, _forgetting(results, key)) for other in others)
            results[key] = entry
            while self._counted() > self.most_bytes and self._by_age:
                # A list, since an iterator fails where garbage with results is collected between its two steps.
                oldest = self._by_age.pop(list(self._by_age)[0], None)  # noqa: RUF015
                if oldest is not None and (found := oldest()) is not None:
                    found.clear()

    def _newest(self, owner: Keeper) -> Results:
        """The results of `owner`, which are now the last to be emptied."""
        results: Results | None = getattr(owner, "_kept", None)
        if results is None:
            results = Results()
            object.__setattr__(owner, "_kept", results)
        number, by_age = id(results), self._by_age
        known = by_age.pop(number, None)
        by_age[number] = known or weakref.ref(results, lambda _: by_age.pop(number, None))
        return results


def _forgetting(results: Results, key: Hashable) -> Callable[[object], None]:
    """Takes a result away before the id in its key can be another's; refers to the results weakly."""
    reference = weakref.ref(results)

    def forget(_: object) -> None:
        if (known := reference()) is not None:
            known.pop(key, None)

    return forget


LEDGER: Final = Ledger()
"""The ledger of the process."""


def kept(function: Callable[Concatenate[Owner, P], T]) -> Callable[Concatenate[Owner, P], T]:
    """Caches what `function` returns with its first argument, by the others, which are hashable and positional.

    Further keepers among the arguments are referred to weakly: the result goes with the first of them that goes, so it
    must not refer to one of them. Exceptions are not cached, nor calls with keyword arguments.

    Example:
        >>> class Model(Keeper):
        ...     pass
        >>> @kept
        ... def weights(model: Model, ranks: int) -> list[int]:
        ...     return [ranks]
        >>> model = Model()
        >>> weights(model, 2) is weights(model, 2), weights(model, 2) is weights(Model(), 2)
        (True, False)
    """

    @wraps(function)
    def asked(owner: Owner, /, *arguments: P.args, **named: P.kwargs) -> T:
        if named:
            return function(owner, *arguments, **named)
        key: Hashable = function
        if arguments:
            key = (function, *[id(one) if isinstance(one, Keeper) else one for one in arguments])
        try:
            found: T = owner._kept[key].value
        except (AttributeError, KeyError):
            found = function(owner, *arguments, **named)
            others = [one for one in arguments if isinstance(one, Keeper) and one is not owner]
            LEDGER.keep(owner, key, found, others)
        return found

    return asked


def found_with(owner: Keeper, key: Hashable, find: Callable[[], T]) -> T:
    """The result that is cached with `owner` under `key`, else what `find` returns, which is then cached."""
    try:
        found: T = owner._kept[key].value
    except (AttributeError, KeyError):
        found = find()
        LEDGER.keep(owner, key, found)
    return found


def bounded(most_bytes: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Caches what a function of plain values returns, for the whole process; the least recently used goes first.

    `most_bytes` bounds the results with RESULT_BYTES for each: keys have to be about as small, or parts of the results.

    Example:
        >>> @bounded(1 << 20)
        ... def squares(count: int) -> list[int]:
        ...     return [number * number for number in range(count)]
        >>> squares(3) is squares(3)
        True
    """
    cache: LRUCache[Hashable, Any] = LRUCache(most_bytes, lambda value: RESULT_BYTES + size_of(value))
    return cached(cache, lock=threading.Lock())


_SHARED: Final = (type, ModuleType, Results)
_PLAIN: Final = frozenset({str, bytes, int, float, bool, type(None)})


def size_of(value: Any) -> int:
    """Bytes of `value` and of all that it refers to, each counted once; without code and what keepers have in them.

    Example:
        >>> size_of(("a" * 1000,) * 50) < 2000 < size_of(tuple("a" * 1000 + str(n) for n in range(50)))
        True
    """
    seen: set[int] = set()
    waiting = [value]
    total = 0
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if type(one) in _PLAIN:
            total += sys.getsizeof(one)
        elif isinstance(one, FunctionType):
            waiting += one.__closure__ or ()
        elif not isinstance(one, _SHARED):
            total += sys.getsizeof(one)
            if one is value or not isinstance(one, Keeper):
                waiting += gc.get_referents(one)
                if isinstance(one, dict):
                    waiting += one  # the collector skips keys where all of them are texts
    return total
