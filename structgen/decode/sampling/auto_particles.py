"""The drafter that samplers of whole outputs have unless one is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from structgen.decode.speculative.drafter import Drafter, Drafting, DraftTask
from structgen.decode.speculative.speculation import AnyDrafter, Speculation, as_speculation

if TYPE_CHECKING:
    from structgen.decode.context import Context

__all__ = ["AutoParticles", "whole_speculation"]

_BUDGET: Final = 64


@final
@dataclass(frozen=True, slots=True)
class AutoParticles(Drafter):
    """``Auto`` for as long as one particle is written, and nobody while several are.

    A pass is spared only where all particles that grow together are guessed right, which mostly fails for any but the
    text that the grammar dictates; that is looked at behind all of them in any case, and costs next to nothing.
    """

    @property
    def name(self) -> str:
        """See ``Drafter.name``."""
        return "auto"

    def start(self, context: Context, task: DraftTask) -> Drafting:
        """See ``Drafter.start``."""
        # Imported here: it takes all that needs no model, and is not wanted where several particles are written.
        from structgen.decode.speculative.drafters.auto import Auto

        return Auto().start(context, task)


def whole_speculation(drafter: AnyDrafter) -> Speculation | None:
    """Return what ``drafter`` stands for where outputs are drawn as a whole; ``"auto"`` is ``AutoParticles``.

    Raises:
        TypeError: it is none.
    """
    if drafter == "auto":
        return Speculation(AutoParticles(), budget=_BUDGET, cost="assumed")
    return as_speculation(drafter)
