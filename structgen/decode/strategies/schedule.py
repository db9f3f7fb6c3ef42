"""Samplers whose parameters depend on the step: on how much the grammar allows, and how certain the model is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.sampler import Sampler
from structgen.errors import GenerationError, StructgenError

__all__ = ["Scheduled", "Situation"]


@final
@dataclass(frozen=True, slots=True)
class Situation:
    """What is known of a step before a token is drawn.

    Attributes:
        allowed: how many tokens the mask allows, two or more: what the state of the automaton leaves open.
        entropy: of the law after masking, in nats; ``log(allowed)`` at most.
        likeliest: the probability of the most probable token after masking.
    """

    allowed: int
    entropy: float
    likeliest: float

    @classmethod
    def of(cls, log_p: NDArray[np.float64]) -> Situation:
        """The situation of a law, normalised log-probabilities ``[n]``."""
        possible = log_p[log_p > -np.inf]
        p = np.exp(possible)
        return cls(len(log_p), max(0.0, float(-(p @ possible))), float(p.max()))


@final
@dataclass(frozen=True, slots=True)
class Scheduled:
    """A sampler that is chosen anew at each step.

        Scheduled(lambda step: Multinomial(temperature=1.0) if step.allowed > 1000 else Greedy())

    draws text freely and takes the best token of everything that is structure.  The mask comes before: whatever is
    chosen, only allowed tokens are drawn.

    Attributes:
        schedule: which sampler a step has; it must say the same for the same situation if seeds are to mean anything.

    Source: without training, what Z. Wang et al., "The End of Manual Decoding" (2025, arXiv 2510.26697), train heads
        for: temperature and top-p for each step.
    """

    schedule: Callable[[Situation], Sampler]

    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not callable(self.schedule):
            raise ValueError(
                f"Scheduled: expected a function of a Situation, found {self.schedule!r}; give a sampler itself to "
                "generate where it is always the same"
            )

    def draw(self, log_p: NDArray[np.float64], generator: np.random.Generator, /) -> int:
        """See ``Sampler.draw``.

        Raises:
            GenerationError: the schedule raised an error, or gave no sampler of tokens.
        """
        situation = Situation.of(log_p)
        try:
            sampler = self.schedule(situation)
        except StructgenError:
            raise
        except Exception as error:
            raise GenerationError(
                "schedule",
                f"it raised {type(error).__name__}: {error}",
                evidence=f"for {situation!r}",
                remedy="make it give a sampler for every situation",
            ) from error
        if isinstance(sampler, type) or not isinstance(sampler, Sampler):
            raise GenerationError(
                "schedule",
                f"it gave {sampler!r}, which is no sampler of tokens",
                evidence=f"for {situation!r}",
                remedy="let it return Greedy(), Multinomial(...) or the like",
            )
        return sampler.draw(log_p, generator)
