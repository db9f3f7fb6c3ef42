"""Open slots against enumeration: the matcher, which knows no canvases, judges every filling of every canvas."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest

from structgen.decode.diffusion.mean_field import FREE
from structgen.decode.diffusion.regular import RegularLanguage
from structgen.decode.diffusion.token_automaton import byte_automaton, lift
from structgen.engine import Constraint, Vocabulary, compile
from structgen.frontends.lark import lark
from structgen.frontends.regex import regex
from structgen.grammar.nodes import SpecialToken, sequence
from structgen.methods.infilling.open_canvas import OPEN, OpenLanguage, RegularOpen
from structgen.methods.infilling.open_network import NetworkOpen

MAX_UNKNOWN = 3

BRACKETS = Vocabulary([b"", b"(", b")", b"x", b"()", b")(", b"x)", b"((", b""], eos=[0, 8])
LETTERS = Vocabulary([b"", b"a", b"b", b"ab", b"ba", b"c", b"cab"], eos=[0])

RECURSIVE = [
    'start: "(" start* ")" | "x"',
    'start: start start | "(" start ")" | "x"',
    'start: a+\na: "(" a? ")" | "x" "x"?',
    'start: "(" start "x" | "x" start? ")" | "x"',
    'start: a b\na: "(" a ")" | "x"\nb: "(" b ")" b | ',
    'start: a b c\na: "x"?\nb: a c | "(" start ")"\nc: "x" b? | ',
]
REGULAR = ["(ab|c)*a?", "a*b{2,3}c", "(a|b)*cab?", "a{5}|b", "(a|ab)(c|bcab)?"]


def fillings(constraint: Constraint, canvas: list[int]) -> list[tuple[tuple[int, ...], ...]]:
    """All fillings of a canvas that the matcher accepts to the end, slot by slot."""
    vocabulary = constraint.vocabulary
    tokens = [token for token in range(vocabulary.size) if token not in vocabulary.eos]
    choices: list[list[tuple[int, ...]]] = [
        [(slot,)] if slot >= 0 else [(token,) for token in tokens] + ([()] if slot == OPEN else []) for slot in canvas
    ]
    found = []
    for filling in product(*choices):
        matcher = constraint.matcher()
        if all(matcher.accept(token) for held in filling for token in held) and matcher.is_accepting:
            found.append(filling)
    return found


def bits(words: np.ndarray, size: int) -> set[int]:
    return {token for token in range(size) if int(words.view(np.uint32)[token >> 5]) >> (token & 31) & 1}


def compare(constraint: Constraint, language: OpenLanguage, canvas: list[int]) -> tuple[bool, int]:
    """Compare one canvas; return whether it can be completed, and how many masks were compared."""
    known = fillings(constraint, canvas)
    row = np.array(canvas, dtype=np.int32)
    for place in (None, *range(len(canvas) + 1)):
        assert language.completable(row, at=place) is bool(known), (canvas, place)
    masks = 0
    for slot, held in enumerate(canvas):
        if held == OPEN:
            expected = {filling[slot][0] for filling in known if filling[slot]}
            assert bits(language.allowed(row, slot), constraint.vocabulary.size) == expected, (canvas, slot)
            masks += 1
    return bool(known), masks


def random_canvas(rng: random.Random, vocabulary: Vocabulary) -> list[int]:
    tokens = [token for token, piece in enumerate(vocabulary.tokens) if piece]
    canvas = [rng.choice([OPEN, OPEN, FREE, *rng.choices(tokens, k=3)]) for _ in range(rng.randint(0, 5))]
    unknown = [place for place, slot in enumerate(canvas) if slot < 0]
    for place in unknown[MAX_UNKNOWN:]:
        canvas[place] = rng.choice(tokens)
    return canvas


def compare_many(constraint: Constraint, languages: list[OpenLanguage], seed: int, count: int = 150) -> None:
    rng = random.Random(seed)
    outcomes = {True: 0, False: 0}
    masks = 0
    for _ in range(count):
        canvas = random_canvas(rng, constraint.vocabulary)
        for language in languages:
            completable, compared = compare(constraint, language, canvas)
            outcomes[completable] += 1
            masks += compared
    assert min(outcomes.values()) >= 5
    assert masks > 50


@pytest.mark.parametrize("text", RECURSIVE)
@pytest.mark.parametrize("is_large", [False, True])
def test_recursive_grammars_equal_enumeration(text: str, is_large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A canvas is completable, and a token allowed, iff some filling shows it, also for ambiguous grammars.

    Of a large vocabulary, one token stands for all that behave alike.
    """
    if is_large:
        monkeypatch.setattr("structgen.methods.infilling.open_canvas.FEW_TOKENS", 0)
    constraint = compile(lark(text), BRACKETS)
    compare_many(constraint, [NetworkOpen(constraint)], seed=len(text))


