"""Token-level intersection: the draft model is held to the tokens that it shares with the target."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, final

from structgen.decode.speculative.drafters.bridges.bridge import Bridge, Crossing
from structgen.decode.speculative.drafters.bridges.token_bridge import TokenBridge
from structgen.decode.speculative.drafters.bridges.vocabularies import SharedTokens, vocabulary_of
from structgen.decode.speculative.drafters.draft_models.draft_session import DraftSession
from structgen.decode.speculative.drafters.draft_models.model_drafting import RowsDrafting
from structgen.decode.speculative.drafters.draft_models.model_growth import DraftRow, DraftRows
from structgen.errors import VocabularyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.decode.speculative.drafters.draft_models.model_drafting import ShapedDrafting
    from structgen.decode.speculative.drafters.draft_models.place import Place
    from structgen.engine import Vocabulary

__all__ = ["TokenIntersection"]

_shared = lru_cache(maxsize=8)(SharedTokens)


@final
@dataclass(frozen=True, slots=True)
class TokenIntersection(Bridge):
    """The draft model's law is restricted to tokens whose bytes are a token of both, and renormalised.

    These are real laws over the target's tokens, so drafts can be drawn from them and verified; what the draft model
    would have said with other tokens is lost.  Good where most tokens are shared.

    Source: see ``Bridge``; there "TLI".
    """

    def start(self, crossing: Crossing) -> ShapedDrafting:
        """See ``Bridge.start``."""
        rows = _SharedRows(crossing)
        return RowsDrafting(crossing.task, crossing.shape, rows, draws=crossing.draws)


@final
class _SharedRows(DraftRows):
    def __init__(self, crossing: Crossing) -> None:
        target: Vocabulary = crossing.task.constraint.vocabulary
        draft = vocabulary_of(crossing.model)
        self._shared = _shared(target, draft)
        if not len(self._shared):
            raise VocabularyError(
                f"draft model {crossing.model.name!r}",
                "no token has the same bytes as one of the target's",
                evidence=f"{draft.size} and {target.size} tokens",
                remedy="draft through its text: bridge=ExactStringMatch()",
            )
        self._bridge = TokenBridge(target, crossing.model, crossing.task.prompt_tokens)
        self._bridge.check_room(crossing.tokens)
        self._session = DraftSession(crossing.model)

    def follow(self, tokens: Sequence[int]) -> None:
        """See ``DraftRows.follow``."""
        self._session.follow(self._bridge.read(tokens))

    def rows(self, paths: Sequence[tuple[int, ...]], places: Sequence[Place], most: int) -> Sequence[DraftRow | None]:
        """See ``DraftRows.rows``."""
        found = self._session.rows([self._read(path) for path in paths])
        return [None if row is None else self._shared.row(row) for row in found]

    def close(self) -> None:
        """See ``DraftRows.close``."""
        self._session.close()

    def _read(self, path: tuple[int, ...]) -> tuple[int, ...]:
        """The draft model's tokens for drafted ones; only those that the grammar forced may not be shared."""
        found: list[int] = []
        for token in path:
            same = self._shared.draft_id(token)
            found += self._bridge.text([token]) if same is None else (same,)
        return tuple(found)
