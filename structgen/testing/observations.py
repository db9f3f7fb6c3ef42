"""What the laws look at and do in a state."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Mapping, Sequence

from structgen.testing.protocols import AnyMatcher, AnyVocabulary
from structgen.testing.reference import ReferenceMatcher
from structgen.testing.walks import Reached, allowed_tokens, read_token

__all__ = [
    "accept_all",
    "advance_randomly",
    "distance",
    "distance_after",
    "finds_member",
    "is_forced",
    "lacks_bytes",
    "other_spelling",
    "reference_after",
    "snapshot",
    "text_of",
    "tried_tokens",
    "whether_in",
]


def snapshot(matcher: AnyMatcher, vocabulary: AnyVocabulary) -> tuple[object, ...]:
    """What can be seen of a state."""
    mask = frozenset(allowed_tokens(matcher, vocabulary.size))
    forced = b"" if matcher.is_terminated else matcher.forced_bytes()
    return mask, matcher.is_accepting, matcher.is_terminated, forced


def advance_randomly(matcher: AnyMatcher, at: Reached) -> list[int]:
    """Take up to four tokens of the masks, EOS perhaps; return what was taken."""
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


def whether_in(mask: set[int], token: int) -> str:
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


def finds_member(start: ReferenceMatcher, vocabulary: AnyVocabulary, *, fuel: int) -> bool:
    """Whether some sequence of tokens leads from ``start`` to a member, as far as ``fuel`` steps tell."""
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
    """All continuations go on with the same byte."""
    if reference.is_accepting or len(reference.allowed_bytes()) != 1:
        return False
    return not any(read_token(reference.fork(), vocabulary, token) for token in vocabulary.special)


def lacks_bytes(vocabulary: AnyVocabulary) -> bool:
    """Some byte is no token: members that need it may be out of reach."""
    alone = {data for token in range(vocabulary.size) if len(data := text_of(vocabulary, token)) == 1}
    return len(alone) < 256


def tried_tokens(at: Reached) -> list[int]:
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