@pytest.mark.parametrize("text", RECURSIVE)
def test_long_runs_of_open_slots_equal_enumeration(text: str) -> None:
    """Runs of up to five open slots agree, alone, between tokens, and broken by a free slot."""
    vocabulary = Vocabulary([b"", b"(", b")", b"x", b"x)"], eos=[0])
    constraint = compile(lark(text), vocabulary)
    language = NetworkOpen(constraint)
    rng = random.Random(len(text))
    outcomes = set()
    for unknown in (
        *([OPEN] * count for count in range(6)),
        *([OPEN] * before + [FREE] + [OPEN] * (4 - before) for before in range(5)),
    ):
        for _ in range(3):
            canvas = list(unknown)
            for _ in range(rng.randint(0, 3)):
                canvas.insert(rng.randint(0, len(canvas)), rng.randint(1, 4))
            outcomes.add(compare(constraint, language, canvas)[0])
    assert outcomes == {True, False}


@pytest.mark.parametrize("pattern", REGULAR)
def test_regular_grammars_equal_enumeration(pattern: str) -> None:
    """Both algorithms agree with enumeration on a regular language."""
    constraint = compile(regex(pattern), LETTERS)
    automaton = byte_automaton(constraint)
    assert automaton is not None
    regular = RegularOpen(RegularLanguage(lift(automaton, LETTERS), LETTERS))
    compare_many(constraint, [regular, NetworkOpen(constraint)], seed=len(pattern))


@pytest.mark.parametrize("few", [0, 64])
def test_special_tokens_fill_slots_where_the_grammar_has_them(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the special token that the grammar names fills a slot, never EOS or another one."""
    monkeypatch.setattr("structgen.methods.infilling.open_canvas.FEW_TOKENS", few)
    vocabulary = Vocabulary([b"", b"a", b"", b"", b"b"], eos=[0], special={2: "<sep>", 3: "<other>"})
    constraint = compile(sequence("a", SpecialToken("<sep>"), regex("b?")), vocabulary)
    automaton = byte_automaton(constraint)
    assert automaton is not None
    for language in (
        RegularOpen(RegularLanguage(lift(automaton, vocabulary), vocabulary)),
        NetworkOpen(constraint),
    ):
        for canvas in ([OPEN, OPEN, OPEN], [1, OPEN, 4], [1, OPEN], [OPEN, 4], [1, 3], [1, OPEN, 3], [0], [1, 2, OPEN]):
            compare(constraint, language, canvas)


def test_answers_are_dropped_when_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is bounded, and dropping entries changes nothing."""
    monkeypatch.setattr("structgen.methods.infilling.open_network.MAX_CACHED", 20)
    constraint = compile(lark(RECURSIVE[0]), BRACKETS)
    language = NetworkOpen(constraint)
    compare_many(constraint, [language], seed=6, count=60)


def test_deep_nesting_needs_no_recursion() -> None:
    """Thousands of brackets on either side of the hole need no recursion."""
    constraint = compile(lark(RECURSIVE[0]), BRACKETS)
    language = NetworkOpen(constraint)
    deep = [1] * 3_000
    closing = [2] * 3_000
    canvas = np.array([*deep, OPEN, *closing], dtype=np.int32)
    assert language.completable(canvas)
    assert bits(language.allowed(canvas, len(deep)), BRACKETS.size) == {3, 4, 5}
    assert not language.completable(np.array([*deep, OPEN, *closing[2:]], dtype=np.int32))
