"""Lark grammars beside llguidance: masks, token by token, on all short prefixes of both languages.

Where the two disagree, ``docs/reference/lark.md`` says who is right and why; the tests here record the disagreements,
so that we notice when they end.
"""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import numpy as np
import pytest

from structgen.engine import Vocabulary, compile
from structgen.frontends.lark import lark

EOS = 0
TOKENS = [
    b"",
    *(bytes([byte]) for byte in b'abxyz!<>e1 ./"{}:,[]0\n'),
    b"ab",
    b"xx",
    b"<e>",
    b"b!",
    b"  ",
    b"1,",
    b'"a',
    b"",
]
SPECIAL = len(TOKENS) - 1
VOCABULARY = Vocabulary(TOKENS, eos=[EOS], special={SPECIAL: "<s>"})
DEPTH, PLACES = 5, 120
"""How many tokens are read at most, and at how many places the masks are compared."""

AGREED = {
    "sequence": 'start: "a" ("x" | "ab")* "!"',
    "left recursion": 'start: e\ne: e "x" t | t\nt: "a" | "<" e ">"',
    "right recursion": 'start: "a" start | "!"',
    "optional": 'start: ["a"] "b"? "x"+ "!"',
    "counts": 'start: "a"{2,3} "b"{,1} "x"{2} "!"',
    "tilde counts": 'start: ("a" | "x"){1,2} "!"',
    "terminals": 'start: A "!"\nA: B B? | "x"{2}\nB: "a" | "ab"',
    "regexp": "start: /[ab]+!/ /x{1,2}/",
    "and": 'start: A "!"\nA: /[abx]+/ & ~/(?s:.*)ab(?s:.*)/',
    "and not words": 'start: A "!"\nA: /[ab]{1,3}/ & ~("ab" | "a")',
    "lazy": 'start: a "!"\na[lazy]: /[abx<]*e/',
    "lazy group": 'start: (a | b)* "!"\na[lazy]: /[^<]*/ "<e>"\nb: "x"',
    "lazy beside free text": 'start: f* t\nt: T\nT: /[abx<>e!]*/\nh[lazy]: T "<e>"\nf: h ("x" | "1") "!"',
    "two lazy rules": 'start: (f | g)* t\nt: T\nT: /[abx<>e!]*/\nh[lazy]: T "<e>"\nk[suffix="!"]: T\n'
    'f: h "x"\ng: k "1"',
    "suffix": 'start: a "!"\na[suffix="<e>"]: /[ab<>e]*/',
    "suffix regexp": 'start: a "!"\na[suffix=/x+b/]: /[abx]*/',
    "suffix terminal": 'start: a "!"\na[suffix=T]: /[abx]*/\nT: "x" "b"?',
    "ignored": '%llguidance {}\nstart: "a" "b" "!"\n%ignore / +/',
    "ignored first": '%llguidance {"allow_initial_skip": true}\nstart: "a" "!"\n%ignore / +/',
    "ignored once": '%llguidance {"ignore_once": true}\nstart: "a" "b" "!"\n%ignore / /',
    "special": 'start: "a" <s> "b"',
    "token by id": 'start: <[3]> "a" | <[2,4-5]> "b"',
    "token of text": 'start: "a" "b" "!" | <[3]> <[23]> "x"',
    "parameter": 'start: p::0\np::_: "!" %if is_ones([0:2])\n  | "a" p::set_bit(0) %if bit_clear(0)\n'
    '  | "b" p::set_bit(1) %if bit_clear(1)',
    "parameter counts": 'start: n::0\nn::_: "a" n::incr([0:2]) %if lt([0:2], 3) | "!" %if ge(_, 2)',
    "chunks": 'start: "<" %regex {"substring_chunks": ["ab", "x", "ab"]} ">"',
    "words": 'start: "<" %regex {"substring_words": "ab x.y"} ">"',
    "characters": 'start: "<" %regex {"substring_chars": "abxab"} ">"',
    "schema": 'start: "<" %json {"enum": ["a", "ab", 1]} ">"',
    "schema of numbers": 'start: %json {"enum": [1, 10, 101]} "!"',
    "nested": 'start: "a" %lark {\nstart: B "!"\nB: "b"\n} "x"',
    "hyphens": 'start: my-rule T-T\nmy-rule: "a"\nT-T: "b"',
    "flags": 'start: "A"i /X/i "!"',
    "range": 'start: "a".."b" "x".."z"',
    "import": 'start: INT "," INT\n%import common.INT',
    "escapes": '%llguidance {}\nstart: "\\u0061\\/" /\\x62\\/x/',
}

