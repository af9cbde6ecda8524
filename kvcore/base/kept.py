"""Results that are kept as long as what they are about, and bounded in bytes for the whole process.

A model's architecture, its storage format and their sizes are asked for again and again in a plan. They are kept with
the config itself: with one of the catalogue as long as the process lives, with one that a visitor uploaded as long as
the visitor's session. Nothing here refers to a config but weakly, so that nothing of it outlives whoever brought it.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cache, partial, wraps
from itertools import chain
from types import CellType, FunctionType, MemberDescriptorType
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, TypeVar

from msgspec import Struct
from msgspec.structs import astuple

MAX_BYTES: Final = 96 << 20
"""Of all kept results of the process together; those of the object that was asked about longest ago go first."""
MAX_RESULTS: Final = 512
"""Of one object."""
RESULT_BYTES: Final = 300
"""Of a place in a dictionary, the key with it, next to what the result takes itself."""

P = ParamSpec("P")
T = TypeVar("T")
Owner = TypeVar("Owner", bound="Keeper")


class Keeper:
    """What results may be kept with. As part of a key it stands for itself alone, whatever it is equal to."""

    __slots__ = ("__weakref__", "_kept")

    _kept: Results

    def __getstate__(self) -> object:
        """A copy begins without results."""
        return getattr(self, "__dict__", None)


class Entry(NamedTuple):
    """One result, its bytes, and the further keepers with which it goes."""

    value: Any
    bytes: int
    others: tuple[weakref.ref[Keeper], ...]


class Results(dict[Hashable, Entry]):
    """The results of one object, the first kept first."""

    __slots__ = ("__weakref__",)


class Ledger:
    """The bytes that the results of all living objects take, and what they may take together."""

    def __init__(self, most_bytes: int = MAX_BYTES) -> None:
        self.most_bytes = most_bytes
        self.bytes = 0
        """Of everything that is kept."""
        self._lock = threading.RLock()
        self._bytes: dict[int, int] = {}
        self._results: dict[int, weakref.ref[Results]] = {}

    def keep(self, owner: Keeper, key: Hashable, value: Any, others: Sequence[Keeper] = ()) -> None:
        """Keeps `value` with `owner` as long as `others` live too, and makes room for it."""
        size = RESULT_BYTES + size_of(value)
        if size > self.most_bytes:
            return
        with self._lock:
            results = self._results_of(owner)
            number = id(results)
            if len(results) >= MAX_RESULTS:
                self._empty(number)
            self._forget(number, key)
            references = tuple(weakref.ref(other, lambda _: self._forget(number, key)) for other in others)
            results[key] = Entry(value, size, references)
            self._bytes[number] = self._bytes.pop(number) + size
            self.bytes += size
            while self.bytes > self.most_bytes:
                self._empty(next(one for one in list(self._bytes) if self._bytes.get(one)))

    def _results_of(self, owner: Keeper) -> Results:
        try:
            return owner._kept
        except AttributeError:
            results = Results()
            number = id(results)
            self._bytes[number] = 0
            self._results[number] = weakref.ref(results, lambda _: self._close(number))
            object.__setattr__(owner, "_kept", results)
            return results

    def _forget(self, number: int, key: Hashable) -> None:
        with self._lock:
            results = self._results[number]() if number in self._results else None
            entry = None if results is None else results.pop(key, None)
            if entry is not None:
                self._bytes[number] -= entry.bytes
                self._take_off(entry.bytes)

    def _empty(self, number: int) -> None:
        results = self._results[number]()
        self._take_off(self._bytes[number])
        self._bytes[number] = 0
        if results is not None:
            results.clear()

    def _close(self, number: int) -> None:
        with self._lock:
            self._take_off(self._bytes.pop(number, 0))
            self._results.pop(number, None)

    def _take_off(self, size: int) -> None:
        # On its own: what stands on the right may collect garbage, and that closes accounts.
        self.bytes -= size


LEDGER: Final = Ledger()
"""Of the process."""


def kept(function: Callable[Concatenate[Owner, P], T]) -> Callable[Concatenate[Owner, P], T]:
    """Keeps what `function` returns with its first argument, by the others, which are hashable and given by place.

    Further keepers among the arguments are referred to weakly: the result goes with the first of them that goes, so
    it must not refer to one of them. Exceptions are not kept.

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
            key = (function, *(id(value) if isinstance(value, Keeper) else value for value in arguments))
        return found_with(owner, key, partial(function, owner, *arguments), arguments)

    return asked


