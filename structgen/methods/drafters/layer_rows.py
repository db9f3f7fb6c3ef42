"""What a network with some layers left out says behind an output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, final

from structgen.decode.speculative.drafters.draft_session import common_length
from structgen.decode.speculative.drafters.model_growth import DraftRows
from structgen.errors import ModelError
from structgen.models.protocol import LayeredSession

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.decode.speculative.drafters.model_growth import DraftPosition
    from structgen.decode.step.context import Context
    from structgen.methods.drafters.vocabulary_trim import TrimmedHeads
    from structgen.models.protocol import Logits, SkippingSession

__all__ = ["LayerChoice", "LayerRows", "layered_session"]

_PENDING: Final = 32
"""So many tokens that the model has not seen are run in a draft; behind more of them, a prompt, nothing is drafted."""


def layered_session(context: Context, *, drafter: str) -> LayeredSession:
    """Return the session of a context if it shows its layers.

    Args:
        context: of the output.
        drafter: what needs it, for the message.

    Raises:
        ModelError: it does not.
    """
    session = context.session
    if not isinstance(session, LayeredSession):
        raise ModelError(
            f"model {context.model.name!r}",
            f"its sessions do not show their layers, which {drafter} needs",
            evidence=f"found {type(session).__name__}",
            remedy="use the embedded model or another LlamaModel outside a batch, or another drafter",
        )
    return session


class LayerChoice(Protocol):
    """Says which layers a draft runs."""

    def layers(self, session: LayeredSession, tokens: Sequence[int], /) -> Sequence[int]:
        """Return them, ascending.

        Args:
            session: what the model was given of the output, at least a token; not to be changed.
            tokens: the prompt and the output so far.
        """


@final
class LayerRows(DraftRows):
    """Rows of the network that is left, behind the keys and values of the whole one.

    Args:
        context: of the output.
        session: its session.
        choice: which layers run.
        heads: for which tokens logits are computed.
    """

    def __init__(self, context: Context, session: LayeredSession, choice: LayerChoice, heads: TrimmedHeads) -> None:
        self._context = context
        self._session = session
        self._choice = choice
        self._heads = heads
        self._pending: list[int] = []
        self._kept: Sequence[int] = ()
        self._draft: SkippingSession | None = None
        self._drafted: list[int] = []
        self._room = 0

    def follow(self, tokens: Sequence[int]) -> None:
        """See ``DraftRows.follow``."""
        self._draft = None
        self._drafted = []
        self._pending = self._context.unseen
        if self.can_draft:
            self._kept = self._choice.layers(self._session, tokens)

    @property
    def can_draft(self) -> bool:
        """Whether the model has seen enough: behind a prompt that it has not, nothing is drafted."""
        return 0 < len(self._pending) <= _PENDING and self._session.length > 0

    def rows(self, paths: Sequence[tuple[int, ...]], places: Sequence[DraftPosition], most: int) -> list[Logits | None]:
        """See ``DraftRows.rows``; one pass through the layers for each path."""
        if not self.can_draft:
            return [None] * len(paths)
        if self._draft is None:
            longest = max(map(len, paths))
            self._room = self._fitting(len(self._pending) + longest + most)
            if self._room < len(self._pending) + longest:
                return [None] * len(paths)
            self._draft = self._session.skipping(self._kept, room=self._room)
        return [self._row(self._draft, path, place) for path, place in zip(paths, places, strict=True)]

    def close(self) -> None:
        """See ``DraftRows.close``."""
        self._draft = None

    def _row(self, draft: SkippingSession, path: tuple[int, ...], place: DraftPosition) -> Logits | None:
        wanted = [*self._pending, *path]
        if len(wanted) > self._room:
            return None
        common = min(common_length(wanted, self._drafted), len(wanted) - 1)
        draft.truncate(self._session.length + common)
        head = self._heads.of(place.ids)
        logits = draft.extend(wanted[common:], head=head)
        self._drafted = wanted
        return self._heads.spread(logits, head)

    def _fitting(self, room: int) -> int:
        bound = self._context.model.max_context
        return room if bound is None else min(room, bound - self._session.length)
