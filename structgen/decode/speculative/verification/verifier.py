"""What decides which drawn token is taken."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from numpy.typing import NDArray

if TYPE_CHECKING:
    from structgen.decode.speculative.chance import Chance
    from structgen.decode.speculative.verification.verdict import Verdict

__all__ = ["ChainVerifier", "Rows", "Verifier"]

Rows: TypeAlias = Sequence[NDArray[Any]] | NDArray[Any]
"""The laws of several positions; they need not be over the same tokens, so they need not have the same length."""


class Verifier(ABC):
    """Chooses the next token where some were drawn from another law: a value.

    Where the tokens of a tree were chosen by a rule, not drawn, no verifier is needed: the sampler chooses as ever, and
    a token that was guessed is found to be so (``sample_and_match``).
    """

    lossless: ClassVar[bool]
    """Whether what is chosen has the target's law, whatever was drawn."""
    replaced: ClassVar[bool]
    """Whether tokens have to be drawn with replacement; else they may be."""

    @abstractmethod
    def choose(self, p: NDArray[Any], q: NDArray[Any], drafts: Sequence[int], chance: Chance, /) -> int:
        """Return the index of the next token; never one whose ``p`` is zero.

        Drafts to which ``q`` gives no probability were not drawn from it, and are passed over.

        Args:
            p: the target's law over the allowed tokens, ``[n]``: the mask applied, the sampler's shaping done; sums to
                1.
            q: the law that the drafts were drawn from, restricted to the same tokens, ``[n]``; sums to 1.  It is not
                looked at where there are no drafts.
            drafts: indices in the order in which they were drawn.
            chance: answers what is left to chance.
        """


class ChainVerifier(ABC):
    """Decides on all tokens of a drawn chain together: a value."""

    lossless: ClassVar[bool]
    """Whether what comes out has the target's law."""

    @abstractmethod
    def verify(self, p: Rows, q: Rows, drafts: Sequence[int], chance: Chance, /) -> Verdict:
        """Return how much of a chain is taken, and what follows; nothing whose ``p`` is zero.

        Where the chain ends may depend on the tokens before its end and on the grammar, not on what the next token
        would have been.  So it may be cut before the first token that the grammar refuses.

        Args:
            p: the target's laws before each draft and behind the last, ``[1 + k]`` rows, each as in
                ``Verifier.choose``.
            q: the laws that the drafts were drawn from, ``[k]`` rows, each restricted to the tokens of its row of
                ``p``.
            drafts: an index into each row of ``q``, ``[k]``.
            chance: answers what is left to chance.
        """
