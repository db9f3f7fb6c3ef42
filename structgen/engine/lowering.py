"""From IR terms to the hash-consed terms of the native engine of a vocabulary, which all its constraints share.

The nodes are flattened to a program (``structgen.grammar.flattening``), and the engine makes terms from it without the
GIL (``program.h``), without recursion.  What terms mean is stated a second time, from the nodes, by
``structgen.testing.reference``.
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

__all__ = ["Lowered", "SharedEngine", "lower", "native_limits", "shared_engine"]

Lowered: TypeAlias = "tuple[_native.Constraint | None, int | None, int | None, int]"
"""A grammar in an engine: the constraint, ``None`` if it has no members; length of the shortest member in bytes; a byte
that it needs somewhere and that no token holds, if there is one; size of the program that it was flattened to.
"""


def lower(
    grammar: Grammar, engine: SharedEngine, vocabulary: Vocabulary, bounds: _native.Limits, limits: Limits
) -> Lowered:
    """Make the native terms of a closed grammar, solve its rules, and make a constraint of them.

    Args:
        grammar: a closed term.
        engine: the engine that holds the terms.
        vocabulary: resolves special tokens, and says what ends a text.
        bounds: the native part of ``limits``.
        limits: bounds the number of nodes.

    Raises:
        GrammarError: a free reference, a recursive rule where the language must be regular, or a special token
            that the grammar may not use.
        LimitExceeded: more nodes than ``limits.grammar_nodes``, or boolean operators nested too deeply.
    """
    result = _lower(grammar, engine, vocabulary, bounds, limits, None)
    if result is None:
        # Rare, and much dearer to look for in the grammar than in its terms: so lower first, and again if need be.
        result = _lower(grammar, engine, vocabulary, bounds, limits, lambda rules: remove_left_recursion(rules, limits))
    if result is None:
        raise RuntimeError("left recursion is left after it was removed")
    return result


def _lower(
    grammar: Grammar,
    engine: SharedEngine,
    vocabulary: Vocabulary,
    bounds: _native.Limits,
    limits: Limits,
    rewrite: Callable[[Rules], Grammar] | None,
) -> Lowered | None:
    """The same; ``None`` if the grammar is left-recursive."""
    flat = flatten(grammar, engine.lowered, vocabulary, limits.grammar_nodes, rewrite)
    try:
        native, shared, is_left_recursive, shortest, unspellable, engine.memory_bytes = _native.couple(
            engine.native, flat, vocabulary.eos, bounds
        )
    except LimitExceeded:
        raise
    except ValueError as error:  # of a distinct term or a label
        remedy = "let every member be one JSON array or object, or begin with a label"
        raise GrammarError("grammar", str(error), remedy=remedy) from None
    if native is not None and native.has_scope and native.has_token_sets:
        raise GrammarError(
            "grammar",
            "sets of tokens stand beside items that must differ, or labels that must decode",
            evidence="which tokens those have read would not be known",
            remedy="leave uniqueItems and formats of host names out of the schema, or name special tokens one by one",
        )
    if shared:
        engine.remember(flat.shared, shared)
    return None if is_left_recursive else (native, shortest, unspellable, flat.memory_bytes)


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


_MAX_CACHED_LIMITS: Final = 64
_cached_limits: dict[int, tuple[Limits, _native.Limits]] = {}


def native_limits(limits: Limits) -> _native.Limits:
    """Return the part of ``limits`` that the native engine counts, found by identity: hashing takes longer."""
    known = _cached_limits.get(id(limits))
    if known is None:
        native = _native.Limits()
        native.states = limits.states
        native.regular_states = limits.regular_states
        native.steps = limits.steps
        native.distance_steps = limits.distance_steps
        native.cache_bytes = limits.cache_bytes
        if len(_cached_limits) >= _MAX_CACHED_LIMITS:
            _cached_limits.clear()
        known = _cached_limits[id(limits)] = limits, native
    return known[1]


def _limit_error(limit: str, maximum: int, evidence: str) -> LimitExceeded:
    return LimitExceeded("engine", limit=limit, maximum=maximum, evidence=f"reached while {evidence}")


_native.set_limit_error(_limit_error)
