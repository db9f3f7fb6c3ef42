"""Entry points for diffusion models, called by ``generate`` and ``sample``.

``write_canvas`` returns one output; ``fill_smc`` returns weighted outputs, which are exact over whole trajectories.
"""

from __future__ import annotations

import math
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Final

import numpy as np

from structgen.decode.diffusion.canvas import (
    canvas_constraint,
    canvas_language,
    canvas_length,
    cut_position,
    first_canvas,
    mask_of,
    output_tokens,
)
from structgen.decode.diffusion.fill import fill_canvas
from structgen.decode.diffusion.trajectory import CanvasParticle, RandomOrder, RevealOrder, Twister
from structgen.decode.sampling.proposal import AWRS
from structgen.decode.sampling.protocol import Sample, Samples
from structgen.decode.sampling.smc import SMC
from structgen.decode.step.context import check_vocabulary, constraint_of
from structgen.decode.step.distribution import log_mass
from structgen.decode.step.result import Result, Seconds, Stats, Step
from structgen.errors import BudgetError
from structgen.grammar.limits import counted
from structgen.models.protocol.diffusion import DiffusionModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

    from structgen.decode.diffusion.commit_policy import Unmasking
    from structgen.decode.diffusion.posterior import CanvasSampler
    from structgen.engine import Constraint
    from structgen.grammar.limits import Limits
    from structgen.grammar.nodes import Grammar
    from structgen.models.protocol import Prompt

__all__ = ["fill_smc", "slots_within", "write_canvas"]

_SMC: Final = SMC()
_ORDER: Final = RandomOrder()


def fill_smc(  # noqa: PLR0913  as fill_canvas
    model: DiffusionModel,
    prompt: Prompt,
    grammar: Grammar | Constraint,
    *,
    max_tokens: int | None = None,
    canvas: int | ArrayLike | None = None,
    sampler: SMC = _SMC,
    order: RevealOrder | None = None,
    temperature: float = 1.0,
    seed: int = 0,
    chat: bool = True,
    limits: Limits | None = None,
) -> Samples:
    """Sample strings of ``grammar`` as answers of a diffusion model to ``prompt``, each with a weight.

    The target is the distribution of canvases that the model fills alone, slots revealed in ``order``, restricted to
    those that spell a string of the grammar; see ``structgen.decode.diffusion.trajectory``. The log-evidence estimates
    the log-probability that the model alone writes a valid string. Each step is one forward pass over all particles.

    In the results, a step's ``logprob`` is the log of the probability with which its token was sampled, and
    ``logprob + log_z`` the log-probability under the model's own distribution of the slot in that pass.

    Args:
        model: the diffusion model.
        prompt: a text, or the messages of a chat.
        grammar: a grammar, compiled here, or a constraint that was compiled for the model's vocabulary.
        max_tokens: the largest number of tokens of an output; it bounds the slots, and requires ``canvas=None``.
        canvas: as for ``fill_canvas``; fixed slots are conditioned on and have no probability.
        sampler: the number of particles, and when and how they are resampled.
        order: which slots are revealed when, and how many in each step; None for ``RandomOrder()``.
        temperature: of the model's distribution of each slot; the target is the model at that temperature.
        seed: of the random numbers; the same seed gives the same samples.
        chat: whether a text becomes a message of the model's chat template.
        limits: for compiling a grammar and filling the canvas; a constraint has its own.

    Returns:
        The samples; none if all weights are zero.

    Raises:
        BudgetError, GenerationError, ModelError, VocabularyError, GrammarError, LimitExceeded: as ``fill_canvas``.
        TypeError: an argument is not a diffusion model, grammar, sampler or order.
        ValueError: a number is out of range, arguments exclude each other, or the sampler has a proposal or a
            look-ahead, which apply to tokens only.
    """
    began = perf_counter()
    order = _ORDER if order is None else order
    _check(model, sampler, order, temperature)
    mask_token = mask_of(model)
    constraint = canvas_constraint(grammar, model, limits)
    language = canvas_language(constraint)
    ids = model.encode_prompt(prompt, chat=chat)
    given = _given_canvas(model, len(ids), constraint, canvas, max_tokens)
    work = counted(constraint.limits, limit="canvas_steps")
    with work:
        first = first_canvas(given, language, model, len(ids), mask_token, None)
    denoiser = model.start(ids)
    try:
        twister = Twister(denoiser, mask_token, language, sampler, order, temperature)
        with work:
            run = twister.run(first, np.random.Generator(np.random.PCG64(seed)))
        forwards = denoiser.forwards
    finally:
        denoiser.close()
    seconds = Seconds(run.language_seconds, run.passes.seconds, perf_counter() - began)
    cost = Stats.of_steps((), None, prompt_tokens=len(ids), tokens=0, forwards=forwards, seconds=seconds)
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
        queries=0,
        verification="" if samples else "the model gives no completion of the canvas any probability",
        history=tuple(run.rounds),
    )


def _sample(particles: Sequence[CanvasParticle], constraint: Constraint, cost: Stats) -> Sample:
    """Particles with the same canvas, as one sample; its steps are those of the heaviest particle."""
    heaviest = max(particles, key=lambda particle: particle.log_weight)
    tokens = output_tokens(heaviest.canvas, constraint.vocabulary)
    has_stop = len(tokens) < len(heaviest.canvas)
    revealed = {slot for step in heaviest.steps for slot in step}
    steps = []
    for slot, token in enumerate([*tokens, None] if has_stop else tokens):
        logprob, native = float(heaviest.log_kernel[slot]), float(heaviest.log_model[slot])
        log_z = native - logprob if slot in revealed else None
        steps.append(Step(token, forced=False, logprob=logprob, log_z=log_z))
    result = Result(
        data=constraint.vocabulary.decode(tokens),
        tokens=tuple(tokens),
        steps=tuple(steps),
        stats=replace(cost, tokens=len(tokens), sampled=len(tokens)),
        grammar=constraint.grammar,
        vocabulary=constraint.vocabulary,
        cut_at=cut_position(constraint, tokens, len(heaviest.canvas)),
    )
    log_weight = log_mass(np.array([particle.log_weight for particle in particles]))
    return Sample(result, log_weight, len(particles))


