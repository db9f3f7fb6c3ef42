"""How an output is drafted for: what users hand over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, final

from structgen.decode.speculative.cost import CostModel
from structgen.decode.speculative.drafter import Drafter
from structgen.decode.speculative.verifier import ChainVerifier, RecursiveRejection, Verifier

if TYPE_CHECKING:
    from structgen.models.protocol import LanguageModel

__all__ = ["AnyDrafter", "Speculation", "as_speculation"]

_BUDGET: Final = 32
_REJECTION: Final = RecursiveRejection()


@final
@dataclass(frozen=True, slots=True)
class Speculation:
    """A drafter with all that can be said about its use.

    Attributes:
        drafter: what guesses.
        verifier: what decides which of the tokens is taken that a drafter drew at random.  One of chains decides on a
            drawn chain at once where grammar and budget alone say what may come, and leaves the rest to
            ``RecursiveRejection``.
        budget: the most tokens that are run in one pass beside those that must be.
        cost: what rows of a pass cost: tokens are only run where they are expected to pay.  None runs all that are
            guessed.

    Raises:
        ValueError: ``budget`` is below 1.
        TypeError: one of them is something else.
    """

    drafter: Drafter
    verifier: Verifier | ChainVerifier = _REJECTION
    budget: int = _BUDGET
    cost: CostModel | Literal["assumed"] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.drafter, Drafter):
            raise TypeError(f"Speculation: expected a Drafter, found {type(self.drafter).__name__}")
        if not isinstance(self.verifier, (Verifier, ChainVerifier)):
            raise TypeError(f"Speculation: expected a Verifier, found {type(self.verifier).__name__}")
        if self.budget < 1:
            raise ValueError(
                f"Speculation: budget must be at least 1; found {self.budget!r}; drafter=None drafts nothing"
            )

    @property
    def alone(self) -> Verifier:
        """What decides on single positions."""
        return self.verifier if isinstance(self.verifier, Verifier) else _REJECTION

    @property
    def replaced(self) -> bool:
        """Whether tokens have to be drawn with replacement."""
        return isinstance(self.verifier, Verifier) and self.verifier.replaced

    def cost_of(self, model: LanguageModel) -> CostModel | None:
        """What rows cost ``model``; None where all that is guessed is run."""
        return CostModel.assumed(model) if self.cost == "assumed" else self.cost


AnyDrafter: TypeAlias = Drafter | Speculation | Literal["auto"] | None
"""What guesses tokens: ``"auto"`` chooses, None is nothing."""


def as_speculation(drafter: AnyDrafter) -> Speculation | None:
    """Return what ``drafter`` stands for.

    Raises:
        TypeError: it is none.
    """
    if drafter is None or isinstance(drafter, Speculation):
        return drafter
    if isinstance(drafter, Drafter):
        return Speculation(drafter)
    if drafter == "auto":
        # Imported here: it takes all that needs no model, and is not wanted where None is.
        from structgen.decode.speculative.drafters.auto import Auto

        return Speculation(Auto(), cost="assumed")
    raise TypeError(
        f"drafter: expected a Drafter, a Speculation, 'auto' or None, found {type(drafter).__name__}; "
        "a language model drafts through DraftModel(model)"
    )
