"""The drafter that samplers of whole outputs have unless one is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from structgen.decode.sampling.sequence_sampler import SequenceSampler
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftTask
from structgen.decode.speculative.speculation import AnyDrafter, Speculation, as_speculation

if TYPE_CHECKING:
    from structgen.decode.context import Context
    from structgen.decode.sampling.proposal import Proposal

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


def whole_speculation(drafter: AnyDrafter, sampler: SequenceSampler | Proposal) -> Speculation | None:
    """Return what ``drafter`` stands for where outputs are drawn as a whole; ``"auto"`` is ``AutoParticles``.

    Samplers whose sequences grow side by side say that they look ahead (``looks_ahead``), and so does a proposal, which
    is sampled by one of them; for others ``"auto"`` is nothing.

    Raises:
        TypeError: it is none.
        ValueError: a drafter is given, and the sampler does not look ahead.
    """
    looks_ahead = getattr(sampler, "looks_ahead", not isinstance(sampler, SequenceSampler))
    if drafter == "auto":
        return Speculation(AutoParticles(), budget=_BUDGET, cost="assumed") if looks_ahead else None
    speculation = as_speculation(drafter)
    if speculation is not None and not looks_ahead:
        raise ValueError(
            f"drafter={drafter!r:.60} is not for sampler {type(sampler).__name__}, which goes back and forth between "
            "beginnings; leave it out"
        )
    return speculation
