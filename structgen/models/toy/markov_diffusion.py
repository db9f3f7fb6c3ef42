"""Diffusion models over a Markov chain, with a known joint distribution.

``ChainDiffusion`` is the base class; ``HiddenMarkovDiffusion`` uses a hidden Markov chain.  The forward and backward
recursions compute the distribution of a slot given the others exactly, where a trained network only estimates it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from structgen.errors import GenerationError
from structgen.models.model_input import CanvasLimits, find_mask, plain_prompt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from structgen.engine.vocabulary import Vocabulary
    from structgen.models.protocol import Logits, Prompt
    from structgen.models.protocol.diffusion import Canvases

__all__ = ["ChainDenoiser", "ChainDiffusion", "HiddenMarkovDiffusion"]


class ChainDiffusion(ABC):
    """A diffusion model whose canvases are sampled from a Markov chain.

    Args:
        vocabulary: the vocabulary, with MASK as a special token.
        mask_token: the id of MASK.
        reads_prompt: whether the prompt is the chain's output before the canvas.
        name: the model's name in messages.
    """

    def __init__(self, vocabulary: Vocabulary, mask_token: int, *, reads_prompt: bool, name: str) -> None:
        self.vocabulary = vocabulary
        self.mask_token = mask_token
        self.reads_prompt = reads_prompt
        self.name = name
        self.max_context: int | None = None

    @property
    def limits(self) -> CanvasLimits:
        """The limits of the model's input."""
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
                "the joint probability needs a canvas without free slots",
                evidence=f"slot {free[0]} holds MASK",
                remedy="use evidence(canvas) to sum over the free slots",
            )
        return self.evidence(tokens, prompt_ids=prompt_ids)

    def evidence(self, canvas: Sequence[int] | NDArray[np.int32], /, *, prompt_ids: Sequence[int] = ()) -> float:
        """Return the probability of the fixed slots' tokens.

        Raises:
            GenerationError: as ``Denoiser.denoise``.
        """
        return math.exp(self.log_evidence(canvas, prompt_ids=prompt_ids))

    def log_evidence(self, canvas: Sequence[int] | NDArray[np.int32], /, *, prompt_ids: Sequence[int] = ()) -> float:
        """Return the log of ``evidence``, without underflow; minus infinity for a canvas of probability 0.

        Raises:
            GenerationError: as ``Denoiser.denoise``.
        """
        row = self.limits.check_canvases(np.asarray(canvas)[None], prompt_tokens=len(prompt_ids))
        self.check_slots(row.shape[1])
        return self.log_chance(self.read(self.limits.check_prompt(prompt_ids)), row)

    @abstractmethod
    def check_slots(self, slots: int, /) -> None:
        """Raise ``GenerationError`` if the chain has no canvases of this many slots."""

    @abstractmethod
    def read(self, prompt_ids: list[int], /) -> NDArray[np.float64]:
        """Return the distribution of the chain's first state on the canvas, ``[states]``."""

    @abstractmethod
    def log_chance(self, first: NDArray[np.float64], canvas: Canvases, /) -> float:
        """Return the log-probability of the fixed slots of one canvas, ``[1, slots]``."""

    @abstractmethod
    def conditionals(
        self, first: NDArray[np.float64], canvases: Canvases, start: int, stop: int, /
    ) -> NDArray[np.float64]:
        """Return the log distribution of each slot given the other fixed slots.

        Returns:
            ``[n, stop - start, vocabulary.size]``.
        """


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
        distributions: Logits = self.model.conditionals(self._first, checked, start, stop).astype(np.float32)
        return distributions

    def close(self) -> None:
        """See ``Denoiser.close``; nothing is cached."""


_ROUNDING: Final = 1e-9

# Below this a double is no longer exact; exponents within it go through one matrix product.
_SMALLEST_LOG: Final = -700.0


