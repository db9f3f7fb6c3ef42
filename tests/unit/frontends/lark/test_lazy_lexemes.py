"""Lazy lexemes of llguidance's dialect on random grammars: beside brute force, and beside llguidance."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from lexers import LexemeGrammar, Piece, Symbols

from structgen.engine import Vocabulary, compile
from structgen.errors import UnsatisfiableGrammar, UnsupportedFeature
from structgen.frontends.lark import lark
from structgen.grammar.flattening import recognizes

LETTERS = "ab<"
VOCABULARY = Vocabulary([b"", *(letter.encode() for letter in LETTERS)], eos=[0])
GREEDY = ["a", "b", "<", "ab", "a<", "a+", "[ab]+", "[ab<]+", "b<?", "<a|b", "(ab)+"]
LAZY = ["[ab]*<", "[ab<]*b", "a*b", "[ab<]*<b", "ab", "[ab<]*a<", "a+", "[ab]+(<|b)", "<+a"]
ENDS = ["<", "b", "<b", "ab"]


class Drawn:
    """A random grammar, as text and for brute force."""

    def __init__(self, seed: int) -> None:
        self.random = rng = random.Random(seed)
        self.rules: dict[str, list[Symbols]] = {}
        self.pieces: dict[str, Piece] = {}
        self.lines: list[str] = []
        self.count = 0
        for number in range(rng.choice([1, 1, 2, 3])):
            name, kind = f"l{number}", rng.random()
            body, end = rng.choice(LAZY), rng.choice(ENDS)
            if kind < 0.7:
                self.lines.append(f"{name}[lazy]: /{body}/")
                self.pieces[name] = Piece(body, is_lazy=True)
            elif kind < 0.85:
                self.lines.append(f'{name}[suffix="{end}"]: /[ab<]*/')
                self.pieces[name] = Piece(f"[ab<]*{end}", is_lazy=True)
            else:
                self.lines.append(f'{name}[stop="{end}"]: /[ab<]+/')
                self.pieces[name] = Piece(f"[ab<]+{end}", is_lazy=True, stop=end)
        for number in range(rng.choice([1, 2, 2, 3])):
            pattern = rng.choice(GREEDY)
            self.pieces[f"g{number}"] = Piece(pattern)
            self.lines.append(f"g{number}: G{number}")
            self.lines.append(f"G{number}: /{pattern}/")
        self.names = ["start", *(f"r{number}" for number in range(rng.choice([0, 0, 1, 2])))]
        for name in self.names:
            text, symbols = self.expression(2 if name == "start" else 1)
            self.lines.append(f"{name}: {text}" + (" | g0" if name != "start" else ""))
            self.rules[name] = [symbols, ("g0",)] if name != "start" else [symbols]
        self.text = "\n".join(self.lines)
        self.oracle = LexemeGrammar(self.rules, self.pieces)

    def helper(self, *alternatives: Symbols) -> str:
        self.count += 1
        self.rules[f"h{self.count}"] = list(alternatives)
        return f"h{self.count}"

    def expression(self, depth: int) -> tuple[str, Symbols]:
        kind = self.random.choice(["atom", "sequence", "sequence", "choice", "repeat"]) if depth else "atom"
        if kind == "atom":
            name = self.random.choice([*self.pieces, *self.pieces, *self.names[1:]])
            return name, (name,)
        parts = [self.expression(depth - 1) for _ in range(1 if kind == "repeat" else self.random.choice([2, 2, 3]))]
        if kind == "sequence":
            return " ".join(text for text, _ in parts), tuple(name for _, names in parts for name in names)
        if kind == "choice":
            return f"({' | '.join(text for text, _ in parts)})", (self.helper(*(names for _, names in parts)),)
        [(text, symbols)] = parts
        operator = self.random.choice("?*+")
        if operator == "?":
            return f"({text})?", (self.helper(symbols, ()),)
        again = self.helper((), ())
        self.rules[again] = [(*symbols, again), ()]
        return f"({text}){operator}", (again,) if operator == "*" else (*symbols, again)


Masks = dict[str, set[str]]
"""The letters that may come next, and "" for the end, by what was read."""


def masks_here(grammar: str, length: int) -> Masks | None:
    """The masks after all texts that are allowed; None if the grammar is refused."""
    try:
        matcher = compile(lark(grammar), VOCABULARY).matcher()
    except UnsatisfiableGrammar:
        return {"": set()}
    except UnsupportedFeature as error:
        return None if error.feature == "lazy lexeme" else {"": {error.feature}}
    found: Masks = {}
    row = np.zeros((1, 1), dtype=np.int32)
    waiting = [""]
    while waiting:
        text = waiting.pop()
        matcher.reset()
        for letter in text:
            assert matcher.accept(1 + LETTERS.index(letter))
        matcher.fill_mask(row)
        found[text] = {letter for number, letter in enumerate(["", *LETTERS]) if row[0, 0] >> number & 1}
        if len(text) < length:
            waiting += [text + letter for letter in found[text] - {""}]
    return found


@cache
def tokenizer() -> Any:
    library = pytest.importorskip("llguidance", reason="llguidance is not installed")
    return library.LLTokenizer("byte")


def masks_there(grammar: str, length: int) -> Masks:
    import llguidance.numpy as masks
    from llguidance import LLMatcher

    first = LLMatcher(tokenizer(), '%llguidance {"no_forcing": true}\n' + grammar)
    assert not first.get_error(), first.get_error()
    row = masks.allocate_token_bitmask(1, tokenizer().vocab_size)
    found: Masks = {}
    waiting = [""]
    while waiting:
        text = waiting.pop()
        matcher = first.deep_copy()
        assert matcher.try_consume_tokens(list(text.encode())) == len(text)
        found[text] = {""} if matcher.is_accepting() else set()
        if not matcher.is_stopped():
            masks.fill_next_token_bitmask(matcher, row)
            found[text] |= {letter for letter in LETTERS if row[0, ord(letter) >> 5] >> (ord(letter) & 31) & 1}
        if len(text) < length:
            waiting += [text + letter for letter in found[text] - {""}]
    return found


def compare(seed: int, length: int, *, with_llguidance: bool = True) -> str:
    """Compare a random grammar with brute force and with llguidance; return what came of it."""
    drawn = Drawn(seed)
    here = masks_here(drawn.text, length)
    if here is None:
        return "refused"
    texts = ["".join(word) for size in range(length + 1) for word in product(LETTERS, repeat=size)]
    expected = {text for text in texts if drawn.oracle.accepts(text)}
    mine = {text for text, allowed in here.items() if "" in allowed}
    assert mine == expected, (seed, drawn.text, sorted(mine ^ expected, key=len)[:5])
    if not with_llguidance:
        return "same texts"
    if any(piece.stop for piece in drawn.pieces.values()):
        return "stop"  # llguidance takes the stop out of the text afterwards
    there = masks_there(drawn.text, length)
    longest = {text for text in texts if drawn.oracle.accepts_longest(text)}
    theirs = {text for text, allowed in there.items() if "" in allowed}
    assert theirs == longest, (seed, drawn.text, sorted(theirs ^ longest, key=len)[:5])
    if longest != expected:
        return "other divisions"
    outcome = "equal masks"
    short = ["".join(word) for size in range(4) for word in product(LETTERS, repeat=size)]
    for text in here.keys() & there.keys():
        for letter in here[text] ^ there[text]:
            words = (text + letter + "".join(word) for size in range(8) for word in product(LETTERS, repeat=size))
            ways = ((drawn.oracle.accepts(word), drawn.oracle.accepts_longest(word)) for word in words)
            if any(any_way != longest_way for any_way, longest_way in ways):
                outcome = "other divisions"
                continue
            # Neither reading has a text that short: llguidance is in a dead end, or the shortest text is longer.
            assert not any(drawn.oracle.accepts_longest(text + letter + word) for word in short), (seed, text, letter)
            outcome = "dead ends"
    return outcome


TOOLS = """start: ( f_foo | f_bar )* f_end
f_end: TEXT
TEXT: /(.|\\n)*/
f_foo_hd[lazy]: TEXT "<function"
f_foo: f_foo_hd "=foo>" /[0-9]+/ "</function>"
f_bar_hd[lazy]: TEXT "<function"
f_bar: f_bar_hd "=bar>" %json {"type": "boolean"} "</function>"
"""


@pytest.mark.parametrize(
    ("text", "is_member"),
    [
        ("", True),
        ("Some text <functio", True),
        ("Some text <function", False),
        ("<function=baz>1</function>", False),
        ("a <function=foo>12</function> b <function=bar>true</function> c", True),
        ("a <function=foo>true</function>", False),
        ("<<function=bar>false</function><function", False),
    ],
)
def test_a_call_of_a_tool_is_committed(text: str, is_member: bool) -> None:
    """In llguidance's own example the text of a call is no free text."""
    assert recognizes(lark(TOOLS), text) == is_member


