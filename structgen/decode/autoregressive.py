"""Outputs of models that write token by token: the room of ``generate`` behind which ``Generation`` works."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from structgen.decode.context import Context
from structgen.decode.generation import Chunk, Generation
from structgen.decode.potentials import Potential, as_potential
from structgen.decode.potentials.lifted import Score
from structgen.decode.sampler import Greedy, Sampler
from structgen.decode.sampling import SMC, Proposal, SequenceSampler
from structgen.decode.sampling.auto_particles import whole_speculation
from structgen.decode.speculative.speculation import AnyDrafter, as_speculation
from structgen.decode.start import check_start
from structgen.engine import Constraint

if TYPE_CHECKING:
    from structgen.decode.result import Result

__all__ = ["AnyPotential", "AnySampler", "start_generation", "write_tokens"]

AnySampler: TypeAlias = Sampler | SequenceSampler | Proposal
"""What chooses tokens one by one, or writes whole outputs."""

AnyPotential: TypeAlias = Potential | Constraint | Score
"""What outputs are worth: a potential, a second constraint, or a function of the text."""

_GREEDY: Final = Greedy()


def write_tokens(  # noqa: PLR0913  as generate
    context: Context,
    constraint: Constraint,
    *,
    max_tokens: int,
    sampler: AnySampler,
    potentials: Sequence[AnyPotential],
    seed: int,
    drafter: AnyDrafter,
    stream: Callable[[Chunk], object] | None,
    jump_forward: bool,
    score_ending: bool,
) -> Result:
    """Write one output after the tokens of ``context``: ``generate``, once the prompt is read.

    Raises:
        BudgetError, GenerationError, VocabularyError: as ``generate``.
    """
    generation = start_generation(
        context,
        constraint,
        max_tokens=max_tokens,
        sampler=sampler,
        potentials=potentials,
        seed=seed,
        drafter=drafter,
        jump_forward=jump_forward,
        score_ending=score_ending,
    )
    try:
        for chunk in generation:
            if stream is not None:
                stream(chunk)
    except KeyboardInterrupt as interrupt:
        text = generation.data.decode("utf-8", "replace")
        interrupt.add_note(
            f"generation: interrupted after {len(generation.tokens)} tokens; the output so far is {text!r}"
        )
        raise
    return generation.result()


def start_generation(  # noqa: PLR0913  as generate
    context: Context,
    constraint: Constraint,
    *,
    max_tokens: int,
    sampler: AnySampler = _GREEDY,
    potentials: Sequence[AnyPotential] = (),
    seed: int = 0,
    drafter: AnyDrafter = "auto",
    jump_forward: bool = True,
    score_ending: bool = False,
    alternatives: int = 0,
) -> Generation:
    """Check that an output can be completed and begin it: ``generate`` for callers who iterate themselves.

    Args:
        context: the prompt, at least one token, and the model; it is the caller's to close.
        constraint: compiled for the model's vocabulary.
        max_tokens: see ``generate``.
        sampler: see ``generate``.
        potentials: see ``generate``.
        seed: see ``generate``.
        drafter: see ``generate``.
        jump_forward: see ``generate``.
        score_ending: see ``generate``.
        alternatives: how many other tokens ``Step.alternatives`` notes.

    Raises:
        BudgetError: the shortest member of the grammar takes more than ``max_tokens``.
        GenerationError: prompt and ``max_tokens`` do not fit the model's context.
        VocabularyError: the constraint belongs to another vocabulary.
        TypeError: ``drafter`` is none.
    """
    whole = _whole(sampler)
    speculation = as_speculation(drafter) if isinstance(whole, Sampler) else whole_speculation(drafter, whole)
    check_start(context.model, len(context), constraint, max_tokens)
    return Generation(
        context,
        constraint,
        max_tokens=max_tokens,
        sampler=whole,
        seed=seed,
        jump_forward=jump_forward,
        score_ending=score_ending,
        alternatives=alternatives,
        potentials=[as_potential(each) for each in potentials],
        speculation=speculation,
    )


def _whole(sampler: AnySampler) -> Sampler | SequenceSampler:
    """A proposal by itself is importance sampling with one particle."""
    if isinstance(sampler, (Sampler, SequenceSampler)):
        return sampler
    return SMC(1, ess_threshold=0, proposal=sampler)
