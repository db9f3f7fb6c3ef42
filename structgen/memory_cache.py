"""A cache by content: what was made from equal input before is handed out again, within a bound in bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["CacheInfo", "ContentCache"]

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """What a cache has done and holds: calls of ``get`` that found something or not, entries, estimated bytes."""

    hits: int
    misses: int
    entries: int
    bytes: int


class ContentCache(Generic[Value]):
    """The values used last, as many as fit.  Values must be immutable; threads may share the cache.

    >>> cache: ContentCache[str] = ContentCache(max_bytes=100)
    >>> cache.put("a", "one", size=60)
    >>> cache.put("b", "two", size=60)
    >>> cache.get("a"), cache.get("b")
    (None, 'two')
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._held: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()  # the one used last at the end
        self._bytes = 0
        self._hits = 0
        self._misses = 0

    def get(self, key: Hashable) -> Value | None:
        """The value kept for ``key``, if it is still there."""
        with self._lock:
            held = self._held.get(key)
            if held is None:
                self._misses += 1
                return None
            self._hits += 1
            self._held.move_to_end(key)
            return held[0]

    def put(self, key: Hashable, value: Value, size: int) -> None:
        """Keep a value that takes about ``size`` bytes with its key; more than fits at all is not kept."""
        if size > self._max_bytes:
            return
        with self._lock:
            before = self._held.pop(key, None)
            self._bytes += size - (before[1] if before else 0)
            self._held[key] = value, size
            while self._bytes > self._max_bytes:
                _, (_, dropped) = self._held.popitem(last=False)
                self._bytes -= dropped

    def clear(self) -> None:
        """Drop all values; the counts go on."""
        with self._lock:
            self._held.clear()
            self._bytes = 0

    def info(self) -> CacheInfo:
        """Counts and sizes at this moment."""
        with self._lock:
            return CacheInfo(self._hits, self._misses, len(self._held), self._bytes)
