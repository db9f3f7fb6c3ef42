"""Lowering of a grammar to the hash-consed terms of a native engine.

Constraints on one vocabulary share an engine, and so what it has made; one thread at a time extends it.  A grammar
whose work there would hold up others has an engine of its own: a large one from the start, any other when others have
waited for it too long (``turns.h``).

``structgen.grammar.flattening`` writes the nodes as a flat program, and the engine builds terms from it without the GIL
and without recursion (``program.h``).  Reference implementation: ``structgen.testing.reference``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Literal, TypeAlias
from weakref import WeakKeyDictionary, ref

from structgen_kernels import _native

from structgen.errors import GrammarError, LimitExceeded
from structgen.grammar.flattening import flatten
from structgen.grammar.left_recursion import remove_left_recursion
from structgen.grammar.limits import Limits, counted
from structgen.grammar.nodes.description import Described
from structgen.heap import return_memory
from structgen.memory_cache import CONSTRAINTS, Followed, Held, Share, report_also

if TYPE_CHECKING:
    from collections.abc import Callable

    from structgen.engine.vocabulary import Vocabulary
    from structgen.grammar.nodes import Grammar, Rules

__all__ = ["Engine", "Lowered", "lower", "native_limits", "program_of", "shared_engine"]

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


def program_of(grammar: Grammar, vocabulary: Vocabulary, limits: Limits) -> tuple[_native.FlatGrammar, list[int]]:
    """Return the program of a closed grammar, without left recursion, and the distances of its rules.

    Costs a compilation.

    Raises:
        GrammarError, LimitExceeded: as ``lower``.
    """
    native = native_limits(limits)
    flat = flatten(grammar, {}, vocabulary, limits.grammar_nodes)
    distances = _native.rule_distances(Engine(vocabulary).native, flat, native)
    if distances is None:
        with counted(limits):
            flat = flatten(
                grammar, {}, vocabulary, limits.grammar_nodes, lambda rules: remove_left_recursion(rules, limits)
            )
        distances = _native.rule_distances(Engine(vocabulary).native, flat, native)
    return flat, distances or []


class _HoldsUp(Exception):
    """Other threads that use the shared engine would wait too long."""


def _lower(grammar: Grammar, engine: Engine, vocabulary: Vocabulary, limits: Limits) -> Lowered:
    result = _lower_once(grammar, engine, vocabulary, limits, None)
    if result is None:
        # Left recursion is rare, and much cheaper to detect in the terms than in the grammar: lower first, then repair.
        with counted(limits):
            result = _lower_once(
                grammar, engine, vocabulary, limits, lambda rules: remove_left_recursion(rules, limits)
            )
    if result is None and isinstance(getattr(grammar, "plain", None), _native.FlatGrammar):  # the file was forged
        remedy = "save the constraint again"
        raise GrammarError(
            "saved constraint",
            "it is damaged",
            evidence="its program is left-recursive, or tells other lengths than it has",
            remedy=remedy,
        )
    if result is None:
        raise RuntimeError("left recursion is left after it was removed")
    return result


def _lower_once(
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
    if engine.is_shared and isinstance(grammar, Described) and grammar.least_bytes > _MAX_SHARED_BYTES:
        raise _HoldsUp
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
    if shared and engine.is_shared:
        engine.remember(flat.shared, shared, flat.memory_bytes)
    return None if is_left_recursive else (native, shortest, unspellable, flat.memory_bytes)


_MAX_SHARED_BYTES: Final = 512 << 10
"""Size of a flat grammar in a shared engine: a millisecond's work."""
_MAX_SHARED_TERMS: Final = 8_192
_MAX_LOWERED_BYTES: Final = 4 << 20
"""Of the programs in which shared nodes were lowered; their nodes take about four times that."""


class Engine:
    """A native engine, with its cache of lowered nodes.

    Attributes:
        native: the engine.
        is_shared: whether all grammars on the vocabulary may be in it.
        byte_complete: whether every byte is a token.
        memory_bytes: memory of the engine when a grammar was last compiled into it.
        lowered: (node, term) of ``Shared`` nodes and leaves by ``id(node)``; the node is held so that its id is not
            reused.
        checked_to: the memory from which all engines are compared with their bound again; -1: for no new constraint.
        used: when a constraint was last compiled into it, by the count of uses of all shared engines.
        vocabularies: those that hold it, if it is shared.
    """

    __slots__ = (
        "__weakref__",
        "byte_complete",
        "checked_to",
        "is_shared",
        "lowered",
        "lowered_bytes",
        "memory_bytes",
        "native",
        "used",
        "vocabularies",
    )

    def __init__(self, vocabulary: Vocabulary, *, is_shared: bool = False) -> None:
        self.is_shared = is_shared
        self.native = _native.Engine(vocabulary.trie, vocabulary.size)
        self.byte_complete = self.native.byte_complete
        self.memory_bytes = 0
        self.lowered: dict[int, tuple[Grammar, int]] = {}
        self.lowered_bytes = 0
        self.checked_to = 0 if is_shared else -1
        self.used = 0
        self.vocabularies: list[ref[Vocabulary]] = []
        _ENGINES.add(self)

    @property
    def role(self) -> Literal["shared", "retired", "own"]:
        """Whether new constraints use the engine, only those that were made in it, or those of one grammar."""
        return "own" if not self.is_shared else "shared" if self.checked_to >= 0 else "retired"

    def remember(self, nodes: Iterable[Grammar], terms: Iterable[int | None], size: int) -> None:
        """Cache the terms of shared nodes and leaves of a program of ``size`` bytes; drop all if there are too many."""
        if self.lowered_bytes > _MAX_LOWERED_BYTES or len(self.lowered) > _MAX_SHARED_TERMS:
            self.lowered.clear()
            self.lowered_bytes = 0
        self.lowered_bytes += size
        for node, term in zip(nodes, terms, strict=True):
            if term is not None:
                self.lowered[id(node)] = (node, term)

    def drop_rows(self) -> None:
        """Drop the mask rows, which are rebuilt on demand."""
        self.native.drop_rows()