FIXED = {
    "inside a recursion": "start: p\np: g p g | l p | g\ng: /[ab<]/\nl[lazy]: /[ab]*</",
    "right recursion": "start: l start | g\nl[lazy]: /[ab<]*a</\ng: /[ab<]*/",
    "left recursion": "start: start l | g\nl[lazy]: /[ab<]*a</\ng: /[ab]+/",
    "mutual recursion": "start: x | g\nx: l y\ny: g x | g\nl[lazy]: /[ab]*</\ng: /[ab<]+/",
    "a state inside a repetition": "start: (g | g l)* g\nl[lazy]: /[ab<]*a</\ng: /[ab<]{2}/",
    "counts": "start: g{2,3} l | g{2} h\nl[lazy]: /[ab<]*b/\ng: /a/\nh: /[ab<]+/",
    "capture around": "start: x+ g\nx[capture]: l g\nl[lazy, capture]: /[ab]*</\ng: /[ab<]{0,2}/",
    "ignored text": "%llguidance {}\nstart: (l g)* g\nl[lazy]: /[ab]*</\ng: /[ab<]+/\n%ignore /b/",
}


@pytest.mark.parametrize("name", FIXED)
def test_forms_beside_llguidance(name: str) -> None:
    """Texts that belong here and not there have another division than the longest; none belongs only there."""
    tokenizer()
    here, there = masks_here(FIXED[name], 5), masks_there(FIXED[name], 5)
    assert here is not None
    mine, theirs = ({text for text, allowed in masks.items() if "" in allowed} for masks in (here, there))
    assert theirs <= mine, sorted(theirs - mine, key=len)[:5]


