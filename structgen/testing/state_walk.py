"""Random walks through the states of a constraint, what laws observe there, and the protocols that they need."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Final, Protocol, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from structgen.engine.mask import empty_masks
from structgen.grammar.nodes import Grammar
from structgen.testing.reference import ReferenceMatcher

__all__ = [
    "DEFAULT_EFFORT",
    "AnyConstraint",
    "AnyMatcher",
    "Bitmask",
    "Effort",
    "LawViolation",
    "ReachedState",
    "accept_all",
    "advance_randomly",
    "allowed_tokens",
    "check_states",
    "describe_token",
    "distance",
    "distance_after",
    "finds_valid_string",
    "is_forced",
    "lacks_bytes",
    "membership_word",
    "other_spelling",
    "reference_after",
    "snapshot",
    "text_of",
    "tried_tokens",
]

Bitmask: TypeAlias = npt.NDArray[np.int32]
"""Rows of ``ceil(V / 32)`` words; bit ``i & 31`` of word ``i >> 5`` is token ``i``."""


class AnyVocabulary(Protocol):
    """Token id -> bytes, with the ids that end a sequence and those that are no text."""

    @property
    def size(self) -> int: ...
    @property
    def tokens(self) -> Sequence[bytes]: ...
    @property
    def eos(self) -> Iterable[int]: ...
    @property
    def special(self) -> Mapping[int, str]: ...
    def decode(self, ids: Sequence[int], /) -> bytes: ...


class AnyMatcher(Protocol):
    """The moving state of one sequence."""

    @property
    def is_accepting(self) -> bool:
        """Whether the sequence may end here."""

    @property
    def is_terminated(self) -> bool:
        """Whether an EOS has been accepted."""

    def fill_mask(self, bitmask: Bitmask, row: int = 0) -> None:
        """Write the mask of the next token into a row."""

    def fill_mask_within(self, bitmask: Bitmask, row: int, budget: int) -> None:
        """Write the mask of the tokens after which the sequence can end within ``budget`` tokens."""

    def needs_budget_mask(self, budget: int) -> bool:
        """Whether the mask within ``budget`` may differ from the mask."""

    def accept(self, token_id: int, /) -> bool:
        """Take a token; false, and no change, if the mask blocks it."""

    def accept_bytes(self, data: bytes, /) -> int:
        """Take the longest prefix of ``data`` that may come; return its length."""

    def validate(self, token_ids: Sequence[int], /) -> int:
        """How many of the tokens may come, one after the other; the state stays as it is."""

    def rollback(self, n: int, /) -> None:
        """Undo the last ``n`` steps."""

    def fork(self) -> Self:
        """An independent copy."""

    def reset(self) -> None:
        """Go back to the start."""

    def forced_bytes(self) -> bytes:
        """The bytes that must come."""

    def forced_tokens(self) -> list[int]:
        """The tokens that must come."""

    def min_tokens(self) -> int | None:
        """The fewest tokens of a completion; None if none is known."""


class AnyConstraint(Protocol):
    """A grammar compiled against a vocabulary."""

    @property
    def vocabulary(self) -> AnyVocabulary:
        """The tokens."""

    @property
    def grammar(self) -> Grammar:
        """The term."""

    def matcher(self) -> AnyMatcher:
        """A matcher at the start."""

    def min_tokens(self) -> int:
        """The fewest tokens of a sequence."""


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


DEFAULT_EFFORT: Final = Effort()


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
        spelled = ", ".join(describe_token(vocabulary, token) for token in path) or "nothing"
        super().__init__(f"{law}: {problem}; after {spelled}")


@dataclass(frozen=True, slots=True)
class ReachedState:
    """A state in which a law is checked; the check may change ``matcher``."""

    constraint: AnyConstraint
    matcher: AnyMatcher
    path: tuple[int, ...]
    effort: Effort
    rng: random.Random
    blank: Callable[[], ReferenceMatcher]

    @property
    def vocabulary(self) -> AnyVocabulary:
        """That of the constraint."""
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


Check: TypeAlias = Callable[[ReachedState], "str | None"]
"""Says what is wrong in a state, or ``None`` where the law holds."""


def check_states(law: str, check: Check, constraint: AnyConstraint, rng: random.Random, effort: Effort) -> None:
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
        return check(ReachedState(constraint, matcher, path, effort, random.Random(seed), blank))

    for _ in range(effort.walks):
        for path in _random_walk(constraint, rng, effort.length):
            seed = rng.getrandbits(64)
            problem = problem_after(seed, path)
            if problem is not None:
                short, what = _shrunk(path, problem, partial(problem_after, seed))
                raise LawViolation(law, what, path=short, vocabulary=constraint.vocabulary)


def allowed_tokens(matcher: AnyMatcher, size: int) -> set[int]:
    """The token ids of the mask."""
    bitmask = empty_masks(size)
    matcher.fill_mask(bitmask)
    return ids_of(bitmask[0])


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


def describe_token(vocabulary: AnyVocabulary, token: int) -> str:
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


def snapshot(matcher: AnyMatcher, vocabulary: AnyVocabulary) -> tuple[object, ...]:
    """The observable properties of a state."""
    mask = frozenset(allowed_tokens(matcher, vocabulary.size))
    forced = b"" if matcher.is_terminated else matcher.forced_bytes()
    return mask, matcher.is_accepting, matcher.is_terminated, forced


def advance_randomly(matcher: AnyMatcher, at: ReachedState) -> list[int]:
    """Accept up to four tokens of the masks, perhaps EOS; return them."""
    taken: list[int] = []
    for _ in range(at.rng.randint(0, 4)):
        allowed = sorted(allowed_tokens(matcher, at.vocabulary.size))
        token = at.rng.choice(allowed) if allowed else None
        if token is None or not matcher.accept(token):
            break
        taken.append(token)
    return taken


def accept_all(matcher: AnyMatcher, tokens: Sequence[int]) -> bool:
    """Let the matcher read all of ``tokens``; whether it did."""
    return all(matcher.accept(token) for token in tokens)


def text_of(vocabulary: AnyVocabulary, token: int) -> bytes:
    """The bytes that a token writes: none for EOS, special tokens and padding."""
    if token >= len(vocabulary.tokens) or token in vocabulary.special or token in set(vocabulary.eos):
        return b""
    return vocabulary.tokens[token]


def membership_word(mask: set[int], token: int) -> str:
    """For messages."""
    return "in the mask" if token in mask else "not in the mask"


def reference_after(reference: ReferenceMatcher, vocabulary: AnyVocabulary, token: int) -> ReferenceMatcher | None:
    """A reference that has read a token of any kind as well; ``None`` if it refuses it."""
    fork = reference.fork()
    if token in set(vocabulary.eos):
        return fork if reference.is_accepting else None
    if token in vocabulary.special or text_of(vocabulary, token):
        return fork if read_token(fork, vocabulary, token) else None
    return None


def finds_valid_string(start: ReferenceMatcher, vocabulary: AnyVocabulary, *, fuel: int) -> bool:
    """Whether some sequence of tokens leads from ``start`` to a complete string, as far as ``fuel`` steps tell."""
    # Tokens with equal bytes, and other spellings of the same text, lead to the same states.
    tokens = {text_of(vocabulary, t) or t: t for t in range(vocabulary.size) if t not in set(vocabulary.eos)}
    queue: deque[tuple[tuple[bytes | int, ...], ReferenceMatcher]] = deque([((), start)])
    seen: set[tuple[bytes | int, ...]] = {()}
    while queue and fuel > 0:
        path, state = queue.popleft()
        if state.is_accepting:
            return True
        for symbol, token in tokens.items():
            longer = _joined(path, symbol)
            following = None if longer in seen else reference_after(state, vocabulary, token)
            if following is not None:
                seen.add(longer)
                queue.append((longer, following))
                fuel -= 1
    return any(state.is_accepting for _, state in queue)


def _joined(path: tuple[bytes | int, ...], symbol: bytes | int) -> tuple[bytes | int, ...]:
    if path and isinstance(symbol, bytes) and isinstance(path[-1], bytes):
        return (*path[:-1], path[-1] + symbol)
    return (*path, symbol)


def is_forced(reference: ReferenceMatcher, vocabulary: AnyVocabulary) -> bool:
    """All continuations have the same next byte."""
    if reference.is_accepting or len(reference.allowed_bytes()) != 1:
        return False
    return not any(read_token(reference.fork(), vocabulary, token) for token in vocabulary.special)


def lacks_bytes(vocabulary: AnyVocabulary) -> bool:
    """Some byte is no token: strings that need it may be out of reach."""
    alone = {data for token in range(vocabulary.size) if len(data := text_of(vocabulary, token)) == 1}
    return len(alone) < 256


def tried_tokens(at: ReachedState) -> list[int]:
    """The allowed tokens that are no EOS, or a sample of them."""
    mask = allowed_tokens(at.matcher, at.vocabulary.size) - set(at.vocabulary.eos)
    return [token for token in at.sampled_tokens() if token in mask]


def distance(matcher: AnyMatcher) -> float:
    """``min_tokens``, infinite where no sequence of tokens leads to the end."""
    count = matcher.min_tokens()
    return math.inf if count is None else count


def distance_after(matcher: AnyMatcher, token: int) -> float:
    """The distance after an allowed token."""
    fork = matcher.fork()
    fork.accept(token)
    return distance(fork)


def other_spelling(data: bytes, token_of: Mapping[bytes, int], rng: random.Random) -> list[int] | None:
    """Split ``data`` into tokens at random, or return ``None`` where that leads nowhere."""
    longest = max(map(len, token_of), default=0)
    ends = {len(data)}  # places from which the rest can be spelled
    for start in range(len(data) - 1, -1, -1):
        if any(data[start:end] in token_of for end in ends if end - start <= longest):
            ends.add(start)
    tokens: list[int] = []
    start = 0
    while start < len(data):
        choices = [end for end in sorted(ends) if end > start and data[start:end] in token_of]
        if not choices:
            return None
        end = rng.choice(choices)
        tokens.append(token_of[data[start:end]])
        start = end
    return tokens
