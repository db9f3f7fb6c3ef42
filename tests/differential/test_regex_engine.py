"""Regular expressions compiled by the engine, against Python's ``re``."""

from __future__ import annotations

import itertools
import random
import re
import warnings

import numpy as np
import pytest

from structgen.engine import Matcher, Vocabulary, compile
from structgen.engine.mask import allowed_ids, empty_masks
from structgen.errors import GrammarSyntaxError, UnsatisfiableGrammar, UnsupportedFeature
from structgen.frontends.regex import regex, search_language

ALPHABET = "ab\n1é"
TEXTS = ["".join(letters) for size in range(5) for letters in itertools.product(ALPHABET, repeat=size)]
ATOMS = ["a", "b", ".", r"\d", r"\w", r"\s", r"\W", "[ab]", "[^a]", "^", "$", r"\A", r"\Z", "(a|b)", "(?:ab|a|)", "é"]
COUNTS = ["", "*", "+", "?", "{2}", "{1,2}", "{0,1}", "*?", "+?"]

WALKED = [
    r"\d{4}-\d{2}-\d{2}",
    r"[a-z_][a-z0-9_]{0,30}",
    r"(foo|bar|baz){1,5}",
    r"[^@\s]+@[a-z]+\.(com|org)",
    r"(?i:hello|größe) \w+",
    r"\w+([.-]\w+)*",
    r"(?s:.{0,6})x",
    r"(?=.*\d)(?=.*[a-z])[a-z0-9]{4,9}",
    r"\s*\[(\s*-?\d+\s*,)*\s*-?\d+\s*\]",
    r"(a|b)*a(a|b){5}",
    r"[\u0400-\u04ff]{1,4}|[一-龥]{2}",
    r"#[0-9a-fA-F]{6}(?:[0-9a-fA-F]{2})?",
    r"(?P<user>[a-z]+):(?P<id>\d+)",
    r"(?!abc)[a-c]{3,4}",
]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    """Every byte and some longer tokens; some tokens cut characters."""
    pieces = ["ab", "ba", "123", "-0", "foo", "ar", "@a", ".com", "é", "größ", "  ", "一", "Ж", "#ff"]
    return Vocabulary([b"", *(bytes([value]) for value in range(256)), *(piece.encode() for piece in pieces)], eos=[0])


def members(matcher: Matcher) -> set[str]:
    """The texts of ``TEXTS`` that are accepted, found by a walk over their trie."""
    found: set[str] = set()
    start = matcher.history_length

    def visit(prefix: str) -> None:
        if matcher.is_accepting:
            found.add(prefix)
        if len(prefix) == 4:
            return
        for letter in ALPHABET:
            data = letter.encode()
            before = matcher.history_length
            if matcher.accept_bytes(data) == len(data):
                visit(prefix + letter)
            matcher.rollback(matcher.history_length - before)

    visit("")
    assert matcher.history_length == start
    return found


def compare(pattern: str, vocabulary: Vocabulary) -> None:
    """Both ways of matching agree with ``re`` on every text."""
    compiled = re.compile(pattern)
    for read, wanted in (
        (regex, {text for text in TEXTS if compiled.fullmatch(text)}),
        (search_language, {text for text in TEXTS if compiled.search(text)}),
    ):
        try:
            matcher = compile(read(pattern, dialect="python"), vocabulary).matcher()
        except UnsatisfiableGrammar:
            assert wanted == set(), (pattern, read)
            continue
        assert members(matcher) == wanted, (pattern, read)


def test_all_pairs_of_small_patterns(vocabulary: Vocabulary):
    """Atoms with counts agree with ``re``, alone and in pairs, over all texts of up to four letters."""
    rng = random.Random(5)
    singles = [atom + count for atom in ATOMS for count in COUNTS if not (atom in ("^", "$", r"\A", r"\Z") and count)]
    pairs = [first + second for first in singles for second in singles]
    choices = [f"{first}|{second}" for first in singles for second in singles]
    for pattern in [*singles, *rng.sample(pairs, 250), *rng.sample(choices, 150)]:
        compare(pattern, vocabulary)


