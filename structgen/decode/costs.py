"""What an output has cost so far."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, final

from structgen.decode.result import Stats, Step

if TYPE_CHECKING:
    from structgen.decode.context import Context
    from structgen.decode.speculative.draft_stats import DraftStats

__all__ = ["Costs"]


@final
class Costs:
    """The passes and the time of one output, counted from now on.

    Attributes:
        mask_s: seconds in the matcher.
        model_s: seconds in the model.
        searches: forward passes beside those of the context.
        ended: when the output was finished; None while it goes on.

    Args:
        context: the prompt, whose forward passes are counted.
    """

    def __init__(self, context: Context) -> None:
        self.mask_s = 0.0
        self.model_s = 0.0
        self.searches = 0
        self.ended: float | None = None
        self._began = perf_counter()
        self._context = context
        self._forwards_before = context.forwards
        self._prompt_tokens = len(context)

    def end(self) -> None:
        """The output is finished; it may still be taken back and go on, and ``ended`` is None again."""
        self.ended = perf_counter()

    def stats(self, steps: Sequence[Step], drafts: DraftStats | None) -> Stats:
        """What it comes to, up to the end or up to now.

        Args:
            steps: of the output.
            drafts: what drafters brought; None where there were none.
        """
        tokens = [step for step in steps if step.token is not None]
        forced = sum(step.forced for step in tokens)
        seconds = (perf_counter() if self.ended is None else self.ended) - self._began
        return Stats(
            prompt_tokens=self._prompt_tokens,
            tokens=len(tokens),
            forced=forced,
            sampled=len(tokens) - forced,
            drafted=0 if drafts is None else drafts.drafted,
            accepted=0 if drafts is None else drafts.accepted,
            forwards=self._context.forwards - self._forwards_before + self.searches,
            time_mask_s=self.mask_s,
            time_model_s=self.model_s,
            time_other_s=max(seconds - self.model_s - self.mask_s, 0.0),
            drafts=drafts,
        )
