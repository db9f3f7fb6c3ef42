"""Output heads of drafts over the tokens that an output can contain, instead of the whole vocabulary."""

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
    """Return the bytes that strings of the grammar are made of.

    A byte that is missing is in no member.  One that is there need not be in any: what is excluded by intersections,
    by rules that are never reached, or by what stands beside it, is not looked at.  Of characters beyond ASCII, every
    continuation byte is counted.

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
            # In the order of characters, leading bytes never fall.
            first, last = chr(max(low, 0x80)).encode()[0], chr(high).encode()[0]
            yield from range(first, last + 1)
            yield from _CONTINUATIONS


_LOCK: Final = Lock()
_CACHE: Final[WeakKeyDictionary[Constraint, NDArray[np.intp]]] = WeakKeyDictionary()


def reachable_tokens(constraint: Constraint) -> NDArray[np.intp]:
    """Return the ids that are ever allowed, ascending; the array is shared: do not write to it.

    Sound, not complete: the stop, the special tokens that the grammar names, and all tokens made of bytes that its
    terms can hold (``byte_alphabet``).  So a grammar of digits and punctuation leaves a few hundred of 49k tokens,
    and one with free text nearly all.

    Complexity: O(bytes of the vocabulary + size of the grammar), once for each constraint.

    Source of the idea to leave out rows of a drafter's output head: Goel et al. 2025, VocabTrim (arXiv 2506.22694),
    which keeps the tokens that are frequent in some text.
    """
    with _LOCK:
        known = _CACHE.get(constraint)
    if known is None:
        known = _reachable(constraint)
        known.flags.writeable = False
        with _LOCK:
            _CACHE[constraint] = known
    return known


def _reachable(constraint: Constraint) -> NDArray[np.intp]:
    vocabulary, grammar = constraint.vocabulary, constraint.grammar
    alphabet = bytes(sorted(byte_alphabet(grammar)))
    named = special_tokens(grammar)
    wanted = set(vocabulary.eos) | {token for token in named if isinstance(token, int)}
    wanted.update(vocabulary.token_id(token) for token in named if isinstance(token, str))
    wanted.update(
        token
        for token, piece in enumerate(vocabulary.tokens)
        if piece and token not in vocabulary.special and not piece.translate(None, alphabet)
    )
    return np.array(sorted(wanted), dtype=np.intp)


_HEADS: Final = 16


@final
@dataclass(frozen=True, slots=True)
class VocabularyTrim:
    """For which tokens a draft computes logits: a value.

    Where the grammar allows few tokens, for these, so nothing is lost.  Where it allows many, for the most frequent of
    those that it can ever allow; a draft then never draft tokens another one, which costs acceptance and no exactness.

    Source: Goel et al. 2025, VocabTrim (arXiv 2506.22694), with the tokens that a grammar reaches in the place of those
    of a text.

    Attributes:
        most: rows of a head.
        frequent: token ids, the most frequent first; those that are missing come after, in ascending order.  Empty
            means ascending order alone: byte-pair merges are numbered by how frequent they were in training, though not
            in any particular text.

    Raises:
        ValueError: ``most`` is below 1.
    """

    most: int = 4096
    frequent: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.most, int) or self.most < 1:
            raise ValueError(f"VocabularyTrim: most must be an integer of at least 1; found {self.most!r}")

    def ids(self, constraint: Constraint) -> NDArray[np.intp]:
        """Return the tokens that are kept where many are allowed, ascending."""
        reachable = reachable_tokens(constraint)
        if len(reachable) <= self.most:
            return reachable
        kept = np.zeros(constraint.vocabulary.size, dtype=np.bool_)
        kept[reachable] = True
        first = [token for token in dict.fromkeys(self.frequent) if 0 <= token < len(kept) and kept[token]]
        first = first[: self.most]
        kept[first] = False
        rest = np.flatnonzero(kept)[: self.most - len(first)]
        return np.sort(np.concatenate((np.array(first, dtype=np.intp), rest)))


@final
class TrimmedHeads:
    """The heads that drafts of one output use.

    Args:
        session: of the model.
        constraint: of the output.
        trim: None computes all rows.
    """

    def __init__(self, session: LayeredSession, constraint: Constraint, trim: VocabularyTrim | None) -> None:
        self._session = session
        self._size = constraint.vocabulary.size
        self._trim = trim
        self._wide = None if trim is None else session.trimmed(trim.ids(constraint))
        self._narrow: OrderedDict[bytes, TrimmedHead] = OrderedDict()

    def of(self, ids: NDArray[np.intp]) -> TrimmedHead | None:
        """Return the head for a position where ``ids`` are allowed, ascending; None is the whole one."""
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
        """Return logits of all tokens, ``[..., V]``: minus infinity for those that the head lacks."""
        if head is None:
            return logits
        rows: Logits = np.full((*logits.shape[:-1], self._size), -np.inf, dtype=np.float32)
        rows[..., head.ids] = logits
        return rows

    def exits(self, states: States, ids: NDArray[np.intp]) -> Logits:
        """Return what early exits at ``states`` ``[rows, width]`` say where ``ids`` are allowed, ``[rows, V]``."""
        head = self.of(ids)
        return self.spread(self._session.exit_logits(states, head=head), head)
