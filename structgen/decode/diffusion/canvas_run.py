"""The state of one canvas while it is filled."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np

from structgen.decode.diffusion.forward_pass import check_unmasked, denoise, denoise_live
from structgen.decode.diffusion.mean_field import FREE, MeanField
from structgen.errors import GenerationError
from structgen.models.protocol.diffusion import CachingDenoiser
from structgen.travel import Live

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from structgen.decode.diffusion.forward_pass import Reuse
    from structgen.decode.diffusion.posterior import Canvas, CanvasLanguage, CanvasPosterior, CanvasSampler, Completion
    from structgen.models.protocol.diffusion import Denoiser

__all__ = ["CanvasRun", "Denoised", "ForwardPasses", "Snapshot"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Denoised(Live):
    """The result of one forward pass over a canvas, restricted to the language.

    Attributes:
        distribution: the mean-field distribution.
        posterior: the distribution, restricted to the language.
        completion: one completion; the step commits only tokens of it.
        confidence: float64 ``[slots]``: the probability of the completion's token in the CONSTRAINED marginal of each
            slot; 1 for fixed slots.
    """

    distribution: MeanField
    posterior: CanvasPosterior
    completion: Completion
    confidence: NDArray[np.float64]


class Snapshot(NamedTuple):
    """A canvas after a commit.

    Attributes:
        canvas: int32 ``[slots]``, ``FREE`` in free slots.
        committed: the slots filled since the last snapshot, forced ones included.
        forwards: forward passes so far.
        forced: the slots of ``committed`` for which the language left one token.
    """

    canvas: NDArray[np.int32]
    committed: NDArray[np.intp]
    forwards: int
    forced: NDArray[np.intp]


@final
class CanvasRun(Live):
    """One canvas while it is filled: runs the model, restricts its distributions, and commits tokens.

    Invariant: the canvas stays completable; ``commit`` takes tokens of one completion only.

    Args:
        denoiser: the model after the prompt.
        mask_token: the model's id for a free slot.
        language: the language of complete canvases.
        canvas: the first canvas; it must be completable.
        sampler: takes one completion in each step.
        temperature: of the mean-field distribution.
        generator: of random numbers.
        block: slots that are filled before those to their right; None for the whole canvas.
        reuse: decides which slots a pass over the current canvas runs; None for all.
        on_commit: called after each commit, and once at the start.

    Attributes:
        canvas: int32 ``[slots]``, ``FREE`` in free slots.
        was_forced: bool ``[slots]``: the language left one token for the slot, so it cost no forward pass.
        log_confidence: float64 ``[slots]``: log of the confidence with which a slot was committed; NaN where it was
            fixed, forced, or committed from a completion that no pass of this run returned.
        log_prob: float64 ``[slots]``: likewise, log-probability of the token under the mean-field distribution of that
            pass.
        drafted: slots that a policy drafted ahead; the policy counts them.
        accepted: drafted slots that were committed with the drafted token.
        passes: the forward passes, and the time spent in them.
        language_seconds: time spent in posteriors, completions and forced slots.

    Raises:
        GenerationError: the canvas is not completable, or the denoiser does not support reuse.
        ValueError: ``block`` is below 1.
    """

    def __init__(  # noqa: PLR0913  all that a canvas is filled with
        self,
        denoiser: Denoiser,
        mask_token: int,
        language: CanvasLanguage,
        canvas: Canvas,
        *,
        sampler: CanvasSampler,
        temperature: float = 1.0,
        generator: np.random.Generator,
        block: int | None = None,
        reuse: Reuse | None = None,
        on_commit: Callable[[Snapshot], object] | None = None,
    ) -> None:
        if block is not None and block < 1:
            raise ValueError(f"block must be at least 1, or None for the whole canvas; found {block!r}")
        self.passes = ForwardPasses(denoiser, mask_token, language.vocabulary.size, temperature, reuse)
        self.language = language
        self.sampler = sampler
        self.generator = generator
        self.block_size = block
        self.canvas = np.array(canvas, dtype=np.int32)
        self.was_forced = np.zeros(len(self.canvas), dtype=bool)
        self.log_confidence = np.full(len(self.canvas), np.nan)
        self.log_prob = np.full(len(self.canvas), np.nan)
        self.drafted = 0
        self.accepted = 0
        self.language_seconds = 0.0
        self._on_commit = on_commit
        self._pending: list[Denoised] = []
        began = perf_counter()
        if not language.completable(self.canvas):
            raise _incompletable(language, self.canvas)
        filled = language.forced(self.canvas)
        self.language_seconds += perf_counter() - began
        self._show(filled, np.flatnonzero((filled != FREE) & (self.canvas == FREE)))

    @property
    def denoiser(self) -> Denoiser:
        """The model after the prompt."""
        return self.passes.denoiser

    @property
    def temperature(self) -> float:
        """The temperature of the mean-field distributions."""
        return self.passes.temperature

    @property
    def free(self) -> NDArray[np.intp]:
        """The free slots, from left to right."""
        return np.flatnonzero(self.canvas == FREE)

    @property
    def block(self) -> tuple[int, int]:
        """The block that is being filled, as a half-open range of slots."""
        if self.block_size is None or not len(self.free):
            return 0, len(self.canvas)
        start = int(self.free[0]) // self.block_size * self.block_size
        return start, min(start + self.block_size, len(self.canvas))

    @property
    def candidates(self) -> NDArray[np.intp]:
        """The free slots of the block that is being filled."""
        start, stop = self.block
        return self.free[(self.free >= start) & (self.free < stop)]

    def distributions(self, canvases: Sequence[Canvas]) -> list[MeanField]:
        """Run the model on several canvases in one forward pass.

        Raises:
            GenerationError: the model fails, or its logits have a wrong shape.
        """
        return self.passes.over(canvases)

    def distribution(self) -> MeanField:
        """Run the model on the current canvas in one forward pass; with ``reuse``, on its live slots only.

        Raises:
            GenerationError: as ``distributions``.
        """
        return self.passes.over_live(self.canvas, self.block)

    def restrict(self, distribution: MeanField) -> Denoised:
        """Restrict a distribution to the language, and take a completion.

        Raises:
            GenerationError: there is no completion.
        """
        began = perf_counter()
        posterior = self.language.posterior(distribution, tail=self.sampler.tail)
        completion = self.sampler.complete(posterior, self.generator)
        denoised = Denoised(distribution, posterior, completion, posterior.shares(completion.tokens))
        self.language_seconds += perf_counter() - began
        self._pending.append(denoised)
        return denoised

    def denoise(self) -> Denoised:
        """Run the model on the current canvas, and take a completion."""
        return self.restrict(self.distribution())

    def commit(self, slots: NDArray[np.intp], completion: Completion) -> None:
        """Fill some free slots with the tokens of ONE completion of the canvas, and fill the slots that this forces.

        Raises:
            GenerationError: the grammar requires MASK.
            ValueError: a slot is not free, or ``completion`` is not one of the current canvas.
        """
        slots = np.asarray(slots, dtype=np.intp)
        tokens = completion.tokens
        if len(tokens) != len(self.canvas) or ((self.canvas != FREE) & (tokens != self.canvas)).any():
            raise ValueError("commit: the completion differs from a fixed slot; take a completion of this canvas")
        if not len(slots) or (self.canvas[slots] != FREE).any():
            raise ValueError(f"commit: expected at least one slot, all free; found {slots.tolist()}")
        canvas = self.canvas.copy()
        canvas[slots] = tokens[slots]
        for denoised in self._pending:
            if denoised.completion is completion:
                self.log_confidence[slots] = np.log(np.maximum(denoised.confidence[slots], np.finfo(np.float64).tiny))
                self.log_prob[slots] = denoised.distribution.log_prob_of(tokens)[slots]
        self._pending.clear()
        began = perf_counter()
        filled = self.language.forced(canvas)
        self.language_seconds += perf_counter() - began
        self._show(filled, np.flatnonzero((filled != FREE) & (canvas == FREE)))

    def _show(self, canvas: NDArray[np.int32], forced: NDArray[np.intp]) -> None:
        check_unmasked(canvas, self.passes.mask_token)
        committed = np.flatnonzero((canvas != FREE) & (self.canvas == FREE))
        self.canvas = canvas
        self.was_forced[forced] = True
        if self._on_commit is not None:
            self._on_commit(Snapshot(canvas.copy(), committed, self.denoiser.forwards, forced))


@final
class ForwardPasses:
    """The forward passes of a run and the ``seconds`` spent in them; ``reuse`` decides which slots of a canvas run."""

    def __init__(self, denoiser: Denoiser, mask_token: int, size: int, temperature: float, reuse: Reuse | None) -> None:
        self.denoiser = denoiser
        self.mask_token = mask_token
        self.temperature = temperature
        self.seconds = 0.0
        self._size = size
        self._reuse = reuse
        self._caching = None if reuse is None else _caching(denoiser)
        self._block: tuple[int, int] | None = None
        self._before: Canvas | None = None
        self._step = 0

    def over(self, canvases: Sequence[Canvas]) -> list[MeanField]:
        """See ``CanvasRun.distributions``."""
        began = perf_counter()
        logits = denoise(self.denoiser, canvases, mask_token=self.mask_token, size=self._size)
        distributions = [
            MeanField(canvas, of, temperature=self.temperature) for canvas, of in zip(canvases, logits, strict=True)
        ]
        self.seconds += perf_counter() - began
        return distributions

    def over_live(self, canvas: Canvas, block: tuple[int, int]) -> MeanField:
        """See ``CanvasRun.distribution``."""
        if self._reuse is None or self._caching is None:
            return self.over([canvas])[0]
        began = perf_counter()
        if block != self._block or self._before is None:
            self._block, self._before, self._step = block, canvas, 0
        live = self._reuse.live_slots(block, self._before, canvas, step=self._step)
        self._before = canvas.copy()
        self._step += 1
        logits = denoise_live(self._caching, canvas, live, mask_token=self.mask_token, size=self._size)
        distribution = MeanField(canvas, logits, temperature=self.temperature)
        self.seconds += perf_counter() - began
        return distribution


def _caching(denoiser: Denoiser) -> CachingDenoiser:
    if not isinstance(denoiser, CachingDenoiser):
        raise GenerationError(
            "reuse",
            "the model keeps no keys and values of slots",
            evidence=f"{type(denoiser).__name__} has no denoise_live",
            remedy="pass reuse=None",
        )
    denoiser.forget()
    return denoiser


def _incompletable(language: CanvasLanguage, canvas: Canvas) -> GenerationError:
    """Return an error that names the first fixed slot, from the left, that makes the canvas not completable."""
    fixed = np.flatnonzero(canvas != FREE)
    evidence = (
        f"{len(canvas)} slots, {len(canvas) - len(fixed)} of them free; the shortest string takes {language.shortest}"
    )
    good, bad = 0, len(fixed)  # completable with the first `good` fixed slots, not with the first `bad`
    first = canvas.copy()
    first[fixed] = FREE
    if not len(fixed) or not language.completable(first):
        return GenerationError(
            "canvas", "no string of the grammar fits into it", evidence=evidence, remedy="give the canvas more slots"
        )
    while bad - good > 1:
        middle = (good + bad) // 2
        tried = canvas.copy()
        tried[fixed[middle:]] = FREE
        good, bad = (middle, bad) if language.completable(tried) else (good, middle)
    slot = int(fixed[bad - 1])
    token = int(canvas[slot])
    spelled = language.vocabulary.tokens[token] if 0 <= token < language.vocabulary.size else b""
    return GenerationError(
        f"slot {slot}",
        "the fixed slots up to here cannot be completed to a string of the grammar",
        evidence=f"the slot holds token {token}, {spelled!r}; {evidence}",
        remedy="give the canvas more slots, or check its fixed slots",
    )
