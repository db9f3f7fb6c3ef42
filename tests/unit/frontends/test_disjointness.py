"""Which of several patterns may match one text, against Python's ``re`` on all short texts."""

from __future__ import annotations

import random
import re
from itertools import combinations, product

import pytest

from structgen.frontends.disjointness import fixed_end, fixed_start, overlaps
from structgen.frontends.regex import search_language

TEXTS = ["".join(letters) for length in range(8) for letters in product("abc", repeat=length)]
"""All short texts; ``c`` stands for the letters that no pattern names."""


def random_pattern(rng: random.Random) -> str:
    """A pattern of two or three small parts, perhaps anchored; two may have a repetition."""
    atoms = [rng.choice(["a", "b", "a", "b", "[ab]", ".", "(a|bb)"]) for _ in range(rng.randint(2, 3))]
    if len(atoms) == 2 and rng.random() < 0.5:
        atoms[rng.randrange(len(atoms))] += rng.choice(["*", "+", "?", "{2}"])
    return rng.choice(["^", "^", ""]) + "".join(atoms) + rng.choice(["$", "$", ""])


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 60))])
def test_two_patterns_overlap_iff_one_text_matches_both(seed: int) -> None:
    """Of thousands of pairs, those may match one text for which ``re`` finds a short one."""
    rng = random.Random(seed)
    patterns = [random_pattern(rng) for _ in range(80)]
    found = overlaps([search_language(pattern, dialect="ecma") for pattern in patterns], lambda steps: None)
    matched = [frozenset(text for text in TEXTS if re.search(pattern, text)) for pattern in patterns]
    for i, j in combinations(range(len(patterns)), 2):
        assert (j in found[i]) == (i in found[j]) == (not matched[i].isdisjoint(matched[j])), (patterns[i], patterns[j])


@pytest.mark.parametrize("seed", range(3))
def test_all_texts_begin_and_end_as_said(seed: int) -> None:
    """No text of a pattern lacks its fixed prefix or suffix, and anchored literals are found whole."""
    rng = random.Random(seed)
    for pattern in {random_pattern(rng) for _ in range(60)}:
        term = search_language(pattern, dialect="ecma")
        start, end = fixed_start(term).decode(), fixed_end(term).decode()
        assert all(t.startswith(start) and t.endswith(end) for t in TEXTS if re.search(pattern, t)), pattern
        literals = re.fullmatch(r"\^([ab]+).*", pattern)
        if literals and "*" not in pattern and "?" not in pattern:
            assert start.startswith(literals[1][:-1])


def steps(patterns: list[str]) -> int:
    """The steps that the comparison of patterns takes."""
    taken: list[int] = []
    overlaps([search_language(pattern, dialect="ecma") for pattern in patterns], taken.append)
    return sum(taken)


@pytest.mark.parametrize("form", ["^{}", "^x_{}[0-9]+", "^({})+$"])
def test_patterns_with_literal_prefixes_take_linear_work(form: str) -> None:
    """Twice as many patterns with different prefixes take about twice the steps, not four times."""
    names = ["".join(letters) for letters in product("pqrs", repeat=4)]
    half, whole = steps([form.format(name) for name in names[::2]]), steps([form.format(name) for name in names])
    assert whole <= 2.2 * half


def test_pairs_that_begin_alike_are_counted() -> None:
    """Patterns that only the search of a product tells apart take steps for each pair."""
    forms = [f"^[a-z]{''.join(letters)}[a-z]$" for letters in product("pqr", repeat=3)]
    assert steps(forms) > 3 * len(forms) * (len(forms) - 1) / 2
