"""Outputs of models that fill canvases: the room of ``generate`` behind which samplers of canvases work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from structgen.decode.diffusion.canvas import canvas_length
from structgen.decode.diffusion.canvas_smc import fill_smc
from structgen.decode.diffusion.fill import fill_canvas
from structgen.decode.diffusion.language import canvas_language
from structgen.decode.diffusion.trajectory import RandomOrder
from structgen.decode.sampling.smc import SMC
from structgen.decode.step.budget import check_vocabulary, constraint_of
from structgen.errors import BudgetError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike

    from structgen.decode.diffusion.canvas_run import Snapshot
    from structgen.decode.diffusion.commit_policy import CommitPolicy
    from structgen.decode.diffusion.forward_pass import Reuse
    from structgen.decode.diffusion.posterior import CanvasSampler
    from structgen.decode.diffusion.trajectory import RevealOrder
    from structgen.decode.sampling.protocol import Samples
    from structgen.decode.step.result import Result
    from structgen.engine import Constraint
    from structgen.grammar.limits import Limits
    from structgen.grammar.nodes import Grammar
    from structgen.models.protocol import Prompt
    from structgen.models.protocol.diffusion import DiffusionModel

__all__ = ["sample_canvases", "slots_within", "write_canvas"]


def write_canvas(  # noqa: PLR0913  as generate
    model: DiffusionModel,
    prompt: Prompt,
    grammar: Grammar | Constraint,
    *,
    max_tokens: int | None = None,
    canvas: int | ArrayLike | None = None,
    policy: CommitPolicy | None = None,
    sampler: CanvasSampler | SMC,
    temperature: float = 1.0,
    block: int | None = None,
    reuse: Reuse | None = None,
    seed: int = 0,
    stream: Callable[[Snapshot], object] | None = None,
    chat: bool = True,
    limits: Limits | None = None,
) -> Result:
    """Write one output on a canvas: ``generate`` for diffusion models.

    Of what ``SMC`` draws, one output is drawn by its weight.

    Args:
        model: see ``generate``.
        prompt: see ``generate``.
        grammar: see ``generate``.
        max_tokens: the most tokens of the output; ``canvas`` is None then, and the grammar says how many slots there
            are, but no more.
        canvas: see ``structgen.decode.diffusion.fill.fill_canvas``, as for the others.
        policy: likewise.
        sampler: likewise, or ``SMC``, which takes neither policy, block, reuse nor stream.
        temperature: likewise.
        block: likewise.
        reuse: likewise.
        seed: likewise.
        stream: likewise.
        chat: likewise.
        limits: likewise.

    Raises:
        ValueError: arguments exclude each other.
        BudgetError: the shortest member takes more than ``max_tokens``.
        GenerationError: as ``fill_canvas``; or all weights of ``SMC`` are zero.
    """
    if isinstance(sampler, SMC):
        for name, value in {"policy": policy, "block": block, "reuse": reuse, "stream": stream}.items():
            if value is not None:
                raise ValueError(
                    f"{name}={value!r:.60} is not for SMC, which fills many canvases and reveals their slots in an "
                    "order of its own; leave it out, or take sampler=Posterior()"
                )
        samples = sample_canvases(
            model,
            prompt,
            grammar,
            max_tokens=max_tokens,
            canvas=canvas,
            sampler=sampler,
            temperature=temperature,
            seed=seed,
            chat=chat,
            limits=limits,
        )
        # Not the stream that the particles were drawn with.
        return samples.draw(np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 1]))))
    constraint = constraint_of(grammar, model, limits)
    return fill_canvas(
        model,
        prompt,
        constraint,
        canvas=_first_canvas(model, prompt, constraint, canvas, max_tokens, chat=chat),
        policy=policy,
        sampler=sampler,
        temperature=temperature,
        block=block,
        reuse=reuse,
        seed=seed,
        stream=stream,
        chat=chat,
    )


def sample_canvases(  # noqa: PLR0913  as sample
    model: DiffusionModel,
    prompt: Prompt,
    grammar: Grammar | Constraint,
    *,
    max_tokens: int | None = None,
    canvas: int | ArrayLike | None = None,
    sampler: SMC,
    order: RevealOrder | None = None,
    temperature: float = 1.0,
    seed: int = 0,
    chat: bool = True,
    limits: Limits | None = None,
) -> Samples:
    """Draw outputs on canvases, each with a weight: ``sample`` for diffusion models.

    Args:
        model: see ``sample``, as for all of them.
        prompt: likewise.
        grammar: likewise.
        max_tokens: likewise.
        canvas: likewise.
        sampler: likewise.
        order: likewise.
        temperature: likewise.
        seed: likewise.
        chat: likewise.
        limits: likewise.

    Raises:
        ValueError: arguments exclude each other.
        BudgetError, GenerationError: as ``structgen.decode.diffusion.canvas_smc``.
    """
    constraint = constraint_of(grammar, model, limits)
    return fill_smc(
        model,
        prompt,
        constraint,
        canvas=_first_canvas(model, prompt, constraint, canvas, max_tokens, chat=chat),
        sampler=sampler,
        order=RandomOrder() if order is None else order,
        temperature=temperature,
        seed=seed,
        chat=chat,
    )


def _first_canvas(
    model: DiffusionModel,
    prompt: Prompt,
    constraint: Constraint,
    canvas: int | ArrayLike | None,
    max_tokens: int | None,
    *,
    chat: bool,
) -> int | ArrayLike | None:
    """The canvas to begin with, of which ``max_tokens`` bounds the slots where it is not given.

    Raises:
        ValueError: both are given.
        BudgetError: as ``slots_within``.
    """
    if max_tokens is None:
        return canvas
    if canvas is not None:
        raise ValueError(f"canvas and max_tokens={max_tokens} both say how many slots there are; leave one of them out")
    check_vocabulary(constraint.vocabulary, model)
    room = None if model.max_context is None else model.max_context - len(model.encode_prompt(prompt, chat=chat))
    return slots_within(constraint, max_tokens, room=room)


def slots_within(constraint: Constraint, max_tokens: int, *, room: int | None = None) -> int:
    """Return how many slots a canvas gets whose output may have ``max_tokens``, EOS not counted.

    Args:
        constraint: of the output.
        max_tokens: not to be exceeded.
        room: tokens that are left of the model's context; None where it has no bound.

    Raises:
        BudgetError: the shortest member takes more than ``max_tokens``.
        ValueError: ``max_tokens`` is no number of slots.
    """
    if not isinstance(max_tokens, int) or isinstance(max_tokens, bool) or max_tokens < 1:
        raise ValueError(f"max_tokens must be an integer of at least 1, for a canvas has a slot; found {max_tokens!r}")
    language = canvas_language(constraint, ambiguity="counted")  # that of fill_canvas()
    if language.shortest > max_tokens:
        raise BudgetError(budget=max_tokens, needed=language.shortest)
    slots = canvas_length(language, most=max_tokens)
    return slots if room is None else max(min(slots, room), language.shortest, 1)
