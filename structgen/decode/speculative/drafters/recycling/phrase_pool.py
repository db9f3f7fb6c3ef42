"""Short runs of tokens that the model has written or would have written, by the token that they begin with."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from structgen.engine import Vocabulary

__all__ = ["PhrasePool"]


@final
class PhrasePool:
    """Phrases: of each first token those that came last.

    A phrase that is the beginning of another one with the same first token is not kept beside it.

    Source: the n-gram pool of Y. Fu et al., "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding"
    (2024, arXiv 2402.02057), and the phrase pool of W. Zhao et al., "Ouroboros" (2024, arXiv 2402.13720).

    Threads may share one.

    Args:
        each: phrases with the same first token; at least 1.
        most: first tokens; at least 1.  Those that got no phrase longest are forgotten.
        length: tokens of a phrase, the first included; at least 2.  Longer ones are cut off.

    Raises:
        ValueError: a number is too small.
    """

    def __init__(self, *, each: int = 8, most: int = 8_192, length: int = 8) -> None:
        if each < 1 or most < 1 or length < 2:
            raise ValueError(
                f"PhrasePool: each and most must be at least 1, length at least 2; found {each}, {most} and {length}"
            )
        self.each = each
        self.most = most
        self.length = length
        self._phrases: OrderedDict[tuple[bytes, int], list[tuple[int, ...]]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return sum(map(len, list(self._phrases.values())))

    def add(self, vocabulary: Vocabulary, phrases: Iterable[Sequence[int]]) -> None:
        """Add phrases, the last of which counts as the latest; those of a single token are left out."""
        with self._lock:
            for phrase in phrases:
                added = tuple(phrase[: self.length])
                if len(added) < 2:
                    continue
                key = (vocabulary.digest, added[0])
                known = self._phrases.get(key, [])
                longer = next((each for each in known if each[: len(added)] == added), added)
                kept = [each for each in known if longer[: len(each)] != each]
                self._phrases[key] = [longer, *kept][: self.each]
                self._phrases.move_to_end(key)
            while len(self._phrases) > self.most:
                self._phrases.popitem(last=False)

    def after(self, vocabulary: Vocabulary, token: int) -> list[tuple[int, ...]]:
        """What the phrases that begin with ``token`` go on with, the latest first."""
        with self._lock:
            return [phrase[1:] for phrase in self._phrases.get((vocabulary.digest, token), ())]

    def __repr__(self) -> str:
        return f"<PhrasePool of {len(self)} phrases>"
