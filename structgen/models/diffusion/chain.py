"""What diffusion models share whose canvases are written by a Markov chain, so that their joint law is known."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, final

import numpy as np

from structgen.errors import GenerationError
from structgen.models.chat import plain_prompt
from structgen.models.diffusion.canvas import CanvasLimits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from structgen.engine.vocabulary import Vocabulary
    from structgen.models.diffusion.protocol import Canvases
    from structgen.models.protocol import Logits, Prompt

__all__ = ["ChainDenoiser", "ChainDiffusion"]


class ChainDiffusion(ABC):
    """A diffusion model whose canvases are written by a Markov chain.

    Args:
        vocabulary: the tokens; MASK is a special one.
        mask_token: the id of MASK.
        reads_prompt: whether a prompt is what the chain wrote before the canvas.
        name: what messages call it.
    """

    def __init__(self, vocabulary: Vocabulary, mask_token: int, *, reads_prompt: bool, name: str) -> None:
        self.vocabulary = vocabulary
        self.mask_token = mask_token
        self.reads_prompt = reads_prompt
        self.name = name
        self.max_context: int | None = None

    @property
    def limits(self) -> CanvasLimits:
        """What it can take."""
        return CanvasLimits(self.name, self.vocabulary.size, self.max_context)

    def encode_prompt(self, prompt: Prompt, /, *, chat: bool = True) -> list[int]:
        """Return the tokens of the text, or of the messages one to a line; ``chat`` makes no difference."""
        return plain_prompt(self.vocabulary, prompt)

    def start(self, prompt_ids: Sequence[int], /) -> ChainDenoiser:
        """Return a denoiser of canvases that follow a prompt."""
        return ChainDenoiser(self, self.limits.check_prompt(prompt_ids))

    def joint(self, tokens: Sequence[int] | NDArray[np.int32], /, *, prompt_ids: Sequence[int] = ()) -> float:
        """Return the probability of a canvas without free slots.

        Raises:
            GenerationError: a slot is free, or as ``Denoiser.denoise``.
        """
        free = np.flatnonzero(np.asarray(tokens) == self.mask_token)
        if len(free):
            raise GenerationError(
                f"model {self.name!r}",
                "only a canvas without free slots has a joint probability",
                evidence=f"slot {free[0]} holds MASK",
                remedy="use evidence(canvas) to sum over the free slots",
            )
        return self.evidence(tokens, prompt_ids=prompt_ids)

    def evidence(self, canvas: Sequence[int] | NDArray[np.int32], /, *, prompt_ids: Sequence[int] = ()) -> float:
        """Return the probability that the fixed slots hold what they do.

        Raises:
            GenerationError: as ``Denoiser.denoise``.
        """
        return math.exp(self.log_evidence(canvas, prompt_ids=prompt_ids))

    def log_evidence(self, canvas: Sequence[int] | NDArray[np.int32], /, *, prompt_ids: Sequence[int] = ()) -> float:
        """Return the log of ``evidence``, which does not underflow; minus infinity for a canvas without a chance.

        Raises:
            GenerationError: as ``Denoiser.denoise``.
        """
        row = self.limits.check_canvases(np.asarray(canvas)[None], prompt_tokens=len(prompt_ids))
        self.check_slots(row.shape[1])
        return self.log_chance(self.read(self.limits.check_prompt(prompt_ids)), row)

    @abstractmethod
    def check_slots(self, slots: int, /) -> None:
        """Raise ``GenerationError`` where the chain writes no canvas of so many slots."""

    @abstractmethod
    def read(self, prompt_ids: list[int], /) -> NDArray[np.float64]:
        """Return the law of the chain's first state on the canvas, ``[states]``."""

    @abstractmethod
    def log_chance(self, first: NDArray[np.float64], canvas: Canvases, /) -> float:
        """Return the log chance of the fixed slots of one canvas, ``[1, slots]``."""

    @abstractmethod
    def conditionals(
        self, first: NDArray[np.float64], canvases: Canvases, start: int, stop: int, /
    ) -> NDArray[np.float64]:
        """Return the log law of each slot given the other fixed slots, ``[n, stop - start, vocabulary.size]``."""


@final
class ChainDenoiser:
    """A chain that has read one prompt."""

    def __init__(self, model: ChainDiffusion, prompt_ids: list[int]) -> None:
        self.model = model
        self.forwards = 0
        self._prompt_tokens = len(prompt_ids)
        self._first = model.read(prompt_ids)

    def denoise(self, canvases: Canvases, /, *, start: int = 0, stop: int | None = None) -> Logits:
        """See ``Denoiser.denoise``; the logits are log-probabilities."""
        limits = self.model.limits
        checked = limits.check_canvases(canvases, prompt_tokens=self._prompt_tokens)
        self.model.check_slots(checked.shape[1])
        start, stop = limits.check_bounds(checked.shape[1], start, stop)
        self.forwards += 1
        laws: Logits = self.model.conditionals(self._first, checked, start, stop).astype(np.float32)
        return laws

    def close(self) -> None:
        """See ``Denoiser.close``; nothing is cached."""
