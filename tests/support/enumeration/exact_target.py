"""The target of sampling, by enumeration of all outputs with the model's own sessions and Python's ``re``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from structgen.models import HashModel

Output = tuple[int, ...]


def exact_target(
    model: HashModel,
    prompt: str,
    pattern: str,
    max_tokens: int,
    score: Callable[[str], float] = lambda text: 0.0,
) -> dict[Output, float]:
    """The log of the unnormalised target of every output: ``p(tokens, stop | prompt) exp(score)``.

    All sequences of at most ``max_tokens`` tokens are enumerated, so the vocabulary should be small.
    """
    vocabulary = model.vocabulary
    start = model.encode_prompt(prompt)
    tokens = [token for token in range(vocabulary.size) if vocabulary.tokens[token]]
    found: dict[Output, float] = {}
    pending: list[tuple[Output, float]] = [((), 0.0)]
    while pending:
        output, log_p = pending.pop()
        logits = model.start().extend([*start, *output]).astype(np.float64)
        distribution = logits - np.logaddexp.reduce(logits)
        text = vocabulary.decode(output).decode()
        if re.fullmatch(pattern, text):
            stop = float(np.logaddexp.reduce(distribution[list(vocabulary.eos)]))
            total = log_p + stop + score(text)
            if total > -math.inf:
                found[output] = total
        if len(output) < max_tokens:
            pending += [((*output, token), log_p + float(distribution[token])) for token in tokens]
    return found


def log_total(target: Mapping[Output, float]) -> float:
    """The log of the sum of the target."""
    return float(np.logaddexp.reduce(list(target.values())))


def normalised(target: Mapping[Output, float]) -> dict[Output, float]:
    """The target, normalised."""
    total = log_total(target)
    return {output: math.exp(log_p - total) for output, log_p in target.items()}


def total_variation(first: Mapping[Any, float], second: Mapping[Any, float]) -> float:
    """Half the sum of the absolute differences of two distributions."""
    return 0.5 * sum(abs(first.get(key, 0.0) - second.get(key, 0.0)) for key in {*first, *second})


def z_score(values: Any, expected: float) -> float:
    """How many standard errors the mean of ``values`` lies from ``expected``."""
    found = np.asarray(values, dtype=np.float64)
    spread = float(found.std(ddof=1)) / math.sqrt(len(found))
    if spread == 0:
        return 0.0 if math.isclose(float(found.mean()), expected, rel_tol=1e-9) else math.inf
    return float(found.mean() - expected) / spread
