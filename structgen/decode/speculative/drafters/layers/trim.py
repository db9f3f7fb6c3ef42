"""Output heads of drafts: the rows of the tokens that may come, not of the whole vocabulary."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.speculative.drafters.layers.reachable import reachable_tokens

if TYPE_CHECKING:
    from structgen.engine import Constraint
    from structgen.models.protocol import LayeredSession, Logits, States, TrimmedHead

__all__ = ["Heads", "VocabularyTrim"]

_HEADS: Final = 16


@final
@dataclass(frozen=True, slots=True)
class VocabularyTrim:
    """For which tokens a draft computes logits: a value.

    Where the grammar allows few tokens, for these, so nothing is lost.  Where it allows many, for the most frequent of
    those that it can ever allow; a draft then never guesses another one, which costs acceptance and no exactness.

    Source: Goel et al. 2025, VocabTrim (arXiv 2506.22694), with the tokens that a grammar reaches in the place of those
    of a text.

    Attributes:
        most: rows of a head.
        frequent: token ids, the most frequent first; those that are missing come behind, in ascending order.  Empty
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
class Heads:
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
