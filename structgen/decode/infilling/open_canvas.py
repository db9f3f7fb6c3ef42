"""Canvases some of whose slots may stay empty: the test on which infilling rests.

A hole of at most ``k`` tokens is a run of ``k`` open slots.  An open slot holds one token or nothing, so the run holds
every filling of at most ``k`` tokens and no other: unlike a gap that stands for any text of any length, it never lets
through a beginning that does not fit into the tokens that are left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.diffusion.posterior import Canvas
    from structgen.engine.vocabulary import Vocabulary

__all__ = ["OPEN", "OpenLanguage"]

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
