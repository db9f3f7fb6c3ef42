"""The tokenizer as the native search sees it: its states as numbers, made of its splits, its rules and the last token.

The native code (``kernels/native/canonical``) calls ``Answers`` and caches what it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import Final, final

import numpy as np

from structgen.engine.mask import MaskWords, pack
from structgen.engine.tokenizers.encoding import Encoding
from structgen.engine.tokenizers.pretokens import Place
from structgen.engine.tokenizers.split_pattern import unsupported

__all__ = ["NO_TOKEN", "Answers"]

NO_TOKEN: Final = -1
_LAST_BITS: Final = 24
_BITS: Final = 20
_OPEN: Final = 1 << 16
"""The number of the first place within a character; the number of another place is that of its readings."""


@final
class Answers:
    """A tokenizer as an automaton over tokens, whose states are numbers.

    A state is one number: a place, the states of the rules, and the last token of the text.

    Args:
        encoding: how the tokenizer encodes.
        special: the special tokens of the vocabulary.
        tokens_of: the tokens of a text; None if it has none.
    """

    def __init__(
        self, encoding: Encoding, special: Collection[int], tokens_of: Callable[[bytes], list[int] | None]
    ) -> None:
        self._tokens_of = tokens_of
        self._pretokens, self._merges = encoding.pretokens, encoding.merges
        self._rules, self._added = encoding.rules, encoding.added
        self._special = frozenset(special)
        self._places: list[Place] = []  # within a character
        self._place_numbers: dict[Place, int] = {}
        self._rule_states: list[tuple[Hashable, ...]] = []
        self._rule_numbers: dict[tuple[Hashable, ...], int] = {}
        self.number_of_rules(tuple(rule.start for rule in self._rules))
        self.ends: Final = self._special | frozenset(() if self._added is None else self._added.added)

    def _place(self, number: int) -> Place:
        return Place(number) if number < _OPEN else self._places[number - _OPEN]

    def _number_of_place(self, place: Place) -> int:
        if not place.partial:
            return place.readings
        number = self._place_numbers.setdefault(place, _OPEN + len(self._places))
        if number == _OPEN + len(self._places):
            if number >= 1 << _BITS:
                raise unsupported("its split pattern has too many states", evidence=f"more than {number} places")
            self._places.append(place)
        return number

    def number_of_rules(self, states: tuple[Hashable, ...]) -> int:
        """Return the number of the states of the rules; 0 before a text."""
        number = self._rule_numbers.setdefault(states, len(self._rule_states))
        if number == len(self._rule_states):
            if number >= 1 << _BITS:
                raise unsupported("its rules have too many states", evidence=f"more than {number}")
            self._rule_states.append(states)
        return number

    def settled_after(self, token: int) -> int:
        """Return the number of the states of the rules after a token, from all that are settled; -1 if they differ."""
        states = tuple(rule.settled_after(token) for rule in self._rules)
        return NO_TOKEN if None in states else self.number_of_rules(states)

    def free_bytes(self, state: int) -> bytes:
        """Return the bytes before which the tokenizer always splits."""
        return self._pretokens.free_bytes(self._place(state >> (_LAST_BITS + _BITS)))

    # The following answer ``Tokenizer`` of kernels/native/canonical/canonical.h.

    def move(self, readings: int, character: int, splits: bool) -> int:  # noqa: FBT001
        """Return the readings after a character of a class."""
        return self._pretokens.read(readings, character, splits=splits)

    def unite(self, one: int, other: int) -> int:
        """Return the readings of two sets."""
        return self._pretokens.union(one, other)

    def place(self, number: int) -> tuple[bool, bool, bytes]:
        """Return whether the text may end, whether a piece is open, and before which bytes it always splits."""
        place = self._place(number)
        return self._pretokens.ends(place), self._pretokens.is_open(place), self._pretokens.free_bytes(place)

    def rows(self, number: int) -> tuple[MaskWords, MaskWords]:
        """Return the tokens that have a place after a split and without one, of a place within a character."""
        alive = np.zeros(len(self._merges.reachable), dtype=np.bool_)
        nothing = pack(alive)
        alive[self._pretokens.going_on(self._place(number))] = True
        return nothing, pack(alive & self._merges.reachable)

    def is_settled(self, number: int) -> bool:
        """Whether all rules are in a settled state."""
        states = self._rule_states[number]
        return all(rule.is_settled(state) for rule, state in zip(self._rules, states, strict=True))

    def rules(self, number: int) -> tuple[MaskWords, MaskWords]:
        """Return the tokens that the rules let through, and those that may end a text that may end."""
        states = self._rule_states[number]
        alive = np.ones(len(self._merges.reachable), dtype=np.bool_)
        for rule, state in zip(self._rules, states, strict=True):
            alive &= rule.alive(state)
        ending = np.zeros_like(alive)
        ending[list(self._special)] = True
        if self._added is not None:
            ending[[token for token in self._added.added if self._admits(states, token)]] = True
        return pack(alive), pack(ending)

    def _admits(self, states: tuple[Hashable, ...], token: int) -> bool:
        """Whether a token that ends the text may follow where the text may end."""
        if self._added is None or token not in self._added.added:
            return True
        before = states[0]  # of the added tokens: see ``Encoding``
        return isinstance(before, bytes) and self._added.admits(before, token)

    def after(self, place_number: int, rules_number: int, token: int, joins: bool) -> int:  # noqa: FBT001
        """Return the state after a token, which may be in one piece with the token before it; 0 for none."""
        place, states = self._place(place_number), self._rule_states[rules_number]
        if token in self.ends:
            return _START if self._pretokens.ends(place) and self._admits(states, token) else 0
        following = self._pretokens.after(place, token, joins=joins) if self._merges.reachable[token] else None
        if following is None:
            return 0
        after = tuple(rule.after(before, token) for rule, before in zip(self._rules, states, strict=True))
        if None in after:
            return 0
        return (self._number_of_place(following) << _BITS | self.number_of_rules(after)) << _LAST_BITS | (token + 1)

    def lets_through(self, number: int, text: bytes) -> bool:
        """Whether the rules let a text through."""
        states = self._rule_states[number]
        return all(rule.lets_through(state, text) for rule, state in zip(self._rules, states, strict=True))

    def settles(self, number: int, byte: int) -> bool:
        """Whether the rules let every text of harmless bytes through that begins with this one."""
        states = self._rule_states[number]
        return all(rule.settles(state, byte) for rule, state in zip(self._rules, states, strict=True))

    def has_tokens(self, text: bytes) -> bool:
        """Whether there are tokens that spell a text."""
        return self._tokens_of(text) is not None


_START: Final = 1 << (_LAST_BITS + _BITS)
