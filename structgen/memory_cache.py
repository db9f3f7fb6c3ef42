"""Caches in memory, within one bound in bytes for the process, and a report of what is held.

Each kind of cache has a fixed part of the bound, a :class:`Share`; what was used longest ago goes first. The bound is
:func:`cache_limits`, at first ``$STRUCTGEN_CACHE_MB``; :func:`memory` says what is held. A cache of values whose number
and size no input decides needs none of this: ``functools.cache`` will do.
"""

from __future__ import annotations

import functools
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, ParamSpec, TypeVar, cast
from weakref import WeakValueDictionary

from structgen.errors import ArgumentError, found
from structgen.heap import return_memory

__all__ = [
    "CONSTRAINTS",
    "GRAMMARS",
    "NUMBERS",
    "TERMS",
    "CacheInfo",
    "CacheLimits",
    "ContentCache",
    "Followed",
    "Held",
    "MemoryReport",
    "Share",
    "cache_limits",
    "cached",
    "clear_caches",
    "entries_within",
    "memory",
    "report_also",
]

Value = TypeVar("Value")

_VARIABLE: Final = "STRUCTGEN_CACHE_MB"
_DEFAULT_MEGABYTES: Final = 384
_MIN_MEGABYTES: Final = 8
_PARTS: Final = {
    "engines": 11,
    "grammars": 4,
    "constraints": 4,
    "number terms": 7,
    "schema terms": 3,
    "other terms": 2,
    "canonical tokens": 1,
}
"""How the bound is split, in 32nds. No term of numbers is larger than its share of the default."""
_MAX_MEGABYTES: Final = 1 << 24
_IN_USE: Final = ("engines kept by constraints", "engines of single constraints", "vocabularies", "draft statistics")

_megabytes: int | None = None
_shares: Final[dict[str, Share]] = {}
_reporters: Final[list[Callable[[], Iterable[Held]]]] = []
_droppers: Final[list[Callable[[], None]]] = []


def _checked(value: object, subject: str, *, name: str) -> int:
    """A number of megabytes."""
    if isinstance(value, int) and not isinstance(value, bool) and _MIN_MEGABYTES <= value <= _MAX_MEGABYTES:
        return value
    raise ArgumentError(
        subject,
        f"{name} must be a whole number of megabytes, at least {_MIN_MEGABYTES}",
        evidence=found(value),
        remedy=f"the default is {_DEFAULT_MEGABYTES}; a small bound costs time, not correctness",
    )


def _bound() -> int:
    """The bound of the process in megabytes; the environment is read once."""
    global _megabytes  # noqa: PLW0603
    if _megabytes is None:
        stated = os.environ.get(_VARIABLE)
        value: object = stated.strip() if stated else _DEFAULT_MEGABYTES
        if isinstance(value, str) and value.isascii() and value.isdecimal():
            value = int(value[:20])
        _megabytes = _checked(value, "environment", name=_VARIABLE)
    return _megabytes


class Share:
    """A part of the bound, and the caches that have it together.

    Args:
        name: one of the parts of the bound; another name is a bound of its own.
        max_bytes: the bytes of another name.
    """

    def __init__(self, name: str, max_bytes: int = 0) -> None:
        self.name = name
        self.lock = threading.Lock()
        self.uses = 0  # of all caches, to know which one was used longest ago
        self.bytes = 0  # at least what they hold
        self.caches: Followed[ContentCache[Any]] = Followed()
        self._fixed_bytes = max_bytes
        if name in _PARTS:
            _shares[name] = self

    @property
    def max_bytes(self) -> int:
        """What the caches may hold together."""
        return (_bound() << 20) * _PARTS[self.name] // 32 if self.name in _PARTS else self._fixed_bytes

    def held(self) -> tuple[int, int]:
        """How many values there are, and their bytes."""
        infos = [each.info() for each in self.caches]
        return sum(info.entries for info in infos), sum(info.bytes for info in infos)

    def fit(self) -> int:
        """Drop what was used longest ago until the rest is within the bound; return the bytes dropped."""
        with self.lock:
            dropped = self.excess()
        return sum(size for _, size in dropped)

    def excess(self) -> list[tuple[object, int]]:
        """Take out what is too much, with its bytes. Under the lock; the values die when the list does, after it."""
        dropped: list[tuple[object, int]] = []
        most = self.max_bytes
        if self.bytes <= most:
            return dropped
        caches = list(self.caches)
        self.bytes = sum(each.bytes for each in caches)  # some have died with what they held
        while self.bytes > most:
            caches = [each for each in caches if each.bytes]
            dropped.append(min(caches, key=lambda each: each.used).pop())
        return dropped

    def clear(self) -> int:
        """Drop everything that can be dropped; return its bytes."""
        return sum(each.clear() for each in self.caches)


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """Statistics of a cache: hits and misses of ``get``, entries, estimated bytes."""

    hits: int
    misses: int
    entries: int
    bytes: int


