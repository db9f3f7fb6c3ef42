"""Walking through the states of a constraint, and saying briefly where a law does not hold."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Final, TypeAlias

import numpy as np

from structgen.testing.protocols import AnyConstraint, AnyMatcher, AnyVocabulary, Bitmask
from structgen.testing.reference import ReferenceMatcher

__all__ = ["USUAL", "Effort", "LawViolation", "Reached", "allowed_tokens", "empty_bitmask", "everywhere", "shown"]


@dataclass(frozen=True, slots=True)
class Effort:
    """How much of a constraint a law looks at.

    Attributes:
        walks: random walks from the start.
        length: tokens of a walk.
        tokens: in a vocabulary larger than this, a law that tries tokens one by one tries a sample of this size.
    """

    walks: int = 6
    length: int = 12
    tokens: int = 600


USUAL: Final = Effort()


class LawViolation(AssertionError):  # an assertion about the implementation, not an error of its user
    """A law does not hold.

    Attributes:
        law: its name.
        path: the shortest sequence of token ids found after which it does not hold.
        problem: what was seen there.
    """

    def __init__(self, law: str, problem: str, *, path: Sequence[int], vocabulary: AnyVocabulary) -> None:
        self.law = law
        self.path = tuple(path)
        self.problem = problem
        spelled = ", ".join(shown(vocabulary, token) for token in path) or "nothing"
        super().__init__(f"{law}: {problem}; after {spelled}")


@dataclass(frozen=True, slots=True)
class Reached:
    """A state that a law is checked in; the check may do to ``matcher`` what it likes."""

    constraint: AnyConstraint
    matcher: AnyMatcher
    path: tuple[int, ...]
    effort: Effort
    rng: random.Random
    blank: Callable[[], ReferenceMatcher]

    @property
    def vocabulary(self) -> AnyVocabulary:
        return self.constraint.vocabulary

    def reference(self) -> ReferenceMatcher:
        """A reference matcher that has read the path."""
        matcher = self.blank().fork()
        for token in self.path:
            read_token(matcher, self.vocabulary, token)
        return matcher

    def sampled_tokens(self) -> list[int]:
        """Every token id, or in a large vocabulary a sample: half from the mask, half from all."""
        size, count = self.vocabulary.size, self.effort.tokens
        if size <= count:
            return list(range(size))
        allowed = sorted(allowed_tokens(self.matcher, size))
        chosen = self.rng.sample(allowed, min(count // 2, len(allowed)))
        return sorted({*chosen, *self.rng.sample(range(size), count // 2), *self.vocabulary.eos})


Check: TypeAlias = Callable[[Reached], "str | None"]
"""Says what is wrong in a state, or ``None`` where the law holds."""


def everywhere(law: str, check: Check, constraint: AnyConstraint, rng: random.Random, effort: Effort) -> None:
    """Check a law in every state of random walks.

    Raises:
        LawViolation: ``check`` found something; the path to the state is shrunk first.
    """
    # One reference for all states: what it works out about the grammar is remembered.
    blank = cache(lambda: ReferenceMatcher(constraint.grammar, constraint.vocabulary.special))

    def problem_after(seed: int, path: tuple[int, ...]) -> str | None:
        matcher = constraint.matcher()
        if not all(matcher.accept(token) for token in path):
            return None
        return check(Reached(constraint, matcher, path, effort, random.Random(seed), blank))

    for _ in range(effort.walks):
        for path in _random_walk(constraint, rng, effort.length):
            seed = rng.getrandbits(64)
            problem = problem_after(seed, path)
            if problem is not None:
                short, what = _shrunk(path, problem, partial(problem_after, seed))
                raise LawViolation(law, what, path=short, vocabulary=constraint.vocabulary)


def allowed_tokens(matcher: AnyMatcher, size: int) -> set[int]:
    """The token ids of the mask."""
    bitmask = empty_bitmask(size)
    matcher.fill_mask(bitmask)
    return ids_of(bitmask[0])


def empty_bitmask(size: int, rows: int = 1) -> Bitmask:
    """A mask, or several, in which nothing is allowed."""
    return np.zeros((rows, (size + 31) // 32), dtype=np.int32)


def ids_of(row: Bitmask) -> set[int]:
    """The ids whose bits are set in one row."""
    bits = np.unpackbits(row.astype("<i4").view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def read_token(reference: ReferenceMatcher, vocabulary: AnyVocabulary, token: int) -> bool:
    """Let the reference read a token that is no EOS."""
    if token in vocabulary.special:
        return reference.advance_special(token)
    data = vocabulary.tokens[token]
    count = reference.accept_bytes(data)
    if count < len(data):
        reference.rollback(count)
    return 0 < count == len(data)


def shown(vocabulary: AnyVocabulary, token: int) -> str:
    """A token for a message: ``7 (b'ab')``, ``2 (<|end|>)``, ``0 (EOS)``."""
    if token in set(vocabulary.eos):
        return f"{token} (EOS)"
    if token in vocabulary.special:
        return f"{token} ({vocabulary.special[token]})"
    return f"{token} ({vocabulary.tokens[token]!r})" if token < len(vocabulary.tokens) else f"{token} (padding)"


def _random_walk(constraint: AnyConstraint, rng: random.Random, length: int) -> Iterator[tuple[int, ...]]:
    """Yield the paths to the states of one walk; EOS is never taken."""
    matcher = constraint.matcher()
    path: tuple[int, ...] = ()
    yield path
    while len(path) < length:
        choices = sorted(allowed_tokens(matcher, constraint.vocabulary.size) - set(constraint.vocabulary.eos))
        token = rng.choice(choices) if choices else None
        if token is None or not matcher.accept(token):
            return
        path = (*path, token)
        yield path


def _shrunk(
    path: tuple[int, ...], problem: str, problem_after: Callable[[tuple[int, ...]], str | None]
) -> tuple[tuple[int, ...], str]:
    """Leave out pieces of the path, large ones first, while the law still fails after the rest."""
    size = len(path)
    while size > 0:
        for start in range(len(path) - size + 1):
            shorter = path[:start] + path[start + size :]
            found = problem_after(shorter)
            if found is not None:
                path, problem = shorter, found
                break
        else:
            size -= 1
        size = min(size, len(path))
    return path, problem
