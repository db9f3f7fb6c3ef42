"""Outputs in progress, as a drafter sees them, and models whose sessions lack a feature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from structgen.decode.speculative.drafter import DraftState, DraftTask
from structgen.decode.step.context import Context
from structgen.decode.step.sampler import Greedy, Sampler
from structgen.engine import Constraint
from structgen.models import HashModel, LanguageModel


def position(context: Context, constraint: Constraint, prompt_tokens: int, max_tokens: int = 1000) -> DraftState:
    """The position of the output after the prompt; nothing is forced there, as in the loop."""
    output = context.tokens[prompt_tokens:]
    matcher = constraint.matcher()
    for token in output:
        assert matcher.accept(token)
    mask = np.zeros((1, (constraint.vocabulary.size + 31) // 32), dtype=np.int32)
    remaining = max_tokens - len(output)
    if matcher.needs_budget_mask(remaining):
        matcher.fill_mask_within(mask, 0, remaining)
    else:
        matcher.fill_mask(mask)
    return DraftState(matcher, mask[0], remaining, 0)


def task_of(constraint: Constraint, prompt: Sequence[int], sampler: Sampler | None = None, seed: int = 0) -> DraftTask:
    """An output after ``prompt``."""
    return DraftTask(constraint, sampler or Greedy(), len(prompt), np.random.default_rng(seed))


def row_after(model: LanguageModel, tokens: Sequence[int]) -> NDArray[np.float32]:
    """The logits after tokens, from a new session."""
    return model.start().extend(list(tokens))


def expected_distribution(
    model: Any, constraint: Constraint, prompt: list[int], output: list[int], sampler: Any
) -> NDArray[Any]:
    """Mask, renormalise, shape, renormalise, with a new session and a new matcher."""
    matcher = constraint.matcher()
    assert all(matcher.accept(token) for token in output)
    allowed = [token for token in range(constraint.vocabulary.size) if matcher.validate([token]) == 1]
    logits = row_after(model, [*prompt, *output]).astype(np.float64)
    kept = logits[allowed] - np.logaddexp.reduce(logits[allowed])
    distribution = np.zeros(constraint.vocabulary.size)
    weights = sampler.shaped(kept)
    distribution[allowed] = weights / weights.sum()
    return distribution


def exact_distribution(
    target: Any, constraint: Constraint, sampler: Any, prompt: list[int]
) -> dict[tuple[int, ...], float]:
    """The distribution of locally constrained decoding, by enumeration of all outputs."""
    found: dict[tuple[int, ...], float] = {}
    pending: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    while pending:
        output, mass = pending.pop()
        distribution = expected_distribution(target, constraint, prompt, list(output), sampler)
        for token in np.flatnonzero(distribution).tolist():
            if token in constraint.vocabulary.eos:
                found[output] = mass * float(distribution[token])
            else:
                pending.append(((*output, token), mass * float(distribution[token])))
    return found


class PlainSession:
    """A session that runs no trees."""

    def __init__(self, session: Any) -> None:
        self._session = session

    length = property(lambda self: self._session.length)
    forwards = property(lambda self: self._session.forwards)

    def extend(self, token_ids: Sequence[int], /) -> Any:
        return self._session.extend(token_ids)

    def extend_all(self, token_ids: Sequence[int], /) -> Any:
        return self._session.extend_all(token_ids)

    def truncate(self, length: int, /) -> None:
        self._session.truncate(length)

    def fork(self) -> PlainSession:
        return PlainSession(self._session.fork())

    def close(self) -> None:
        self._session.close()


class PlainModel:
    """A ``HashModel`` whose sessions run no trees."""

    def __init__(self, model: HashModel) -> None:
        self.model = model
        self.name = model.name
        self.vocabulary = model.vocabulary
        self.max_context = model.max_context

    def encode_prompt(self, prompt: Any, /, *, chat: bool = True) -> list[int]:
        return self.model.encode_prompt(prompt, chat=chat)

    def start(self) -> PlainSession:
        return PlainSession(self.model.start())
