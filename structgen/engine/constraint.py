"""A grammar compiled against a vocabulary: immutable, shared by any number of matchers."""

from __future__ import annotations

import sys
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Final
from weakref import ref

from structgen_kernels import _native

from structgen.engine.arguments import wrong_grammar, wrong_limits, wrong_vocabulary
from structgen.engine.lowering import Engine, lower, native_limits, program_of, shared_engine
from structgen.engine.matcher import Matcher
from structgen.engine.report import Report, entries_of, report_of
from structgen.engine.vocabulary import Vocabulary
from structgen.errors import (
    GrammarError,
    LimitExceeded,
    StructgenError,
    UnsatisfiableGrammar,
    VocabularyError,
    number_of,
)
from structgen.grammar.analysis import unending_rules
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Budget, Distinct, Grammar, Label, postorder
from structgen.grammar.nodes.description import Described
from structgen.grammar.printer import to_text
from structgen.progress import watched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from os import PathLike

__all__ = ["Constraint", "check_budgets", "compile", "compile_together", "refuse_budgets"]


def check_budgets(constraint: Constraint, compiled: Callable[[Grammar], Constraint]) -> None:
    """Check that some token sequence keeps all token budgets; ``compiled`` compiles a part for the same vocabulary.

    Raises:
        UnsatisfiableGrammar: none does; the error names a part whose shortest string takes more tokens than its budget.
        GrammarError: a budget is inside values that must differ or labels that must decode, or the other way round.
    """
    if constraint.native.has_budgets_in_scopes:
        raise GrammarError(
            "grammar",
            "a token budget is inside an array or object whose items must differ, or inside a label that must decode, "
            "or one of these is inside a part with a token budget",
            evidence=_nested(constraint.grammar),
            remedy="bound that part in characters, move the budget out of it, or remove uniqueItems and host name "
            "formats",
        )
    if constraint.native.is_completable():
        return
    evidence = "every string exceeds some budget"
    for node in postorder(constraint.grammar):
        if isinstance(node, Budget) and node.tokens is not None:
            try:
                needed = compiled(node.item).min_tokens()
            except StructgenError:  # the part has free references, or its own budgets cannot be met
                continue
            if needed > node.tokens:
                part = to_text(node.item, max_length=200)
                takes = f"takes {number_of(needed, 'token')} of this vocabulary"
                evidence = f"the shortest string of {part} {takes}; its budget is {node.tokens}"
                break
    raise UnsatisfiableGrammar(
        "grammar",
        "no token sequence keeps its budgets",
        evidence=evidence,
        remedy="give the part a larger budget, or bound it in characters",
    )


def _nested(grammar: Grammar) -> str:
    """Name the part where budgets and scopes are nested, if it can be seen without following references."""
    inside: dict[int, tuple[bool, bool]] = {}  # has budgets, has scopes
    for node in postorder(grammar):
        below = [inside[id(child)] for child in node.children]
        has_budgets, has_scopes = any(one for one, _ in below), any(one for _, one in below)
        is_budget, is_scope = isinstance(node, Budget) and node.tokens is not None, isinstance(node, Distinct | Label)
        if (is_budget and has_scopes) or (is_scope and has_budgets):
            return f"found in {to_text(node, max_length=200)}"
        inside[id(node)] = has_budgets or is_budget, has_scopes or is_scope
    return "one refers to the other through rules"


def refuse_budgets(constraint: Constraint, subject: str) -> None:
    """Refuse token budgets where tokens are not counted; ``subject`` is what does not count them.

    Raises:
        GrammarError: the grammar has such budgets.
    """
    if constraint.native.has_budgets:
        raise GrammarError(
            subject,
            "the grammar has token budgets, and tokens are not generated from left to right here",
            remedy="bound that part in characters, or decode with an autoregressive model",
        )


_DEFAULT_LIMITS: Final = Limits()
_MAX_SEARCH_STEPS: Final = 20_000
"""Steps of the search for one valid string if values must differ; it succeeds or gives up early."""
_BYTES_PER_BYTE: Final = 8
"""Estimated memory of a constraint and its grammar, for each byte of the flattened grammar."""


