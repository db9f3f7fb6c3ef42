"""Earlier outputs, kept for those to come."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, final

from structgen.decode.speculative.drafters.copying.continuations import Continuation
from structgen.decode.speculative.drafters.copying.realignment import Realignment
from structgen.decode.speculative.drafters.copying.suffix_index import BARRIER, LONGEST, Match, SuffixIndex

if TYPE_CHECKING:
    from structgen.decode.speculative.drafters.guessing.guess_tree import Guess

__all__ = ["DraftStore"]

_MAX_TOKENS: Final = 1 << 15


@final
class DraftStore:
    """The tokens of outputs that are complete, by what they contain; threads may share one.

    The oldest outputs are forgotten beyond ``max_tokens`` tokens (about 300 bytes each), and of an output
    that is longer than that, its beginning.  A store belongs to one vocabulary: ids of another one would mean nothing.

    Args:
        max_tokens: the most tokens of outputs.

    Raises:
        ValueError: ``max_tokens`` is less than 2.

    Example:
        >>> store = DraftStore()
        >>> store.add([5, 6, 7, 8])
        >>> store.continuations([1, 6, 7], places=4)[0].tokens
        [8]
    """

    def __init__(self, *, max_tokens: int = _MAX_TOKENS) -> None:
        if max_tokens < 2:
            raise ValueError(f"DraftStore: max_tokens must be at least 2; found {max_tokens!r}")
        self._max_tokens = max_tokens
        self._index = SuffixIndex()
        self._lengths: deque[int] = deque()  # of the outputs, the barrier behind each counted
        self._starts: deque[int] = deque()  # where they begin
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many tokens it holds, and one for each output."""
        return len(self._index)

    @property
    def outputs(self) -> int:
        """How many outputs it holds."""
        return len(self._lengths)

    def add(self, output: Sequence[int]) -> None:
        """Remember an output: ``O(len(output))``, and the same for each that is forgotten for it."""
        if not output:
            return
        kept = output[-(self._max_tokens - 1) :]
        with self._lock:
            self._starts.append(self._index.end)
            self._index.extend(kept)
            self._index.append(BARRIER)
            self._lengths.append(len(kept) + 1)
            while len(self._index) > self._max_tokens:
                self._index.forget(self._lengths.popleft())
                self._starts.popleft()

    def continuations(self, suffix: Sequence[int], *, places: int) -> list[Continuation]:
        """What followed the last tokens of ``suffix`` in outputs, the longest match first, at most 64 tokens each."""
        return self.retrieve(suffix, places, Realignment(self._index))[0] if suffix else []

    def realignment(self) -> Realignment:
        """The place in the store that an output is a copy of; only ``follow`` and ``retrieve`` may use it."""
        return Realignment(self._index)

    def follow(self, realignment: Realignment, tokens: Sequence[int]) -> None:
        """Move a place on by tokens that have come."""
        with self._lock:
            realignment.follow(tokens)

    def retrieve(
        self, output: Sequence[int], places: int, realignment: Realignment
    ) -> tuple[list[Continuation], list[Guess]]:
        """What may follow an output.

        Args:
            output: what stands of it; where it is empty, the beginnings of the latest outputs are meant.
            places: how many occurrences are looked at.
            realignment: the place that it is a copy of.

        Returns:
            What followed the last tokens, and the guesses at where a copy that went wrong goes on.
        """
        with self._lock:
            if not output:
                matches = [Match(start, 0) for start in islice(reversed(self._starts), places)]
            else:
                matches = self._index.find(output[-LONGEST:], places)
            found = [Continuation(self._index.following(each.position, LONGEST), each.length) for each in matches]
            again = list(realignment.guesses(matches, "retrieval again", output[-1])) if output else []
        return found, again

    def __repr__(self) -> str:
        return f"<DraftStore of {self.outputs} outputs, {len(self)} tokens>"
