"""Trained heads as a drafter."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from structgen.decode.speculative.draft_tree import DraftTree
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask, Verified
from structgen.decode.speculative.drafters.draft_models.model_drafting import RowsDrafting
from structgen.decode.speculative.drafters.heads.head_rows import HeadRows
from structgen.decode.speculative.drafters.layers.layer_rows import layered_session
from structgen.decode.speculative.drafters.layers.trim import Heads, VocabularyTrim
from structgen.decode.speculative.shapes.opt_tree import OptTree
from structgen.errors import ModelError

if TYPE_CHECKING:
    from structgen.decode.context import Context
    from structgen.decode.speculative.shapes.growth import Shape
    from structgen.models.heads.protocol import DraftHeads

__all__ = ["TrainedHeads"]


@final
@dataclass(frozen=True)
class TrainedHeads(Drafter):
    """Drafts by heads that guess ahead from the target's last hidden states (``structgen.models.heads.load_heads``).

    The grammar is applied to what heads say before a tree is made of it, so no node is spent on what cannot come.  The
    states are those of passes over the output; a prompt that was read before has none, which only EAGLE's layer misses.

    Sources: Cai et al. 2024, Medusa (arXiv 2401.10774); Ankner et al. 2024, Hydra (arXiv 2402.05109); Li et al. 2024,
    EAGLE (arXiv 2401.15077).

    Attributes:
        heads: trained for the model that writes.
        shape: of the drafts.  Without knowledge of each other, Medusa's heads make a product of their guesses, of which
            the likeliest are kept.
        trim: for which tokens logits are computed; None for all.
        draws: whether tokens are drawn where the sampler is a ``Multinomial``; else the most probable ones are chosen.
    """

    heads: DraftHeads
    shape: Shape = field(default_factory=lambda: OptTree(depth=5))
    trim: VocabularyTrim | None = None
    draws: bool = False

    @property
    def name(self) -> str:
        """See ``Drafter.name``."""
        return self.heads.name

    def start(self, context: Context, task: DraftTask) -> Drafting:
        """See ``Drafter.start``.

        Raises:
            ModelError: the model does not show its layers, or the heads are for states of another width.
        """
        session = layered_session(context, drafter="TrainedHeads")
        if session.width != self.heads.width:
            raise ModelError(
                f"heads {self.heads.name!r}",
                f"they are for states of {self.heads.width} numbers",
                evidence=f"those of model {context.model.name!r} have {session.width}",
                remedy="use heads that were trained for this model",
            )
        rows = HeadRows(context, session, self.heads, Heads(session, task.constraint, self.trim))
        return _HeadDrafting(rows, RowsDrafting(task, self.shape, rows, draws=self.draws))


@final
class _HeadDrafting(Drafting):
    def __init__(self, rows: HeadRows, drafting: RowsDrafting) -> None:
        self._rows = rows
        self._drafting = drafting

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        """See ``Drafting.propose``."""
        self._rows.watch()
        return self._drafting.propose(context, state, budget)

    def observe(self, verified: Verified) -> None:
        """See ``Drafting.observe``."""
        self._rows.observe(verified)

    def close(self) -> None:
        """See ``Drafting.close``."""
        self._drafting.close()