def found_with(owner: Keeper, key: Hashable, find: Callable[[], T], arguments: Iterable[object] = ()) -> T:
    """What is kept with `owner` as `key`, or what `find` gives, from then on as long as keepers of `arguments` live."""
    try:
        found: T = owner._kept[key].value
    except (AttributeError, KeyError):
        found = find()
        others = [value for value in arguments if isinstance(value, Keeper) and value is not owner]
        LEDGER.keep(owner, key, found, others)
    return found


def bounded(most_bytes: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Keeps what a function of numbers returns, for the whole process and in so many bytes; the oldest goes first.

    Example:
        >>> @bounded(1 << 20)
        ... def squares(count: int) -> list[int]:
        ...     return [number * number for number in range(count)]
        >>> squares(3) is squares(3)
        True
    """

    def keeping(function: Callable[P, T]) -> Callable[P, T]:
        lock = threading.Lock()
        found: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        taken = 0

        @wraps(function)
        def asked(*arguments: P.args, **named: P.kwargs) -> T:
            nonlocal taken
            key = (arguments, *sorted(named.items()))
            with lock:
                if key in found:
                    found.move_to_end(key)
                    return found[key][0]
            value = function(*arguments, **named)
            size = RESULT_BYTES + size_of((key, value))
            with lock:
                if key not in found:
                    found[key] = value, size
                    taken += size
                while taken > most_bytes:
                    taken -= found.popitem(last=False)[1][1]
            return value

        return asked

    return keeping


_SHARED: Final = (type, FunctionType, MemberDescriptorType)
_PLAIN: Final = frozenset({str, bytes, int, float, bool, type(None)})
"""Refer to nothing. Most of what is measured is of them, so that they never wait."""


def size_of(value: Any) -> int:
    """Bytes of `value` and of all it refers to, but for keepers, which have an account of their own, and code.

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
        if isinstance(one, FunctionType):
            waiting.extend(one.__closure__ or ())
        elif not isinstance(one, _SHARED):
            total += sys.getsizeof(one)
            if not isinstance(one, Keeper) or one is value:
                for part in _parts(one):
                    if type(part) not in _PLAIN:
                        waiting.append(part)
                    elif id(part) not in seen:
                        seen.add(id(part))
                        total += sys.getsizeof(part)
    return total


def _parts(value: Any) -> Iterable[Any]:
    if type(value) in _PLAIN:
        return ()
    if isinstance(value, dict):
        return chain(value, value.values())
    if isinstance(value, tuple | list | set | frozenset):
        return value
    if isinstance(value, CellType):
        return [value.cell_contents]
    inner = [part for name, part in getattr(value, "__dict__", {}).items() if name != "_kept"]
    bound = [value.__self__] if hasattr(value, "__self__") else []
    return [*_slots(value), *inner, *bound]


def _slots(value: Any) -> Iterable[Any]:
    if isinstance(value, Struct):
        return astuple(value)
    return [getattr(value, name, None) for name in _slot_names(type(value).__mro__)]


@cache
def _slot_names(classes: tuple[type, ...]) -> tuple[str, ...]:
    """The slots of a class of this program and its bases, of which there are only so many."""
    names = (name for one in classes for name in getattr(one, "__slots__", ()))
    return tuple(name for name in names if name not in ("__weakref__", "_kept", "__dict__"))
