"""Guesses what came most often in the same state of the grammar."""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from structgen.decode.speculative.calibration import Calibration
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask
from structgen.decode.speculative.drafters.counting.state_counts import StateCounts
from structgen.decode.speculative.drafters.guessing.following import FollowingDrafting
from structgen.decode.speculative.drafters.guessing.guess_tree import Guess

if TYPE_CHECKING:
    from structgen.decode.context import Context
    from structgen.engine import Matcher

__all__ = ["GrammarStatistics"]


@final
@dataclass(frozen=True, slots=True)
class GrammarStatistics(Drafter):
    """Follows the counts of what came in each state of the grammar, in this output and in those before it.

    A state is that of the automaton, with the two last tokens or the last one where such a state has been seen, else
    alone.  ``Matcher.state_id`` numbers states alike for all outputs of equal grammars on a vocabulary, until their
    engine has reached a limit and forgets all states.  The bytes that may come next are part of the key, so that
    numbers which are then given to other states mostly meet no counts; where they do, drafts are wasted, nothing else.

    Source: L. Beurer-Kellner et al., "Guiding LLMs The Right Way: Fast, Non-Invasive Constrained Generation" (ICML
    2024, arXiv 2403.06988), which counts by the states of parser and scanner.

    Attributes:
        counts: what came; outputs and drafters may share it.
        most: the most tokens that are guessed in a state.
        calibration: of the confidences; outputs that share the value share what was learned.

    Raises:
        ValueError: ``most`` is less than 1.
    """

    counts: StateCounts = field(default_factory=StateCounts, repr=False)
    most: int = 4
    calibration: Calibration = field(default_factory=Calibration, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ValueError(f"GrammarStatistics: most must be at least 1; found {self.most!r}")

    @property
    def name(self) -> str:
        """See ``Drafter.name``."""
        return "grammar statistics"

    def start(self, context: Context, task: DraftTask) -> Drafting:
        """See ``Drafter.start``."""
        return _Counting(self, context, task)


@final
class _Counting(FollowingDrafting):
    def __init__(self, settings: GrammarStatistics, context: Context, task: DraftTask) -> None:
        super().__init__(context, task, settings.calibration)
        self._settings = settings
        self._matcher = task.constraint.matcher()
        self._read = 0  # tokens of the output that it has taken

    def appended(self, tokens: Sequence[int]) -> None:
        """See ``FollowingDrafting.appended``."""
        for token in self.output[self._read :]:
            names = _names(self._matcher, *_last_two(self.output[max(self._read - 2, 0) : self._read]))
            if not self._matcher.accept(token):
                break
            self._settings.counts.add(self._task.constraint, names, token)
            self._read += 1

    def truncated(self, length: int) -> None:
        """See ``FollowingDrafting.truncated``."""
        kept = min(max(length - self._task.prompt_tokens, 0), self._read)
        self._matcher.rollback(self._read - kept)
        self._read = kept

    def guesses(self, state: DraftState) -> Iterator[Guess]:
        """See ``FollowingDrafting.guesses``."""
        return self._frequent(state.matcher, *_last_two(self.output))

    def _frequent(self, matcher: Matcher, first: int, second: int) -> Iterator[Guess]:
        settings = self._settings
        level, total, tokens = settings.counts.after(
            self._task.constraint, _names(matcher, first, second), settings.most
        )
        for token, count in tokens:
            share = count / (total + 1)
            yield Guess(
                token,
                ("state", level, round(8 * share), min(total, 4)),
                max(min(share, 0.97), 0.01),
                lambda token=token: self._behind(matcher, second, token),  # type: ignore[misc]
            )

    def _behind(self, matcher: Matcher, second: int, token: int) -> Iterator[Guess]:
        probe = matcher.fork()
        if probe.accept(token):
            yield from self._frequent(probe, second, token)


def _last_two(output: Sequence[int]) -> tuple[int, int]:
    return (output[-2] if len(output) > 1 else -1, output[-1] if output else -1)


def _names(matcher: Matcher, first: int, second: int) -> tuple[Hashable, ...]:
    """The state of a matcher behind two tokens, from precise to coarse."""
    state = (matcher.state_id, zlib.crc32(matcher.live_bytes()))
    return (*state, first, second), (*state, second), state
