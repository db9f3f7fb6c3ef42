"""What is checked before anything is generated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from structgen.engine import Constraint, Vocabulary, compile
from structgen.errors import BudgetError, GenerationError, VocabularyError
from structgen.grammar.nodes import Grammar

if TYPE_CHECKING:
    from structgen.grammar.limits import Limits
    from structgen.models.protocol import LanguageModel
    from structgen.models.protocol.diffusion import DiffusionModel

__all__ = ["check_start", "check_vocabulary", "constraint_of"]


def constraint_of(
    grammar: Grammar | Constraint,
    model: LanguageModel | DiffusionModel,
    limits: Limits | None,
    *,
    heeds_temperatures: bool = False,
) -> Constraint:
    """Return a constraint for the model's vocabulary; a grammar is compiled.

    Args:
        grammar: the grammar, or a constraint.
        model: the model.
        limits: for compiling.
        heeds_temperatures: whether the caller draws the parts that have a temperature at that temperature.

    Raises:
        TypeError: it is neither.
        ValueError: parts of the grammar have a temperature, which the caller does not heed.
        GrammarError, LimitExceeded, VocabularyError: the grammar does not compile.
    """
    if isinstance(grammar, (Constraint, Grammar)):
        made = grammar if isinstance(grammar, Constraint) else compile(grammar, model.vocabulary, limits=limits)
        if made.has_temperatures and not heeds_temperatures:
            raise ValueError(
                "parts of the grammar have a temperature of their own, which this way of decoding does not heed; "
                "call generate(...) with a sampler of tokens, or leave temperatures out of the grammar"
            )
        return made
    raise TypeError(f"generate: expected a Grammar or a Constraint, found {type(grammar).__name__}")


def check_start(model: LanguageModel, prompt_tokens: int, constraint: Constraint, max_tokens: int) -> None:
    """Check that an output can be completed.

    Raises:
        ValueError: ``max_tokens`` is no number of tokens.
        BudgetError: the shortest member of the grammar takes more than ``max_tokens``.
        GenerationError: prompt and ``max_tokens`` do not fit the model's context.
        VocabularyError: the constraint belongs to another vocabulary.
    """
    check_vocabulary(constraint.vocabulary, model)
    if not isinstance(max_tokens, int) or max_tokens < 0:
        raise ValueError(f"max_tokens must be an integer of at least 0; found {max_tokens!r}")
    needed = constraint.min_tokens()
    if needed > max_tokens:
        raise BudgetError(budget=max_tokens, needed=needed)
    most = model.max_context
    excess = 0 if most is None else prompt_tokens + max_tokens - most
    if excess > 0:
        raise GenerationError(
            f"model {model.name!r}",
            f"prompt and output exceed its context by {excess} tokens",
            evidence=f"the prompt has {prompt_tokens}, max_tokens={max_tokens}, the context holds {most}",
            remedy=_context_remedy(excess, max_tokens, needed),
        )


def check_vocabulary(vocabulary: Vocabulary, model: LanguageModel | DiffusionModel) -> None:
    """Check that a constraint was compiled for the model's vocabulary.

    Raises:
        VocabularyError: it was not.
    """
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
