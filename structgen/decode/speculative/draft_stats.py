"""What drafts brought."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self, final

__all__ = ["DraftStats", "SourceStats"]


@final
@dataclass(frozen=True, slots=True)
class SourceStats:
    """What one drafter brought.

    Attributes:
        drafted: tokens of it that were run.
        accepted: those of them that were taken.
    """

    drafted: int
    accepted: int

    @property
    def rate(self) -> float:
        """Share of the tokens that were taken; 0 where there were none."""
        return self.accepted / self.drafted if self.drafted else 0.0


@final
@dataclass(frozen=True, slots=True)
class DraftStats:
    """What drafts brought to one output.

    Attributes:
        passes: forward passes that looked ahead.
        lengths: how often a pass that looked ahead was followed by how many tokens from its tree, forced ones included.
        sources: by drafter; tokens that the grammar forces are nobody's.
        saved_forwards: choices for which the law was known from a look ahead.
        saved_s: estimated seconds saved: those of the passes that were not needed, less what drafting and the wider
            passes cost; negative where drafting did not pay.
        time_draft_s: seconds spent on proposing, cutting and learning.
    """

    passes: int = 0
    lengths: Mapping[int, int] = field(default_factory=dict)
    sources: Mapping[str, SourceStats] = field(default_factory=dict)
    saved_forwards: int = 0
    saved_s: float = 0.0
    time_draft_s: float = 0.0

    @classmethod
    def total(cls, parts: Iterable[DraftStats]) -> Self:
        """The sums over several outputs."""
        parts = list(parts)
        lengths: Counter[int] = Counter()
        drafted: Counter[str] = Counter()
        accepted: Counter[str] = Counter()
        for part in parts:
            lengths.update(part.lengths)
            drafted.update({name: each.drafted for name, each in part.sources.items()})
            accepted.update({name: each.accepted for name, each in part.sources.items()})
        return cls(
            passes=sum(part.passes for part in parts),
            lengths=dict(sorted(lengths.items())),
            sources={name: SourceStats(drafted[name], accepted[name]) for name in sorted(drafted)},
            saved_forwards=sum(part.saved_forwards for part in parts),
            saved_s=sum(part.saved_s for part in parts),
            time_draft_s=sum(part.time_draft_s for part in parts),
        )

    @property
    def drafted(self) -> int:
        """Tokens of drafters that were run."""
        return sum(each.drafted for each in self.sources.values())

    @property
    def accepted(self) -> int:
        """Tokens of drafters that were taken."""
        return sum(each.accepted for each in self.sources.values())

    @property
    def mean_length(self) -> float:
        """Mean number of tokens taken from a tree; 0 where nothing was looked at."""
        count = sum(self.lengths.values())
        return sum(length * times for length, times in self.lengths.items()) / count if count else 0.0
