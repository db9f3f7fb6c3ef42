"""``fill_smc``: outputs of a diffusion model with weights, exact over whole trajectories."""

from __future__ import annotations

import math
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Final

import numpy as np

from structgen.decode.diffusion.canvas import canvas_constraint, finish_reason, first_canvas, mask_of, output_tokens
from structgen.decode.diffusion.language import canvas_language
from structgen.decode.diffusion.trajectory import CanvasParticle, RandomOrder, RevealOrder, Twister
from structgen.decode.sampling.proposal import AWRS
from structgen.decode.sampling.protocol import Sample, Samples
from structgen.decode.sampling.smc import SMC
from structgen.decode.step.distribution import log_mass
from structgen.decode.step.result import Result, Stats, Step
from structgen.models.protocol.diffusion import DiffusionModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

    from structgen.engine import Constraint
    from structgen.grammar.limits import Limits
    from structgen.grammar.nodes import Grammar
    from structgen.models.protocol import Prompt

__all__ = ["fill_smc"]

_SMC: Final = SMC()
_ORDER: Final = RandomOrder()


def fill_smc(  # noqa: PLR0913  as fill_canvas
    model: DiffusionModel,
    prompt: Prompt,
    grammar: Grammar | Constraint,
    *,
    canvas: int | ArrayLike | None = None,
    sampler: SMC = _SMC,
    order: RevealOrder = _ORDER,
    temperature: float = 1.0,
    seed: int = 0,
    chat: bool = True,
    limits: Limits | None = None,
) -> Samples:
    """Draw members of ``grammar`` as answers of a diffusion model to ``prompt``, each with a weight.

    The target is the law of canvases that the model fills by itself, slots revealed in ``order``, on those that spell a
    member; see ``structgen.decode.diffusion.trajectory``.  The log-evidence is an estimate of the log of the
    probability that the model by itself writes a member.  Each step is one forward pass over all particles.

    In the results, a step's ``logprob`` is the log of the probability with which its token was drawn, and
    ``logprob + log_z`` that of the model's own law for the slot in that pass.

    Args:
        model: the diffusion model.
        prompt: a text, or the messages of a chat.
        grammar: a grammar, compiled here, or a constraint that was compiled for the model's vocabulary.
        canvas: as for ``fill_canvas``; what is fixed on it is given, and has no probability of its own.
        sampler: how many particles there are, and when and how they are resampled.
        order: which slots are revealed when, and how many in each step.
        temperature: of the model's law of each slot; the target is the model at that temperature.
        seed: of the random numbers; the same seed gives the same samples.
        chat: whether a text becomes a message of the model's chat template.
        limits: for compiling a grammar; a constraint has its own.

    Returns:
        The samples; none where all weights are zero.

    Raises:
        BudgetError, GenerationError, ModelError, VocabularyError, GrammarError, LimitExceeded: as ``fill_canvas``.
        TypeError: an argument is no diffusion model, grammar, sampler or order.
        ValueError: a number is out of range, or the sampler has a proposal or a look-ahead, which are for tokens.
    """
    began = perf_counter()
    _check(model, sampler, order, temperature)
    mask_token = mask_of(model)
    constraint = canvas_constraint(grammar, model, limits)
    language = canvas_language(constraint)
    ids = model.encode_prompt(prompt, chat=chat)
    first = first_canvas(canvas, language, model, len(ids), mask_token, None)
    denoiser = model.start(ids)
    try:
        twister = Twister(denoiser, mask_token, language, sampler, order, temperature)
        run = twister.run(first, np.random.Generator(np.random.PCG64(seed)))
        forwards = denoiser.forwards
    finally:
        denoiser.close()
    elapsed = perf_counter() - began
    cost = Stats(
        prompt_tokens=len(ids),
        tokens=0,
        forced=0,
        sampled=0,
        drafted=0,
        accepted=0,
        forwards=forwards,
        time_mask_s=run.language_seconds,
        time_model_s=run.model_seconds,
        time_other_s=max(0.0, elapsed - run.language_seconds - run.model_seconds),
    )
    by_canvas: dict[bytes, list[CanvasParticle]] = {}
    for particle in run.particles:
        by_canvas.setdefault(particle.canvas.tobytes(), []).append(particle)
    samples = [_sample(particles, constraint, cost) for particles in by_canvas.values()]
    return Samples(
        samples=tuple(sorted(samples, key=lambda sample: (-sample.log_weight, sample.result.tokens))),
        lossless=True,
        log_evidence=run.log_evidence,
        standard_error=run.standard_error,
        particles=sampler.particles,
        forwards=forwards,
        tokens=run.revealed,
        asked=0,
        verdict="the model gives no completion of the canvas any probability",
        history=tuple(run.rounds),
    )


def _sample(particles: Sequence[CanvasParticle], constraint: Constraint, cost: Stats) -> Sample:
    """Particles that came to the same canvas, as one sample; how it came there is told of the heaviest."""
    heaviest = max(particles, key=lambda particle: particle.log_weight)
    tokens = output_tokens(heaviest.canvas, constraint.vocabulary)
    has_stop = len(tokens) < len(heaviest.canvas)
    revealed = {slot for step in heaviest.steps for slot in step}
    steps = []
    for slot, token in enumerate([*tokens, None] if has_stop else tokens):
        logprob, native = float(heaviest.log_kernel[slot]), float(heaviest.log_native[slot])
        steps.append(Step(token, False, logprob, native - logprob if slot in revealed else None))
    result = Result(
        data=constraint.vocabulary.decode(tokens),
        tokens=tuple(tokens),
        steps=tuple(steps),
        stats=replace(cost, tokens=len(tokens), sampled=len(tokens)),
        finish_reason=finish_reason(constraint, tokens, has_stop=has_stop),
        grammar=constraint.grammar,
        vocabulary=constraint.vocabulary,
    )
    log_weight = log_mass(np.array([particle.log_weight for particle in particles]))
    return Sample(result, log_weight, len(particles))


def _check(model: object, sampler: object, order: object, temperature: float) -> None:
    if not isinstance(model, DiffusionModel):
        raise TypeError(f"fill_smc: expected a DiffusionModel, found {type(model).__name__}; others take sample")
    if not isinstance(sampler, SMC):
        raise TypeError(f"fill_smc: expected SMC(...), found {sampler!r}; fill_canvas takes Dingo() and Posterior()")
    if not isinstance(order, RevealOrder):
        raise TypeError(f"fill_smc: expected a RevealOrder, found {order!r}; for instance RandomOrder()")
    if sampler.lookahead is not None or sampler.proposal != AWRS():
        raise ValueError(
            f"fill_smc: proposal and lookahead of SMC are for samplers of tokens; found {sampler!r}; leave them out: "
            "canvases are drawn from the exact posterior of each pass"
        )
    if not (math.isfinite(temperature) and temperature > 0):
        raise ValueError(f"temperature must be positive and finite; found {temperature!r}")