def _check(model: object, sampler: object, order: object, temperature: float) -> None:
    if not isinstance(model, DiffusionModel):
        raise TypeError(f"fill_smc: expected a DiffusionModel, found {type(model).__name__}; others use sample")
    if not isinstance(sampler, SMC):
        raise TypeError(f"fill_smc: expected SMC(...), found {sampler!r}; fill_canvas takes Dingo() and Posterior()")
    if not isinstance(order, RevealOrder):
        raise TypeError(f"fill_smc: expected a RevealOrder, found {order!r}; for instance RandomOrder()")
    if sampler.lookahead is not None or sampler.proposal != AWRS():
        raise ValueError(
            f"fill_smc: SMC's proposal and lookahead apply to tokens, not to canvases; found {sampler!r}; leave them "
            "out: each pass is sampled from its exact posterior"
        )
    if not (math.isfinite(temperature) and temperature > 0):
        raise ValueError(f"temperature must be positive and finite; found {temperature!r}")


def write_canvas(  # noqa: PLR0913  as generate
    model: DiffusionModel,
    prompt: Prompt,
    grammar: Grammar | Constraint,
    unmasking: Unmasking,
    *,
    max_tokens: int | None = None,
    sampler: CanvasSampler | SMC,
    seed: int = 0,
    chat: bool = True,
    limits: Limits | None = None,
) -> Result:
    """Write one output on a canvas: ``generate`` for diffusion models.

    With ``SMC``, one of its samples is sampled by weight.

    ``max_tokens``, the largest number of tokens of the output, requires ``unmasking.canvas=None``, and bounds the slots
    that the canvas gets by default.  ``SMC`` takes neither policy, block, reuse nor stream.

    Raises:
        ValueError: arguments exclude each other.
        BudgetError: the shortest string takes more than ``max_tokens``.
        GenerationError: as ``fill_canvas``; or all weights of ``SMC`` are zero.
    """
    if isinstance(sampler, SMC):
        for name in ("policy", "block", "reuse", "stream"):
            value = getattr(unmasking, name)
            if value is not None:
                raise ValueError(
                    f"{name}={value!r:.60} does not apply to SMC, which fills many canvases and reveals their slots in "
                    "its own order; leave it out, or use sampler=Posterior()"
                )
        samples = fill_smc(
            model,
            prompt,
            grammar,
            max_tokens=max_tokens,
            canvas=unmasking.canvas,
            sampler=sampler,
            temperature=unmasking.temperature,
            seed=seed,
            chat=chat,
            limits=limits,
        )
        # A random stream of its own: the particles were sampled with the other one.
        return samples.draw(np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 1]))))
    constraint = constraint_of(grammar, model, limits)
    canvas: int | ArrayLike | None = unmasking.canvas
    if max_tokens is not None:
        prompt_tokens = len(model.encode_prompt(prompt, chat=chat))
        canvas = _given_canvas(model, prompt_tokens, constraint, canvas, max_tokens)
    return fill_canvas(
        model,
        prompt,
        constraint,
        canvas=canvas,
        policy=unmasking.policy,
        sampler=sampler,
        temperature=unmasking.temperature,
        block=unmasking.block,
        reuse=unmasking.reuse,
        seed=seed,
        stream=unmasking.stream,
        chat=chat,
    )


def _given_canvas(
    model: DiffusionModel,
    prompt_tokens: int,
    constraint: Constraint,
    canvas: int | ArrayLike | None,
    max_tokens: int | None,
) -> int | ArrayLike | None:
    """The requested canvas; by default, ``max_tokens`` bounds the number of slots.

    Raises:
        ValueError: both are given.
        BudgetError: as ``slots_within``.
    """
    if max_tokens is None:
        return canvas
    if canvas is not None:
        raise ValueError(f"canvas and max_tokens={max_tokens} both set the number of slots; leave one of them out")
    check_vocabulary(constraint.vocabulary, model)
    capacity = None if model.max_context is None else model.max_context - prompt_tokens
    return slots_within(constraint, max_tokens, capacity=capacity)


def slots_within(constraint: Constraint, max_tokens: int, *, capacity: int | None = None) -> int:
    """Return how many slots a canvas gets if its output may have ``max_tokens`` tokens, EOS not counted.

    ``capacity`` is how many tokens are left of the model's context; None if it has no bound.

    Raises:
        BudgetError: the shortest string takes more than ``max_tokens``.
        ValueError: ``max_tokens`` is not a positive integer.
    """
    if not isinstance(max_tokens, int) or isinstance(max_tokens, bool) or max_tokens < 1:
        raise ValueError(
            f"max_tokens must be an integer of at least 1, since a canvas has at least one slot; found {max_tokens!r}"
        )
    language = canvas_language(constraint, ambiguity="counted")  # that of fill_canvas()
    if language.shortest > max_tokens:
        raise BudgetError(budget=max_tokens, needed=language.shortest)
    with counted(constraint.limits, limit="canvas_steps"):
        slots = canvas_length(language, max_slots=max_tokens)
    return slots if capacity is None else max(min(slots, capacity), language.shortest, 1)
