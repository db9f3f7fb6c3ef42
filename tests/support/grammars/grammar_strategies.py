"""Hypothesis strategies for terms of the grammar IR and for vocabularies."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from structgen.grammar import nodes as ir
from structgen.grammar.nodes import Grammar
from structgen.grammar.nodes.description import Described, Description

__all__ = ["json_terms", "regular_terms", "rule_terms", "text_terms", "vocabularies"]

RULE_NAMES = ("r0", "r1", "r2")


def vocabularies(letters: bytes, *, max_length: int = 4, max_extra: int = 12) -> st.SearchStrategy[list[bytes]]:
    """Tokens: EOS at 0, every letter on its own (so that nothing is unspellable), and some longer ones.

    Several ids may have the same bytes.
    """
    word = st.lists(st.sampled_from(list(letters)), min_size=1, max_size=max_length).map(bytes)
    single = [bytes([letter]) for letter in letters]
    return st.lists(word, max_size=max_extra).map(lambda words: [b"", *single, *words])


def regular_terms(letters: bytes, *, max_leaves: int = 8, boolean: bool = True) -> st.SearchStrategy[Grammar]:
    """Terms without rules over ``letters``; with intersections and complements if ``boolean``."""
    operators = [_sequences, _choices, _repeats, _permutations, _wrapped, _closed]
    if boolean:
        operators += [_intersections, _complements]
    return st.recursive(
        _byte_leaves(letters),
        lambda inner: st.one_of([operator(inner) for operator in operators]),
        max_leaves=max_leaves,
    )


def text_terms(letters: str, *, max_leaves: int = 5) -> st.SearchStrategy[Grammar]:
    """Regular terms of texts: characters and classes of characters, some of several bytes."""
    characters = st.sampled_from(letters)
    pairs = st.tuples(characters, characters).map(lambda pair: (ord(min(pair)), ord(max(pair))))
    leaves = st.one_of(characters.map(ir.literal), st.lists(pairs, max_size=3).map(ir.CharClass))
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            _sequences(inner),
            _choices(inner),
            _repeats(inner),
            _permutations(inner),
            _intersections(inner),
            _complements(inner),
        ),
        max_leaves=max_leaves,
    )


def json_terms(letters: str, *, max_leaves: int = 5) -> st.SearchStrategy[Grammar]:
    """Terms with JSON strings whose decoded texts are regular, between brackets, commas and repetitions."""
    strings = text_terms(letters, max_leaves=3).map(ir.JsonString)
    leaves = st.one_of(strings, st.sampled_from([ir.literal(text) for text in ("[", "]", ",", "1", '"')]))
    return st.recursive(
        leaves,
        lambda inner: st.one_of(_sequences(inner), _choices(inner), _repeats(inner), _permutations(inner)),
        max_leaves=max_leaves,
    )


@st.composite
def rule_terms(draw: st.DrawFn, letters: bytes, *, max_leaves: int = 5, nested: bool = False) -> Grammar:
    """Up to three rules that refer to each other in any way: left, hidden left, nullable cycles, ambiguity.

    Permutations begin with a byte, since those that start with left recursion are refused.

    If ``nested``, rules may stand inside rules, hide the names of outer ones, or be closed and shared. Captures stand
    only around terms without references, since one that starts with left recursion is refused.
    """
    names = RULE_NAMES[: draw(st.integers(1, len(RULE_NAMES)))]
    references = st.sampled_from(names).map(ir.Reference)
    leaves = st.one_of(references, _byte_leaves(letters), regular_terms(letters, max_leaves=2))
    if nested:
        leaves |= rule_terms(letters, max_leaves=2).map(ir.Shared)
    operators = [_sequences, _choices, _repeats, _after(letters), *([_inner_rules] if nested else [])]
    bodies = st.recursive(
        leaves, lambda inner: st.one_of([operator(inner) for operator in operators]), max_leaves=max_leaves
    )
    return ir.Rules([(name, draw(bodies)) for name in names], draw(references))


def _inner_rules(inner: st.SearchStrategy[Grammar]) -> st.SearchStrategy[Grammar]:
    """Inner rules that shadow the first outer rule; other names refer to the outer rules."""
    name = RULE_NAMES[0]
    return st.builds(lambda body, start: ir.Rules([(name, body)], start), inner, inner | st.just(ir.Reference(name)))


def _byte_leaves(letters: bytes) -> st.SearchStrategy[Grammar]:
    bytes_ = st.sampled_from(list(letters))
    words = st.lists(bytes_, max_size=3).map(lambda word: ir.Literal(bytes(word)))
    classes = st.lists(bytes_, max_size=3).map(lambda chosen: ir.ByteClass((b, b) for b in chosen))
    return st.one_of(words, classes)


def _sequences(inner: st.SearchStrategy[Grammar]) -> st.SearchStrategy[Grammar]:
    return st.lists(inner, max_size=3).map(ir.Sequence)


def _choices(inner: st.SearchStrategy[Grammar]) -> st.SearchStrategy[Grammar]:
    return st.lists(inner, max_size=3).map(ir.Choice)


def _repeats(inner: st.SearchStrategy[Grammar]) -> st.SearchStrategy[Grammar]:
    def bounded(item: Grammar, least: int, more: int | None) -> Grammar:
        return ir.Repeat(item, least, None if more is None else least + more)

    return st.builds(bounded, inner, st.integers(0, 3), st.none() | st.integers(0, 3))


def _permutations(inner: st.SearchStrategy[Grammar]) -> st.SearchStrategy[Grammar]:
    """Up to four items in any order, sometimes with extra items, separators and bounds."""

    def bounded(
        required: list[Grammar],
        optional: list[Grammar],
        rest: Grammar,
        separator: Grammar,
        least: int,
        more: int | None,
    ) -> Grammar:
        most = None if more is None else max(least, len(required)) + more
        return ir.Permutation(required, optional, rest, separator, least, most)

    items = st.lists(inner, max_size=2)
    least, more = st.sampled_from([0, 0, 1, 2, 3]), st.none() | st.integers(0, 2)
    return st.builds(bounded, items, items, st.just(ir.EMPTY) | inner, st.just(ir.EPSILON) | inner, least, more)


def _after(letters: bytes) -> Callable[[st.SearchStrategy[Grammar]], st.SearchStrategy[Grammar]]:
    """Permutations whose extra items and separators begin with a byte."""
    byte = st.sampled_from(list(letters)).map(lambda letter: ir.Literal(bytes([letter])))
    return lambda inner: _permutations(st.builds(lambda head, tail: ir.Sequence((head, tail)), byte, inner))


def _wrapped(inner: st.SearchStrategy[Grammar]) -> st.SearchStrategy[Grammar]:
    return inner.map(lambda item: ir.Capture("part", item))


def _closed(inner: st.SearchStrategy[Grammar]) -> st.SearchStrategy[Grammar]:
    """Terms that may stand only around a term without free references."""
    return inner.map(ir.Shared) | inner.map(lambda item: Described(item, Description("test")))


def _intersections(inner: st.SearchStrategy[Grammar]) -> st.SearchStrategy[Grammar]:
    return st.lists(inner, max_size=2).map(ir.Intersection)


def _complements(inner: st.SearchStrategy[Grammar]) -> st.SearchStrategy[Grammar]:
    return inner.map(ir.Complement)