class Constraint:
    """Which token sequences over ``vocabulary`` spell a string of ``grammar``.

    Immutable and safe to share between threads; made by :func:`compile`.  Automaton states and mask rows are built
    when they are first reached, so the cost of compiling depends on the size of the grammar, not of its language.
    """

    __slots__ = (
        "__weakref__",
        "_grammar",
        "_is_loaded",
        "_limits",
        "_min_tokens",
        "_report",
        "_vocabulary",
        "engine",
        "native",
        "shortest_bytes",
    )

    def __init__(
        self,
        grammar: Grammar,
        vocabulary: Vocabulary,
        limits: Limits,
        *,
        engine: Engine,
        native: _native.Constraint,
        shortest_bytes: int,
    ) -> None:
        self._grammar = grammar
        self._is_loaded = False
        self._vocabulary = vocabulary
        self._limits = limits
        self.engine = engine
        self.native = native
        if engine.is_shared:
            native.set_elsewhere(_Elsewhere(self))
        self.shortest_bytes = shortest_bytes
        self._report: Report | None = None
        self._min_tokens: int | None = None

    @property
    def grammar(self) -> Grammar:
        """The grammar that was compiled; that of a loaded constraint is read on first use."""
        grammar = self._grammar
        return grammar.item if self._is_loaded and isinstance(grammar, Described) else grammar

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary that the grammar was compiled for."""
        return self._vocabulary

    @property
    def limits(self) -> Limits:
        """The limits of the constraint and its matchers."""
        return self._limits

    @property
    def report(self) -> Report:
        """What is enforced, and how; made on first use, with the present number of states."""
        if self._report is None:
            self._report = report_of(self)
        return replace(self._report, states=self.native.states_used)

    @property
    def has_temperatures(self) -> bool:
        """Whether parts of the grammar have their own sampling temperature (``Tempered``)."""
        return self.native.has_temperatures

    def matcher(self) -> Matcher:
        """Return a Matcher at the start of an output."""
        matcher = Matcher(self.native)
        matcher._constraint = self
        return matcher

    def min_tokens(self) -> int:
        """Return the number of tokens of the shortest valid output, EOS not counted.

        Exact up to ``limits.distance_steps``; beyond that, the smallest number of tokens for the string that is
        shortest in bytes.
        """
        if self._min_tokens is None:
            count = self.matcher().min_tokens()
            if count is None:  # compile() refuses grammars that no tokens can spell
                raise VocabularyError(
                    "vocabulary",
                    "no sequence of tokens spells a string of the grammar",
                    remedy="use a tokenizer with byte fallback",
                )
            self._min_tokens = count
        return self._min_tokens

    def nearest_tokens(self, matcher: Matcher, subject: bytes, most: int) -> tuple[tuple[int, bytes], ...]:
        """Return up to ``most`` allowed tokens that share the longest prefix with ``subject``."""
        from structgen.engine.mask import allowed_ids, empty_masks  # imports numpy, which compiling does not need

        masks = empty_masks(self._vocabulary)
        matcher.fill_mask(masks)
        tokens = self._vocabulary.tokens
        allowed = [(token, tokens[token]) for token in allowed_ids(masks[0]).tolist() if tokens[token]]

        def rank(item: tuple[int, bytes]) -> tuple[int, int, int]:
            shared = 0
            for ours, theirs in zip(item[1], subject, strict=False):
                if ours != theirs:
                    break
                shared += 1
            return -shared, len(item[1]), item[0]

        return tuple(sorted(allowed, key=rank)[:most])

    def terms(self) -> int:
        """Return the number of terms of an engine with only this grammar.  Costs a compilation."""
        return self.alone().engine.native.statistics["terms"]

    def alone(self) -> Constraint:
        """Return the same constraint in an engine of its own.  Costs a compilation."""
        return _bind(self._grammar, self._vocabulary, self._limits, Engine(self._vocabulary))[0]

    @property
    def engine_bytes(self) -> int:
        """Memory of the engine, which most constraints on one vocabulary share."""
        return self.engine.native.memory_bytes

    def save(self, path: str | PathLike[str]) -> None:
        """Write the constraint to a file, from which ``load`` does not have to compile it: see ``engine/saved.py``.

        An existing file is replaced atomically: a reader sees the old content or the new.

        Raises:
            OSError: the file cannot be written.
            GrammarError: the grammar is too large for a file.
        """
        from structgen.engine.saved import write_constraint

        vocabulary, limits = self._vocabulary, self._limits
        program = program_of(self._grammar, vocabulary, limits)
        write_constraint(path, self.grammar, program, limits, digest=vocabulary.digest, size=vocabulary.size)

    @staticmethod
    def load(path: str | PathLike[str], vocabulary: Vocabulary, *, limits: Limits | None = None) -> Constraint:
        """Read a constraint that ``save`` wrote.

        Its grammar equals the one that was saved, with the entries of its report, but without the Python type of a
        schema: values are plain JSON.

        Args:
            path: the file.
            vocabulary: one that equals that of the saved constraint.
            limits: replace those of the saved constraint; for files that are not trusted.

        Raises:
            OSError: the file cannot be read.
            GrammarError: it is another file, damaged or cut, or a newer version wrote it.
            VocabularyError: the constraint was saved for another vocabulary.
            LimitExceeded, UnsatisfiableGrammar: as ``compile``.
            ArgumentError: an argument has the wrong type.
        """
        from structgen.engine.saved import read_constraint

        if not isinstance(vocabulary, Vocabulary):
            raise wrong_vocabulary("Constraint.load", vocabulary)
        if not (limits is None or isinstance(limits, Limits)):
            raise wrong_limits("Constraint.load", limits)
        saved, bounds = read_constraint(path, limits, digest=vocabulary.digest, size=vocabulary.size)
        constraint = compile(saved, vocabulary, limits=bounds)
        constraint._is_loaded = isinstance(saved, Described) and saved.plain is not None
        return constraint

    def __copy__(self) -> Constraint:
        return self

    def __deepcopy__(self, memo: object) -> Constraint:
        return self

    def __reduce__(self) -> tuple[Callable[..., Constraint], tuple[Grammar, Vocabulary, Limits]]:
        """A pickle holds the grammar, the vocabulary and the limits; unpickling compiles them."""
        return _compiled, (self.grammar, self._vocabulary, self._limits)

    def __repr__(self) -> str:
        return f"Constraint({self.grammar!r}, {self._vocabulary!r})"


def _compiled(grammar: Grammar, vocabulary: Vocabulary, limits: Limits) -> Constraint:
    return compile(grammar, vocabulary, limits=limits)


def compile(grammar: Grammar, vocabulary: Vocabulary, *, limits: Limits | None = None) -> Constraint:
    """Compile a grammar for a vocabulary.

    Raises:
        UnsatisfiableGrammar: the grammar matches no string, or no token sequence keeps its budgets.
        VocabularyError: the tokens cannot spell any string of the grammar; the error names the missing byte.
        LimitExceeded: a bound of ``limits`` was reached.
        GrammarError: the grammar is not closed, or not regular where it must be.
        ArgumentError: an argument has the wrong type: a schema, a tokenizer.
    """
    if not isinstance(grammar, Grammar):
        raise wrong_grammar("compile", grammar, expected="a Grammar")
    if not isinstance(vocabulary, Vocabulary):
        raise wrong_vocabulary("compile", vocabulary)
    limits = limits if limits is not None else _DEFAULT_LIMITS
    if not isinstance(limits, Limits):
        raise wrong_limits("compile", limits)
    engine = shared_engine(vocabulary)
    key = (id(grammar), id(limits))  # a cached constraint refers to both objects, so their ids are not reused
    constraint = vocabulary.constraints.get(key)
    if constraint is not None and (constraint.engine is engine or not constraint.engine.is_shared):
        return constraint
    began = perf_counter()
    with watched("compile the grammar"):
        constraint, size = _bind(grammar, vocabulary, limits, engine)
    if constraint.native.has_budgets:
        check_budgets(constraint, lambda part: compile(part, vocabulary, limits=limits))
    if not engine.byte_complete:
        _check_spelling(constraint)
    if not constraint.engine.is_shared:
        vocabulary.constraints.put(key, constraint, _BYTES_PER_BYTE * size + constraint.engine_bytes)
    elif vocabulary.engine is engine:  # else another thread has replaced the engine, and the cache would keep it alive
        vocabulary.constraints.put(key, constraint, _BYTES_PER_BYTE * size)
    if "logging" in sys.modules:  # else no handler is set up, and the import takes longer than many compilations
        _log_compiled(constraint, grammar, 1000 * (perf_counter() - began), size)
    return constraint


def _log_compiled(constraint: Constraint, grammar: Grammar, milliseconds: float, size: int) -> None:
    from logging import DEBUG

    from structgen.log import logger

    if logger.isEnabledFor(DEBUG):
        logger.debug(
            "compiled %r in %.2f ms: %d bytes flat, %d states, engine of %d bytes",
            grammar,
            milliseconds,
            size,
            constraint.native.states_used,
            constraint.engine_bytes,
        )


def compile_together(grammars: Iterable[Grammar], vocabulary: Vocabulary, limits: Limits) -> list[Constraint]:
    """Compile grammars for a vocabulary in one engine of their own.

    Their matchers have the same ``state_id`` for equal continuations.

    Raises:
        UnsatisfiableGrammar, VocabularyError, LimitExceeded, GrammarError: as ``compile``.
    """
    engine = Engine(vocabulary)
    return [_bind(grammar, vocabulary, limits, engine)[0] for grammar in grammars]


class _Elsewhere:
    """Moves a constraint to an engine of its own; called by the native constraint, which it must not keep alive."""

    __slots__ = ("_constraint",)

    def __init__(self, constraint: Constraint) -> None:
        self._constraint = ref(constraint)

    def __call__(self) -> _native.Constraint | None:
        """Compile the grammar again; None if that fails, or the constraint no longer exists."""
        constraint = self._constraint()
        if constraint is None:
            return None
        try:
            (native, *_), constraint.engine = lower(
                constraint._grammar, Engine(constraint.vocabulary), constraint.vocabulary, constraint.limits
            )
        except LimitExceeded:  # within the limits before: the shared engine had done part of the work
            return None
        return native


def _bind(grammar: Grammar, vocabulary: Vocabulary, limits: Limits, engine: Engine) -> tuple[Constraint, int]:
    """Lower a grammar into an engine; return its constraint and the size of the flattened grammar."""
    (native, distance, missing, size), engine = lower(grammar, engine, vocabulary, limits)
    if native is None or distance is None:
        if missing is None:
            culprits = "an empty choice, contradicting intersections, look-aheads that what follows never meets"
            raise _unsatisfiable(grammar, f"{culprits}, or rules that never end")
        raise _unspellable(f"no token holds byte {bytes([missing])!r}, which {grammar!r} needs")
    if native.is_searched and distance > 0:
        bounds = replace(limits, distance_steps=min(limits.distance_steps, _MAX_SEARCH_STEPS))
        few = native.limited(native_limits(bounds))
        if engine.is_shared:
            few.set_elsewhere(lambda: lower(grammar, Engine(vocabulary), vocabulary, limits)[0][0])
        if not _native.Matcher(few).shortest_completion():
            raise _unsatisfiable(grammar, "more items or names that must differ than there are values")
    return Constraint(grammar, vocabulary, limits, engine=engine, native=native, shortest_bytes=distance), size


def _unsatisfiable(grammar: Grammar, culprits: str) -> UnsatisfiableGrammar:
    rules = unending_rules(grammar)
    if rules:
        places = {entry.keyword: entry.where for entry in entries_of(grammar)[1]}
        named = [f"{name} ({places[f'rule {name}']})" if f"rule {name}" in places else name for name in rules]
        if len(rules) > 1:
            listed = f"{', '.join(named[:-1])} and {named[-1]}"
            evidence = f"rules {listed} only refer to each other, so that none of them can end"
            remedy = "give one of them an alternative that needs none of them"
        else:
            evidence = f"rule {named[0]} refers to itself in every alternative, so that it cannot end"
            remedy = "give it an alternative that does not"
    else:
        evidence, remedy = f"the term is {grammar!r}", f"look for {culprits}"
    return UnsatisfiableGrammar("grammar", "it matches no string", evidence=evidence, remedy=remedy)


def _check_spelling(constraint: Constraint) -> None:
    """Refuse a grammar if the tokens can spell none of its strings, and name the missing byte."""
    matcher = constraint.matcher()
    if matcher.min_tokens() is not None:
        return
    available = set(b"".join(constraint.vocabulary.tokens))
    shortest = matcher.shortest_completion()
    done = bytearray()
    for symbol in shortest:
        if symbol >= 0 and symbol not in available:
            break
        done.append(max(symbol, 0))
    missing = shortest[len(done)] if len(done) < len(shortest) else None
    if missing is not None and missing >= 0:
        raise _unspellable(f"no token holds byte {bytes([missing])!r}, needed after {bytes(done)!r}")
    raise _unspellable(f"no sequence of tokens spells {bytes(done)!r} or any other string")


def _unspellable(evidence: str) -> VocabularyError:
    return VocabularyError(
        "vocabulary",
        "the tokens can spell no string of the grammar",
        evidence=evidence,
        remedy="use a tokenizer with byte fallback, or restrict the grammar to bytes that the tokens have",
    )
