"""Toy problems with few outputs, enumerated with the model's own sessions and Python's ``re``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from structgen.decode.potentials import potential
from structgen.decode.sampling import Branches, Problem, Samples, SequenceSampler, sample
from structgen.decode.step.distribution import BARE_END
from structgen.engine import Constraint, Vocabulary, compile
from structgen.frontends.regex import regex
from structgen.models import HashModel

Output = tuple[int, ...]
STOP = -1

LETTERS = [b"", b"a", b"b", b"ab", b"c"]
ONE_EOS = Vocabulary(LETTERS, eos=[0])
TWO_EOS = Vocabulary([b"", b"a", b"b", b"", b"c"], eos=[0, 3])
NO_EOS = Vocabulary(LETTERS[1:], eos=[])
VOCABULARIES = {"one eos": ONE_EOS, "two eos": TWO_EOS, "no eos": NO_EOS}

PATTERNS = ["[abc]{1,4}", "(ab|c)*a?", "a[abc]{0,2}b|ccc|b", "c(aa|bb)(a|b)?c?"]


def palindrome(text: str) -> bool:
    return text == text[::-1]


def few_b(text: str) -> bool:
    return text.count("b") < 2


def wants_c(text: str) -> float:
    return -0.7 * text.count("a") if "c" in text else -2.5


@dataclass
class Toy:
    """A problem.

    Args:
        pattern: of the language, for ``re`` and for the constraint.
        max_tokens: the budget.
        vocabulary: at most five tokens.
        seed: of the model.
        always: a predicate of prefixes.
        score: of complete outputs.
    """

    pattern: str = PATTERNS[0]
    max_tokens: int = 4
    vocabulary: Vocabulary = ONE_EOS
    seed: int = 3
    always: Callable[[str], bool] | None = None
    score: Callable[[str], bool | float] | None = None
    _distributions: dict[Output, np.ndarray] = field(default_factory=dict)

    @cached_property
    def model(self) -> HashModel:
        return HashModel(self.vocabulary, seed=self.seed)

    @cached_property
    def constraint(self) -> Constraint:
        return compile(regex(self.pattern), self.vocabulary)

    @property
    def stop(self) -> int:
        """The symbol of the stop in a distribution."""
        return min(self.vocabulary.eos, default=BARE_END)

    @cached_property
    def potentials(self) -> list[object]:
        found: list[object] = []
        if self.always is not None:
            found.append(potential(always=True)(self.always))
        if self.score is not None:
            found.append(potential(self.score))
        return found

    def samples(self, sampler: SequenceSampler, seed: int = 0, **options: Any) -> Samples:
        return sample(
            self.model,
            "ab",
            self.constraint,
            sampler=sampler,
            potentials=self.potentials,
            max_tokens=self.max_tokens,
            seed=seed,
            **options,
        )

    def branches(self) -> Branches:
        prompt = tuple(self.model.encode_prompt("ab"))
        return Branches(Problem(self.model, prompt, self.constraint, tuple(self.potentials), self.max_tokens))

    # by brute force

    def text(self, tokens: Output) -> str:
        return b"".join(self.vocabulary.tokens[token] for token in tokens).decode()

    def distribution(self, tokens: Output) -> np.ndarray:
        """The model's log-probabilities after some tokens."""
        if tokens not in self._distributions:
            logits = self.model.start().extend([*self.model.encode_prompt("ab"), *tokens]).astype(np.float64)
            self._distributions[tokens] = logits - np.logaddexp.reduce(logits)
        return self._distributions[tokens]

    @cached_property
    def words(self) -> set[Output]:
        """Sequences of at most ``max_tokens`` tokens that spell a string of the grammar."""
        tokens = [token for token in range(self.vocabulary.size) if self.vocabulary.tokens[token]]
        words: set[Output] = set()
        pending: list[Output] = [()]
        while pending:
            output = pending.pop()
            if re.fullmatch(self.pattern, self.text(output)):
                words.add(output)
            if len(output) < self.max_tokens:
                pending += [(*output, token) for token in tokens]
        return words

    @cached_property
    def prefixes(self) -> set[Output]:
        return {word[:length] for word in self.words for length in range(len(word) + 1)}

    def choices(self, tokens: Output) -> dict[int, float]:
        """The tokens, stop included, that constraint and budget allow after a prefix, with log-probabilities."""
        distribution = self.distribution(tokens)
        found = {
            token: float(distribution[token])
            for token in range(self.vocabulary.size)
            if (*tokens, token) in self.prefixes
        }
        if self.vocabulary.eos and tokens in self.words:
            found[STOP] = float(np.logaddexp.reduce(distribution[list(self.vocabulary.eos)]))
        elif not self.vocabulary.eos and not found:
            found[STOP] = 0.0
        return found

    def admits(self, tokens: Output) -> bool:
        return self.always is None or all(self.always(self.text(tokens[:n])) for n in range(len(tokens) + 1))

    def score_of(self, tokens: Output) -> float:
        if not self.admits(tokens):
            return -math.inf
        score = 0.0 if self.score is None else self.score(self.text(tokens))
        return (0.0 if score else -math.inf) if isinstance(score, bool) else float(score)

    @cached_property
    def log_p(self) -> dict[Output, float]:
        """The model's log-probability of every output and its stop."""
        return {word: self.log_p_of(word) for word in self.words if STOP in self.choices(word)}

    def log_p_of(self, output: Output) -> float:
        return self.log_p_before(output) + self.choices(output)[STOP]

    def log_p_before(self, tokens: Output) -> float:
        """The model's log-probability of a prefix."""
        return sum(self.choices(tokens[:n])[tokens[n]] for n in range(len(tokens)))

    @cached_property
    def target(self) -> dict[Output, float]:
        """The log of the unnormalised target of every output with positive probability."""
        totals = {output: log_p + self.score_of(output) for output, log_p in self.log_p.items()}
        return {output: total for output, total in totals.items() if total > -math.inf}

    @cached_property
    def ranking(self) -> list[Output]:
        """The outputs, the best first."""
        return sorted(self.target, key=lambda output: (-self.target[output], output))

    @cached_property
    def z(self) -> float:
        return math.fsum(map(math.exp, self.target.values()))

    @cached_property
    def normalised(self) -> dict[Output, float]:
        return {output: math.exp(total) / self.z for output, total in self.target.items()}

    def future(self, tokens: Output) -> float:
        """The expectation of ``exp(score)`` over the model's continuations of a prefix; 0 outside of the language."""
        log_p = self.log_p_before(tokens)
        after = [total for output, total in self.target.items() if output[: len(tokens)] == tokens]
        return math.fsum(math.exp(total - log_p) for total in after)

    def lcd(self) -> dict[Output, float]:
        """The distribution of locally constrained decoding over what the potentials admit.

        The rest of the mass has no output.
        """
        found: dict[Output, float] = {}
        pending: list[tuple[Output, float]] = [((), 1.0)]
        while pending:
            tokens, chance = pending.pop()
            admitted = {
                token: math.exp(log_p)
                for token, log_p in self.choices(tokens).items()
                if (self.score_of(tokens) > -math.inf if token == STOP else self.admits((*tokens, token)))
            }
            total = sum(admitted.values())
            for token, p in admitted.items():
                if token == STOP:
                    found[tokens] = chance * p / total
                else:
                    pending.append(((*tokens, token), chance * p / total))
        return found


def toys() -> dict[str, Toy]:
    """Problems of every kind."""
    found = {
        f"{name}, {pattern}, {budget} tokens": Toy(pattern, budget, vocabulary, seed=index)
        for name, vocabulary in VOCABULARIES.items()
        for index, (pattern, budget) in enumerate(zip(PATTERNS, (4, 3, 4, 5), strict=True))
    }
    found["tight budget"] = Toy("c(aa|bb)(a|b)?c?|abab", 2, seed=5)
    found["tight budget, no eos"] = Toy("(ab){2}|[abc]{3}", 3, NO_EOS, seed=6)
    found["only the empty output"] = Toy("a?", 0, seed=1)
    found["palindromes"] = Toy("[abc]{1,4}", 4, seed=4, score=palindrome)
    found["few b"] = Toy("[abc]{1,4}", 4, seed=4, always=few_b)
    found["few b, two eos"] = Toy("[abc]{1,3}", 3, TWO_EOS, seed=8, always=few_b)
    found["scores"] = Toy("[abc]{1,3}", 3, seed=4, score=wants_c)
    found["palindromes of few b, no eos"] = Toy("[abc]{3,4}", 4, NO_EOS, seed=7, always=few_b, score=palindrome)
    return found