# Where llguidance differs: the grammar, the tokens that are read first, and a token that only one of the two allows
# next.
DISAGREED: dict[str, tuple[str, list[bytes], bytes | int, str]] = {
    "token as text too": ('start: "a" "b" "!" | <[23]> "x"', [b"ab"], b"!", "here"),
    "greedy repetition": ('start: A "x"\nA: "x"+', [b"x", b"x"], EOS, "here"),
    "name then word": ('start: N "b"\nN: /[ab]+/', [b"a", b"b"], EOS, "here"),
    "initial skip": ('start: "a"\n%ignore " "', [], b" ", "here"),
    "end token in a set": ("start: <[*]>", [], EOS, "llguidance"),
}


class Peer:
    """llguidance on the same tokens."""

    def __init__(self) -> None:
        library: Any = pytest.importorskip("llguidance", reason="llguidance is not installed")
        import llguidance.numpy as masks

        class Tokenizer:
            eos_token_id, bos_token_id, unk_token_id = EOS, None, None
            tokens = [b"<eos>", *TOKENS[1:-1], b"<s>"]  # noqa: RUF012
            special_token_ids = [EOS, SPECIAL]  # noqa: RUF012

            def __call__(self, text: str) -> list[int]:
                data = text.encode() if isinstance(text, str) else text
                return [TOKENS.index(bytes([byte])) for byte in data if bytes([byte]) in TOKENS]

        self.library, self.masks = library, masks
        self.tokenizer = library.LLTokenizer(library.TokenizerWrapper(Tokenizer()))

    def matcher(self, grammar: str) -> Any:
        # Otherwise its masks hold only one spelling of a forced text.
        found = self.library.LLMatcher(self.tokenizer, '%llguidance {"no_forcing": true}\n' + grammar)
        assert not found.get_error(), found.get_error()
        return found

    def allowed(self, matcher: Any) -> set[int]:
        row = self.masks.allocate_token_bitmask(1, self.tokenizer.vocab_size)
        self.masks.fill_next_token_bitmask(matcher, row)
        return bits(row)


@cache
def peer() -> Peer:
    return Peer()


def bits(row: Any) -> set[int]:
    return {token for token in range(len(TOKENS)) if row[0, token >> 5] >> (token & 31) & 1}


def allowed_here(matcher: Any) -> set[int]:
    row = np.zeros((1, 1), dtype=np.int32)
    matcher.fill_mask(row)
    return bits(row)


@pytest.mark.parametrize("name", AGREED)
def test_masks_are_the_same(name: str) -> None:
    """The masks are equal in all states that few tokens lead to, or in many states that are sampled from them."""
    text = AGREED[name]
    ours = compile(lark(text), VOCABULARY).matcher()
    waiting: list[list[int]] = [[]]
    sampled = random.Random(name)
    for _ in range(PLACES):
        if not waiting:
            break
        tokens = waiting.pop(sampled.randrange(len(waiting)))
        ours.reset()
        assert all(map(ours.accept, tokens))
        theirs = peer().matcher(text)
        for token in tokens:
            assert theirs.consume_token(token)
        allowed = allowed_here(ours)
        if theirs.is_stopped():  # it stops by itself where nothing can follow
            assert EOS in allowed
            assert not b"".join(TOKENS[token] for token in allowed - {EOS}).strip()  # ignored text at the end
            continue
        expected = peer().allowed(theirs)
        shown = [TOKENS[token] or token for token in tokens]
        assert allowed == expected, (shown, [TOKENS[token] or token for token in allowed ^ expected])
        if len(tokens) < DEPTH:
            waiting += [[*tokens, token] for token in allowed - {EOS}]


@pytest.mark.parametrize("name", DISAGREED)
def test_known_disagreements(name: str) -> None:
    """Only one of the two allows the token."""
    text, read, token, who = DISAGREED[name]
    ours, theirs = compile(lark(text), VOCABULARY).matcher(), peer().matcher(text)
    for data in read:
        assert ours.accept(TOKENS.index(data))
        assert theirs.consume_token(TOKENS.index(data))
    wanted = TOKENS.index(token) if isinstance(token, bytes) else token
    assert (wanted in allowed_here(ours)) == (who == "here")
    assert (not theirs.is_stopped() and wanted in peer().allowed(theirs)) == (who == "llguidance")
