"""Strings of a grammar up to a length, counted exactly and sampled uniformly.

Characters that the grammar treats alike are one kind, represented by one character.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final, Literal as Literal_, TypeAlias, final

from structgen.engine.analysis.byte_graph import byte_graphs, byte_vocabulary, string_language
from structgen.engine.analysis.counting import MAX_STEPS, DerivationCounter, LengthCounts, shortest_runs
from structgen.engine.analysis.edge_list import Transitions, deterministic_transitions, transitions_of
from structgen.engine.constraint import compile
from structgen.errors import GrammarError, LimitExceeded, UnsatisfiableGrammar
from structgen.grammar import nodes as ir
from structgen.grammar.algebra import with_children
from structgen.grammar.nodes import Grammar, postorder

if TYPE_CHECKING:
    from collections.abc import Container

    from structgen.engine.constraint import Constraint
    from structgen.grammar.limits import Limits

__all__ = ["Alphabet", "Characters", "UniformStrings"]

_LARGEST: Final = 0x10FFFF
_WIDTHS: Final = ((0x80, 0x7FF, 2), (0x800, 0xFFFF, 3), (0x10000, _LARGEST, 4))
"""First code point, last code point and number of UTF-8 bytes."""
_LEADS: Final = {2: range(0xC2, 0xE0), 3: (*range(0xE1, 0xED), 0xEE, 0xEF), 4: range(0xF1, 0xF5)}
"""First bytes that may be followed by bytes 0x80, by the number of bytes of the character."""
_HIGH: Final = frozenset(range(0x80, 0x100))
_NOT_BY_CHARACTERS: Final = (ir.JsonString, ir.Label, ir.Distinct, ir.Shared)
"""Terms that may distinguish characters that all classes treat alike."""


@final
class Characters:
    """A grammar over fewer characters, with the number of characters that each represents.

    Beyond ASCII, characters of equal length that no class and no literal distinguishes are one *kind*, and the grammar
    is rewritten with one representative for each kind: names in all scripts then need a few states instead of
    thousands.  Nothing is rewritten if a term may look at characters in other ways, or there are more kinds than
    possible representatives.

    Replacing representatives independently maps the strings of the new grammar onto those of the old one: union,
    concatenation, repetition, intersection and complement commute with it.

    Attributes:
        grammar: the grammar over representatives.
        ways: the bytes of its strings, with the number of ways to read each; for the first byte of a representative,
            the number of characters that it represents.
    """

    def __init__(self, grammar: Grammar, allowed: Container[int]) -> None:
        self.grammar = grammar
        self.ways = {byte: 1 for byte in range(256) if byte in allowed}
        self._kinds: dict[int, _Kind] = {}
        high = _HIGH & self.ways.keys()
        if not high:
            self.grammar = _rewritten(grammar, _in_ascii, lambda text: text)
        elif len(high) == len(_HIGH):
            self._introduce(grammar)

    def replaced(self, text: Iterable[int], rng: random.Random) -> list[int]:
        """Return ``text`` with each representative replaced by a uniform sample of its kind."""
        symbols: list[int] = []
        rest = iter(text)
        for symbol in rest:
            kind = self._kinds.get(symbol)
            if kind is None:
                symbols.append(symbol)
            else:
                symbols += kind.draw(rng).encode()
                for _ in range(kind.width - 1):
                    next(rest)
        return symbols

    def _introduce(self, grammar: Grammar) -> None:
        nodes = list(postorder(grammar))
        if any(isinstance(node, _NOT_BY_CHARACTERS) for node in nodes):
            return
        if any(isinstance(node, ir.ByteClass) and node.ranges and node.ranges[-1][1] >= 0x80 for node in nodes):
            return
        literals = {node.data for node in nodes if isinstance(node, ir.Literal) and not node.data.isascii()}
        try:
            spelled = sorted({ord(char) for data in literals for char in data.decode() if ord(char) >= 0x80})
        except UnicodeDecodeError:
            return
        classes = {node.ranges for node in nodes if isinstance(node, ir.CharClass)} | {
            ((code, code),) for code in spelled
        }
        atoms = _atoms(classes, has_others=any(isinstance(node, ir.Complement) for node in nodes))
        by_kind: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for low, high, width, mask in atoms:
            by_kind[width, mask].append((low, high))
        leads = {width: iter(found) for width, found in _LEADS.items()}
        representative: dict[tuple[int, int], int] = {}
        kinds: dict[int, _Kind] = {}
        for (width, mask), ranges in by_kind.items():
            lead = next(leads[width], None)
            if lead is None:
                return
            representative[width, mask] = ord(bytes([lead, *[0x80] * (width - 1)]).decode())
            kinds[lead] = _Kind(width, ranges)
        begins = [low for low, _, _, _ in atoms]

        def new_ranges(low: int, high: int) -> list[tuple[int, int]]:
            index = max(bisect_right(begins, low) - 1, 0)
            codes = set()
            while index < len(atoms) and atoms[index][0] <= high:
                first, last, width, mask = atoms[index]
                if last >= low and first >= 0x80:
                    codes.add(representative[width, mask])
                index += 1
            return _in_ascii(low, high) + [(code, code) for code in codes]

        def new_text(text: bytes) -> bytes:
            if text.isascii():
                return text
            return "".join(
                char if char < "\x80" else chr(new_ranges(ord(char), ord(char))[0][0]) for char in text.decode()
            ).encode()

        self.grammar = _rewritten(grammar, new_ranges, new_text)
        self._kinds = kinds
        ascii_ = {byte: 1 for byte in self.ways if byte < 0x80}
        self.ways = ascii_ | {lead: kind.count for lead, kind in kinds.items()} | {0x80: 1}


@final
class _Kind:
    """Characters of equal length that a grammar treats alike."""

    def __init__(self, width: int, ranges: Sequence[tuple[int, int]]) -> None:
        self.width = width
        self._ranges = ranges
        self._ends = list(accumulate(high - low + 1 for low, high in ranges))

    @property
    def count(self) -> int:
        return self._ends[-1]

    def draw(self, rng: random.Random) -> str:
        index = rng.randrange(self.count)
        number = bisect_right(self._ends, index)
        return chr(self._ranges[number][1] + 1 + index - self._ends[number])


def _in_ascii(low: int, high: int) -> list[tuple[int, int]]:
    return [(low, min(high, 0x7F))] if low < 0x80 else []


def _atoms(classes: Iterable[tuple[tuple[int, int], ...]], *, has_others: bool) -> list[tuple[int, int, int, int]]:
    """Return the largest ranges beyond ASCII that no class divides: first, last, number of bytes, classes as bits."""
    changes: dict[int, int] = defaultdict(int)
    for low, high, _ in _WIDTHS:
        changes[low] ^= 0
        changes[high + 1] ^= 0
    changes[ir.SURROGATES[0]] ^= 0
    changes[ir.SURROGATES[1] + 1] ^= 0
    mask = 0
    for number, ranges in enumerate(classes):
        for low, high in ranges:
            if high >= 0x80:
                changes[max(low, 0x80)] ^= 1 << number
                changes[high + 1] ^= 1 << number
    atoms = []
    ordered = sorted(changes)
    for low, end in pairwise(ordered):
        mask ^= changes[low]
        if (mask or has_others) and not ir.SURROGATES[0] <= low <= ir.SURROGATES[1]:
            width = next(width for _, last, width in _WIDTHS if low <= last)
            atoms.append((low, end - 1, width, mask))
    return atoms


def _rewritten(
    grammar: Grammar, new_ranges: Callable[[int, int], Iterable[tuple[int, int]]], new_text: Callable[[bytes], bytes]
) -> Grammar:
    """Return the grammar with other characters in its classes and literals, except in JSON strings and labels."""
    made: dict[int, Grammar] = {}
    classes: dict[tuple[tuple[int, int], ...], ir.CharClass] = {}
    for node in postorder(grammar, known=lambda node: isinstance(node, (ir.JsonString, ir.Label))):
        if isinstance(node, ir.CharClass) and node.ranges and node.ranges[-1][1] >= 0x80:
            new = classes.get(node.ranges)
            if new is None:
                new = ir.CharClass([each for low, high in node.ranges for each in new_ranges(low, high)])
                classes[node.ranges] = new
            made[id(node)] = new
        elif isinstance(node, ir.Literal):
            text = new_text(node.data)
            made[id(node)] = node if text == node.data else ir.Literal(text)
        else:
            made[id(node)] = with_children(node, [made.get(id(child), child) for child in node.children])
    return made.get(id(grammar), grammar)


Alphabet: TypeAlias = Literal_["any", "printable"] | bytes
"""The bytes that strings may have: any, printable ASCII with tab and line feed, or the given ones."""

_PRINTABLE: Final = bytes([0x09, 0x0A, *range(0x20, 0x7F)])
_MAX_REJECTED: Final = 2_000
"""Rejected samples in a row before a deterministic automaton is used instead."""
_MAX_NODES: Final = 50_000
_STATES_PER_NODE: Final = 40
"""A node of Python takes as long as this many states of the engine."""


@final
class UniformStrings:
    """The strings of a grammar of up to ``max_bytes`` bytes.

    A special token counts as one byte, and is written by its name.

    Each rule is a deterministic automaton that may call others.  The runs of this network are counted by length and
    sampled uniformly.  If a string may have several runs, a sample is accepted with probability 1 / (runs of the
    string), which makes it uniform over strings; if too many are rejected, strings are counted over the states of the
    engine, which are deterministic.

    Source: M. Goldwurm, B. Palano, M. Santini, "On the circuit complexity of random generation problems for regular and
    context-free languages" (2001, STACS), for rejection by the degree of ambiguity.

    >>> from structgen.frontends.regex import regex
    >>> members = UniformStrings(regex("a?b{2,}"), 4)
    >>> [members.count(length) for length in range(5)]
    [0, 0, 1, 2, 2]
    >>> members.draw(3, seed=2)
    [b'bb', b'abb', b'bbbb']
    """

    def __init__(
        self, grammar: Grammar, max_bytes: int, *, alphabet: Alphabet = "any", limits: Limits | None = None
    ) -> None:
        """Make the automaton.

        Args:
            grammar: a closed term.
            max_bytes: the length of the longest strings.
            alphabet: the bytes that they may have.
            limits: limits of the compilation; if they are given, ``steps`` bounds counting too, and ``states`` the
                deterministic automaton; a node counts as 40 of them.

        Raises:
            UnsatisfiableGrammar: no string has at most this length and only these bytes.
            LimitExceeded: the automaton has too many states.
            GrammarError: as ``compile`` and ``string_language``.
        """
        if max_bytes < 0:
            raise ValueError(f"UniformStrings: max_bytes is {max_bytes}; give 0 or more")
        self._grammar = grammar = string_language(grammar)
        self._limits = limits
        self._max_bytes = max_bytes
        self._max_steps = MAX_STEPS if limits is None else min(MAX_STEPS, limits.steps)
        self._max_nodes = _MAX_NODES if limits is None else min(_MAX_NODES, limits.states // _STATES_PER_NODE)
        self._alphabet = frozenset(_bytes_of(alphabet))
        self._characters = Characters(grammar, self._alphabet)
        self._constraint = self._compiled(grammar)
        self._has_scope = self._constraint.native.has_scope
        self._transitions: Transitions | None = None
        try:
            self._transitions = transitions_of(self._constraint, self._characters.ways)
        except LimitExceeded:
            if self._has_scope:
                raise
        self._made: dict[str, LengthCounts] = {}
        is_exact = self._transitions is None or self._transitions.is_unambiguous
        self._are_runs_members = is_exact and not self._has_scope
        transitions = self._transitions if self._transitions is not None else self._determined().transitions
        if shortest_runs(transitions)[0][0] > max_bytes:
            raise self._unsatisfiable()

    def count(self, length: int) -> int:
        """Return the number of strings of exactly ``length`` bytes.

        Raises:
            ValueError: ``length`` is above ``max_bytes``.
            LimitExceeded: the grammar is ambiguous, and a deterministic automaton has too many states.
            GrammarError: strings have values that must differ from each other, and can be sampled but not counted.
        """
        if not 0 <= length <= self._max_bytes:
            raise ValueError(f"count: the length {length} is not within 0..{self._max_bytes}")
        return self._determined().total(length)

    def draw(
        self,
        count: int,
        seed: int = 0,
        *,
        exactly: int | None = None,
        lengths: Literal_["uniform", "even"] = "uniform",
        among: Literal_["strings", "shapes"] = "strings",
    ) -> list[bytes]:
        """Sample strings independently, with replacement; equal arguments give equal strings.

        Args:
            count: how many strings.
            seed: the random seed.
            exactly: their length in bytes.
            lengths: ``"uniform"`` samples uniformly from all strings of up to ``max_bytes``; nearly all are
                about that long; ``"even"`` samples a length first, uniformly from the lengths that occur, then a string
                of that length.
            among: ``"strings"`` samples uniformly from strings; most have many arbitrary characters, because
                each of these multiplies the number of strings.  ``"shapes"`` counts strings as one if they differ only
                in bytes that all states treat alike, and samples these bytes uniformly afterwards; the probability of a
                string with several runs in the network is the average over its runs.

        Raises:
            UnsatisfiableGrammar: no string has ``exactly`` this length.
            LimitExceeded: counting takes too many steps; or too many samples in a row were rejected, and a
                deterministic automaton is too large.
        """
        rng = random.Random(seed)
        samples = []
        counts = self._counts(are_shapes=among == "shapes")
        for _ in range(count):
            text = self._draw(counts, rng, exactly, lengths, _MAX_REJECTED)
            if text is None:
                text = self._draw(self._determined(), rng, exactly, lengths, 1)
            if text is None:
                raise RuntimeError("a sample of a deterministic automaton was rejected")
            samples.append(self._written(self._characters.replaced(text, rng)))
        return samples

    def _compiled(self, grammar: Grammar) -> Constraint:
        vocabulary = byte_vocabulary(grammar)
        try:
            return compile(self._characters.grammar, vocabulary, limits=self._limits)
        except UnsatisfiableGrammar:  # no string has only these characters
            self._constraint = compile(grammar, vocabulary, limits=self._limits)
            raise self._unsatisfiable() from None

    def _draw(
        self, counts: LengthCounts, rng: random.Random, exactly: int | None, lengths: str, tries: int
    ) -> tuple[int, ...] | None:
        """Sample a string; None if ``tries`` samples were rejected."""
        weights = [counts.total(length) for length in range(self._max_bytes + 1)]
        if exactly is not None:
            weights = [weight if length == exactly else 0 for length, weight in enumerate(weights)]
        if not any(weights):
            raise self._unsatisfiable(exactly)
        if lengths == "even":
            sampled = _weighted([min(weight, 1) for weight in weights], rng)
            weights = [weight if length == sampled else 0 for length, weight in enumerate(weights)]
        while tries > 0:
            text = counts.draw(_weighted(weights, rng), rng)
            ways = 1
            if counts.transitions is self._transitions and not self._transitions.is_unambiguous:
                ways = self._runs_of(text)
            if rng.randrange(ways) == 0 and (not self._has_scope or self._is_member(text)):
                return text
            tries -= ways.bit_length()  # strings with many runs are rejected more often
        return None

    def _runs_of(self, text: tuple[int, ...]) -> int:
        return 1 if self._transitions is None else DerivationCounter(self._transitions).count(text)

    def _is_member(self, text: Sequence[int]) -> bool:
        matcher = self._constraint.matcher()
        for symbol in text:
            taken = matcher.accept_bytes(bytes([symbol])) == 1 if symbol >= 0 else matcher.accept(-1 - symbol)
            if not taken:
                return False
        return matcher.is_accepting

    def _counts(self, *, are_shapes: bool) -> LengthCounts:
        """Return the counts of runs."""
        name = "shapes" if are_shapes else "runs"
        if name not in self._made:
            transitions = self._transitions if self._transitions is not None else self._determined().transitions
            self._made[name] = LengthCounts(
                transitions, self._max_bytes, are_shapes=are_shapes, max_steps=self._max_steps
            )
        return self._made[name]

    def _determined(self) -> LengthCounts:
        """Return the counts of strings."""
        if self._transitions is not None and self._are_runs_members:
            return self._counts(are_shapes=False)
        exact = self._made.get("strings")
        if exact is None:
            if self._has_scope:
                raise GrammarError(
                    "strings of a grammar",
                    "the grammar requires values or names that differ from each other, or labels that decode; "
                    "nearly all samples violate that, and such strings cannot be counted",
                    evidence=f"the term is {self._grammar!r}",
                    remedy="remove uniqueItems, repeated='forbidden' and the like, or request other lengths",
                )
            (graph,) = byte_graphs(self._characters.grammar, limits=self._limits)
            transitions = deterministic_transitions(graph, self._max_bytes, self._characters.ways, self._max_nodes)
            exact = self._made["strings"] = LengthCounts(transitions, self._max_bytes, max_steps=self._max_steps)
        return exact

    def _written(self, text: Sequence[int]) -> bytes:
        special = self._constraint.vocabulary.special
        return b"".join(bytes([symbol]) if symbol >= 0 else special[-1 - symbol].encode() for symbol in text)

    def _unsatisfiable(self, exactly: int | None = None) -> UnsatisfiableGrammar:
        length = f"at most {self._max_bytes} bytes" if exactly is None else f"exactly {exactly} bytes"
        among = "" if len(self._alphabet) == 256 else ", all of the alphabet"
        shortest = self._constraint.shortest_bytes
        remedy = "allow another length"
        if shortest > self._max_bytes:
            remedy = f"allow longer strings, of {shortest} bytes and more"
        elif among:
            remedy = "allow longer strings or any character"
        return UnsatisfiableGrammar(
            "grammar",
            f"no string has {length}{among}",
            evidence=f"the shortest has {shortest} bytes",
            remedy=remedy,
        )


def _bytes_of(alphabet: Alphabet) -> bytes:
    if isinstance(alphabet, bytes):
        return alphabet
    return bytes(range(256)) if alphabet == "any" else _PRINTABLE


def _weighted(weights: Sequence[int], rng: random.Random) -> int:
    """Sample an index with probability exactly proportional to its weight."""
    left = rng.randrange(sum(weights))
    for index, weight in enumerate(weights):
        if left < weight:
            return index
        left -= weight
    raise RuntimeError("weights do not add up")
