"""The laws that a model told behind runs of tokens."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, final

if TYPE_CHECKING:
    from structgen.engine import Vocabulary

__all__ = ["KnownLaw", "NGramLaws"]

_MEMORY: Final = 16
"""The mean of the laws behind a run goes over so many of the last, in effect."""

_Table: TypeAlias = "OrderedDict[tuple[int, ...], tuple[int, dict[int, float]]]"


class KnownLaw(NamedTuple):
    """What is known behind a run of tokens.

    Attributes:
        length: how many tokens the run has.
        tokens: ids, the most probable first; of equally probable ones the one with the lowest id.
        probabilities: theirs, which sum to 1.
    """

    length: int
    tokens: list[int]
    probabilities: list[float]


@final
class NGramLaws:
    """Behind each run of up to ``order`` tokens the mean of the laws that the model told there.

    Of each law only the most probable tokens are kept, and their probabilities are shared out anew among them, so what
    is kept can be drawn from.  Where a run comes again, its mean moves on; laws of long ago fade.

    Source: the n-gram module of W. Song et al., "Accelerated Test-Time Scaling with Model-Free Speculative Sampling"
    (2025, arXiv 2506.04708).

    Threads may share one.  Runs that were neither learned nor asked for longest are forgotten beyond ``most``, for each
    vocabulary by itself; one takes about 1 kB.

    Args:
        order: tokens of the longest runs; at least 1.
        keep: tokens of each law; at least 1.
        most: runs; at least 1.

    Raises:
        ValueError: a number is below 1.
    """

    def __init__(self, order: int = 3, *, keep: int = 8, most: int = 16_384) -> None:
        if order < 1 or keep < 1 or most < 1:
            raise ValueError(f"NGramLaws: order, keep and most must be at least 1; found {order}, {keep} and {most}")
        self.order = order
        self.keep = keep
        self.most = most
        self._tables: dict[bytes, _Table] = {}  # by the digest of the vocabulary
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return sum(map(len, list(self._tables.values())))

    def learn(
        self, vocabulary: Vocabulary, laws: Iterable[tuple[Sequence[int], Sequence[int], Sequence[float]]]
    ) -> None:
        """Take in what the model told.

        Args:
            vocabulary: what the ids belong to.
            laws: the tokens before a position, the last at the end; the most probable tokens there; their logits, of
                which the first is the largest.

        Complexity: O(order * keep) for each law.
        """
        prepared = [
            (tuple(before[-self.order :]), _shares(tokens[: self.keep], logits))
            for before, tokens, logits in laws
            if tokens
        ]
        with self._lock:
            table = self._tables.setdefault(vocabulary.digest, OrderedDict())
            for before, law in prepared:
                for start in range(len(before)):
                    run = before[start:]
                    table[run] = self._mean(table.get(run), law)
                    table.move_to_end(run)
            while len(table) > self.most:
                table.popitem(last=False)

    def find(self, vocabulary: Vocabulary, before: Sequence[int]) -> list[KnownLaw]:
        """What is known behind the longest run at the end of ``before``, then the next longest, and so on."""
        end = tuple(before[-self.order :])
        found = []
        with self._lock:
            table = self._tables.get(vocabulary.digest) or OrderedDict()
            for start in range(len(end)):
                known = table.get(end[start:])
                if known is not None:
                    found.append((len(end) - start, known[1]))
            if found:
                table.move_to_end(end[len(end) - found[0][0] :])
        return [_ranked(length, law) for length, law in found]

    def _mean(self, known: tuple[int, dict[int, float]] | None, law: dict[int, float]) -> tuple[int, dict[int, float]]:
        """Never changes ``known``, which a reader may hold."""
        if known is None:
            return 1, law
        count, old = known
        share = 1 / (count + 1)
        mean = {token: probability * (1 - share) for token, probability in old.items()}
        for token, probability in law.items():
            mean[token] = mean.get(token, 0.0) + probability * share
        if len(mean) > self.keep:
            mean = dict(sorted(mean.items(), key=_falling)[: self.keep])
        return min(count + 1, _MEMORY), mean

    def __repr__(self) -> str:
        return f"<NGramLaws behind {len(self)} runs of up to {self.order} tokens>"


def _shares(tokens: Sequence[int], logits: Sequence[float]) -> dict[int, float]:
    weights = [math.exp(logit - logits[0]) for logit in logits[: len(tokens)]]
    total = sum(weights)
    return {token: weight / total for token, weight in zip(tokens, weights, strict=True)}


def _ranked(length: int, law: dict[int, float]) -> KnownLaw:
    ranked = sorted(law.items(), key=_falling)
    total = sum(law.values())
    return KnownLaw(length, [token for token, _ in ranked], [probability / total for _, probability in ranked])


def _falling(item: tuple[int, float]) -> tuple[float, int]:
    return -item[1], item[0]
