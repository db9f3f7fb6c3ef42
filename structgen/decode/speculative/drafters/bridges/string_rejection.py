"""String-level rejection: drafts are drawn from the law that the draft model's text has over the target's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from structgen.decode.projection import allowed_ids, project
from structgen.decode.speculative.drafters.bridges.bridge import Bridge, Crossing
from structgen.decode.speculative.drafters.bridges.grammar_twin import GrammarTwin
from structgen.decode.speculative.drafters.bridges.string_law import TextLaw, prefixes, string_law
from structgen.decode.speculative.drafters.bridges.token_bridge import TokenBridge
from structgen.decode.speculative.drafters.bridges.vocabularies import vocabulary_of
from structgen.decode.speculative.drafters.draft_models.draft_session import DraftSession
from structgen.decode.speculative.drafters.draft_models.model_drafting import RowsDrafting
from structgen.decode.speculative.drafters.draft_models.model_growth import DraftRow, DraftRows
from structgen.errors import LimitExceeded

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.speculative.drafters.draft_models.model_drafting import ShapedDrafting
    from structgen.decode.speculative.drafters.draft_models.place import Place
    from structgen.engine import Matcher

__all__ = ["StringRejection"]


@final
@dataclass(frozen=True, slots=True)
class StringRejection(Bridge):
    """The law of the draft model's text, summed over all ways to cut it into its tokens, as one over target tokens.

    Drafts that are drawn from it can be verified by rejection, and all tokens of the target can be drafted, also those
    that the draft model lacks.  What the bounds leave out makes the law less like the draft model's; whatever it is,
    the tree records it, and the verifier is exact.

    Source: see ``Bridge``; there "SLRS", whose sum over all tokenizations has a number of terms that grows
        exponentially with the bytes of a token.  Here the terms are those of a tree of beginnings, which is bounded,
        and the law is that of the longest target token that the text begins with.

    Attributes:
        contexts: the most beginnings of a token that are continued at each depth, in one pass; None is all.
        tokens: the most continuations of each that are looked at; None is all.
        depth: how many tokens of the draft model a beginning has at most; None is any number.
        least: beginnings with at most this probability are not continued.

    Raises:
        ValueError: a number is out of range.
    """

    contexts: int | None = 4
    tokens: int | None = 64
    depth: int | None = 2
    least: float = 0.02

    def __post_init__(self) -> None:
        for name, value in (("contexts", self.contexts), ("tokens", self.tokens), ("depth", self.depth)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"StringRejection: {name} must be an integer of at least 1, or None; found {value!r}")
        if not 0 <= self.least < 1:
            raise ValueError(f"StringRejection: least must be in [0, 1); found {self.least!r}")

    def start(self, crossing: Crossing) -> ShapedDrafting:
        """See ``Bridge.start``."""
        return RowsDrafting(crossing.task, crossing.shape, _StringRows(crossing, self), draws=crossing.draws)


@final
class _StringRows(DraftRows):
    def __init__(self, crossing: Crossing, bounds: StringRejection) -> None:
        constraint = crossing.task.constraint
        self._target = constraint.vocabulary
        self._draft = vocabulary_of(crossing.model)
        self._prompt_tokens = crossing.task.prompt_tokens
        self._bridge = TokenBridge(self._target, crossing.model, self._prompt_tokens)
        self._bridge.check_room(crossing.tokens)
        self._twin = GrammarTwin(constraint, self._draft)
        self._session = DraftSession(crossing.model)
        self._table = prefixes(self._target, self._draft)
        self._bounds = bounds
        self._tokens: list[int] = []
        self._mask: NDArray[np.int32] = np.zeros((1, (self._draft.size + 31) // 32), dtype=np.int32)

    def follow(self, tokens: Sequence[int]) -> None:
        """See ``DraftRows.follow``."""
        self._tokens = list(tokens)

    def rows(self, paths: Sequence[tuple[int, ...]], places: Sequence[Place], most: int) -> Sequence[DraftRow | None]:
        """See ``DraftRows.rows``; one path after the other, each with a pass for each depth."""
        return [self._row_within_limits(path) for path in paths]

    def close(self) -> None:
        """See ``DraftRows.close``."""
        self._session.close()

    def _row_within_limits(self, path: tuple[int, ...]) -> NDArray[np.float64] | None:
        """None where the draft model's grammar reaches a limit: limits are for outputs, not for guesses."""
        try:
            return self._row(path)
        except LimitExceeded:
            return None

    def _row(self, path: tuple[int, ...]) -> NDArray[np.float64] | None:
        tokens = [*self._tokens, *path]
        matcher = self._twin.at(tokens[self._prompt_tokens :])
        if matcher is None:
            return None
        self._session.follow(self._bridge.read(tokens))
        bounds = self._bounds
        law = string_law(
            lambda contexts: self._laws(matcher, contexts),
            self._table,
            self._target,
            self._draft,
            contexts=bounds.contexts,
            tokens=bounds.tokens,
            depth=bounds.depth,
            least=bounds.least,
        )
        if law is None:
            return None
        row = np.full(len(law), -np.inf)
        np.log(law, out=row, where=law > 0)
        return row

    def _laws(self, matcher: Matcher, contexts: Sequence[tuple[int, ...]]) -> list[TextLaw | None]:
        """What the draft model writes behind its own tokens; where there is no choice it is not asked."""
        allowed: list[NDArray[np.intp]] = []
        for context in contexts:
            probe = matcher.fork()
            ids: NDArray[np.intp] = np.empty(0, dtype=np.intp)
            if all(probe.accept(token) for token in context):
                probe.fill_mask(self._mask)
                ids = allowed_ids(self._mask[0], self._draft.size)
            allowed.append(ids)
        asked = [context for context, ids in zip(contexts, allowed, strict=True) if len(ids) > 1]
        rows = dict(zip(asked, self._session.rows(asked) if asked else [], strict=True))
        found: list[TextLaw | None] = []
        for context, ids in zip(contexts, allowed, strict=True):
            row = rows.get(context)
            if len(ids) == 1:
                found.append(TextLaw(ids, np.ones(1)))
            elif row is None or row[ids].max() == -np.inf:
                found.append(None)
            else:
                found.append(TextLaw(ids, np.exp(project(row, ids, 0.0).log_p)))
        return found
