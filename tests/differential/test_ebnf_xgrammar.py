"""EBNF and GBNF against xgrammar, string by string.

By design, the two differ as follows: xgrammar accepts ``[]`` (no character), cannot match U+0000 by itself, lets
a tag of ``TagDispatch`` hold another one, exceeds budgets where a part cannot end, and crashes on a rule
like ``r ::= (r){0,2}`` (0.2.8).
"""

from __future__ import annotations

import random
from itertools import product

import pytest
from peer_engines import Xgrammar

from structgen.frontends.bnf import ebnf, gbnf
from structgen.grammar.nodes import CharClass, postorder
from structgen.testing.reference import ReferenceMatcher
from structgen.testing.small_scope import language


@pytest.fixture(scope="module")
def peer() -> Xgrammar:
    return Xgrammar()


def texts(alphabet: str, longest: int) -> list[str]:
    return ["".join(word) for length in range(longest + 1) for word in product(alphabet, repeat=length)]


def is_member(text: str, word: str) -> bool:
    matcher = ReferenceMatcher(ebnf(text))
    data = word.encode()
    return matcher.accept_bytes(data) == len(data) and matcher.is_accepting


def expression(dice: random.Random, depth: int, *, may_refer: bool) -> str:
    """No reference stands inside a repetition with bounds: xgrammar crashes on some."""
    kind = dice.random()
    if depth == 0 or kind < 0.3:
        leaves = ['"a"', '"b"', '"ab"', "[ab]", "[^b]", '""', "[a-b]"]
        return dice.choice([*leaves, *(["one", "two", "root"] * 2 if may_refer else [])])
    if kind < 0.5:
        return " ".join(expression(dice, depth - 1, may_refer=may_refer) for _ in range(dice.randint(1, 3)))
    if kind < 0.7:
        ways = [expression(dice, depth - 1, may_refer=may_refer) for _ in range(dice.randint(1, 3))]
        return f"({' | '.join(ways)})"
    operator = dice.choice(["*", "+", "?", "{2}", "{1,2}", "{0,2}", "{1,}"])
    return f"({expression(dice, depth - 1, may_refer=may_refer and operator in '*+?')}){operator}"


def random_grammar(seed: int) -> str:
    dice = random.Random(seed)
    root = " | ".join(expression(dice, 2, may_refer=True) for _ in range(dice.randint(1, 3)))
    one, two = expression(dice, 2, may_refer=True), expression(dice, 1, may_refer=True)
    return f'root ::= {root}\none ::= {one}\ntwo ::= {two} | "b"\n'


def test_random_grammars(peer: Xgrammar) -> None:
    """Six hundred random grammars of three rules, with left recursion, mean the same to both; so do they as GBNF."""
    words = texts("ab", 4)
    sizes = []
    for seed in range(600):
        text = random_grammar(seed)
        expected = {word.decode() for word in language(ebnf(text), 4, b"ab")}
        assert peer.members(text, words) == expected, text
        assert {word.decode() for word in language(gbnf(text), 4, b"ab")} == expected, text
        sizes.append(len(expected))
    assert sum(1 < size < len(words) for size in sizes) > 300  # most accept something


CASES = [
    'root ::= TagDispatch(("ba", r))\nr ::= "a"',
    'root ::= TagDispatch(("ba", r), ("bb", s))\nr ::= "a"\ns ::= "b" | ""',
    'root ::= TagDispatch(("aab", r), loop_after_dispatch=false)\nr ::= "a"',
    'root ::= TagDispatch(("ab", r), excludes=("bb", "aaa"))\nr ::= "b"',
    'root ::= TagDispatch(excludes=("ab",))',
    'root ::= body "bb"\nbody ::= TagDispatch(("ab", r), excludes=("bb",))\nr ::= "a"',
    'root ::= Substring("a", "b", "ab", "a")',
    'root ::= "b" Regex("a+b?|(ba){1,2}") "b"?',
    'root ::= Regex("[^a]+", flags="s")',
    'root ::= x "b"\nx[lazy] ::= [ab] "a"*',
    'root ::= x "b"\nx[lazy] ::= "a" | "ab" | "ba"',
    'root ::= x "b"\nx[max_chars=2] ::= [ab]*',
    'root ::= x x\nx[capture, temperature=0.5] ::= "a" | "b"',
    'root ::= x "b"\nx ::= "a"+ (= "b")',
    "root ::= [^]{2,3}",
    'root ::= "a"{2, -1}',
    "root ::= ( )",
]


