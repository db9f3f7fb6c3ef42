"""Canvases some of whose slots may stay empty: the test on which infilling rests, and its answer for regular languages.

A hole of at most ``k`` tokens is a run of ``k`` open slots.  An open slot holds one token or nothing, so the run holds
every filling of at most ``k`` tokens and no other: unlike a gap that stands for any text of any length, it never lets
through a prefix that does not fit into the tokens that are left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, final

import numpy as np

from structgen.decode.diffusion.mean_field import FREE
from structgen.decode.step.mask import mask_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from structgen.decode.diffusion.posterior import Canvas
    from structgen.decode.diffusion.regular import RegularLanguage
    from structgen.engine.vocabulary import Vocabulary

__all__ = ["OPEN", "OpenLanguage", "RegularOpen"]

OPEN: Final = -2
"""What an open slot holds: a token that is not known yet, or nothing."""


class OpenLanguage(Protocol):
    """Which canvases with open slots spell a member of a language, EOS never among their tokens."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens of the slots."""

    def completable(self, canvas: Canvas, /, *, at: int | None = None) -> bool:
        """Whether the open slots can be given a token or left empty so that the canvas spells a member.

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
        return mask_words(classes[automaton.class_of])

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