_MAX_GROWTH: Final = 2 << 20
_IDLE_USES: Final = 256
_ROWS_BYTES: Final = 1 << 20
_RETURNED_BYTES: Final = 128 << 20


class _Engines(Share):
    """All engines. The constraints on a vocabulary share one, which is replaced when all together are too large.

    An engine lives as long as the constraints and matchers made in it. Where these keep many alive, the shared
    ones have less, at least a quarter of the bound, and only the mask rows of the others can be dropped.
    """

    def __init__(self) -> None:
        super().__init__("engines")
        self.live: Followed[Engine] = Followed()
        self._of: WeakKeyDictionary[Vocabulary, Engine] = WeakKeyDictionary()
        self._released = 0  # bytes, since memory was last given back to the system
        self._most = 0
        self.has_more = False  # engines that are not shared, since the last look at all

    def add(self, engine: Engine) -> None:
        """Follow a new engine."""
        self.live.add(engine)
        self.has_more |= not engine.is_shared

    def engine_of(self, vocabulary: Vocabulary) -> Engine:
        """Return the shared engine of a vocabulary or of one that equals it; a new one if it has grown too large."""
        if vocabulary.engine is not None:
            self.fit()
        with self.lock:
            engine = self._of.get(vocabulary)
            if engine is None:
                engine = self._of[vocabulary] = Engine(vocabulary, is_shared=True)
            engine.checked_to = engine.memory_bytes + min(_MAX_GROWTH, self.max_bytes // 16)
            self.uses = engine.used = self.uses + 1
            is_other = vocabulary.engine is not engine
            if is_other:
                vocabulary.engine = engine
                alive = [each for each in engine.vocabularies if each() is not None]
                engine.vocabularies = [*alive, ref(vocabulary)]
        if is_other:
            vocabulary.constraints.clear()  # they would keep the old engine alive
        return engine

    def fit(self) -> int:
        if self._released > _RETURNED_BYTES:  # of earlier calls: a large engine is freed in the background
            self._released = 0
            return_memory()
        self.has_more = False
        sizes = {engine: engine.native.memory_bytes for engine in self.live}
        shared = sorted((engine for engine in sizes if engine.role == "shared"), key=lambda engine: engine.used)
        others = [engine for engine in sizes if engine.role != "shared"]
        most, kept = self.max_bytes, sum(sizes[engine] for engine in others)
        if most != self._most:
            self._most = most
            _cached_limits.clear()
        left = sum(sizes[engine] for engine in shared)
        if left + kept > most:
            for engine in others:
                if engine.native.statistics["cache_bytes"] > _ROWS_BYTES:
                    engine.drop_rows()
            if kept > most // 2:
                CONSTRAINTS.clear()  # some may be the only reference to an engine of their own
        dropped = 0
        while left > max(most - kept, most // 4):
            oldest = shared[0]
            is_idle = self.uses - oldest.used > _IDLE_USES
            engine = oldest if is_idle else max(shared, key=sizes.__getitem__)
            shared.remove(engine)
            left -= sizes[engine]
            dropped += sizes[engine]
            self._retire(engine)
        self._released += dropped
        return dropped

    def _retire(self, engine: Engine) -> None:
        """Let new constraints use another engine."""
        with self.lock:
            engine.checked_to = -1
            alive = [user for each in engine.vocabularies if (user := each()) is not None]
            for user in alive:  # no iteration over `_of`, from which other threads drop dead entries
                if self._of.get(user) is engine:
                    del self._of[user]
            users = [user for user in alive if user.engine is engine]
            for user in users:
                user.engine = None
        for user in users:
            user.constraints.clear()

    def held(self) -> tuple[int, int]:
        shared = self.of_role("shared")
        return shared.count, shared.bytes

    def of_role(self, role: str, name: str = "") -> Held:
        """The engines of a role."""
        sizes = [engine.native.memory_bytes for engine in self.live if engine.role == role]
        return Held(name, len(sizes), sum(sizes))

    def clear(self) -> int:
        size = self.held()[1]
        for engine in self.live:
            if engine.role == "shared":
                self._retire(engine)
        return size


_ENGINES: Final = _Engines()
report_also(
    lambda: (
        _ENGINES.of_role("retired", "engines kept by constraints"),
        _ENGINES.of_role("own", "engines of single constraints"),
    )
)


def shared_engine(vocabulary: Vocabulary) -> Engine:
    """Return the engine that new constraints on ``vocabulary`` use."""
    engine = vocabulary.engine
    if engine is None or engine.memory_bytes > engine.checked_to or _ENGINES.has_more:
        return _ENGINES.engine_of(vocabulary)
    _ENGINES.uses = engine.used = _ENGINES.uses + 1
    if not engine.used % 64:  # new mask rows make it grow, too
        engine.memory_bytes = engine.native.memory_bytes
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
        native.cache_bytes = min(limits.cache_bytes, _ENGINES.max_bytes)
        if len(_cached_limits) >= _MAX_CACHED_LIMITS:
            _cached_limits.clear()
        cached = _cached_limits[id(limits)] = limits, native
    return cached[1]


def _limit_error(limit: str, maximum: int, evidence: str) -> LimitExceeded:
    return LimitExceeded("engine", limit=limit, maximum=maximum, evidence=f"reached while {evidence}")


_native.set_limit_error(_limit_error)