def test_what_is_not_clear_is_refused() -> None:
    """Where the lazy rule may come next only outside of a recursion, and where a stop is cut."""
    for grammar, problem in [
        ('start: (l | p)*\np: "(" p ")" | /[a-z(<]*/\nl[lazy]: /[a-z(]*</', "depth of a recursion"),
        ('start: l | s\nl[lazy]: /[ab]*</\ns[stop="b"]: /[a<]*/', "write suffix= in place of stop="),
    ]:
        with pytest.raises(UnsupportedFeature, match="it is not clear what lazy rule") as caught:
            lark(grammar)
        assert caught.value.feature == "lazy lexeme"
        assert problem in str(caught.value)


@pytest.mark.parametrize("part", range(4))
def test_random_grammars(part: int) -> None:
    """Their texts are those of brute force."""
    found = Counter(compare(seed, 4, with_llguidance=False) for seed in range(part, 100, 4))
    assert found["refused"] < 5, found


@pytest.mark.parametrize("part", range(4))
def test_random_grammars_beside_llguidance(part: int) -> None:
    """Masks are equal unless the grammar has other divisions than the longest, or llguidance runs into a dead end."""
    tokenizer()  # skips
    found = Counter(compare(seed, 3) for seed in range(part, 100, 4))
    assert found["equal masks"] > 10, found


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(20))
def test_many_random_grammars(part: int) -> None:
    """The same on 2,000 grammars in all, and for longer texts."""
    tokenizer()
    found = Counter(compare(seed, 5) for seed in range(part, 2000, 20))
    assert found["equal masks"] > 40, found
    assert found["refused"] < 15, found
