"""Union, intersection, difference, inclusion and colliding terminals, against ``interegular`` on small regexps.

It has automata of its own, over characters. Its cost is unbounded, so that patterns here are small.
"""

from __future__ import annotations

import random
import re
from itertools import product
from typing import Any

import lark as peer
import pytest

from structgen.engine import Vocabulary, compile
from structgen.engine.analysis.inclusion import Inclusion, compare
from structgen.engine.lint import subject_of
from structgen.engine.lint.ambiguity import colliding_terminals
from structgen.engine.lint.collision import collisions
from structgen.errors import UnsatisfiableGrammar
from structgen.frontends.lark import lark
from structgen.frontends.regex import regex
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar

interegular: Any = pytest.importorskip("interegular")

BYTES = Vocabulary([bytes([byte]) for byte in range(256)] + [b"<eos>"], eos=[256])
LETTERS = "abcd"
LONGEST = 4
TEXTS = ["".join(word) for length in range(LONGEST + 1) for word in product(LETTERS, repeat=length)]
ATOMS = ["a", "b", "c", "[ab]", "[^a]", "[b-c]", ".", "(?:ab|c)", "(?:a|bc|)", r"\w"]


def pattern_of(chance: random.Random) -> str:
    """Return a regexp of up to three atoms, some of them repeated, or of two alternatives."""
    parts = [
        chance.choice(ATOMS) + chance.choice(["", "", "", "*", "+", "?", "{2}", "{1,3}"])
        for _ in range(chance.randint(1, 3))
    ]
    if len(parts) > 1 and chance.random() < 0.4:
        return f"(?:{parts[0]}|{''.join(parts[1:])})" + chance.choice(["", "", "*"])
    return "".join(parts)


def pairs(seed: int, count: int) -> list[tuple[str, str]]:
    """Return pairs of regexps, half of them with a common part, so that some include each other."""
    chance = random.Random(seed)
    found = []
    for index in range(count):
        one, other = pattern_of(chance), pattern_of(chance)
        found.append((one, f"{one}|{other}" if index % 4 == 0 else f"{one}?{other}" if index % 4 == 1 else other))
    return found


def automata(*patterns: str) -> list[Any]:
    """Return the peer's automata of regexps, over one alphabet."""
    parsed = [interegular.parse_pattern(pattern) for pattern in patterns]
    alphabet = parsed[0].get_alphabet(interegular.REFlags(0))
    alphabet, _ = alphabet.union(*[each.get_alphabet(interegular.REFlags(0)) for each in parsed[1:]])
    return [each.to_fsm(alphabet) for each in parsed]


def accepted(grammar: Grammar) -> tuple[set[str], int | None]:
    """The texts that the engine accepts of TEXTS, and the characters of a shortest string, None without any."""
    try:
        matcher = compile(grammar, BYTES).matcher()
    except UnsatisfiableGrammar:
        return set(), None
    shortest = bytes(matcher.shortest_completion())
    found = set()
    for text in TEXTS:
        if matcher.accept_bytes(text.encode()) == len(text) and matcher.is_accepting:
            found.add(text)
        matcher.reset()
    return found, len(shortest.decode())


def assert_same(grammar: Grammar, automaton: Any) -> None:
    """Compare all short texts, emptiness and the length of a shortest text."""
    found, shortest = accepted(grammar)
    assert found == {text for text in TEXTS if automaton.accepts(text)}
    assert (shortest is None) == automaton.empty()
    if shortest is not None:
        assert shortest == len(next(iter(automaton.strings(None))))


@pytest.mark.parametrize("seed", range(3))
def test_operators(seed: int) -> None:
    """``|``, ``&`` and ``& ~`` of random regexps, and the complement."""
    for one, other in pairs(seed, 12):
        mine, theirs = automata(one, other)
        assert_same(regex(one) | regex(other), mine.union(theirs))
        assert_same(regex(one) & regex(other), mine.intersection(theirs))
        assert_same(regex(one) & ~regex(other), mine.difference(theirs))
    assert_same(~regex(one), mine.everythingbut())


@pytest.mark.parametrize("seed", range(3))
def test_inclusion(seed: int) -> None:
    """Both directions of ``structgen diff``: what holds, and a shortest text of only one, which ``re`` confirms."""
    held = 0
    for one, other in pairs(10 + seed, 16):
        mine, theirs = automata(one, other)
        kept, added = compare(regex(one), regex(other))
        held += assert_inclusion(kept, one, other, mine, theirs)
        held += assert_inclusion(added, other, one, theirs, mine)
    assert 4 < held < 28


def assert_inclusion(found: Inclusion, old: str, new: str, mine: Any, theirs: Any) -> bool:
    """Compare the answer whether ``new`` has all texts of ``old``; return it."""
    assert found.holds == mine.issubset(theirs)
    if found.witness is not None:
        text = found.witness.text.decode()
        assert re.fullmatch(old, text)
        assert not re.fullmatch(new, text)
        assert len(text) == len(next(iter(mine.difference(theirs).strings(None))))
    return bool(found.holds)


def refuses(text: str) -> bool:
    """Whether Lark's strict mode finds that two terminals share a text."""
    try:
        peer.Lark(text, parser="lalr", lexer="basic", strict=True)
    except peer.exceptions.LexError as error:
        return "Collision" in str(error)
    return False


def test_terminals_collide_where_the_strict_mode_of_lark_refuses() -> None:
    """``check`` notes shared texts of terminals exactly for the grammars that ``lark.Lark(strict=True)`` refuses."""
    chance = random.Random(8)
    refused = 0
    for _ in range(40):
        patterns = [pattern_of(chance).replace(".", "[^d]") for _ in range(chance.randint(2, 3))]
        if any(re.fullmatch(pattern, "") for pattern in patterns):  # Lark's lexers refuse them
            continue
        names = "ABC"[: len(patterns)]
        text = f"start: ({' | '.join(names)})+\n"
        text += "".join(f"{name}: /{pattern}/\n" for name, pattern in zip(names, patterns, strict=True))
        is_refused = refuses(text)
        refused += is_refused
        subject = subject_of(lark(text), Limits())
        found = [*collisions(subject), *colliding_terminals(subject)]
        shared = [finding for finding in found if "matches both" in finding.problem or "shares" in finding.problem]
        assert bool(shared) == is_refused, (text, found)
        for finding in shared:
            one, other = re.findall(r"terminal '([ABC])'", finding.problem)[:2]
            example = re.findall(r"(?:and|instance) '([^']*)'", finding.problem)[-1].encode().decode("unicode_escape")
            assert all(re.fullmatch(patterns[names.index(name)], example) for name in (one, other))
    assert 5 < refused < 30
