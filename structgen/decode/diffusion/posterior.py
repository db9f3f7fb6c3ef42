"""The contract between canvas languages, canvas samplers and commit policies; and the two canvas samplers.

A ``CanvasLanguage`` restricts the mean-field distribution of a step to valid canvases: a ``CanvasPosterior``. A
``CanvasSampler`` takes one completion of it: the most probable one (``Dingo``) or an exact sample (``Posterior``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Protocol, TypeAlias, final, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from structgen.decode.diffusion.mean_field import MeanField
    from structgen.engine.vocabulary import Vocabulary

__all__ = [
    "Canvas",
    "CanvasLanguage",
    "CanvasPosterior",
    "CanvasSampler",
    "Completion",
    "Dingo",
    "Leaders",
    "Posterior",
    "Tail",
]

Canvas: TypeAlias = "NDArray[np.int32]"
"""Token ids, ``[slots]``, and ``FREE`` (see ``structgen.decode.diffusion.mean_field``) where a slot is free."""

Tail: TypeAlias = Literal["free", "scored"]


class Completion(NamedTuple):
    """A canvas without free slots that spells a string of the grammar.

    Attributes:
        tokens: int32 ``[slots]``; EOS in every slot after the string.
        log_prob: log of its mass under the mean-field distribution; the tail counts as the sampler requests.
    """

    tokens: NDArray[np.int32]
    log_prob: float


class Leaders(NamedTuple):
    """The most probable token of each slot's marginal, and its lead over the second.

    Attributes:
        tokens: int32 ``[slots]``; of equal tokens the first; fixed slots hold their token.
        shares: float64 ``[slots]``, probabilities of ``tokens``; 1 for fixed slots.
        seconds: float64 ``[slots]``, the probability of the second token; 0 for fixed slots.
    """

    tokens: NDArray[np.int32]
    shares: NDArray[np.float64]
    seconds: NDArray[np.float64]


class CanvasPosterior(Protocol):
    """The mean-field distribution of one canvas, restricted to completions that spell a string of the grammar."""

    @property
    def log_z(self) -> float:
        """Log of the mass of all completions; minus infinity if there is none."""

    def best(self) -> Completion:
        """Return the completion of the largest mass; ties are broken deterministically.

        Raises:
            GenerationError: there is no completion.
        """

    def draw(self, generator: np.random.Generator, /) -> Completion:
        """Sample a completion.

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
        """Return log of the mass of completions of ``canvas``, which fixes more slots, under the SAME distribution.

        This is ``Z(x'; x)`` of TWISTER: the model does not run again.
        """


class CanvasLanguage(Protocol):
    """Which canvases spell a string of a grammar, for canvases of any number of slots."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens of the slots."""

    @property
    def shortest(self) -> int:
        """How many slots the shortest string takes, EOS not counted."""

    def posterior(self, distribution: MeanField, /, *, tail: Tail = "free") -> CanvasPosterior:
        """Restrict the distribution of one canvas."""

    def completable(self, canvas: Canvas, /) -> bool:
        """Whether the free slots can be filled, one token each, so that the canvas spells a string of the grammar."""

    def masks(self, canvas: Canvas, /) -> NDArray[np.int32]:
        """Return which tokens each slot may hold so that the canvas stays completable.

        Returns:
            int32 ``[slots, ceil(V / 32)]``, token masks; a fixed slot allows its token only; all zero if the canvas is
            not completable.
        """

    def forced(self, canvas: Canvas, /) -> Canvas:
        """Return the canvas with every free slot filled for which the language leaves one token.

        Such slots cost no forward pass. A slot that only a tail can hold is forced to the first EOS. A canvas that is
        not completable is returned unchanged.
        """


@runtime_checkable
class CanvasSampler(Protocol):
    """Takes one completion in each step, from which a commit policy then commits some slots; a value."""

    @property
    def target(self) -> str:
        """The completion that a step takes, in words."""

    @property
    def lossless(self) -> bool:
        """Whether ONE step that commits everything samples the model's distribution given the language."""

    @property
    def tail(self) -> Tail:
        """Whether slots after EOS count (``"scored"``) or not (``"free"``)."""

    @property
    def deterministic(self) -> bool:
        """Whether it uses no random numbers."""

    def complete(self, posterior: CanvasPosterior, generator: np.random.Generator, /) -> Completion:
        """Take a completion.

        Raises:
            GenerationError: there is no completion.
        """


@final
@dataclass(frozen=True, slots=True)
class Dingo:
    """The most probable completion of each step.

    Source: T. Suresh et al., "DINGO: Constrained Inference for Diffusion LLMs" (2025, arXiv 2505.23061); here in
    logarithms, on the model's marginals of every free slot, over all remaining slots, and ending in acceptance.
    """

    target: ClassVar[str] = "the most probable completion of each step under the mean-field distribution"
    lossless: ClassVar[bool] = False
    deterministic: ClassVar[bool] = True
    tail: ClassVar[Tail] = "free"

    def complete(self, posterior: CanvasPosterior, generator: np.random.Generator, /) -> Completion:
        """See ``CanvasSampler.complete``."""
        del generator
        return posterior.best()


@final
@dataclass(frozen=True, slots=True)
class Posterior:
    """An exact sample of each step's mean-field distribution, given that the canvas spells a string of the grammar.

    Over several steps this is not the model's distribution given the language, since each step conditions anew.
    ``SMC`` corrects it.

    Attributes:
        tail: ``"scored"`` counts the model's probability of the padding, as its own distribution does.

    Source: M. Dang and S. Ermon (2026, arXiv 2607.07026).
    """

    tail: Tail = "free"

    target: ClassVar[str] = "the mean-field distribution of each step, given the language"
    deterministic: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.tail not in ("free", "scored"):
            raise ValueError(f"Posterior: tail must be 'free' or 'scored'; found {self.tail!r}")

    @property
    def lossless(self) -> bool:
        """Whether one step that commits everything samples the model's own distribution given the language."""
        return self.tail == "scored"

    def complete(self, posterior: CanvasPosterior, generator: np.random.Generator, /) -> Completion:
        """See ``CanvasSampler.complete``."""
        return posterior.draw(generator)
