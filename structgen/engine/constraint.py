"""A grammar compiled against a vocabulary: immutable, shared by any number of matchers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
from structgen_kernels import _native

from structgen.engine.lowering import SharedEngine, lower, native_limits, shared_engine
from structgen.engine.mask import empty_masks
from structgen.engine.matcher import Matcher
from structgen.engine.report import Report, report_of
from structgen.errors import GrammarError, StructgenError, UnsatisfiableGrammar, VocabularyError
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Budget, Distinct, Label, postorder
from structgen.grammar.printer import to_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from structgen.engine.vocabulary import Vocabulary
    from structgen.grammar.nodes import Grammar

__all__ = ["Constraint", "check_budgets", "compile", "compile_together", "refuse_budgets"]


def check_budgets(constraint: Constraint, compiled: Callable[[Grammar], Constraint]) -> None:
    """Check that some tokens keep to all budgets.

    Args:
        constraint: the grammar with budgets.
        compiled: compiles a part for the same vocabulary.

    Raises:
        UnsatisfiableGrammar: no tokens do; it names a part whose shortest member takes more than it may.
        GrammarError: a budget lies within values that must differ or labels that must decode, or one of these within a
            part with a budget.
    """
    if constraint.native.has_budgets_in_scopes:
        raise GrammarError(
            "grammar",
            "a budget of tokens lies within an array or object without repetition or a label that must decode, or one "
            "of these within a part with a budget",
            evidence=_nested(constraint.grammar),
            remedy="bound that part in characters, put the budget beside it, or leave out uniqueItems and formats of "
            "host names",
        )
    if constraint.native.is_completable():
        return
    evidence = "every member breaks some budget"
    for node in postorder(constraint.grammar):
        if isinstance(node, Budget) and node.tokens is not None:
            try:
                needed = compiled(node.item).min_tokens()
            except StructgenError:  # a part that is not closed, or that no budget of its own could be checked of
                continue
            if needed > node.tokens:
                part = to_text(node.item, max_length=200)
                evidence = (
                    f"the shortest text of {part} takes {needed} tokens of this vocabulary, and may take {node.tokens}"
                )
                break
    raise UnsatisfiableGrammar(
        "grammar",
        "no tokens keep to its budgets",
        evidence=evidence,
        remedy="allow the part more tokens, or bound it in characters",
    )


def _nested(grammar: Grammar) -> str:
    """A part with a budget that lies so, where that shows without following references."""
    inside: dict[int, tuple[bool, bool]] = {}  # whether there are budgets, and scopes
    for node in postorder(grammar):
        below = [inside[id(child)] for child in node.children]
        has_budgets, has_scopes = any(one for one, _ in below), any(one for _, one in below)
        is_budget, is_scope = isinstance(node, Budget) and node.tokens is not None, isinstance(node, Distinct | Label)
        if (is_budget and has_scopes) or (is_scope and has_budgets):
            return f"it is so in {to_text(node, max_length=200)}"
        inside[id(node)] = has_budgets or is_budget, has_scopes or is_scope
    return "rules lead from the one to the other"


def refuse_budgets(constraint: Constraint, subject: str) -> None:
    """Refuse budgets of tokens where tokens are not counted.

    Args:
        constraint: the constraint.
        subject: what does not count them.

    Raises:
        GrammarError: the grammar has such budgets.
    """
    if constraint.native.has_budgets:
        raise GrammarError(
            subject,
            "the grammar bounds the tokens of a part, and here tokens are not written one after the other",
            remedy="bound that part in characters, or decode with an autoregressive model",
        )


_DEFAULT_LIMITS: Final = Limits()
_MAX_SEARCH_STEPS: Final = 20_000
"""Steps of the search for some member where nothing is promised of what must differ; it decides or gives up soon."""
_BYTES_PER_BYTE: Final = 8
"""What a constraint with its grammar takes in memory, for a byte of the program that the grammar is flattened to."""


class Constraint:
    """Which token sequences over ``vocabulary`` spell a member of ``grammar``.

    Immutable and safe to share between threads; made by :func:`compile`.  Automaton states and mask rows are made
    when they are first reached, so compiling costs what the description costs, not what its language does.
    """

    __slots__ = (
        "__weakref__",
        "_engine",
        "_grammar",
        "_limits",
        "_min_tokens",
        "_report",
        "_vocabulary",
        "native",
        "shortest_bytes",
    )

    def __init__(
        self,
        grammar: Grammar,
        vocabulary: Vocabulary,
        limits: Limits,
        *,
        engine: SharedEngine,
        native: _native.Constraint,
        shortest_bytes: int,
    ) -> None:
        self._grammar = grammar
        self._vocabulary = vocabulary
        self._limits = limits
        self._engine = engine
        self.native = native
        self.shortest_bytes = shortest_bytes
        self._report: Report | None = None
        self._min_tokens: int | None = None

    @property
    def grammar(self) -> Grammar:
        """The grammar that was compiled."""
        return self._grammar

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary that it was compiled for."""
        return self._vocabulary

    @property
    def limits(self) -> Limits:
        """The limits that hold for it and its matchers."""
        return self._limits

    @property
    def report(self) -> Report:
        """What is enforced, and how; made when it is first asked for, the number of states each time."""
        if self._report is None:
            self._report = report_of(self)
        return replace(self._report, states=self.native.states_used)

    @property
    def has_temperatures(self) -> bool:
        """Whether parts of the grammar are drawn at a temperature of their own (``Tempered``)."""
        return self.native.has_temperatures

    def matcher(self) -> Matcher:
        """Return a Matcher at the start of a text."""
        matcher = Matcher(self.native)
        matcher._constraint = self
        return matcher

    def min_tokens(self) -> int:
        """Return how many tokens the shortest member takes, EOS not counted.

        Exact while ``limits.distance_steps`` lasts; beyond that, the fewest tokens that spell the member which is
        shortest in bytes.
        """
        if self._min_tokens is None:
            count = self.matcher().min_tokens()
            if count is None:  # compile() has refused what no tokens can spell
                raise VocabularyError("vocabulary", "no sequence of tokens spells a member of the grammar")
            self._min_tokens = count
        return self._min_tokens

    def nearest_tokens(self, matcher: Matcher, subject: bytes, most: int) -> tuple[tuple[int, bytes], ...]:
        """Return up to ``most`` allowed tokens that share the longest prefix with ``subject``."""
        words = empty_masks(self._vocabulary)
        matcher.fill_mask(words)
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")
        tokens = self._vocabulary.tokens
        allowed = [(index, tokens[index]) for index in np.flatnonzero(bits).tolist() if tokens[index]]

        def rank(item: tuple[int, bytes]) -> tuple[int, int, int]:
            shared = 0
            for ours, theirs in zip(item[1], subject, strict=False):
                if ours != theirs:
                    break
                shared += 1
            return -shared, len(item[1]), item[0]

        return tuple(sorted(allowed, key=rank)[:most])

    def terms(self) -> int:
        """Return how many terms an engine has that holds nothing but this grammar.  Costs a compilation."""
        return self.alone()._engine.native.statistics["terms"]

    def alone(self) -> Constraint:
        """Return the same constraint in an engine that nothing else uses.  Costs a compilation."""
        return _bind(self._grammar, self._vocabulary, self._limits, SharedEngine(self._vocabulary))[0]

    @property
    def engine_bytes(self) -> int:
        """What the engine holds, for this constraint and for others that share it."""
        return self._engine.native.memory_bytes

    def is_of(self, engine: SharedEngine) -> bool:
        """Whether it lives in ``engine``."""
        return self._engine is engine

    def __repr__(self) -> str:
        return f"Constraint({self._grammar!r}, {self._vocabulary!r})"


