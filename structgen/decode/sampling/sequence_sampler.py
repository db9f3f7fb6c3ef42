"""Samplers of whole outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np

    from structgen.decode.sampling.branches import Branches
    from structgen.decode.sampling.samples import Samples

__all__ = ["SequenceSampler"]


@runtime_checkable
class SequenceSampler(Protocol):
    """Draws outputs, not tokens: it may go back, write several and compare them."""

    @property
    def lossless(self) -> bool:
        """Whether the weights of its samples are those of the target."""

    @property
    def target(self) -> str:
        """What its samples stand for, in a few words."""

    @property
    def takes_best(self) -> bool:
        """Whether a single output is the heaviest sample, or drawn by weight."""

    def run(self, branches: Branches, generator: np.random.Generator, /) -> Samples:
        """Draw.

        Raises:
            GenerationError: the model, the matcher or a potential is not usable.
        """
