"""How a canvas was filled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from structgen.decode.diffusion.canvas_sampler import CanvasSampler
    from structgen.decode.diffusion.commit_policy import CommitPolicy

__all__ = ["Filling"]


@final
@dataclass(frozen=True, slots=True)
class Filling:
    """How a canvas was filled: what a ``Result`` knows beside text and costs, where a diffusion model wrote it.

    Attributes:
        tokens: the token of every slot, EOS tail included.
        commits: the slots that were filled together, by commit; what was forced from the start is first.
        forced: the slots, tail included, for which the language left one token, so that no pass was spent on them.
        policy: what decided which slots were committed.
        sampler: what took completions.
        block: slots that were filled before those right of them; None for the whole canvas.
    """

    tokens: tuple[int, ...]
    commits: tuple[tuple[int, ...], ...]
    forced: tuple[int, ...]
    policy: CommitPolicy
    sampler: CanvasSampler
    block: int | None

    @property
    def slots(self) -> int:
        """How many slots the canvas has."""
        return len(self.tokens)
