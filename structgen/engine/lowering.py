"""Lowering of a grammar to the hash-consed terms of a native engine.

Constraints on one vocabulary share an engine, and so what it has made; one thread at a time extends it.  A grammar
whose work there would hold up others has an engine of its own: a large one from the start, any other when others have
waited for it too long (``turns.h``).

``structgen.grammar.flattening`` writes the nodes as a flat program, and the engine builds terms from it without the GIL
and without recursion (``program.h``).  Reference implementation: ``structgen.testing.reference``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, TypeAlias
from weakref import WeakKeyDictionary

from structgen_kernels import _native

from structgen.errors import GrammarError, LimitExceeded
from structgen.grammar.flattening import flatten
from structgen.grammar.left_recursion import remove_left_recursion

if TYPE_CHECKING:
    from collections.abc import Callable

    from structgen.engine.vocabulary import Vocabulary
    from structgen.grammar.limits import Limits
    from structgen.grammar.nodes import Grammar, Rules

__all__ = ["Engine", "Lowered", "lower", "native_limits", "shared_engine"]

Lowered: TypeAlias = "tuple[_native.Constraint | None, int | None, int | None, int]"
"""A grammar in an engine: the constraint, None if the grammar matches no string; the length of the shortest string in
bytes; a byte that the grammar needs and no token holds, if there is one; the size of the flat program.
"""


def lower(grammar: Grammar, engine: Engine, vocabulary: Vocabulary, limits: Limits) -> tuple[Lowered, Engine]:
    """Build the native terms of a closed grammar in an engine, solve its rules, and return a constraint.

    ``vocabulary`` resolves special tokens and EOS.  The second result is the engine: ``engine``, or one of the
    grammar's own.

    Raises:
        GrammarError: a free reference, a recursive rule where the language must be regular, or a special token
            that the grammar may not use.
        LimitExceeded: more nodes than ``limits.grammar_nodes``, or boolean operators nested too deeply.
    """
    try:
        return _lower(grammar, engine, vocabulary, limits), engine
    except _HoldsUp:
        own = Engine(vocabulary)
        return _lower(grammar, own, vocabulary, limits), own


class _HoldsUp(Exception):
    """The work would hold up others that share the engine."""


def _lower(grammar: Grammar, engine: Engine, vocabulary: Vocabulary, limits: Limits) -> Lowered:
    result = _couple(grammar, engine, vocabulary, limits, None)
    if result is None:
        # Left recursion is rare, and much cheaper to detect in the terms than in the grammar: lower first, then repair.
        result = _couple(grammar, engine, vocabulary, limits, lambda rules: remove_left_recursion(rules, limits))
    if result is None:
        raise RuntimeError("left recursion is left after it was removed")
    return result


def _couple(
    grammar: Grammar,
    engine: Engine,
    vocabulary: Vocabulary,
    limits: Limits,
    rewrite: Callable[[Rules], Grammar] | None,
) -> Lowered | None:
    """Lower a grammar as :func:`lower` does; return None if it is left-recursive.

    Raises:
        _HoldsUp: others that share the engine would wait too long.
    """
    flat = flatten(grammar, engine.lowered, vocabulary, limits.grammar_nodes, rewrite)
    if engine.is_shared and flat.memory_bytes > _MAX_SHARED_BYTES:
        raise _HoldsUp
    try:
        made = _native.couple(engine.native, flat, vocabulary.eos, native_limits(limits), is_own=not engine.is_shared)
    except LimitExceeded:
        raise
    except ValueError as error:  # raised for a Distinct or Label node
        remedy = "let every string be one JSON array or object, or begin with a label"
        raise GrammarError("grammar", str(error), remedy=remedy) from None
    if made is None:
        raise _HoldsUp
    native, shared, is_left_recursive, shortest, unspellable, engine.memory_bytes = made
    if native is not None and native.has_scope and native.has_token_sets:
        raise GrammarError(
            "grammar",
            "a token set cannot be combined with items that must differ, or with labels that must decode",
            evidence="the checker could not tell which token was read",
            remedy="remove uniqueItems and host name formats from the schema, or name special tokens one by one",
        )
    if shared:
        engine.remember(flat.shared, shared)
    return None if is_left_recursive else (native, shortest, unspellable, flat.memory_bytes)


_MAX_ENGINE_BYTES: Final = 128 << 20
_MAX_SHARED_BYTES: Final = 512 << 10
"""Size of a flat grammar in a shared engine: a millisecond's work."""
_MAX_SHARED_TERMS: Final = 8_192


class Engine:
    """A native engine, with its cache of lowered nodes.

    Attributes:
        native: the engine.
        is_shared: whether all grammars on the vocabulary may be in it.
        byte_complete: whether every byte is a token.
        memory_bytes: memory of the engine when a grammar was last compiled into it.
        lowered: (node, term) of ``Shared`` nodes and leaves by ``id(node)``; holding the node keeps its id taken.
    """

    __slots__ = ("__weakref__", "byte_complete", "is_shared", "lowered", "memory_bytes", "native")

    def __init__(self, vocabulary: Vocabulary, *, is_shared: bool = False) -> None:
        self.is_shared = is_shared
        self.native = _native.Engine(vocabulary.trie, vocabulary.size)
        self.byte_complete = self.native.byte_complete
        self.memory_bytes = 0
        self.lowered: dict[int, tuple[Grammar, int]] = {}

    def remember(self, nodes: Iterable[Grammar], terms: Iterable[int | None]) -> None:
        """Cache the terms of shared nodes and leaves, up to a limit."""
        for node, term in zip(nodes, terms, strict=True):
            if term is not None and len(self.lowered) < _MAX_SHARED_TERMS:
                self.lowered[id(node)] = (node, term)


_engines: WeakKeyDictionary[Vocabulary, Engine] = WeakKeyDictionary()
_engines_lock = threading.Lock()


def shared_engine(vocabulary: Vocabulary) -> Engine:
    """Return the engine that new constraints on ``vocabulary`` use."""
    engine = vocabulary.engine
    if engine is not None and engine.memory_bytes <= _MAX_ENGINE_BYTES:
        return engine
    with _engines_lock:
        engine = _engines.get(vocabulary)  # that of an equal vocabulary will do
        if engine is None or engine.memory_bytes > _MAX_ENGINE_BYTES:
            engine = _engines[vocabulary] = Engine(vocabulary, is_shared=True)
        vocabulary.engine = engine
        vocabulary.constraints.clear()  # they would keep the old engine alive
        return engine


_MAX_CACHED_LIMITS: Final = 64
_cached_limits: dict[int, tuple[Limits, _native.Limits]] = {}


def native_limits(limits: Limits) -> _native.Limits:
    """Return the part of ``limits`` that the native engine counts; cached by identity, which is faster than by hash."""
    cached = _cached_limits.get(id(limits))
    if cached is None:
        native = _native.Limits()
        native.states = limits.states
        native.regular_states = limits.regular_states
        native.steps = limits.steps
        native.distance_steps = limits.distance_steps
        native.cache_bytes = limits.cache_bytes
        if len(_cached_limits) >= _MAX_CACHED_LIMITS:
            _cached_limits.clear()
        cached = _cached_limits[id(limits)] = limits, native
    return cached[1]


def _limit_error(limit: str, maximum: int, evidence: str) -> LimitExceeded:
    return LimitExceeded("engine", limit=limit, maximum=maximum, evidence=f"reached while {evidence}")


_native.set_limit_error(_limit_error)
