"""The contract between languages, samplers and commit policies of diffusion models.

One forward pass of a diffusion model gives every free slot of a canvas a law of its own: the *mean-field law* is their
product.  Almost all of its mass spells nothing that the grammar allows.  A ``CanvasLanguage`` restricts it to the
canvases that spell a member of the language, and the result, a ``CanvasPosterior``, answers everything that a decoder
asks: the most probable completion, an exact draw, what every slot is then likely to hold, and how much mass there was.

Whatever is committed is taken from ONE completion: any subset of a valid canvas can be completed, however many slots
are committed at once, so that no trial and no repair is needed.

A member may be shorter than the canvas.  The slots after it hold EOS, and what the model says about them is either
left out of account (``tail="free"``) or counted as any other slot (``tail="scored"``).  The first is for finding one
good member: a model that is not sure of every padding slot would pay for each, and prefer long members.  The second is
for samplers that promise a law over canvases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from structgen.decode.diffusion.mean_field import MeanField
    from structgen.engine.vocabulary import Vocabulary

__all__ = ["Canvas", "CanvasLanguage", "CanvasPosterior", "Completion", "Leaders", "Tail"]

Canvas: TypeAlias = "NDArray[np.int32]"
"""Token ids, ``[slots]``, and ``FREE`` (see ``structgen.decode.diffusion.mean_field``) where a slot is free."""

Tail: TypeAlias = Literal["free", "scored"]


class Completion(NamedTuple):
    """A canvas without free slots that spells a member.

    Attributes:
        tokens: int32 ``[slots]``; EOS from the end of the member on.
        log_prob: log of its mass under the mean-field law, the tail counted as it was asked for.
    """

    tokens: NDArray[np.int32]
    log_prob: float


class Leaders(NamedTuple):
    """The most probable token of each slot's marginal, and how far it leads.

    Attributes:
        tokens: int32 ``[slots]``; of equal ones the first; what fixed slots hold.
        shares: float64 ``[slots]``, their probabilities; 1 for fixed slots.
        seconds: float64 ``[slots]``, the probability of the second token; 0 for fixed slots.
    """

    tokens: NDArray[np.int32]
    shares: NDArray[np.float64]
    seconds: NDArray[np.float64]


class CanvasPosterior(Protocol):
    """The mean-field law of one canvas, restricted to completions that spell a member."""

    @property
    def log_z(self) -> float:
        """Log of the mass of all completions; minus infinity where there is none."""

    def best(self) -> Completion:
        """Return the completion of the largest mass; of equal ones, always the same.

        Raises:
            GenerationError: there is no completion.
        """

    def draw(self, generator: np.random.Generator, /) -> Completion:
        """Draw a completion with its probability.

        Raises:
            GenerationError: there is no completion.
        """

    def shares(self, tokens: NDArray[np.int32], /) -> NDArray[np.float64]:
        """Return the marginal probability of ``tokens[i]`` in slot ``i``, float64 ``[slots]``; 1 for fixed slots."""

    def marginals(self, slot: int, /) -> NDArray[np.float64]:
        """Return the marginal probability of every token in one slot, float64 ``[vocabulary.size]``."""

    def leaders(self) -> Leaders:
        """Return the most probable token of every slot's marginal, and the probability of the second."""

    def entropies(self) -> NDArray[np.float64]:
        """Return the entropy of every slot's marginal, in nats, float64 ``[slots]``; 0 for fixed slots."""

    def clamped(self, canvas: Canvas, /) -> float:
        """Return log of the mass of completions of ``canvas``, which fixes more slots, under the SAME law.

        This is ``Z(x'; x)`` of TWISTER: the model is not asked again.
        """


class CanvasLanguage(Protocol):
    """Which canvases spell a member of a language, for canvases of any number of slots."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens of the slots."""

    @property
    def shortest(self) -> int:
        """How many slots the shortest member takes, EOS not counted."""

    def posterior(self, law: MeanField, /, *, tail: Tail = "free") -> CanvasPosterior:
        """Restrict the law of one canvas."""

    def completable(self, canvas: Canvas, /) -> bool:
        """Whether the free slots can be filled, each by one token, so that the canvas spells a member."""

    def masks(self, canvas: Canvas, /) -> NDArray[np.int32]:
        """Return which tokens each slot may hold so that the canvas stays completable.

        Returns:
            int32 ``[slots, ceil(V / 32)]`` in the layout of token masks; a fixed slot allows its token alone; all
            zero where the canvas is not completable.
        """

    def forced(self, canvas: Canvas, /) -> Canvas:
        """Return the canvas with every free slot filled for which the language leaves a single token.

        Grammar-forced slots cost no forward pass.  A slot that only a tail can hold counts as forced to the first EOS.
        The canvas is returned as it is where it is not completable.
        """