def compile(grammar: Grammar, vocabulary: Vocabulary, *, limits: Limits | None = None) -> Constraint:
    """Couple a grammar with a vocabulary.

    Raises:
        UnsatisfiableGrammar: no string belongs to the grammar, or no tokens that write one keep to its budgets.
        VocabularyError: the tokens cannot spell any member; the byte that is missing is named.
        LimitExceeded: a bound of ``limits`` was reached.
        GrammarError: the grammar is not closed, or not regular where it must be.
    """
    limits = limits if limits is not None else _DEFAULT_LIMITS
    engine = shared_engine(vocabulary)
    key = (id(grammar), id(limits))  # a constraint that is kept holds both, so that nothing else can have the ids
    constraint = vocabulary.constraints.get(key)
    if constraint is not None and constraint.is_of(engine):
        return constraint
    constraint, size = _bind(grammar, vocabulary, limits, engine)
    if constraint.native.has_budgets:
        check_budgets(constraint, lambda part: compile(part, vocabulary, limits=limits))
    if not engine.byte_complete:
        _check_spelling(constraint)
    vocabulary.constraints.put(key, constraint, _BYTES_PER_BYTE * size)
    return constraint


def compile_together(grammars: Iterable[Grammar], vocabulary: Vocabulary, limits: Limits) -> list[Constraint]:
    """Couple grammars with a vocabulary in one engine that nothing else uses.

    The ``state_id`` of matchers of all of them may be compared: equal ones have equal futures.

    Raises:
        UnsatisfiableGrammar, VocabularyError, LimitExceeded, GrammarError: as ``compile``.
    """
    engine = SharedEngine(vocabulary)
    return [_bind(grammar, vocabulary, limits, engine)[0] for grammar in grammars]