class Followed(Generic[Value]):
    """The objects that were added and are alive; equal ones are distinct."""

    def __init__(self) -> None:
        self._by_id: WeakValueDictionary[int, Value] = WeakValueDictionary()

    def add(self, value: Value) -> None:
        """Follow an object without keeping it alive."""
        self._by_id[id(value)] = value

    def __iter__(self) -> Iterator[Value]:
        return iter([value for ref in self._by_id.valuerefs() if (value := ref()) is not None])


class ContentCache(Generic[Value]):
    """The most recently used values that fit. Values must be immutable, and not ``None``; threads may share the cache.

    >>> cache: ContentCache[str] = ContentCache(Share("letters", max_bytes=100))
    >>> cache.put("a", "one", size=60)
    >>> cache.put("b", "two", size=60)
    >>> cache.get("a"), cache.get("b")
    (None, 'two')
    """

    def __init__(self, share: Share) -> None:
        self._share = share
        self._held: OrderedDict[Hashable, Value] = OrderedDict()  # most recently used last
        self._sizes: dict[Hashable, int] = {}  # apart: Python's cycle collector would look at each pair
        self._hits = 0
        self._misses = 0
        self.bytes = 0
        self.used = 0  # when it was used last, in uses of the share
        share.caches.add(self)

    def get(self, key: Hashable) -> Value | None:
        """The value of ``key``, if it is still cached."""
        with self._share.lock:
            return self._found(key)

    def get_all(self, keys: Iterable[Hashable]) -> list[Value | None]:
        """``get`` for each key, at once."""
        with self._share.lock:
            return list(map(self._found, keys))

    def _found(self, key: Hashable) -> Value | None:
        held = self._held.get(key)
        if held is None:
            self._misses += 1
            return None
        self._hits += 1
        self._share.uses = self.used = self._share.uses + 1
        self._held.move_to_end(key)
        return held

    def put(self, key: Hashable, value: Value, size: int) -> None:
        """Cache a value; ``size`` is its bytes with its key, about. A value larger than the share is not cached.

        Complexity: linear in the number of caches of the share.
        """
        self.put_all(((key, value, size),))

    def put_all(self, entries: Iterable[tuple[Hashable, Value, int]]) -> None:
        """``put`` for each key, value and size, at once."""
        share, most = self._share, self._share.max_bytes
        replaced: list[object] = []  # not to be dropped under the lock: a value may own much
        with share.lock:
            for key, value, size in entries:
                before = self._held.pop(key, None)
                if before is not None:
                    self._add(-self._sizes.pop(key, 0))
                    replaced.append(before)
                if size <= most:
                    self._sizes[key] = size  # first: comparing keys may be interrupted
                    self._held[key] = value
                    self._add(size)
            share.uses = self.used = share.uses + 1
            if share.bytes > most:
                replaced += share.excess()

    def pop(self) -> tuple[Value, int]:
        """Take out the value that was used longest ago. Under the lock of the share."""
        key, value = self._held.popitem(last=False)
        size = self._sizes.pop(key, 0)
        self._add(-size)
        return value, size

    def _add(self, size: int) -> None:
        self.bytes += size
        self._share.bytes += size

    def clear(self) -> int:
        """Drop all values, but not the counts; return their bytes."""
        with self._share.lock:
            dropped, self._held, size = self._held, OrderedDict(), self.bytes
            self._sizes.clear()
            self._add(-size)
        dropped.clear()
        return size

    def info(self) -> CacheInfo:
        """Counts and sizes now."""
        with self._share.lock:
            return CacheInfo(self._hits, self._misses, len(self._held), self.bytes)


GRAMMARS: Final = Share("grammars")
CONSTRAINTS: Final = Share("constraints")
NUMBERS: Final = Share("number terms")
TERMS: Final = Share("other terms")

_Arguments = ParamSpec("_Arguments")


def cached(
    share: Share, size: Callable[[Value], int]
) -> Callable[[Callable[_Arguments, Value]], Callable[_Arguments, Value]]:
    """Like ``functools.lru_cache``, in bytes: ``size`` is that of a result. For hashable arguments."""

    def decorate(function: Callable[_Arguments, Value]) -> Callable[_Arguments, Value]:
        cache: ContentCache[object] = ContentCache(share)

        @functools.wraps(function)
        def call(*args: _Arguments.args, **named: _Arguments.kwargs) -> Value:
            key = (args, tuple(named.items())) if named else args
            held = cache.get(key)
            if held is None:
                result = function(*args, **named)
                cache.put(key, _NONE if result is None else result, _ENTRY_BYTES + size(result))
                return result
            return cast("Value", None if held is _NONE else held)

        return call

    return decorate


