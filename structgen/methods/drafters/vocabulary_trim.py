"""Output heads for drafts, restricted to the tokens that an output can contain."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Final, final
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from structgen.grammar.nodes import (
    ByteClass,
    CharClass,
    Complement,
    Grammar,
    JsonString,
    Literal,
    SpecialToken,
    postorder,
)

if TYPE_CHECKING:
    from structgen.engine import Constraint
    from structgen.models.protocol import LayeredSession, Logits, States, TrimmedHead

__all__ = ["TrimmedHeads", "VocabularyTrim", "byte_alphabet", "reachable_tokens", "special_tokens"]

_ESCAPES: Final = b'"\\/bfnrtu' + b"0123456789abcdefABCDEF"
_CONTINUATIONS: Final = range(0x80, 0xC0)


def byte_alphabet(grammar: Grammar) -> frozenset[int]:
    """Return a superset of the bytes of all valid strings.

    Exclusions by intersections, unreachable rules and context are ignored.  For characters beyond ASCII, every
    continuation byte is included.

    Complexity: linear in the distinct nodes of the term and in the ranges of its classes.
    """
    found: set[int] = set()
    for node in postorder(grammar):
        if isinstance(node, Literal):
            found.update(node.data)
        elif isinstance(node, ByteClass):
            for low, high in node.ranges:
                found.update(range(low, high + 1))
        elif isinstance(node, SpecialToken) and node.or_text:
            found.update(str(node.token).encode())
        elif isinstance(node, CharClass):
            found.update(_bytes_of_characters(node))
        elif isinstance(node, JsonString):
            found.update(_ESCAPES)
        elif isinstance(node, Complement):
            return frozenset(range(256))
    return frozenset(found)


def special_tokens(grammar: Grammar) -> frozenset[str | int]:
    """Return the special tokens that the grammar names, by text or id."""
    return frozenset(node.token for node in postorder(grammar) if isinstance(node, SpecialToken) and not node.or_text)


def _bytes_of_characters(node: CharClass) -> Iterator[int]:
    for low, high in node.ranges:
        yield from range(low, min(high, 0x7F) + 1)
        if high > 0x7F:
            # Leading bytes ascend with the characters.
            first, last = chr(max(low, 0x80)).encode()[0], chr(high).encode()[0]
            yield from range(first, last + 1)
            yield from _CONTINUATIONS


_LOCK: Final = Lock()
_CACHE: Final[WeakKeyDictionary[Constraint, NDArray[np.intp]]] = WeakKeyDictionary()


def reachable_tokens(constraint: Constraint) -> NDArray[np.intp]:
    """Return a superset of the ids that are ever allowed, ascending; the array is shared and read-only.

    These are EOS, the special tokens of the grammar, and all tokens made of bytes of ``byte_alphabet``.  So a grammar
    of digits and punctuation has a few hundred of 49k tokens, one with free text nearly all.

    Complexity: O(bytes of the vocabulary + size of the grammar), once for each constraint.

    Source of the idea to trim a drafter's output head: Goel et al. 2025, VocabTrim (arXiv 2506.22694), which keeps the
    frequent tokens of a text.
    """
    with _LOCK:
        ids = _CACHE.get(constraint)
    if ids is None:
        ids = _reachable(constraint)
        ids.flags.writeable = False
        with _LOCK:
            _CACHE[constraint] = ids
    return ids


def _reachable(constraint: Constraint) -> NDArray[np.intp]:
    vocabulary, grammar = constraint.vocabulary, constraint.grammar
    alphabet = bytes(sorted(byte_alphabet(grammar)))
    named = special_tokens(grammar)
    reachable = set(vocabulary.eos) | {token for token in named if isinstance(token, int)}
    reachable.update(vocabulary.token_id(token) for token in named if isinstance(token, str))
    reachable.update(
        token
        for token, piece in enumerate(vocabulary.tokens)
        if piece and token not in vocabulary.special and not piece.translate(None, alphabet)
    )
    return np.array(sorted(reachable), dtype=np.intp)


_HEADS: Final = 16


@final
@dataclass(frozen=True, slots=True)
class VocabularyTrim:
    """The tokens for which a draft computes logits: a value.

    If the grammar allows at most ``most`` tokens, these are exact.  If it allows more, the most frequent of all tokens
    that it can ever allow; the draft then lacks the others, which costs acceptance but not exactness.

    Source: Goel et al. 2025, VocabTrim (arXiv 2506.22694), here with the reachable tokens of a grammar instead of the
    tokens of a text.

    Attributes:
        most: the largest number of rows of a head.
        frequent: token ids, the most frequent first; all others follow in ascending order.  Empty means ascending
            order: byte-pair merges are numbered by their frequency in training.

    Raises:
        ValueError: ``most`` is below 1.
    """

    most: int = 4096
    frequent: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.most, int) or self.most < 1:
            raise ValueError(f"VocabularyTrim: most must be an integer of at least 1; found {self.most!r}")

    def ids(self, constraint: Constraint) -> NDArray[np.intp]:
        """Return the tokens of the head for positions with many allowed tokens, ascending."""
        reachable = reachable_tokens(constraint)
        if len(reachable) <= self.most:
            return reachable
        left = np.zeros(constraint.vocabulary.size, dtype=np.bool_)
        left[reachable] = True
        first = [token for token in dict.fromkeys(self.frequent) if 0 <= token < len(left) and left[token]]
        first = first[: self.most]
        left[first] = False
        rest = np.flatnonzero(left)[: self.most - len(first)]
        return np.sort(np.concatenate((np.array(first, dtype=np.intp), rest)))


@final
class TrimmedHeads:
    """The output heads for the drafts of one output.

    Args:
        session: the session of the model.
        constraint: the constraint on the output.
        trim: the tokens of the heads; None computes all logits.
    """

    def __init__(self, session: LayeredSession, constraint: Constraint, trim: VocabularyTrim | None) -> None:
        self._session = session
        self._size = constraint.vocabulary.size
        self._trim = trim
        self._wide = None if trim is None else session.trimmed(trim.ids(constraint))
        self._narrow: OrderedDict[bytes, TrimmedHead] = OrderedDict()

    def of(self, ids: NDArray[np.intp]) -> TrimmedHead | None:
        """Return the head for a position with the allowed ``ids``, ascending; None is the whole head."""
        if self._trim is None or self._wide is None:
            return None
        if len(ids) > self._trim.most:
            if np.isin(ids, self._wide.ids, assume_unique=True).any():
                return self._wide
            return None
        key = ids.tobytes()
        head = self._narrow.get(key)
        if head is None:
            head = self._narrow[key] = self._session.trimmed(ids)
            if len(self._narrow) > _HEADS:
                self._narrow.popitem(last=False)
        self._narrow.move_to_end(key)
        return head

    def spread(self, logits: Logits, head: TrimmedHead | None) -> Logits:
        """Return logits of all tokens, ``[..., V]``: minus infinity for tokens that the head lacks."""
        if head is None:
            return logits
        rows: Logits = np.full((*logits.shape[:-1], self._size), -np.inf, dtype=np.float32)
        rows[..., head.ids] = logits
        return rows

    def exits(self, states: States, ids: NDArray[np.intp]) -> Logits:
        """Return the logits of early exits at ``states`` ``[rows, width]`` for the allowed ``ids``, ``[rows, V]``."""
        head = self.of(ids)
        return self.spread(self._session.exit_logits(states, head=head), head)
