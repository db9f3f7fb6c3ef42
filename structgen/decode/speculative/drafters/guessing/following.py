"""What drafters of this package have in common: they follow an output, guess, and see what came of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from structgen.decode.speculative.drafter import Drafting
from structgen.decode.speculative.drafters.guessing.guess_tree import Guess, GuessTree

if TYPE_CHECKING:
    from structgen.decode.context import Context
    from structgen.decode.speculative.calibration import Calibration
    from structgen.decode.speculative.draft_tree import DraftTree
    from structgen.decode.speculative.drafter import DraftState, DraftTask

__all__ = ["FollowingDrafting"]


class FollowingDrafting(Drafting):
    """Keeps up with a context, also where tokens are taken back, and has its guesses judged by what came.

    Args:
        context: the prompt, and what stands of the output.
        task: the output.
        calibration: of the confidences.
    """

    def __init__(self, context: Context, task: DraftTask, calibration: Calibration) -> None:
        self._context = context
        self._task = task
        self._calibration = calibration
        self._seen: tuple[int, ...] = ()
        self._last: GuessTree | None = None

    @property
    def tokens(self) -> Sequence[int]:
        """The prompt and the output, as of the last proposal."""
        return self._seen

    @property
    def output(self) -> Sequence[int]:
        """The output, as of the last proposal."""
        return self._seen[self._task.prompt_tokens :]

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        """See ``Drafting.propose``."""
        self._follow(context)
        guessed = GuessTree(self._calibration, max(budget, 0))
        tree = guessed.grow(len(self._seen), self.guesses(state) if budget > 0 else ())
        self._last = guessed
        return tree

    def close(self) -> None:
        """See ``Drafting.close``."""
        self._follow(self._context)

    @abstractmethod
    def guesses(self, state: DraftState) -> Iterable[Guess]:
        """What may come next, after ``tokens``."""

    def appended(self, tokens: Sequence[int]) -> None:
        """Learn that ``tokens`` have come, which are part of ``self.tokens`` already."""

    def truncated(self, length: int) -> None:
        """Learn that all tokens from position ``length`` on were taken back."""

    def _follow(self, context: Context) -> None:
        now = context.tokens
        if self._last is not None:
            self._last.settle(now)
            self._last = None
        seen = self._seen
        if now[: len(seen)] != seen:
            common = 0
            while common < min(len(now), len(seen)) and now[common] == seen[common]:
                common += 1
            self._seen = seen = now[:common]
            self.truncated(common)
        self._seen = now
        if len(now) > len(seen):
            self.appended(now[len(seen) :])