@final
class HiddenMarkovDiffusion(ChainDiffusion):
    """A hidden Markov model as a diffusion model, with exact denoisers.

    A denoiser's row ``i`` is ``log P(X_i = v | the tokens of the other fixed slots)``.  If the other slots have
    probability 0, because the committed tokens exclude each other, this distribution does not exist: the row is then
    the marginal distribution of the slot.

    To end a text before the canvas ends, use an absorbing state that emits EOS.

    Args:
        vocabulary: the vocabulary, with MASK as a special token.
        initial: probabilities of the states in the first slot, ``[states]``.
        transition: probabilities of the next state, ``[states, states]``; rows sum to 1.
        emission: probabilities of tokens in a state, ``[states, vocabulary.size]``; rows sum to 1, MASK has 0.
        mask_token: the id of MASK; None for the special token with the spelling of MASK (``<mask>``).
        slots: the required number of slots of a canvas; None for any.
        reads_prompt: whether the prompt is the chain's output before the canvas (a prompt of probability 0 is ignored);
            by default the distribution of a canvas does not depend on the prompt.
        name: the model's name in messages.

    Raises:
        ModelError: the vocabulary has no MASK.
        ValueError: the probabilities are no distributions, or their shapes do not match.

    Complexity: O(states^2) per slot of a canvas, and O(states * vocabulary.size) per queried slot.

    Source: Baum, Petrie, Soules and Weiss 1970 (the recursions).

    Example:
        >>> from structgen.engine import Vocabulary
        >>> vocabulary = Vocabulary([b"", b"a", b"b", b""], eos=[0], special={3: "<mask>"})
        >>> turns = HiddenMarkovDiffusion(vocabulary, [1, 0], [[0, 1], [1, 0]], [[0, 1, 0, 0], [0, 0, 1, 0]])
        >>> turns.joint([1, 2, 1])
        1.0
    """

    def __init__(  # noqa: PLR0913  public: the chain, and keywords with defaults
        self,
        vocabulary: Vocabulary,
        initial: ArrayLike,
        transition: ArrayLike,
        emission: ArrayLike,
        *,
        mask_token: int | None = None,
        slots: int | None = None,
        reads_prompt: bool = False,
        name: str = "hidden-markov",
    ) -> None:
        super().__init__(vocabulary, find_mask(vocabulary, mask_token), reads_prompt=reads_prompt, name=name)
        self.slots = slots
        self.initial = _distributions(initial, "initial", (None,))
        states = len(self.initial)
        self.transition = _distributions(transition, "transition", (states, states))
        self.emission = _distributions(emission, "emission", (states, vocabulary.size))
        if self.emission[:, self.mask_token].any():
            raise ValueError(f"emission must give MASK (token {self.mask_token}) probability 0; found one above 0")
        if slots is not None and slots < 1:
            raise ValueError(f"slots must be at least 1; found {slots}")
        with np.errstate(divide="ignore"):
            self._log_transition = np.log(self.transition)
            self._log_emission = np.log(self.emission)
        self._min_emission = float(self._log_emission[self.emission > 0].min())

    def check_slots(self, slots: int, /) -> None:
        """See ``ChainDiffusion.check_slots``."""
        if self.slots is not None and slots != self.slots:
            raise GenerationError(
                f"model {self.name!r}",
                "it supports only one canvas length",
                evidence=f"found {slots} slots; it was made for {self.slots}",
                remedy=f"use a canvas of {self.slots} slots, or make the model without slots=",
            )

    def read(self, prompt_ids: list[int], /) -> NDArray[np.float64]:
        """See ``ChainDiffusion.read``."""
        if not (self.reads_prompt and prompt_ids):
            return self.initial
        seen = self._seen(np.array([prompt_ids], dtype=np.int32))
        last = self._forward(_log(self.initial), seen)[0, -1] + seen[0, -1]
        if not np.isfinite(last).any():
            return self.initial
        distribution: NDArray[np.float64] = np.exp(last - _log_sum(last, axis=0)) @ self.transition
        return distribution

    def log_chance(self, first: NDArray[np.float64], canvas: Canvases, /) -> float:
        """See ``ChainDiffusion.log_chance``."""
        seen = self._seen(canvas)
        last = self._forward(_log(first), seen)[0, -1] + seen[0, -1]
        return float(_log_sum(last, axis=0))

    def conditionals(
        self, first: NDArray[np.float64], canvases: Canvases, start: int, stop: int, /
    ) -> NDArray[np.float64]:
        """See ``ChainDiffusion.conditionals``."""
        seen = self._seen(canvases)
        log_first = _log(first)
        ahead = self._forward(log_first, seen[:, :stop])
        states = ahead[:, start:] + self._backward(seen, start)[:, : stop - start]
        contradicted = np.isfinite(states).sum(axis=2) == 0
        if contradicted.any():
            alone = self._forward(log_first, np.zeros((1, stop, len(first))))
            states = np.where(contradicted[..., None], alone[:, start:], states)
        states -= _log_sum(states, axis=2)[..., None]
        return self._emitted(states)

    def _seen(self, canvases: Canvases) -> NDArray[np.float64]:
        """Return the log-probability of each slot's token in each state, 0 for free slots: ``[n, slots, states]``."""
        seen = self._log_emission.T[canvases]
        seen[canvases == self.mask_token] = 0.0
        return seen

    def _forward(self, log_first: NDArray[np.float64], seen: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ``log P(state of slot i, tokens before slot i)``, ``[n, slots, states]``."""
        ahead = np.empty_like(seen)
        ahead[:, 0] = log_first
        for slot in range(1, seen.shape[1]):
            before = ahead[:, slot - 1] + seen[:, slot - 1]
            ahead[:, slot] = _log_sum(before[:, :, None] + self._log_transition, axis=1)
        return ahead

    def _backward(self, seen: NDArray[np.float64], start: int) -> NDArray[np.float64]:
        """Return ``log P(tokens after slot i | state of slot i)`` from slot ``start`` on."""
        back = np.zeros_like(seen[:, start:])
        for slot in range(seen.shape[1] - 2, start - 1, -1):
            after = back[:, slot + 1 - start] + seen[:, slot + 1]
            back[:, slot - start] = _log_sum(self._log_transition + after[:, None, :], axis=2)
        return back

    def _emitted(self, states: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the log distribution of tokens for log distributions of states."""
        smallest = float(states[np.isfinite(states)].min())
        if smallest + self._min_emission > _SMALLEST_LOG:
            return _log(np.exp(states) @ self.emission)
        distributions = np.full((*states.shape[:2], self.vocabulary.size), -np.inf)
        for state, emission in enumerate(self._log_emission):
            distributions = np.logaddexp(distributions, states[..., state, None] + emission)
        return distributions

    def __repr__(self) -> str:
        return f"<HiddenMarkovDiffusion {self.name}, {len(self.initial)} states, {self.vocabulary.size} tokens>"


def _distributions(values: ArrayLike, what: str, shape: tuple[int | None, ...]) -> NDArray[np.float64]:
    """Return probabilities as a read-only array.

    Raises:
        ValueError: they are no distributions, or have another shape.
    """
    distributions = np.array(values, dtype=np.float64)
    if distributions.ndim != len(shape) or any(
        size != required for size, required in zip(distributions.shape, shape, strict=True) if required
    ):
        required = ", ".join("states" if size is None else str(size) for size in shape)
        raise ValueError(f"{what} must be [{required}]; found {list(distributions.shape)}")
    if not distributions.size or not np.isfinite(distributions).all() or (distributions < 0).any():
        raise ValueError(
            f"{what} must hold probabilities of 0 to 1; found {distributions.min() if distributions.size else 'none'}"
        )
    wrong = np.abs(distributions.sum(axis=-1) - 1.0)
    if wrong.max() > _ROUNDING:
        raise ValueError(f"{what} must hold distributions that sum to 1; found one that is off by {wrong.max():.3g}")
    distributions.setflags(write=False)
    return distributions


def _log(values: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(divide="ignore"):
        logs: NDArray[np.float64] = np.log(values)
    return logs


def _log_sum(logs: NDArray[np.float64], *, axis: int) -> Any:
    """Return the log-sum-exp; minus infinity if all terms are."""
    largest = logs.max(axis=axis, keepdims=True)
    largest = np.where(np.isfinite(largest), largest, 0.0)
    return _log(np.exp(logs - largest).sum(axis=axis)) + largest.squeeze(axis)
