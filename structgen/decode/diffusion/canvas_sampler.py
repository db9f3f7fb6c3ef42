"""How one completion is taken from the posterior of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, final, runtime_checkable

if TYPE_CHECKING:
    import numpy as np

    from structgen.decode.diffusion.posterior import CanvasPosterior, Completion, Tail

__all__ = ["CanvasSampler", "Dingo", "Posterior"]


@runtime_checkable
class CanvasSampler(Protocol):
    """Takes one completion at each step, of which a commit policy then commits some slots; a value.

    Attributes:
        target: in words, what a step takes.
        lossless: whether ONE step that commits everything samples the model's law given the language.
        tail: how slots after the member count; see ``structgen.decode.diffusion.posterior``.
    """

    @property
    def target(self) -> str: ...

    @property
    def lossless(self) -> bool: ...

    @property
    def tail(self) -> Tail: ...

    @property
    def deterministic(self) -> bool:
        """Whether it draws no random numbers."""

    def complete(self, posterior: CanvasPosterior, generator: np.random.Generator, /) -> Completion:
        """Take a completion.

        Raises:
            GenerationError: there is none.
        """


@final
@dataclass(frozen=True, slots=True)
class Dingo:
    """The most probable completion of each step.

    Source: T. Suresh et al., "DINGO: Constrained Inference for Diffusion LLMs" (2025, arXiv 2505.23061); here in
    logarithms, on the model's marginals in every free slot, over all slots that are left, and ending in acceptance.
    """

    target: ClassVar[str] = "the most probable completion of each step under the mean-field law"
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
    """An exact draw from the mean-field law of each step, given that the canvas spells a member.

    Over several steps this is not the model's law given the language: each step conditions anew.  ``SMC`` corrects it.

    Attributes:
        tail: ``"scored"`` counts what the model says about padding, as its own law does.

    Source: M. Dang and S. Ermon (2026, arXiv 2607.07026).
    """

    tail: Tail = "free"

    target: ClassVar[str] = "the mean-field law of each step, given the language"
    deterministic: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.tail not in ("free", "scored"):
            raise ValueError(f"Posterior: tail must be 'free' or 'scored'; found {self.tail!r}")

    @property
    def lossless(self) -> bool:
        """Whether one step that commits everything samples the model's own law given the language."""
        return self.tail == "scored"

    def complete(self, posterior: CanvasPosterior, generator: np.random.Generator, /) -> Completion:
        """See ``CanvasSampler.complete``."""
        return posterior.draw(generator)
