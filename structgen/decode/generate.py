"""``generate``: one complete output of a model within a grammar."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from structgen.decode.context import Context
from structgen.decode.generation import Chunk, Generation
from structgen.decode.potentials import Potential, as_potential
from structgen.decode.potentials.lifted import Score
from structgen.decode.result import Result
from structgen.decode.sampler import Greedy, Sampler
from structgen.decode.sampling import SMC, Proposal, SequenceSampler
from structgen.decode.start import check_start, constraint_of
from structgen.engine import Constraint
from structgen.errors import GenerationError
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar
from structgen.models.protocol import LanguageModel, Prompt

__all__ = ["AnyPotential", "AnySampler", "generate", "start_generation"]

AnySampler: TypeAlias = Sampler | SequenceSampler | Proposal
"""What chooses tokens one by one, or writes whole outputs."""

AnyPotential: TypeAlias = Potential | Constraint | Score
"""What outputs are worth: a potential, a second constraint, or a function of the text."""

_GREEDY: Final = Greedy()


def generate(  # noqa: PLR0913  the public contract; each of them is a keyword with a default
    model: LanguageModel,
    prompt: Prompt,
    grammar: Grammar | Constraint,
    *,
    max_tokens: int = 256,
    sampler: AnySampler = _GREEDY,
    potentials: Sequence[AnyPotential] = (),
    seed: int = 0,
    drafter: None = None,
    stream: Callable[[Chunk], object] | None = None,
    jump_forward: bool = True,
    score_ending: bool = False,
    chat: bool = True,
    limits: Limits | None = None,
) -> Result:
    """Let ``model`` answer ``prompt`` with a member of ``grammar``.

    With a sampler of tokens (``Greedy``, ``Multinomial``) the target is locally constrained decoding: at each step the
    model's law is restricted to the tokens after which the output can still be completed, renormalised, and handed to
    the sampler.  This is not the model's law given that its output belongs to the grammar; ``Result.log_z`` tells how
    much probability was removed.  Samplers of whole outputs (``SMC`` and its like) say themselves what their target is;
    ``sample`` returns all that they draw, with weights.

    Args:
        model: the language model.
        prompt: a text, or the messages of a chat.
        grammar: a grammar, compiled here, or a constraint that was compiled for the model's vocabulary.
        max_tokens: the most tokens that the output may have, EOS not counted.  The output is complete within them.
        sampler: how tokens, or whole outputs, are chosen.
        potentials: what else the output has to fulfil: potentials, constraints, or functions of its text.  Samplers of
            tokens withhold what they forbid, and go back where nothing is left; scores need a sampler of outputs.
        seed: of the sampler's random numbers; the same seed gives the same output.
        drafter: None; drafts of another model are not used by this loop.
        stream: called with each piece of the output as soon as it is certain.
        jump_forward: take forced tokens without forward passes of their own; the output is the same without.
        score_ending: spend a forward pass on forced steps at the end of the output, so that ``log_z`` covers them.
        chat: whether a text becomes a message of the model's chat template.
        limits: for compiling a grammar; a constraint has its own.

    Raises:
        BudgetError: the shortest member of the grammar takes more than ``max_tokens``; before any forward pass.
        GenerationError: prompt and ``max_tokens`` do not fit the model's context, before any forward pass; or the
            model returned no usable logits.
        VocabularyError: the constraint belongs to another vocabulary, or the tokens cannot spell the grammar.
        GrammarError: the grammar does not compile.
        LimitExceeded: a bound of ``limits`` was reached.
        ModelError: the prompt cannot be encoded.
    """
    if drafter is not None:
        raise GenerationError(
            "drafter", "this loop takes no drafts", evidence=f"found {type(drafter).__name__}", remedy="pass None"
        )
    constraint = constraint_of(grammar, model, limits)
    ids = model.encode_prompt(prompt, chat=chat)
    with Context(model, ids) as context:
        generation = start_generation(
            context,
            constraint,
            max_tokens=max_tokens,
            sampler=sampler,
            potentials=potentials,
            seed=seed,
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
        jump_forward: see ``generate``.
        score_ending: see ``generate``.
        alternatives: how many other tokens ``Step.alternatives`` notes.

    Raises:
        BudgetError: the shortest member of the grammar takes more than ``max_tokens``.
        GenerationError: prompt and ``max_tokens`` do not fit the model's context.
        VocabularyError: the constraint belongs to another vocabulary.
    """
    check_start(context.model, len(context), constraint, max_tokens)
    return Generation(
        context,
        constraint,
        max_tokens=max_tokens,
        sampler=_whole(sampler),
        seed=seed,
        jump_forward=jump_forward,
        score_ending=score_ending,
        alternatives=alternatives,
        potentials=[as_potential(each) for each in potentials],
    )


def _whole(sampler: AnySampler) -> Sampler | SequenceSampler:
    """A proposal by itself is importance sampling with one particle."""
    if isinstance(sampler, (Sampler, SequenceSampler)):
        return sampler
    return SMC(1, ess_threshold=0, proposal=sampler)
