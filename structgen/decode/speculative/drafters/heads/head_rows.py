"""What trained heads say behind an output."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np

from structgen.decode.speculative.draft_tree import ROOT
from structgen.decode.speculative.drafters.draft_models.draft_session import common_length
from structgen.decode.speculative.drafters.draft_models.model_growth import DraftRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.decode.context import Context
    from structgen.decode.speculative.drafter import Verified
    from structgen.decode.speculative.drafters.draft_models.place import Place
    from structgen.decode.speculative.drafters.layers.trim import Heads
    from structgen.models.heads.protocol import DraftHeads
    from structgen.models.protocol import LayeredSession, Logits, States, TrimmedHead

__all__ = ["HeadRows"]


@final
class HeadRows(DraftRows):
    """Rows of trained heads, which follow the states of the passes over the output.

    Args:
        context: of the output.
        session: its session.
        heads: what guesses.
        trim: for which tokens logits are computed.
    """

    def __init__(self, context: Context, session: LayeredSession, heads: DraftHeads, trim: Heads) -> None:
        self._context = context
        self._session = session
        self._trained = heads
        self._heads = heads.start()
        self._trim = trim
        self._told: list[tuple[Verified, States]] = []  # passes that are not followed yet
        self._start = 0  # of the tokens that are followed
        self._tokens: list[int] = []
        self._pending: list[int] = []

    @property
    def is_behind(self) -> bool:
        """Whether the heads follow all that the model has seen."""
        return bool(self._tokens) and self._start + len(self._tokens) == self._session.length

    def watch(self) -> None:
        """See to it that the next pass notes the last states."""
        self._session.watched = tuple({*self._session.watched, self._session.layers})

    def observe(self, verified: Verified) -> None:
        """Take in a pass."""
        states = self._session.states.get(self._session.layers)
        if states is not None:
            self._told.append((verified, states))

    def follow(self, tokens: Sequence[int]) -> None:
        """See ``DraftRows.follow``."""
        seen = self._context.session.length  # with what was looked ahead at and came
        self._pending = list(tokens[seen:])
        if common_length(self._tokens, tokens[self._start : seen]) < len(self._tokens):  # some were taken back
            self._heads, self._tokens = self._trained.start(), []
        told, self._told = self._told, []
        for verified, states in told:
            self._follow(tokens[:seen], verified, states)

    def rows(self, paths: Sequence[tuple[int, ...]], places: Sequence[Place], most: int) -> list[Logits | None]:
        """See ``DraftRows.rows``; paths of one length in one step."""
        found: list[Logits | None] = [None] * len(paths)
        if not self.is_behind or not self._pending:
            return found
        steps: dict[int, list[int]] = {}
        for index, path in enumerate(paths):
            length = len(self._pending) + len(path)
            if self._trained.depth is None or length <= self._trained.depth:
                steps.setdefault(length, []).append(index)
        for indices in steps.values():
            allowed = np.unique(np.concatenate([places[index].ids for index in indices]))
            head: TrimmedHead | None = self._trim.of(allowed)
            logits = self._heads.logits([(*self._pending, *paths[index]) for index in indices], head=head)
            for index, row in zip(indices, self._trim.spread(logits, head), strict=True):
                found[index] = row
        return found

    def _follow(self, tokens: Sequence[int], verified: Verified, states: States) -> None:
        """Follow what became of a pass: its tokens, and those of its tree that came."""
        tree = verified.tree
        run = range(len(tree)) if self._context.branches else tree.token_tree().first_chain()
        trunk = len(states) - len(run)
        first = verified.start - trunk
        if first < 0 or len(tokens) < verified.start:
            return
        rows_of = {node: row for row, node in enumerate(run, start=trunk)}
        rows = list(range(trunk))
        node = ROOT
        for token in tokens[verified.start :]:
            child = tree.child(node, token)
            if child is None or child not in rows_of:
                break
            node = child
            rows.append(rows_of[node])
        followed = tokens[first : first + len(rows)]
        if first != self._start + len(self._tokens):
            self._start, self._tokens = first, []
        self._tokens += followed
        self._heads.follow(first, followed, states[rows])

    def close(self) -> None:
        """See ``DraftRows.close``."""
        self._session.watched = tuple(set(self._session.watched) - {self._session.layers})
        self._told = []
