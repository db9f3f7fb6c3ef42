"""A small language and a toy model, enumerated without any automaton: the expected results of strategies."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Mapping
from functools import cache

import numpy as np

from structgen.models import HashModel

__all__ = ["STOP", "Prefix", "ToyLanguage", "strays"]

Prefix = tuple[int, ...]
STOP = -1
"""Stands for the stop among tokens; it comes after every token, as the ids of EOS do in these vocabularies."""


class ToyLanguage:
    """The sequences of at most ``max_tokens`` tokens whose text matches a pattern, under a model after a prompt.

    Args:
        model: with a vocabulary of few tokens.
        prompt: before the output.
        pattern: of Python's ``re``.
        max_tokens: the budget.
    """

    def __init__(self, model: HashModel, prompt: str, pattern: str, max_tokens: int) -> None:
        self.model = model
        self.max_tokens = max_tokens
        vocabulary = model.vocabulary
        self._start = model.encode_prompt(prompt)
        self._eos = list(vocabulary.eos)
        tokens = [token for token in range(vocabulary.size) if vocabulary.tokens[token]]
        self.outputs: list[Prefix] = []
        self._live: set[Prefix] = set()
        level: list[Prefix] = [()]
        for length in range(max_tokens + 1):
            for output in level:
                if re.fullmatch(pattern, self.text(output)):
                    self.outputs.append(output)
                    self._live.update(output[:size] for size in range(length + 1))
            level = [(*output, token) for output in level for token in tokens] if length < max_tokens else []
        self._members = set(self.outputs)
        self._tokens = tokens
        self.full = cache(self._full)
        self.options = cache(self._options)
        self.distribution = cache(self._distribution)

    def text(self, prefix: Prefix) -> str:
        return self.model.vocabulary.decode(prefix).decode()

    def _full(self, prefix: Prefix) -> np.ndarray:
        """The model's log-probabilities of all tokens."""
        logits = self.model.start().extend([*self._start, *prefix]).astype(np.float64)
        return logits - np.logaddexp.reduce(logits)

    def _options(self, prefix: Prefix) -> dict[int, float]:
        """The possible continuations with the model's log-probability, ordered by id; the stop has its EOS's place."""
        found: dict[int, float] = {}
        distribution = self.full(prefix)
        if prefix in self._members:
            found[STOP] = float(np.logaddexp.reduce(distribution[self._eos]))
        for token in self._tokens:
            if (*prefix, token) in self._live:
                found[token] = float(distribution[token])
        first = min(self._eos)
        return dict(sorted(found.items(), key=lambda item: first if item[0] == STOP else item[0]))

    def _distribution(self, prefix: Prefix) -> dict[int, float]:
        """The probabilities of the possible continuations, renormalised."""
        options = self.options(prefix)
        total = float(np.logaddexp.reduce(list(options.values())))
        return {token: math.exp(log_p - total) for token, log_p in options.items()}

    def entropy(self, prefix: Prefix) -> float:
        return -sum(p * math.log(p) for p in self.distribution(prefix).values() if p)

    def log_p(self, path: Prefix) -> float:
        """The model's log-probability of a sequence, which ends with ``STOP`` where it is complete."""
        return sum(self.options(path[:at])[token] for at, token in enumerate(path))

    def best(self, prefix: Prefix) -> int:
        """The most probable option; ties go to the first."""
        return max(self.options(prefix).items(), key=lambda item: item[1])[0]

    def greedy(self, prefix: Prefix, steps: int | None = None) -> Prefix:
        """The tokens, stop included, that greedy decoding adds to an incomplete prefix; at most ``steps``."""
        added: Prefix = ()
        while (steps is None or len(added) < steps) and added[-1:] != (STOP,):
            added = (*added, self.best((*prefix, *added)))
        return added

    def distribution_of_outputs(self, choose: Callable[[Prefix], Mapping[Prefix, float]]) -> dict[Prefix, float]:
        """The distribution of outputs where ``choose`` gives the distribution of the tokens added to a prefix."""
        found: dict[Prefix, float] = {}
        pending: dict[Prefix, float] = {(): 1.0}
        while pending:
            prefix, p = pending.popitem()
            for added, chance in choose(prefix).items():
                longer = (*prefix, *added)
                if longer[-1:] == (STOP,):
                    found[longer[:-1]] = found.get(longer[:-1], 0.0) + p * chance
                else:
                    pending[longer] = pending.get(longer, 0.0) + p * chance
        return found


def strays(counts: Mapping[Hashable, int], distribution: Mapping[Hashable, float], alpha: float) -> list[Hashable]:
    """Outcomes that occur too often or too rarely for independent draws from ``distribution``.

    By Bernstein's inequality at ``alpha / len(distribution)`` each: the probability that any does, if the distribution
    is right, is at most ``alpha``.
    """
    total = sum(counts.values())
    level = math.log(2 * max(1, len(distribution)) / alpha)
    found: list[Hashable] = [outcome for outcome in counts if distribution.get(outcome, 0.0) == 0]
    for outcome, p in distribution.items():
        slack = math.sqrt(2 * total * p * (1 - p) * level) + 2 * level / 3
        if abs(counts.get(outcome, 0) - total * p) > slack:
            found.append(outcome)
    return found
