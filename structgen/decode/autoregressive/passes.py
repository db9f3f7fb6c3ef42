"""The forward passes of one output: the second stage of a token's walk through the loop.

One pass runs the pending tokens, and draft tokens with them.  It returns the logits of the next token and scores the
forced tokens that it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, final

from structgen.decode.step.logits_row import DeviceRow, LogitsRow, check_width, log_probability, on_host
from structgen.models.protocol import LogitsQuery, ScoreQuery

if TYPE_CHECKING:
    from structgen.decode.autoregressive.allowed import Allowed
    from structgen.decode.autoregressive.choice import TokenChoice
    from structgen.decode.autoregressive.output import Costs, Output
    from structgen.decode.speculative.draft_tree import DraftTree
    from structgen.decode.speculative.speculation import SpeculationRounds
    from structgen.models.protocol import ResidentLogits

__all__ = ["ScoredPasses"]


@final
class ScoredPasses:
    """Runs the pending tokens of one output: those that the model has not seen.

    Args:
        output: the output.
        allowed: the mask of the next token, for drafts.
        drafts: proposes draft tokens to run with the pending tokens; None for none.
        costs: the time is added to it.
        jump_forward: run several forced tokens in one pass, not one by one.
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
            choice: chooses the next token, if that comes next.  Then draft tokens are run with the pending tokens, and
                the queries of ``choice`` to on-device logits are sent together.
        """
        return self._run(ahead=True, choice=choice)[-1]

    def score_ending(self) -> None:
        """Score the forced steps at the end of a complete output."""
        output = self._output
        stops = output.has_unscored_stop
        if not stops and output.scored >= len(output.tokens):
            return
        last = self._run(ahead=stops, stops=stops)[-1]
        if stops:
            output.score_stop(log_probability(last, output.vocabulary.eos))

    def _run(self, *, ahead: bool, choice: TokenChoice | None = None, stops: bool = False) -> list[LogitsRow]:
        """Run the pending tokens and score the forced ones among them; with ``stops``, EOS after the last of them.

        Return the logits before each unscored token; with ``ahead`` the last token runs too, for the logits after it.
        """
        output, context, costs = self._output, self._output.context, self._costs
        unscored = output.unscored
        count = len(unscored) + ahead
        end = len(context) - (not ahead)
        drafts = None if choice is None else self._drafts
        if drafts is not None and len(context.computed(count, end=end)) < count:
            output.mark_drafted(drafts.settle(context))
            drafts.propose(context, output.matcher, self._allowed.mask, output.remaining)
        elif drafts is not None:
            drafts.counts.saved += 1
            drafts = None
        began = perf_counter()
        tree = None if drafts is None else drafts.tree
        rows = self._rows(count, end, tree)
        in_masks = self._prefetch(rows, unscored, tree, choice, stops=stops)
        spent = perf_counter() - began - in_masks
        costs.mask_s += in_masks
        costs.model_s += spent
        if drafts is not None:
            drafts.observe(context, rows[-1], spent)
        if unscored:
            output.score([log_probability(row, [token]) for row, token in zip(rows, unscored, strict=False)])
        return rows

    def _rows(self, count: int, end: int, tree: DraftTree | None) -> list[LogitsRow]:
        """The logits after each of the last ``count`` of the first ``end`` tokens of the context."""
        context = self._output.context
        rows: list[LogitsRow]
        if self._jump_forward:
            rows = context.rows(count, tree.token_tree() if tree else None, end=end)
        else:
            session = context.session
            unseen = context.tokens[session.length : end]
            first = len(unseen) - count + 1
            rows = [session.extend(unseen[:first]), *(session.extend([token]) for token in unseen[first:])]
        check_width(rows[-1], self._output.vocabulary.size, context.model.name)
        return rows

    def _prefetch(
        self,
        rows: Sequence[LogitsRow],
        unscored: Sequence[int],
        tree: DraftTree | None,
        choice: TokenChoice | None,
        *,
        stops: bool,
    ) -> float:
        """Send all queries to the on-device logits of a pass together; return the seconds spent on masks."""
        row = rows[-1]
        if not isinstance(row, DeviceRow):
            return 0.0
        queries: list[tuple[ResidentLogits, LogitsQuery]] = [
            (each.logits, ScoreQuery(each.position, token))
            for each, token in zip(rows, unscored, strict=False)
            if isinstance(each, DeviceRow)
        ]
        if stops:
            queries += ((row.logits, ScoreQuery(row.position, token)) for token in self._output.vocabulary.eos)
        began = perf_counter()
        choosing = [] if choice is None else choice.queries(row, tree)
        in_masks = perf_counter() - began
        passes: dict[int, tuple[ResidentLogits, list[LogitsQuery]]] = {}  # queries by the logits they go to
        for logits, query in (*queries, *choosing):
            passes.setdefault(id(logits), (logits, []))[1].append(query)
        for logits, together in passes.values():
            logits.prefetch(together)
        if choice is not None and not choosing:  # the choice needs the whole row
            on_host(row)
        return in_masks
