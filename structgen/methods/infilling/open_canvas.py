"""Canvases with slots that may stay empty: the completability test of infilling, solved for regular languages.

The answer for recursive grammars is in ``open_network``; its tables and positions are here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias, final

import numpy as np

from structgen.decode.diffusion.context_free.token_network import DEAD_CLASS, lift
from structgen.decode.diffusion.mean_field import FREE
from structgen.engine.mask import pack
from structgen.engine.network import Network, network_of
from structgen.errors import LimitExceeded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from structgen.decode.diffusion.posterior import Canvas
    from structgen.decode.diffusion.regular import RegularLanguage
    from structgen.engine.constraint import Constraint
    from structgen.engine.vocabulary import Vocabulary

__all__ = ["MAX_STATES", "OPEN", "OpenLanguage", "RegularOpen"]

MAX_STATES: Final = 100_000
"""Limit on the states of a network."""

FEW_TOKENS: Final = 64
"""Vocabularies up to this size are not grouped by the effects of their tokens."""

MAX_CACHED: Final = 500_000
"""Limit on the number of cached answers."""

Ends: TypeAlias = "frozenset[str]"
"""Unread ends of tokens: one character for each byte, or one for a special token. Each set has a number."""

SuffixPosition: TypeAlias = int
"""The number of the canvas suffix after a slot, and in the low ``SHIFT`` bits that of the ends unread in the slot;
``NO_ENDS`` at its boundary."""

Stack: TypeAlias = "tuple[int, ...]"
"""States; the first one reads first."""

NetworkTables: TypeAlias = "tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.int32], NDArray[np.int32]]"

EMPTY: Final = 0  # the number of the empty suffix
NO_ENDS: Final = 0  # the number of no ends
SHIFT: Final = 24
ENDS_MASK: Final = (1 << SHIFT) - 1


class WithinSlot(NamedTuple):
    """What a state can read of a set of ends of tokens, within one slot.

    Attributes:
        left: the number of the ends that are unread where its rule returns after reading something.
        stacks: the states in which everything is read: of its own rule last, of the rules that it called before it.
    """

    left: int
    stacks: tuple[Stack, ...]


@final
class OpenCall:
    """The calls of one rule at one position; compared by identity.

    Attributes:
        waiting: the state after each call's return, and the call that it is made in.
    """

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: dict[tuple[int, OpenCall], None] = {}


ROOT: Final = OpenCall()
"""The call of the whole grammar, which nothing waits for."""

CallPosition: TypeAlias = "tuple[int, OpenCall]"
"""A state at a slot boundary, and the call in which it reads."""


@final
class EndSets:
    """Sets of ends of tokens, each with a number, in the order of ``sets``; the empty set is ``NO_ENDS``."""

    def __init__(self) -> None:
        self.sets: list[Ends] = [frozenset()]
        self._numbers: dict[Ends, int] = {frozenset(): NO_ENDS}
        self._unions: dict[tuple[int, int], int] = {}

    def number(self, ends: Ends) -> int:
        """The number of a set."""
        number = self._numbers.setdefault(ends, len(self.sets))
        if number == len(self.sets):
            self.sets.append(ends)
        return number

    def union(self, one: int, other: int) -> int:
        """The number of the union of two sets."""
        if not one or not other or one == other:
            return one or other
        key = (one, other) if one < other else (other, one)
        number = self._unions.get(key)
        if number is None:
            number = self._unions[key] = self.number(self.sets[one] | self.sets[other])
        return number


@final
class CanvasSuffixes:
    """Canvas suffixes, each with a number; the empty one is ``EMPTY``.

    Attributes:
        parts: of each suffix, its first slot, and the suffix after it.
        runs: of each suffix, the suffix after its leading open slots, and the number of these.
    """

    def __init__(self) -> None:
        self.parts: list[tuple[int, int]] = [(EMPTY, EMPTY)]
        self.runs: list[tuple[int, int]] = [(EMPTY, 0)]
        self._numbers: dict[tuple[int, int], int] = {}

    def number(self, slots: Sequence[int]) -> int:
        """The number of a suffix."""
        number = EMPTY
        for slot in reversed(slots):
            extended = self._numbers.setdefault((slot, number), len(self.parts))
            if extended == len(self.parts):
                self.parts.append((slot, number))
                end, length = self.runs[number]
                self.runs.append((end, length + 1) if slot == OPEN else (extended, 0))
            number = extended
        return number


def nullable_states(final: list[bool], calls: list[list[tuple[int, int]]]) -> list[bool]:
    """Return from which states a rule can end without reading, through calls of rules that read nothing, too."""
    nullable = list(final)
    grown = True
    while grown:
        grown = False
        for state, made in enumerate(calls):
            if not nullable[state] and any(nullable[start] and nullable[after] for start, after in made):
                nullable[state] = grown = True
    return nullable


OPEN: Final = -2
"""The id of an open slot, which holds an unknown token or nothing."""


class OpenLanguage(Protocol):
    """The canvases with open slots that spell a string of a grammar; EOS is never among their tokens."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens of the slots."""

    def completable(self, canvas: Canvas, /, *, at: int | None = None) -> bool:
        """Whether the open slots can be given a token or left empty so that the canvas spells a string of the grammar.

        Args:
            canvas: token ids, ``OPEN``, and ``FREE`` in slots that must hold a token.
            at: a slot; it does not change the answer, which is faster if the slots on its left were queried before.
        """

    def allowed(self, canvas: Canvas, slot: int, /) -> NDArray[np.int32]:
        """Return the tokens that an open slot may hold so that the canvas stays completable.

        Args:
            canvas: as for ``completable``.
            slot: an open slot.

        Returns:
            int32 ``[ceil(V / 32)]``, a token mask.
        """


