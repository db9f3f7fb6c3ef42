"""Canvases some of whose slots may stay empty: the test on which infilling rests, and its answer for regular languages.

The answer for recursive grammars is in ``open_network``; the tables and positions that it reads with are here.
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
"""States of a network."""

FEW_TOKENS: Final = 64
"""Tokens up to which it is not worth while to find out which of them do the same."""

MAX_CACHED: Final = 500_000
"""Answers that are kept."""

Ends: TypeAlias = "frozenset[str]"
"""Ends of tokens that are left to be read: one character a byte, or one for a special token.  Each has a number."""

SuffixPosition: TypeAlias = int
"""The number of the suffix of the canvas that comes after a slot, and below ``_SHIFT`` bits that of the ends which are
left of the slot; ``_NOTHING`` at its boundary."""

Stack: TypeAlias = "tuple[int, ...]"
"""States, the one that reads first."""

NetworkTables: TypeAlias = "tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.int32], NDArray[np.int32]]"

EMPTY: Final = 0  # the number of the empty suffix
NO_ENDS: Final = 0  # the number of no ends
SHIFT: Final = 24
ENDS_MASK: Final = (1 << SHIFT) - 1


class WithinSlot(NamedTuple):
    """What a state can make of a set of ends of tokens, within one slot.

    Attributes:
        left: the number of the ends that are left where its rule returns, having read something.
        stacks: the states in which all is read: of its own rule last, of rules that it called before it.
    """

    left: int
    stacks: tuple[Stack, ...]


@final
class OpenCall:
    """Calls of one rule at one place; compared by identity.

    Attributes:
        waiting: the state after each call's return, and the call that it is made in.
    """

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: dict[tuple[int, OpenCall], None] = {}


CallPosition: TypeAlias = "tuple[int, OpenCall]"
"""A state at a boundary of slots, and the call that it reads in."""


def nullable_states(final: list[bool], calls: list[list[tuple[int, int]]]) -> list[bool]:
    """From which states a rule can end with nothing read, calls of rules that can do so counted."""
    found = list(final)
    grown = True
    while grown:
        grown = False
        for state, made in enumerate(calls):
            if not found[state] and any(found[start] and found[after] for start, after in made):
                found[state] = grown = True
    return found


OPEN: Final = -2
"""What an open slot holds: a token that is not known yet, or nothing."""


class OpenLanguage(Protocol):
    """Which canvases with open slots spell a string of a grammar, EOS never among their tokens."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens of the slots."""

    def completable(self, canvas: Canvas, /, *, at: int | None = None) -> bool:
        """Whether the open slots can be given a token or left empty so that the canvas spells a string of the grammar.

        Args:
            canvas: with token ids, ``OPEN``, and ``FREE`` in slots that must be given a token.
            at: a slot; the answer is the same, and found sooner if what stands on its left was asked about before.
        """

    def allowed(self, canvas: Canvas, slot: int, /) -> NDArray[np.int32]:
        """Return the tokens that an open slot may hold so that the canvas stays completable.

        Args:
            canvas: as for ``completable``.
            slot: an open one.

        Returns:
            int32 ``[ceil(V / 32)]`` in the layout of token masks.
        """


@final
class RegularOpen:
    """Canvases with open slots of a regular language: states are carried from both ends to the slot.

    Args:
        language: of the same members.

    Complexity: O(slots x edges of the automaton over tokens) a question.
    """

    def __init__(self, language: RegularLanguage) -> None:
        self.vocabulary = language.vocabulary
        self._automaton = language.automaton
        self._holds = language.holds[: language.eos_label]  # of labels that text has

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
        """The states that slots lead to from the start, or from which they, read backwards, lead to acceptance."""
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
    """Group the tokens of equal effect in every state.

    Returns:
        For each token the number of its group, ``[V]``, and for each group the spelling of one of its tokens; the group
        of tokens without effect has none.
    """
    if constraint.vocabulary.size > FEW_TOKENS:
        try:
            lifted = lift(_lifting(constraint, made, nullable), constraint.vocabulary)
        except LimitExceeded:
            pass  # every token is then a group of its own
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
    """A network in which every call reads something: the engine's own, where it is one."""
    next_, final_, calls, specials = made
    if any(nullable[start] for _, start, _ in calls.tolist()):
        return network_of(constraint)
    called = tuple((state, start, after) for state, start, after in calls.tolist())
    special = tuple((state, token, after) for state, token, after in specials.tolist())
    return Network(next_, final_.astype(bool), called, special, is_deterministic=False)