def test_random_patterns(vocabulary: Vocabulary):
    """Nested random patterns agree with ``re``, anchors and look-aheads included."""
    rng = random.Random(6)

    def pattern(depth: int) -> str:
        kind = rng.random()
        if depth == 0 or kind < 0.35:
            atom = rng.choice(ATOMS)
            return atom if atom in ("^", "$", r"\A", r"\Z") else atom + rng.choice(COUNTS)
        if kind < 0.7:
            return pattern(depth - 1) + pattern(depth - 1)
        if kind < 0.85:
            return f"(?:{pattern(depth - 1)}|{pattern(depth - 1)})"
        return f"(?:{pattern(depth - 1)})" + rng.choice(["", "?", "*"])

    for _ in range(250):
        made = pattern(3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            compare(made, vocabulary)


def test_ten_thousand_walks_match(vocabulary: Vocabulary):
    """Random walks under the mask end in texts that ``re.fullmatch`` matches."""
    rng = random.Random(4)
    walks = 0
    for pattern in WALKED:
        compiled = re.compile(pattern)
        constraint = compile(regex(pattern), vocabulary)
        for _ in range(-(-10_000 // len(WALKED))):
            matcher, taken = constraint.matcher(), []
            while not matcher.is_terminated:
                if matcher.is_accepting and (rng.random() < 0.3 or not matcher.live_bytes()):
                    assert matcher.accept(0)
                    break
                live = matcher.live_bytes()
                longer = [token for token in range(257, vocabulary.size) if rng.random() < 0.3]
                token = next((token for token in longer if matcher.accept(token)), None)
                if token is None:
                    token = 1 + rng.choice(live)
                    assert matcher.accept(token)
                taken.append(token)
                if len(taken) > 40:  # after the limit, leave loops by the shortest way
                    rest = bytes(matcher.shortest_completion())
                    taken.extend(1 + value for value in rest)
                    assert matcher.accept_bytes(rest) == len(rest)
                    assert matcher.is_accepting
                    break
            text = vocabulary.decode(taken).decode()
            assert compiled.fullmatch(text), (pattern, text)
            walks += 1
    assert walks >= 10_000


CODES = np.setdiff1d(np.arange(0x110000), np.arange(0xD800, 0xE000))
EVERY_CHARACTER = CODES.astype("<u4").tobytes().decode("utf-32-le")


@pytest.fixture(scope="module")
def characters() -> Vocabulary:
    """One token for each character."""
    return Vocabulary([character.encode() for character in EVERY_CHARACTER])


@pytest.mark.parametrize("escape", [r"\d", r"\w", r"\s", r"\D", r"\W", r"\S", ".", r"[\w-]", r"[^\d\s]"])
def test_classes_over_all_of_unicode(escape: str, characters: Vocabulary):
    """Every code point is in a class iff ``re`` says so: by the mask, and many of them byte by byte."""
    mask = empty_masks(characters)
    compile(regex(escape), characters).matcher().fill_mask(mask)
    wanted = np.frombuffer("".join(re.findall(escape, EVERY_CHARACTER)).encode("utf-32-le"), dtype="<u4")
    wrong = np.setxor1d(CODES[allowed_ids(mask[0], characters.size)], wanted)
    assert not len(wrong), hex(wrong[0])

    matcher = compile(regex(escape), Vocabulary([bytes([value]) for value in range(256)])).matcher()
    codes = np.concatenate([CODES[:0x3000], CODES[0x3000::61]])
    for code, is_wanted in zip(codes.tolist(), np.isin(codes, wanted).tolist(), strict=True):
        data = chr(code).encode()
        assert (matcher.validate(list(data)) == len(data)) == is_wanted, hex(code)


@pytest.mark.parametrize(
    ("pattern", "feature"),
    [
        (r"(a)\1", "back-reference"),
        (r"(?P<x>a)(?P=x)", "back-reference"),
        (r"(a)(?(1)b|c)", "conditional"),
    ],
)
def test_what_is_not_regular_is_refused_by_name(pattern: str, feature: str):
    """The error names the construct and points at it."""
    with pytest.raises(UnsupportedFeature, match=r"\^") as caught:
        regex(pattern)
    assert feature in caught.value.feature


@pytest.mark.parametrize("pattern", ["(a", "a)", "[a", "*a", "a{3,1}", "[z-a]", "\\", "(?P<x>a)(?P<x>b)", "(?Qa)"])
def test_malformed_patterns_point_at_the_place(pattern: str):
    """Patterns that ``re`` refuses are refused with a caret at the place."""
    with pytest.raises(re.error):
        re.compile(pattern)
    with pytest.raises(GrammarSyntaxError, match=r"\^"):
        regex(pattern)