def _bind(grammar: Grammar, vocabulary: Vocabulary, limits: Limits, engine: SharedEngine) -> tuple[Constraint, int]:
    """Lower a grammar into an engine and take the constraint from there, with the size of its program."""
    native, distance, missing, size = lower(grammar, engine, vocabulary, native_limits(limits), limits)
    if native is None or distance is None:
        if missing is None:
            raise _unsatisfiable(grammar, "an empty choice, contradicting intersections, or rules that never end")
        raise VocabularyError(
            "vocabulary",
            "the tokens can spell no member of the grammar",
            evidence=f"no token holds byte {bytes([missing])!r}, which {grammar!r} needs",
            remedy="use a tokenizer with byte fallback, or narrow the grammar to what it can spell",
        )
    if native.is_searched and distance > 0:
        few = native_limits(replace(limits, distance_steps=min(limits.distance_steps, _MAX_SEARCH_STEPS)))
        if not _native.Matcher(native.limited(few)).shortest_completion():
            raise _unsatisfiable(grammar, "more items or names that must differ than there are")
    return Constraint(grammar, vocabulary, limits, engine=engine, native=native, shortest_bytes=distance), size


def _unsatisfiable(grammar: Grammar, culprits: str) -> UnsatisfiableGrammar:
    evidence, remedy = f"the term is {grammar!r}", f"look for {culprits}"
    return UnsatisfiableGrammar("grammar", "no string belongs to it", evidence=evidence, remedy=remedy)


def _check_spelling(constraint: Constraint) -> None:
    """Refuse a grammar of which the tokens can spell no member, naming the byte that is missing."""
    matcher = constraint.matcher()
    if matcher.min_tokens() is not None:
        return
    known = set(b"".join(constraint.vocabulary.tokens))
    done = bytearray()
    for symbol in matcher.shortest_completion():
        if symbol >= 0 and symbol not in known:
            break
        done.append(max(symbol, 0))
    missing = matcher.shortest_completion()[len(done)] if len(done) < len(matcher.shortest_completion()) else None
    raise VocabularyError(
        "vocabulary",
        "the tokens can spell no member of the grammar",
        evidence=(
            f"no token holds byte {bytes([missing])!r}, needed after {bytes(done)!r}"
            if missing is not None and missing >= 0
            else f"no sequence of tokens spells {bytes(done)!r} or any other member"
        ),
        remedy="use a tokenizer with byte fallback, or narrow the grammar to what it can spell",
    )
