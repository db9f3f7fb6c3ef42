"""Exact distributions over trajectories: particles are canvases, each weighted by its next forward pass.

A masked diffusion model alone fills a canvas in steps. Each step runs the model on the canvas ``x`` and samples tokens
for some free slots, each from its own distribution, which gives ``x'``. The chain of these steps is the model's
distribution over whole canvases. The target is that distribution restricted to the canvases of the language; EOS tails
are part of a canvas and their slots count like any others:

    target(canvas) = P(the model alone fills the canvas this way), for canvases that spell a string of the grammar

The log-evidence is the log of its sum, the probability that the model alone writes a valid string. Two canvases are
two outputs even if they spell the same text.

``Posterior`` samples another distribution over several steps. Each sample is exact given the distribution of one pass,
so a step from ``x`` to ``x'`` has the model's own probability times ``Z(x'; x) / Z(x; x)``: the mass of valid
completions of ``x'`` under the pass over ``x``, over the same mass for ``x``. Along a trajectory the factors do not
cancel, since the next pass re-scores ``x'``. The result is the target times

    product over steps of  Z(x_t; x_{t-1}) / Z(x_t; x_t)

up to a constant. So canvases whose early steps kept more valid mass than their later steps are over-weighted. The
result is the target in three cases: everything is committed in one step; the language forbids nothing; or no revealed
token changes the mass of valid completions.

Here each particle steps as ``Posterior`` does, and its weight is the inverse of that factor: ``Z(x_0; x_0)`` at the
start, then ``Z(x_t; x_t) / Z(x_t; x_{t-1})`` after the pass over ``x_t``. Both need no further pass. The weighted
particles represent the target; resampling drops particles of small weight.

The slots to reveal must not depend on tokens (see ``RevealOrder``). Nor may slots be filled outside that order,
grammar-forced slots included: such a slot has probability 1 here, but a pass that sees its token differs from one that
does not, and the model alone would not have seen it yet. So no slot is filled for free, and the order fixes the
forward passes.

Source: Thimmaiah et al. 2026 ("TWISTER") for regular languages; here for any ``CanvasLanguage``, context-free ones
included. In addition, particles with equal canvases share a row of the pass and the posterior. If a language counts
the parses of a canvas, as for an ambiguous grammar, so does the target.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, Protocol, final, runtime_checkable

import numpy as np

from structgen.decode.diffusion.canvas_run import ForwardPasses
from structgen.decode.diffusion.forward_pass import check_unmasked
from structgen.decode.diffusion.mean_field import FREE
from structgen.decode.sampling.proposal import resample
from structgen.decode.sampling.protocol import Round
from structgen.decode.step.distribution import log_mass
from structgen.errors import GenerationError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.diffusion.mean_field import MeanField
    from structgen.decode.diffusion.posterior import Canvas, CanvasLanguage, CanvasPosterior
    from structgen.decode.sampling.smc import SMC
    from structgen.models.protocol.diffusion import Denoiser

__all__ = ["CanvasParticle", "FixedOrder", "LeftToRight", "RandomOrder", "RevealOrder", "Twister", "TwisterRun"]


@runtime_checkable
class RevealOrder(Protocol):
    """A rule for which slots are revealed next; a value."""

    def reveal(self, free: NDArray[np.intp], generator: np.random.Generator, /) -> NDArray[np.intp]:
        """Return some of the free slots, at least one; ``free`` are all of them, from left to right, at least one."""


@final
@dataclass(frozen=True, slots=True)
class RandomOrder:
    """Random slots, each with the same probability.

    Attributes:
        per_step: how many in each step.

    Raises:
        ValueError: ``per_step`` is below 1.
    """

    per_step: int = 1

    def __post_init__(self) -> None:
        _check_count(self)

    def reveal(self, free: NDArray[np.intp], generator: np.random.Generator, /) -> NDArray[np.intp]:
        """See ``RevealOrder.reveal``."""
        return generator.permutation(free)[: self.per_step]


@final
@dataclass(frozen=True, slots=True)
class LeftToRight:
    """The leftmost slots.

    Attributes:
        per_step: how many in each step.

    Raises:
        ValueError: ``per_step`` is below 1.
    """

    per_step: int = 1

    def __post_init__(self) -> None:
        _check_count(self)

    def reveal(self, free: NDArray[np.intp], generator: np.random.Generator, /) -> NDArray[np.intp]:
        """See ``RevealOrder.reveal``."""
        del generator
        return free[: self.per_step]


@final
@dataclass(frozen=True, slots=True)
class FixedOrder:
    """A given order.

    Attributes:
        slots: the slots in order; fixed slots are skipped.
        per_step: how many in each step.

    Raises:
        ValueError: ``per_step`` is below 1; in ``reveal``, a free slot is missing from ``slots``.
    """

    slots: tuple[int, ...]
    per_step: int = 1

    def __post_init__(self) -> None:
        _check_count(self)

    def reveal(self, free: NDArray[np.intp], generator: np.random.Generator, /) -> NDArray[np.intp]:
        """See ``RevealOrder.reveal``."""
        del generator
        rank = {slot: at for at, slot in reversed([*enumerate(self.slots)])}
        missing = [slot for slot in free.tolist() if slot not in rank]
        if missing:
            raise ValueError(f"FixedOrder: slots must name every free slot of the canvas; slot {missing[0]} is missing")
        at = sorted(range(len(free)), key=lambda index: rank[int(free[index])])
        return free[at[: self.per_step]]


def _check_count(order: RandomOrder | LeftToRight | FixedOrder) -> None:
    if not isinstance(order.per_step, int) or order.per_step < 1:
        raise ValueError(f"{type(order).__name__}: per_step must be an integer of at least 1; found {order.per_step!r}")


@final
@dataclass(frozen=True, slots=True, eq=False)
class CanvasParticle:
    """A canvas while it is filled, with its weight and history.

    Attributes:
        canvas: int32 ``[slots]``.
        log_weight: log of its weight.
        log_divisor: log of ``Z(canvas; canvas before)``, the divisor of the next weight; 0 at the start.
        eve: the index of its ancestor among the first particles.
        steps: the slots that were revealed, by step.
        log_kernel: float64 ``[slots]``: log-probability of each sampled token; the correction by the language is
            divided equally among slots that were revealed together. 0 in fixed slots.
        log_model: float64 ``[slots]``: log-probability of the token under the model's own distribution for the slot.
    """

    canvas: Canvas
    log_weight: float
    log_divisor: float
    eve: int
    steps: tuple[tuple[int, ...], ...]
    log_kernel: NDArray[np.float64]
    log_model: NDArray[np.float64]

    @property
    def is_live(self) -> bool:
        """Whether some slot is free."""
        return bool((self.canvas == FREE).any())


@final
@dataclass(frozen=True, slots=True, eq=False)
class Twister:
    """The settings of a run: model, language, sampler and order.

    Attributes:
        denoiser: the model after the prompt.
        mask_token: the model's id for a free slot.
        language: the language of complete canvases.
        sampler: the number of particles, and when and how they are resampled; its other attributes are ignored.
        order: which slots are revealed when.
        temperature: of the model's distribution of each slot.
    """

    denoiser: Denoiser
    mask_token: int
    language: CanvasLanguage
    sampler: SMC
    order: RevealOrder
    temperature: float = 1.0

    def run(self, canvas: Canvas, generator: np.random.Generator) -> TwisterRun:
        """Fill a canvas.

        Raises:
            GenerationError: the canvas is not completable; raised before any forward pass.
        """
        canvas = np.array(canvas, dtype=np.int32)
        if not self.language.completable(canvas):
            raise GenerationError(
                "canvas",
                "its free slots cannot be filled so that it spells a string of the grammar",
                evidence=f"{len(canvas)} slots, {int((canvas == FREE).sum())} of them free; the shortest string takes "
                f"{self.language.shortest}",
                remedy="give the canvas more slots, or check its fixed slots",
            )
        run = TwisterRun(self, canvas, generator)
        while any(particle.is_live for particle in run.particles):
            run.step()
        return run


class _PassAnswer(NamedTuple):
    """The result of one pass for one canvas; ``owed`` caches results of ``clamped`` by the bytes of the canvas."""

    distribution: MeanField
    posterior: CanvasPosterior
    owed: dict[bytes, float]


@final
class TwisterRun:
    """The particles of one run, and its costs.

    Attributes:
        particles: those of positive weight.
        rounds: the state of the run after each pass.
        canvases: how many canvases the passes ran on.
        revealed: slots that were revealed, over all particles.
        passes: the forward passes.
        language_seconds: time spent in posteriors.
    """

    def __init__(self, of: Twister, canvas: Canvas, generator: np.random.Generator) -> None:
        self._of = of
        self._generator = generator
        self.passes = ForwardPasses(of.denoiser, of.mask_token, of.language.vocabulary.size, of.temperature, None)
        nothing = np.zeros(len(canvas))
        self.particles = [
            CanvasParticle(canvas, 0.0, 0.0, eve, (), nothing, nothing) for eve in range(of.sampler.particles)
        ]
        self.rounds: list[Round] = []
        self.canvases = 0
        self.revealed = 0
        self.language_seconds = 0.0

    def step(self) -> None:
        """Run one pass on all canvases, weight the particles, resample if due, and reveal slots."""
        answers = self._run_pass()
        began = perf_counter()
        self._weigh(answers)
        self._end_round(len(answers))
        self.particles = [
            self._revealed(particle, answers[particle.canvas.tobytes()]) if particle.is_live else particle
            for particle in self.particles
        ]
        self.language_seconds += perf_counter() - began

    @property
    def log_evidence(self) -> float:
        """Estimate of the log of the target's sum; its exponential is unbiased."""
        if not self.particles:
            return -math.inf
        return log_mass(self._log_weights()) - math.log(self._of.sampler.particles)

    @property
    def standard_error(self) -> float | None:
        """Standard error of ``log_evidence``, from the weights of the first particles' descendants, as for ``SMC``.

        Source: A. Lee and N. Whiteley, "Variance estimation in the particle filter" (2018).
        """
        count = self._of.sampler.particles
        if count == 1 or not self.particles:
            return None
        by_eve = np.bincount([particle.eve for particle in self.particles], self._normalised(), minlength=count)
        return math.sqrt(max(0.0, (count * float((by_eve**2).sum()) - 1) / (count - 1)))

    def _run_pass(self) -> dict[bytes, _PassAnswer]:
        """The result of one pass for each incomplete canvas, by the bytes of the canvas."""
        live = {particle.canvas.tobytes(): particle.canvas for particle in self.particles if particle.is_live}
        canvases = list(live.values())
        distributions = self.passes.over(canvases)
        self.canvases += len(canvases)
        return {
            key: _PassAnswer(distribution, self._of.language.posterior(distribution, tail="scored"), {})
            for key, distribution in zip(live, distributions, strict=True)
        }

    def _weigh(self, answers: dict[bytes, _PassAnswer]) -> None:
        """Multiply weights by ``Z(x; x) / Z(x; x before)``, and drop particles of weight 0."""
        weighed = []
        for particle in self.particles:
            gained = 0.0
            if particle.is_live:
                gained = answers[particle.canvas.tobytes()].posterior.log_z - particle.log_divisor
            if gained > -math.inf:
                weighed.append(replace(particle, log_weight=particle.log_weight + gained))
        self.particles = weighed

    def _end_round(self, distinct: int) -> None:
        sampler = self._of.sampler
        live = sum(particle.is_live for particle in self.particles)
        ess = 1 / float((self._normalised() ** 2).sum()) if self.particles else 0.0
        log_mean = self.log_evidence
        resampled = live > 0 and ess < sampler.ess_threshold * sampler.particles
        self.rounds.append(Round(live, len(self.particles) - live, distinct, ess, log_mean, resampled))
        if resampled:
            chosen = resample(self._normalised(), sampler.particles, sampler.resampling, self._generator)
            self.particles = [replace(self.particles[index], log_weight=log_mean) for index in chosen.tolist()]

    def _revealed(self, particle: CanvasParticle, answer: _PassAnswer) -> CanvasParticle:
        """Sample a completion and commit the slots of this step."""
        slots = self._of.order.reveal(np.flatnonzero(particle.canvas == FREE), self._generator)
        if not len(slots) or (particle.canvas[slots] != FREE).any():
            raise ValueError(f"{self._of.order!r}: must reveal at least one slot, all free; found {slots.tolist()}")
        completion = answer.posterior.draw(self._generator)
        canvas = particle.canvas.copy()
        canvas[slots] = completion.tokens[slots]
        check_unmasked(canvas, self._of.mask_token)
        self.revealed += len(slots)
        log_divisor = answer.owed.get(canvas.tobytes())
        if log_divisor is None:
            log_divisor = answer.owed[canvas.tobytes()] = answer.posterior.clamped(canvas)
        log_model, log_kernel = particle.log_model.copy(), particle.log_kernel.copy()
        log_model[slots] = answer.distribution.log_prob_of(completion.tokens)[slots]
        log_kernel[slots] = log_model[slots] + (log_divisor - answer.posterior.log_z) / len(slots)
        return CanvasParticle(
            canvas,
            particle.log_weight,
            log_divisor,
            particle.eve,
            (*particle.steps, tuple(slots.tolist())),
            log_kernel,
            log_model,
        )

    def _log_weights(self) -> NDArray[np.float64]:
        return np.array([particle.log_weight for particle in self.particles])

    def _normalised(self) -> NDArray[np.float64]:
        logs = self._log_weights()
        weights: NDArray[np.float64] = np.exp(logs - logs.max())
        weights /= weights.sum()
        return weights
