"""Whole languages of small patterns, text by text, against Python's ``re``."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterator
from itertools import product
from string import ascii_lowercase, digits

import pytest
from regex_reference import Universe, texts_up_to

from structgen.errors import UnsupportedFeature
from structgen.frontends.regex import regex, search_language

SMALL = Universe(texts_up_to(4, "ab\n"))
WIDE = Universe(texts_up_to(4, "ab\n1é"))

PIECES = [
    *("a", "b", r"\n", ".", "[^a]", "a?", "b*", "(?:ab)", "(?:a|)", "^", "$", r"\A", r"\Z", r"\b", r"\B"),
    *("(?:a|^)", "(?:b|$)", "(?=a)", "(?!ab)", "(?!b|$)", "(?<=a)", "(?<!b)", "(?m:^)", "(?m:$)"),
]
LOOP_BODIES = [
    *("^a", "a$", "^", "$", "^a|b", "a|b$", "a?$", "^a?", r"\ba", r"a\b", r"\B.", r"a\Z|b", "^a|a$|b", "a$|\\n"),
    *("(?m:^)a|b", r"(?m:^)a\n?", r"a(?m:$)\n|b", r"(?m:^a$)\n", r"(?:^|\n)a", r"a(?:$|\n)", "(?<!a)a|b", "a(?!a)|b"),
    *("(?!^)a", r"(?!\Z)b?", "(?:a|)(?<!b)", r"\n|^a$", "(?:^a|b)?", r"(?:a$|\n){2}", r"(?=\n)|a|\n", r"^\n|a$|b$"),
]
QUANTIFIERS = ["*", "+", "?", "{2}", "{1,2}", "{0,3}", "{2,}", "{3}", "{2,4}", "*?", "{2,3}?"]
LOOKAHEADS = [
    *("(?=.*a)(?=.*b).{2,3}", "(?=a.*$)(?!.*b$).+", "(?!.*aa).*", "(?=(?=a).b)..", "(?!(?!a))..?", "a(?=b)b|(?!ab)a"),
    *("(?:a(?!ba)|b)a*", "(?:(?=ab)a)?b*", "(?!a$)a*", "(?!^a)a|b", "^(?!^ab|b).*", "(?=^a)a*", "(?=a*$)[ab]*"),
    *(
        "(?s:(?!b).)*",
        "(?=)a",
        "(?!)a|b",
        r"(?=ab|\n).*",
        "(?!a(?!b))a?b?",
        "(?:(?!b).)*b",
        r"(?=a\Z)a|b",
        "(?=a(?m:$))(?s:.)*",
        "(?:(?!a).){2,}|ab",
    ),
]
TEMPERED = [
    *("(?:(?!ab).)*", "(?:(?!ab)(?!b$).)*b?", "(?:(?=a|b$).)*", "(?:(?!aa)[ab])+(?:$|b)", "(?:(?!ab)(?!\\n).)+ab"),
    *(
        r"(?:(?!b\Z)[ab])*b",
        "(?:(?=[ab]b).)*a",
        r"(?:(?!a\n)[^b])*(?:\n|ba)",
        "(?:(?=.b)(?!bb).)*[ab]{2}",
        "(?:(?!aa).)*(?:a{1,3}|b)$",
    ),
]


def compare(pattern: str, universe: Universe) -> str:
    """Where the languages of ``pattern`` differ from what ``re`` matches; ``""`` if they do not."""
    compiled = re.compile(pattern)
    for name, term, matches in (
        ("fullmatch", regex(pattern), compiled.fullmatch),
        ("search", search_language(pattern, dialect="python"), compiled.search),
    ):
        wanted = {text for text in universe.texts if matches(text)}
        found = universe.members(term)
        if found != wanted:
            return f"{name} {pattern!r}: too many {sorted(found - wanted)[:3]}, missing {sorted(wanted - found)[:3]}"
    return ""


def differences(patterns: Iterator[str] | list[str], universe: Universe) -> list[str]:
    return [found for pattern in patterns if (found := compare(pattern, universe))][:10]


def test_alternatives_that_count_before_a_loop() -> None:
    """``a{3}b*`` is contained in ``a{2}b*`` iff the loop accepts the further counted characters."""
    chosen, universe = random.Random(20), Universe(texts_up_to(5, "abé"))
    items = ["a", "b", "[ab]", ".", "é", "[aé]", "ab"]
    counts = [f"{{{low},{high}}}" for low in range(4) for high in ("", *range(max(low, 1), 5))]

    def alternative() -> str:
        counted, loop = chosen.choice(items), chosen.choice(items)
        return f"(?:{counted}){chosen.choice(counts)}(?:{loop})*{chosen.choice(['', '', 'a', 'é?'])}"

    patterns = ["|".join(alternative() for _ in range(chosen.choice([2, 2, 3, 5]))) for _ in range(100)]
    assert differences(patterns, universe) == []


@pytest.mark.parametrize("first", PIECES)
def test_every_sequence_of_three_pieces(first: str) -> None:
    """Anchors, boundaries and look-arounds mean the same as in ``re`` in every place."""
    rest = [*product(PIECES, repeat=1), *product(PIECES[:-2:2] + PIECES[-2:], repeat=2)]
    assert differences([first + "".join(others) for others in rest], SMALL) == []


@pytest.mark.parametrize("quantifier", QUANTIFIERS)
def test_loops_around_assertions(quantifier: str) -> None:
    """A repeated assertion counts iterations as ``re`` does, with text before and after the loop."""
    patterns = [
        f"{before}(?:{body}){quantifier}{after}"
        for body in LOOP_BODIES
        for before, after in (("", ""), ("a?", ""), ("", "b?$"), (r"\n?", r"\n?"), ("(?:^|b)", "(?!a)"))
    ]
    assert differences(patterns, SMALL) == []


@pytest.mark.parametrize("outer", ["*", "+", "{2}", "{1,3}"])
def test_loops_in_loops_around_assertions(outer: str) -> None:
    """Nested loops around assertions keep their meaning."""
    inner = ["*", "+", "{2}", "{0,2}"]
    bodies = LOOP_BODIES[::2]
    assert differences([f"(?:b?(?:{body}){q}){outer}" for body in bodies for q in inner], SMALL) == []


@pytest.mark.parametrize("pattern", LOOKAHEADS)
def test_lookaheads(pattern: str) -> None:
    """Look-aheads restrict all that follows, up to the end of the text."""
    assert differences([pattern, f"^{pattern}", f"a?{pattern}", f"(?:{pattern})?"], SMALL) == []


@pytest.mark.parametrize("pattern", TEMPERED)
def test_lookaheads_in_loops_of_one_character(pattern: str) -> None:
    """A look-ahead before each character of a loop is exact where what follows the loop has a known length."""
    compiled = re.compile(f"^{pattern}$")
    assert {text for text in SMALL.texts if compiled.fullmatch(text)} == SMALL.members(regex(pattern))
    searched = search_language(compiled.pattern, dialect="python")
    assert {text for text in SMALL.texts if compiled.search(text)} == SMALL.members(searched)


@pytest.mark.parametrize("flags", ["", "i", "s", "m", "ms", "x", "a", "aims"])
def test_flags(flags: str) -> None:
    """Inline flags mean the same as in ``re``, for the whole pattern or for a group."""
    bodies = [r"^. $", r"\w+", r"A$", r"\d|\s", r"[^A]\n?", r"é\b", r"\bé", r"[Éb] 1", "(?-i:A)b?", r"a#b", "É+^1?"]
    bodies = [body for body in bodies if not ("(?-" in body and flags == "")]
    whole = [f"(?{flags}){body}" if flags else body for body in bodies]
    scoped = [f"(?{flags}:{body}\n)b?" if flags else f"(?:{body})" for body in bodies]
    # Under ``(?a:...)``, ``re.search`` of CPython takes the flags of the whole pattern for the first character.
    scoped = [pattern for pattern in scoped if "a" not in flags]
    assert differences(whole + scoped, WIDE) == []


def test_random_patterns() -> None:
    """Six hundred random patterns of all constructs agree with ``re`` on 781 texts each."""
    patterns = [pattern for pattern in random_patterns(seed=20) if is_compilable(pattern)]
    assert len(patterns) > 550
    refused = [pattern for pattern in patterns if is_refused(pattern)]
    assert len(refused) < len(patterns) // 20
    assert differences([pattern for pattern in patterns if pattern not in refused], WIDE) == []


def is_compilable(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def is_refused(pattern: str) -> bool:
    try:
        regex(pattern)
        search_language(pattern, dialect="python")
    except UnsupportedFeature as error:
        return error.feature == "look-ahead inside a repeat"
    return False


def random_patterns(seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    atoms = ["a", "b", "1", "é", r"\n", ".", "[ab]", "[^a]", r"\w", r"\d", r"\s", r"\W", "[a1é]", "ab", ""]
    zero = [*PIECES[9:15], *PIECES[17:], "(?=1|$)", r"(?<!\w)", r"(?=\W)", "(?!^)", "(?<=^)", r"(?!\Z)"]

    def made(depth: int) -> str:
        kind = rng.choices(["atom", "zero", "cat", "or", "loop", "flag", "look"], [12, 24, 26, 14, 16, 3, 5])[0]
        if depth == 0 or kind == "atom":
            return rng.choice(atoms)
        if kind == "zero":
            return rng.choice(zero)
        if kind == "cat":
            return made(depth - 1) + made(depth - 1) + made(depth - 1)
        if kind == "or":
            return f"(?:{made(depth - 1)}|{made(depth - 1)})"
        if kind == "loop":
            return f"(?:{made(depth - 1)}){rng.choice(QUANTIFIERS)}"
        if kind == "flag":
            return f"(?{rng.choice('ims')}:{made(depth - 1)})"
        return f"({rng.choice(['?=', '?!', ''])}{made(depth - 1)})"

    for _ in range(600):
        yield rng.choice(["", "", "(?m)", "(?s)", "(?i)"]) + made(rng.randint(1, 4))


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="\\B matches in the empty text since Python 3.14")
def test_no_boundary_in_the_empty_text() -> None:
    """The Python dialect follows the running interpreter: before 3.14, ``\\B`` fails in the empty text."""
    assert "" not in SMALL.members(regex(r"\B"))
    assert "" in SMALL.members(regex(r"\B", dialect="ecma"))


@pytest.mark.parametrize("more", ["", "|[b-e]f?", "|[^a]b"])
def test_loops_over_many_alternatives_beside_other_terms(more: str) -> None:
    """A state with such a loop reuses the loop's edges except where other terms continue."""
    letters = ascii_lowercase + digits
    words = [one + other for one, other in zip(letters, letters[1:] + letters[:1], strict=True)]
    loop = f"(?:{'|'.join(words)}{more})*"
    rng = random.Random(3)
    pieces = [*words[:4], *"abcdefz9", "aa", "z0"]
    texts = ["".join(rng.choices(pieces, k=rng.randrange(6))) for _ in range(1500)]
    universe = Universe(sorted({*texts_up_to(2, letters), *texts}))
    around = [
        ("", "a?"),
        ("b?", "c?d"),
        ("(?:a|ab)?", "(?:f|bd)?"),
        ("", "(?:.a)?"),
        ("(?:c|", ")a*"),
        ("(?:(?:", "f){1,2}|e)"),
    ]
    assert differences([before + loop + after for before, after in around], universe) == []
