"""``generate``: one complete output of a model within a grammar."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from structgen.decode.context import Context
from structgen.decode.generation import Chunk, Generation
from structgen.decode.result import Result
from structgen.decode.sampler import Greedy, Sampler
from structgen.engine import Constraint, Vocabulary, compile
from structgen.errors import BudgetError, GenerationError, VocabularyError
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar
from structgen.models.protocol import LanguageModel, Prompt

__all__ = ["generate", "start_generation"]

_GREEDY: Final = Greedy()


def generate(  # noqa: PLR0913  the public contract; each of them is a keyword with a default
    model: LanguageModel,
    prompt: Prompt,
    grammar: Grammar | Constraint,
    *,
    max_tokens: int = 256,
    sampler: Sampler = _GREEDY,
    seed: int = 0,
    drafter: None = None,
    stream: Callable[[Chunk], object] | None = None,
    jump_forward: bool = True,
    score_ending: bool = False,
    chat: bool = True,
    limits: Limits | None = None,
) -> Result:
    """Let ``model`` answer ``prompt`` with a member of ``grammar``.

    The target is locally constrained decoding: at each step the model's law is restricted to the tokens after which
    the output can still be completed, renormalised, and handed to the sampler.  This is not the model's law given
    that its output belongs to the grammar; ``Result.log_z`` tells how much probability was removed.

    Args:
        model: the language model.
        prompt: a text, or the messages of a chat.
        grammar: a grammar, compiled here, or a constraint that was compiled for the model's vocabulary.
        max_tokens: the most tokens that the output may have, EOS not counted.  The output is complete within them.
        sampler: how tokens are chosen.
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
    constraint = _constraint(grammar, model, limits)
    ids = model.encode_prompt(prompt, chat=chat)
    with Context(model, ids) as context:
        generation = start_generation(
            context,
            constraint,
            max_tokens=max_tokens,
            sampler=sampler,
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


def start_generation(
    context: Context,
    constraint: Constraint,
    *,
    max_tokens: int,
    sampler: Sampler = _GREEDY,
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
        seed: see ``generate``.
        jump_forward: see ``generate``.
        score_ending: see ``generate``.
        alternatives: how many other tokens ``Step.alternatives`` notes.

    Raises:
        BudgetError: the shortest member of the grammar takes more than ``max_tokens``.
        GenerationError: prompt and ``max_tokens`` do not fit the model's context.
        VocabularyError: the constraint belongs to another vocabulary.
    """
    model = context.model
    _check_vocabulary(constraint.vocabulary, model)
    if not isinstance(max_tokens, int) or max_tokens < 0:
        raise ValueError(f"max_tokens must be an integer of at least 0; found {max_tokens!r}")
    needed = constraint.min_tokens()
    if needed > max_tokens:
        raise BudgetError(budget=max_tokens, needed=needed)
    most = model.max_context
    excess = 0 if most is None else len(context) + max_tokens - most
    if excess > 0:
        raise GenerationError(
            f"model {model.name!r}",
            f"prompt and output exceed its context by {excess} tokens",
            evidence=f"the prompt has {len(context)}, max_tokens={max_tokens}, the context holds {most}",
            remedy=_context_remedy(excess, max_tokens, needed),
        )
    return Generation(
        context,
        constraint,
        max_tokens=max_tokens,
        sampler=sampler,
        seed=seed,
        jump_forward=jump_forward,
        score_ending=score_ending,
        alternatives=alternatives,
    )


def _constraint(grammar: Grammar | Constraint, model: LanguageModel, limits: Limits | None) -> Constraint:
    if isinstance(grammar, Constraint):
        return grammar
    if isinstance(grammar, Grammar):
        return compile(grammar, model.vocabulary, limits=limits)
    raise TypeError(f"generate: expected a Grammar or a Constraint, found {type(grammar).__name__}")


def _check_vocabulary(vocabulary: Vocabulary, model: LanguageModel) -> None:
    if vocabulary is not model.vocabulary and vocabulary.digest != model.vocabulary.digest:
        raise VocabularyError(
            "constraint",
            f"it was compiled for another vocabulary than that of model {model.name!r}",
            evidence=f"{vocabulary!r}, not {model.vocabulary!r}",
            remedy="compile the grammar with model.vocabulary",
        )


def _context_remedy(excess: int, max_tokens: int, needed: int) -> str:
    if max_tokens - excess >= needed:
        return f"allow at most max_tokens={max_tokens - excess}, or shorten the prompt"
    return f"shorten the prompt by {needed - (max_tokens - excess)} tokens at least and lower max_tokens"
