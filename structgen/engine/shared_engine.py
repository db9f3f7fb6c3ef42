"""The native engine of a vocabulary, shared by all constraints on it.

Terms, states and mask rows are hash-consed in one engine a vocabulary, so that whatever two grammars have in common
is derived once.  An engine only grows; when it has grown past a bound the next compilation starts a new one, and
the old one goes with the last constraint that uses it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from structgen_kernels import _native

from structgen.errors import LimitExceeded

if TYPE_CHECKING:
    from structgen.engine.vocabulary import Vocabulary
    from structgen.grammar.limits import Limits
    from structgen.grammar.nodes import Grammar

__all__ = ["SharedEngine", "native_limits", "shared_engine"]

_MAX_ENGINE_BYTES: Final = 128 << 20
_MAX_SHARED_TERMS: Final = 8_192


class SharedEngine:
    """A native engine with what is known of it on the Python side.

    Attributes:
        native: the engine.
        byte_complete: whether every byte is a token.
        memory_bytes: what the engine held when a grammar was last coupled with it.
        lowered: terms of ``Shared`` nodes and of leaves, which live long, by the id of the node; the node is held so
            that its id stays its own.
    """

    __slots__ = ("__weakref__", "byte_complete", "lowered", "memory_bytes", "native")

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.native = _native.Engine(vocabulary.trie, vocabulary.size)
        self.byte_complete = self.native.byte_complete
        self.memory_bytes = 0
        self.lowered: dict[int, tuple[Grammar, int]] = {}

    def remember(self, nodes: Iterable[Grammar], terms: Iterable[int | None]) -> None:
        """Keep the terms of shared nodes and leaves, unless there are too many already."""
        for node, term in zip(nodes, terms, strict=True):
            if term is not None and len(self.lowered) < _MAX_SHARED_TERMS:
                self.lowered[id(node)] = (node, term)


_engines: WeakKeyDictionary[Vocabulary, SharedEngine] = WeakKeyDictionary()
_engines_lock = threading.Lock()


def shared_engine(vocabulary: Vocabulary) -> SharedEngine:
    """Return the engine that new constraints on ``vocabulary`` use."""
    engine = vocabulary.engine
    if engine is not None and engine.memory_bytes <= _MAX_ENGINE_BYTES:
        return engine
    with _engines_lock:
        engine = _engines.get(vocabulary)  # that of an equal vocabulary is as good
        if engine is None or engine.memory_bytes > _MAX_ENGINE_BYTES:
            engine = _engines[vocabulary] = SharedEngine(vocabulary)
        vocabulary.engine = engine
        vocabulary.constraints.clear()  # they are of other engines, and would keep these
        return engine


_MOST_KNOWN: Final = 64
_known_limits: dict[int, tuple[Limits, _native.Limits]] = {}


def native_limits(limits: Limits) -> _native.Limits:
    """Return the part of ``limits`` that the native engine counts, found by identity: hashing takes longer."""
    known = _known_limits.get(id(limits))
    if known is None:
        native = _native.Limits()
        native.states = limits.states
        native.regular_states = limits.regular_states
        native.steps = limits.steps
        native.distance_steps = limits.distance_steps
        native.cache_bytes = limits.cache_bytes
        if len(_known_limits) >= _MOST_KNOWN:
            _known_limits.clear()
        known = _known_limits[id(limits)] = limits, native
    return known[1]


def _limit_error(limit: str, maximum: int, evidence: str) -> LimitExceeded:
    return LimitExceeded("engine", limit=limit, maximum=maximum, evidence=f"reached while {evidence}")


_native.set_limit_error(_limit_error)
