"""Canvases of a grammar, by enumeration of all ways to fill them.

Earley's algorithm decides which texts the grammar accepts.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import product
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from structgen import compile, lark
from structgen.decode.diffusion.mean_field import FREE, MeanField
from structgen.engine import Constraint, Vocabulary
from structgen.grammar.nodes import Grammar
from structgen.testing.earley import Recogniser

__all__ = ["GRAMMARS", "Canvases", "Text", "an_instance"]

Tokens = tuple[int, ...]

_JSON = 'start: v\nv: "[" [v ("," v)*] "]" | "{" [p ("," p)*] "}" | "1"\np: "a:" v'

GRAMMARS: dict[str, tuple[str, tuple[bytes, ...]]] = {
    "brackets": ('start: ("(" start ")")*', (b"(", b")", b"()", b")(")),
    "brackets in pairs": ('start: ("(" start ")")*', (b"(", b")", b"))", b"(()")),
    "arithmetic": ('start: e\ne: e "+" t | t\nt: "1" | "(" e ")"', (b"1", b"+", b"(1", b")", b"+(")),
    "palindromes": ('start: "a" start "a" | "b" start "b" | "c"', (b"a", b"b", b"c", b"ac", b"aa")),
    "palindromes without centre": ('start: ("a" start "a" | "b" start "b")?', (b"a", b"b", b"ab", b"aa")),
    "as many": ('start: ["a" start "b"]', (b"a", b"b", b"ab", b"bb", b"aab")),
    "json": (_JSON, (b"[", b"]", b"1", b"],", b"{a:", b"}")),
    "json across values": (_JSON, (b"[1", b"]]", b"]", b",1", b"},{a", b":", b"1}")),
    "ambiguous": ('start: e\ne: e "+" e | "1"', (b"1", b"+", b"+1", b"1+1")),
}
"""Grammars that recur, each with tokens; most lie across the ends of rules."""


@dataclass(frozen=True)
class Text:
    """A grammar, and a vocabulary of some tokens and EOS."""

    grammar: Grammar
    tokens: tuple[bytes, ...]

    @property
    def eos(self) -> int:
        return len(self.tokens)

    @property
    def size(self) -> int:
        return len(self.tokens) + 1

    @cached_property
    def constraint(self) -> Constraint:
        return compile(self.grammar, Vocabulary([*self.tokens, b""], eos=[self.eos]))

    @cached_property
    def _known(self) -> dict[bytes, bool]:
        return {}

    @cached_property
    def _recogniser(self) -> Recogniser:
        return Recogniser(self.grammar, {})

    def is_member(self, text: bytes) -> bool:
        """Whether the text belongs to the grammar."""
        if text not in self._known:
            position = self._recogniser.start
            for byte in text:
                following = self._recogniser.step(position, byte)
                if following is None:
                    self._known[text] = False
                    return False
                position = following
            self._known[text] = position.is_accepting
        return self._known[text]

    def length(self, canvas: Sequence[int]) -> int:
        """How many tokens come before the first EOS."""
        return next((at for at, token in enumerate(canvas) if token == self.eos), len(canvas))

    def fillings(self, canvas: Sequence[int]) -> Iterator[Tokens]:
        """Every full canvas that agrees with this one and spells a string of the grammar."""
        for tokens in product(*(range(self.size) if held == FREE else [held] for held in canvas)):
            length = self.length(tokens)
            is_ended = all(token == self.eos for token in tokens[length:])
            if is_ended and self.is_member(b"".join(self.tokens[token] for token in tokens[:length])):
                yield tokens


@dataclass(frozen=True)
class Canvases:
    """A canvas with a distribution, in exact fractions, and the mass of each completion.

    Attributes:
        distribution: of every slot, fixed ones too.
    """

    text: Text
    canvas: Tokens
    distribution: tuple[tuple[Fraction, ...], ...]
    tail: Literal["free", "scored"]

    @property
    def array(self) -> NDArray[np.int32]:
        return np.array(self.canvas, dtype=np.int32)

    @property
    def mean_field(self) -> MeanField:
        logits = [
            [float(np.log(float(share))) for share in distribution]
            for held, distribution in zip(self.canvas, self.distribution, strict=True)
            if held == FREE
        ]
        return MeanField(self.array, np.array(logits, dtype=np.float64).reshape(len(logits), self.text.size))

    @cached_property
    def masses(self) -> dict[Tokens, Fraction]:
        return self.masses_of(self.canvas)

    @property
    def total(self) -> Fraction:
        return sum(self.masses.values(), Fraction(0))

    def masses_of(self, canvas: Sequence[int]) -> dict[Tokens, Fraction]:
        """The completions of a canvas with their masses; fixed slots do not count, and neither does a free tail."""
        found: dict[Tokens, Fraction] = {}
        for tokens in self.text.fillings(canvas):
            mass, length = Fraction(1), self.text.length(tokens)
            for slot, (held, token) in enumerate(zip(canvas, tokens, strict=True)):
                if held == FREE and not (slot > length and self.tail == "free"):
                    mass *= self.distribution[slot][token]
            found[tokens] = mass
        return found

    def allowed(self) -> list[set[int]]:
        """The tokens of each slot over all completions."""
        return [{tokens[slot] for tokens in self.masses} for slot in range(len(self.canvas))]

    def marginal(self, slot: int) -> list[Fraction]:
        """The share of each token in a slot."""
        shares = [Fraction(0)] * self.text.size
        for tokens, mass in self.masses.items():
            shares[tokens[slot]] += mass / self.total
        return shares


def an_instance(name: str, seed: int, *, slots: int | None = None, fixed: float = 0.4) -> Canvases:
    """A canvas of one of ``GRAMMARS``; about half of those with fixed slots have no completion."""
    rng = random.Random(f"{name} {seed}")
    grammar, tokens = GRAMMARS[name]
    text = Text(lark(grammar), tokens)
    count = rng.randint(0, 5) if slots is None else slots
    canvas = tuple(rng.randrange(text.size) if rng.random() < fixed else FREE for _ in range(count))
    distribution = []
    for _ in range(count):
        weights = [rng.choice((1, 2, 3, 7, 40)) for _ in range(text.size)]
        distribution.append(tuple(Fraction(weight, sum(weights)) for weight in weights))
    return Canvases(text, canvas, tuple(distribution), rng.choice(("free", "scored")))