@pytest.mark.parametrize("text", CASES)
def test_what_ebnf_has_beside(peer: Xgrammar, text: str) -> None:
    """Macros and options agree with xgrammar on all strings of up to six letters."""
    expected = {word.decode() for word in language(ebnf(text), 6, b"ab")}
    assert peer.members(text, texts("ab", 6)) == expected
    assert expected


CLASSES = [
    "[a-]",
    "[-a]",
    "[--/]",
    "[+--]",
    "[a-c-e]",
    r"[a\-c]",
    "[^^]",
    "[a^]",
    "[.*+?]",
    r"[\]\[]",
    "[[]",
    "[^a-z]",
    r"[\x41-\x43]",
    r"[\u00e9-\u00ff]",
    r"[\U0001F600]",
    "[é-ü]",
    r"[\n\t\\]",
    r"[\/\$]",
    "[ #]",
    "[^]",
]


@pytest.mark.parametrize("spelled", CLASSES)
def test_classes(peer: Xgrammar, spelled: str) -> None:
    words = [chr(code) for code in (*range(1, 0x180), 0x1F600, 0x1F601, 0x10FFFF)]
    text = f"root ::= {spelled}"
    (found,) = [node for node in postorder(ebnf(text)) if isinstance(node, CharClass)]
    expected = {word for word in words if any(low <= ord(word) <= high for low, high in found.ranges)}
    assert peer.members(text, words) == expected


STRINGS = [
    r'"\x41"',
    r'"\x1F600"',
    r'"\u0041b"',
    r'"\U00000041"',
    r'"\"\\\/\'\?"',
    r'"\a\b\f\v\e"',
    '"é😀"',
    '"#"',
    r'"\n"',
]


@pytest.mark.parametrize("spelled", STRINGS)
def test_strings(peer: Xgrammar, spelled: str) -> None:
    words = ["A", "😀", "Ab", "\"\\/'?", "\a\b\f\v\x1b", "é😀", "#", "\n", "", "x1F600"]
    text = f"root ::= {spelled}"
    found = peer.members(text, words)
    assert len(found) == 1
    assert found == {word for word in words if is_member(text, word)}


BAD = [
    'root ::= "a" |',
    'root ::= | "a"',
    'root ::= "a\n"',
    "root ::= [a\nb]",
    'root ::= "a"++',
    'root ::= "a"{3,1}',
    "root ::= x",
    'root ::= "a" b ::= "c"',
    r'root ::= "\["',
    r"root ::= [\d]",
    'root ::= "a"\nroot ::= "b"',
    "root ::= (",
    'root ::= "a")',
    "root ::= [b-a]",
    'x ::= "a"',
    "root ::= Token()",
    'root ::= Token("a")',
    "root ::= Token(1,)",
    'root ::= TagDispatch(("", root))',
    'root ::= TagDispatch(("a", x))',
    'root ::= TagDispatch(("a", root), excludes=("a",))',
    'root[colour=1] ::= "a"',
    'root[capture=""] ::= "a"',
    'root[temperature=-1] ::= "a"',
    'root ::= Regex("a", flags="x")',
]


@pytest.mark.parametrize("text", BAD)
def test_both_refuse(peer: Xgrammar, text: str) -> None:
    with pytest.raises(RuntimeError):
        peer.members(text, ["a"])
    with pytest.raises(ValueError, match="ebnf grammar"):
        ebnf(text)


def test_differences_that_are_known(peer: Xgrammar) -> None:
    """Our answer is what the documents say; see docs/reference/gbnf.md."""
    assert peer.members(r'root ::= "\0"', ["\0"]) == set()
    assert is_member(r'root ::= "\0"', "\0")
    assert "b" in peer.members(r"root ::= [\^a]", ["b", "^"])  # there an escaped caret negates, unlike its documents
    assert not is_member(r"root ::= [\^a]", "b")
    overlapping = 'root ::= TagDispatch(("a", r), ("ab", s))\nr ::= "1"\ns ::= "2"'
    assert peer.members(overlapping, ["a1", "ab2"]) == {"a1", "ab2"}
    with pytest.raises(ValueError, match="occurs in the tag"):
        ebnf(overlapping)
    late = 'root ::= x "c"\nx[max_chars=1] ::= "ab" | "b"'
    assert "abc" in peer.members(late, ["abc"])
    assert not is_member(late, "abc")
