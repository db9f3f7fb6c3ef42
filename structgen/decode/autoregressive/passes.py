"""The forward passes of one output, which tell the law of its next token and score the forced tokens before it."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, final

from structgen.decode.autoregressive.choice import prefetch
from structgen.decode.step.logits_row import DeviceRow, LogitsRow, log_probability, on_host
from structgen.errors import GenerationError
from structgen.models.protocol import ScoreQuery

if TYPE_CHECKING:
    from structgen.decode.autoregressive.allowed import Allowed
    from structgen.decode.autoregressive.choice import TokenChoice
    from structgen.decode.autoregressive.output import Costs, Output
    from structgen.decode.speculative.draft_tree import DraftTree
    from structgen.decode.speculative.rounds import SpeculationRounds
    from structgen.models.protocol import LogitsQuery, ResidentLogits

__all__ = ["ScoredPasses"]


@final
class ScoredPasses:
    """Runs what the model has not seen of an output.

    Args:
        output: what is run and scored.
        allowed: what may come next in it, for drafts.
        drafts: guesses that are run with it; None not to.
        costs: where the time is noted.
        jump_forward: run forced tokens together with the next token that has to be chosen, not one by one.
    """

    def __init__(
        self, output: Output, allowed: Allowed, drafts: SpeculationRounds | None, costs: Costs, *, jump_forward: bool
    ) -> None:
        self._output = output
        self._allowed = allowed
        self._drafts = drafts
        self._costs = costs
        self._jump_forward = jump_forward

    def next_row(self, choice: TokenChoice | None = None) -> LogitsRow:
        """Run the pending tokens, score the forced ones among them, and return the logits of the next token.

        Args:
            choice: how the next token is chosen, under the mask, where that comes next: guesses are run with the
                pending tokens then, and what it asks of logits that stay with the model is asked at once.
        """
        return self._run(ahead=True, choice=choice)[-1]

    def score_ending(self) -> None:
        """Score the forced steps at the end of a finished output."""
        output = self._output
        stops = output.has_unscored_stop
        if not stops and output.scored >= len(output.tokens):
            return
        last = self._run(ahead=stops, stops=stops)[-1]
        if stops:
            output.score_stop(log_probability(last, output.vocabulary.eos))

    def _run(self, *, ahead: bool, choice: TokenChoice | None = None, stops: bool = False) -> list[LogitsRow]:
        """Run the pending tokens and score the forced ones among them.

        Args:
            ahead: whether the last of them is run too, so that the last row is what comes after it.
            choice: see ``next_row``.
            stops: whether the stop is scored behind the last of them.

        Returns:
            The logits before each unscored token, and those after the last one if ``ahead``.
        """
        output, context, costs = self._output, self._output.context, self._costs
        unscored = output.unscored
        count = len(unscored) + ahead
        end = len(context) - (not ahead)
        drafts = None if choice is None else self._drafts
        if drafts is not None and len(context.known(count, end=end)) < count:
            drafts.settle(context)
            drafts.propose(context, output.matcher, self._allowed.mask, output.remaining)
        elif drafts is not None:
            drafts.spare()
            drafts = None
        began = perf_counter()
        tree = None if drafts is None else drafts.tree
        rows = self._rows(count, end, tree)
        in_masks = self._foresee(rows, unscored, tree, choice, stops=stops)
        spent = perf_counter() - began - in_masks
        costs.mask_s += in_masks
        costs.model_s += spent
        if drafts is not None:
            drafts.observe(context, rows[-1], spent)
        if unscored:
            output.score([log_probability(row, [token]) for row, token in zip(rows, unscored, strict=False)])
        return rows

    def _rows(self, count: int, end: int, tree: DraftTree | None) -> list[LogitsRow]:
        """The logits after each of the last ``count`` of ``end`` tokens of the context."""
        context = self._output.context
        size = self._output.vocabulary.size
        rows: list[LogitsRow]
        if self._jump_forward:
            rows = context.rows(count, tree.token_tree() if tree else None, end=end)
        else:
            session = context.session
            unseen = context.tokens[session.length : end]
            first = len(unseen) - count + 1
            rows = [session.extend(unseen[:first]), *(session.extend([token]) for token in unseen[first:])]
        if rows[-1].shape != (size,):
            raise GenerationError(
                f"model {context.model.name!r}",
                f"it returned {rows[-1].shape[-1]} logits",
                evidence=f"its vocabulary has {size} tokens",
                remedy="give the vocabulary the width of the model's head (size=...)",
            )
        return rows

    def _foresee(
        self,
        rows: Sequence[LogitsRow],
        unscored: Sequence[int],
        tree: DraftTree | None,
        choice: TokenChoice | None,
        *,
        stops: bool,
    ) -> float:
        """Ask what will be asked of a pass, all at once; return the seconds that masks took of it.

        Where the logits are arrays there is nothing to do.
        """
        row = rows[-1]
        if not isinstance(row, DeviceRow):
            return 0.0
        asked: list[tuple[ResidentLogits, LogitsQuery]] = [
            (each.logits, ScoreQuery(each.place, token))
            for each, token in zip(rows, unscored, strict=False)
            if isinstance(each, DeviceRow)
        ]
        if stops:
            asked += ((row.logits, ScoreQuery(row.place, token)) for token in self._output.vocabulary.eos)
        began = perf_counter()
        choosing = [] if choice is None else choice.questions(row, tree)
        in_masks = perf_counter() - began
        prefetch([*asked, *choosing])
        if choice is not None and not choosing:  # it has to look at the law itself
            on_host(row)
        return in_masks