_NONE: Final = object()
"""Stands for ``None`` in a cache."""
_ENTRY_BYTES: Final = 512
"""Of an entry with a small key."""


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """What the caches of the process may hold.

    Attributes:
        megabytes: all of them together, in MiB.
        bytes: each kind, by name.
    """

    megabytes: int
    bytes: dict[str, int]


@dataclass(frozen=True, slots=True)
class Held:
    """The number and size of objects of one kind.

    Attributes:
        name: the kind.
        count: how many.
        bytes: estimated memory.
        limit: the bytes that caches may hold of it; None if it is in use, so that no cache can let go of it, or bounded
            in entries.
    """

    name: str
    count: int
    bytes: int
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """What a process holds in memory. ``str()`` makes a table.

    Attributes:
        held: by kind.
        limit: what the caches may hold together, in bytes.
        resident: memory of the whole process, in bytes; None where the system does not tell.
    """

    held: tuple[Held, ...]
    limit: int
    resident: int | None

    @property
    def cached(self) -> int:
        """Bytes of what the limit bounds."""
        return sum(each.bytes for each in self.held if each.limit is not None)

    def __getitem__(self, name: str) -> Held:
        for each in self.held:
            if each.name == name:
                return each
        raise KeyError(name)

    def __str__(self) -> str:
        rows = [(each.name, f"{each.count:,}", each.bytes, each.limit) for each in self.held]
        rows.append(("within the limit", "", self.cached, self.limit))
        if self.resident is not None:
            rows.append(("process", "", self.resident, None))
        lines = [
            f"{name:32}{count:>9}{size / 2**20:>10.1f} MB" + ("" if most is None else f" of {most / 2**20:.1f}")
            for name, count, size, most in rows
        ]
        return "\n".join(lines)


def cache_limits(*, megabytes: int | None = None) -> CacheLimits:
    """Return what the caches of the process may hold; set it first, if ``megabytes`` (MiB) is given.

    The bound is split among the kinds of caches. A lower one takes effect immediately: the least recently used entries
    are dropped, and rebuilt on demand. The bound is on what caches hold; grammars, constraints and vocabularies live as
    long as the caller refers to them, and a constraint keeps its engine (:func:`memory` lists these separately). The
    default is 384, or the environment variable ``STRUCTGEN_CACHE_MB``, which is read at first use.

    Raises:
        ArgumentError: it is no whole number from 8, in the argument or in the environment.
    """
    global _megabytes  # noqa: PLW0603
    if megabytes is not None:
        _megabytes = _checked(megabytes, "cache_limits", name="megabytes")
        if sum(share.fit() for share in list(_shares.values())):
            return_memory()
    return CacheLimits(_bound(), {name: (_bound() << 20) * part // 32 for name, part in _PARTS.items()})


def clear_caches() -> None:
    """Drop all that caches hold, and give the memory back to the system, where its allocator can do that (glibc)."""
    import gc

    for share in list(_shares.values()):
        share.clear()
    for drop in _droppers:
        drop()
    gc.collect()
    return_memory()


def entries_within(most: int) -> int:
    """How many entries something may have that is bounded in entries: ``most``, or less if the bound is below 384 MB.

    In proportion to the bound.
    """
    return -(-most * min(_bound(), _DEFAULT_MEGABYTES) // _DEFAULT_MEGABYTES)


def report_also(reporter: Callable[[], Iterable[Held]], drop: Callable[[], None] | None = None) -> None:
    """Let :func:`memory` report what other objects hold, and :func:`clear_caches` drop what they can make again."""
    _reporters.append(reporter)
    if drop is not None:
        _droppers.append(drop)


def memory() -> MemoryReport:
    """Return what the caches and the live objects of this process hold.

    Bytes of engines and vocabularies are counted, those of grammars, terms and draft statistics are estimated.
    Grammars, constraints and matchers that the caller keeps are not counted, but the engines that they keep alive are.

    Complexity: linear in the number of engines and in the tokens of all live vocabularies.
    """
    held = {name: Held(name, 0, 0, most) for name, most in cache_limits().bytes.items()}
    held |= {name: Held(name, 0, 0) for name in _IN_USE}  # of modules that are not loaded, too
    held |= {name: Held(name, *share.held(), share.max_bytes) for name, share in _shares.items()}
    held |= {each.name: each for reporter in _reporters for each in reporter()}
    return MemoryReport(tuple(held.values()), _bound() << 20, _resident())


def _resident() -> int | None:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
