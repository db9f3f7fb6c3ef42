"""When a draft is long enough, as far as the drafter itself can tell."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final

from structgen.decode.speculative.calibration import Calibration
from structgen.decode.speculative.shapes.outcome import visited

if TYPE_CHECKING:
    from structgen.decode.speculative.draft_tree import DraftTree
    from structgen.decode.speculative.shapes.growth import Law

__all__ = ["EntropyStop", "RejectionStop", "Stop"]

_GRADES: Final = 8


class Stop(ABC):
    """Ends a draft: a value.

    It is asked in front of each guess and not about forced tokens, which never end a draft.  It knows what stands and
    the law of what is next, not which token that is: so drafts that are drawn may be stopped too.
    """

    @abstractmethod
    def stops(self, law: Law, confidences: Sequence[float], kind: int) -> bool:
        """Whether nothing more is guessed.

        Args:
            law: of the next guess.
            confidences: of the guesses that stand, from the first on.
            kind: of the position where the draft begins.
        """

    def learn(self, tree: DraftTree, came: Sequence[int], kind: int) -> None:
        """Learn from what came (``Shape.learn``)."""
        del tree, came, kind


@final
@dataclass(frozen=True, slots=True)
class EntropyStop(Stop):
    """Stops where the next guess is too uncertain for the drafter itself.

    Where target and drafter agree up to a cross entropy in proportion to the drafter's own entropy ``H``, Pinsker's
    inequality bounds the probability that a drawn guess is accepted from below by ``1 - sqrt(scale * H)``; the draft
    ends where that falls below ``least``.  Entropies are those of laws to which the grammar was applied.

    Source: Z. Zhang, J. Xu, T. Liang et al., "Draft Model Knows When to Stop" (2024, arXiv 2411.18462).

    Attributes:
        least: the smallest acceptance that is worth a guess, in [0, 1].
        scale: how the divergence from the target grows with the entropy, per nat; positive.

    Raises:
        ValueError: a number is out of range.
    """

    least: float = 0.4
    scale: float = 0.25

    def __post_init__(self) -> None:
        if not 0 <= self.least <= 1:
            raise ValueError(f"EntropyStop: least must lie in [0, 1]; found {self.least!r}")
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise ValueError(f"EntropyStop: scale must be positive and finite; found {self.scale!r}")

    def stops(self, law: Law, confidences: Sequence[float], kind: int) -> bool:
        """See ``Stop.stops``."""
        return 1 - math.sqrt(self.scale * law.entropy()) < self.least


@final
@dataclass(frozen=True)
class RejectionStop(Stop):
    """Stops once it is too likely that one of the guesses is refused already.

    With the probabilities ``p`` that each guess is taken, one at least is refused with probability ``1 - prod(p)``; a
    threshold on that is the best rule where guesses and verification have fixed costs.  The original learns a head for
    ``p``; here it is how often guesses of the same grade of confidence came true, in the same kind of position.

    Source: K. Huang, X. Guo, M. Wang, "SpecDec++" (2024, arXiv 2405.19715).

    Attributes:
        most: the largest probability of a refusal at which a draft goes on, in [0, 1].
        calibration: what is known of guesses; drafts that share it learn from each other.

    Raises:
        ValueError: ``most`` is out of range.
    """

    most: float = 0.7
    calibration: Calibration = field(default_factory=Calibration)

    def __post_init__(self) -> None:
        if not 0 <= self.most <= 1:
            raise ValueError(f"RejectionStop: most must lie in [0, 1]; found {self.most!r}")

    def stops(self, law: Law, confidences: Sequence[float], kind: int) -> bool:
        """See ``Stop.stops``."""
        probabilities = (
            self.calibration.probability(_key(kind, confidence), _inside(confidence)) for confidence in confidences
        )
        return 1 - math.prod(probabilities) > self.most

    def learn(self, tree: DraftTree, came: Sequence[int], kind: int) -> None:
        """See ``Stop.learn``."""
        self.calibration.record_all(
            (_key(kind, tree.confidences[node]), node == next_one)
            for siblings, next_one in visited(tree, came)
            for node in siblings
        )


def _key(kind: int, confidence: float) -> tuple[int, int]:
    return kind, round(confidence * _GRADES)


def _inside(confidence: float) -> float:
    """The confidence as a prior, which is never certain."""
    return min(max(confidence, 0.01), 0.99)