@final
class RegularOpen:
    """Canvases with open slots of a regular language: states are propagated from both ends to the slot.

    Args:
        language: the same language without open slots.

    Complexity: O(slots x edges of the token automaton) for each query.
    """

    def __init__(self, language: RegularLanguage) -> None:
        self.vocabulary = language.vocabulary
        self._automaton = language.automaton
        self._holds = language.holds[: language.eos_label]  # without the labels of EOS and tail

    def completable(self, canvas: Canvas, /, *, at: int | None = None) -> bool:
        """See ``OpenLanguage.completable``."""
        reached: list[bool] = self._reached(canvas[::-1].tolist(), forwards=False).tolist()
        return reached[0]

    def allowed(self, canvas: Canvas, slot: int, /) -> NDArray[np.int32]:
        """See ``OpenLanguage.allowed``."""
        automaton = self._automaton
        before = self._reached(canvas[:slot].tolist(), forwards=True)
        after = self._reached(canvas[:slot:-1].tolist(), forwards=False)
        alive = before[automaton.source] & after[automaton.target]
        classes: NDArray[np.bool_] = np.logical_or.reduce(self._holds[np.unique(automaton.label[alive])], axis=0)
        return pack(classes[automaton.class_of])

    def _reached(self, tokens: Sequence[int], *, forwards: bool) -> NDArray[np.bool_]:
        """The states after some slots from the start; or those from which the slots, reversed, lead to acceptance."""
        automaton = self._automaton
        source, target = automaton.source, automaton.target
        if not forwards:
            source, target = target, source
            states: NDArray[np.bool_] = automaton.accepting.copy()
        else:
            states = np.zeros(automaton.states, dtype=bool)
            states[0] = True
        for token in tokens:
            if token == OPEN:
                states[target[states[source]]] = True
                continue
            reached = np.zeros_like(states)
            if token == FREE:
                reached[target[states[source]]] = True
            elif token < len(automaton.class_of):
                moves = states[source] & self._holds[automaton.label, automaton.class_of[token]]
                reached[target[moves]] = True
            states = reached
        return states


def token_groups(
    constraint: Constraint, made: NetworkTables, nullable: Sequence[bool], spelled: Sequence[str]
) -> tuple[NDArray[np.int32], list[str]]:
    """Group the tokens with equal effects in every state.

    Returns:
        For each token the number of its group, ``[V]``, and for each group the spelling of one of its tokens; "" for
        the group of tokens without effect.
    """
    if constraint.vocabulary.size > FEW_TOKENS:
        try:
            lifted = lift(_lifting(constraint, made, nullable), constraint.vocabulary)
        except LimitExceeded:
            pass  # every token becomes a group of its own
        else:
            _, first = np.unique(lifted.class_of, return_index=True)
            pieces = [""] * lifted.classes
            for token in first.tolist():
                if lifted.class_of[token] != DEAD_CLASS:
                    pieces[int(lifted.class_of[token])] = spelled[token]
            return lifted.class_of, pieces
    numbers: dict[str, int] = {"": 0}
    groups = [numbers.setdefault(piece, len(numbers)) for piece in spelled]
    return np.array(groups, dtype=np.int32), list(numbers)


def _lifting(constraint: Constraint, made: NetworkTables, nullable: Sequence[bool]) -> Network:
    """A network in which every call reads something: the unfolded network itself if possible, else the engine's."""
    next_, final_, calls, specials = made
    if any(nullable[start] for _, start, _ in calls.tolist()):
        return network_of(constraint)
    called = tuple((state, start, after) for state, start, after in calls.tolist())
    special = tuple((state, token, after) for state, token, after in specials.tolist())
    return Network(next_, final_.astype(bool), called, special, is_deterministic=False)
