"""FreeDave: drafts from one forward pass, verified all together in the next."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import final

from structgen.decode.diffusion.drafting.drafts import Drafts, draft_again

__all__ = ["FreeDave"]


@final
@dataclass(frozen=True, slots=True)
class FreeDave:
    """Stepwise decoding in fewer forward passes: the next ``depth`` steps are drafted and verified in one pass.

    Draft ``k`` is where ``k`` steps lead if the model goes on saying the same.  Without a grammar these are the ``k``
    most confident slots of one pass, as published; with one, the law is restricted anew after each drafted step, since
    a commit changes what the grammar leaves to the other slots whether or not the model is asked.  The walk goes from
    target to target as long as these are drafts, and what the pass said of the last one serves the next step, so that
    each pass but the first commits a step at least.

    Attributes:
        depth: drafts that are verified together, at least 1; with 1 it is stepwise decoding.
        per_step: slots that a step of stepwise decoding commits.

    Raises:
        ValueError: a number is below 1; in ``advance``, the sampler draws random numbers.

    Source: "Free Draft-and-Verification: Toward Lossless Parallel Decoding for Diffusion Large Language Models" (2025,
    arXiv 2510.00294).  Its variant for confidence thresholds, which accepts a draft whose commits are a subset of the
    target's, is left out: it is not lossless.  Restricting the law anew for each draft is ours.
    """

    depth: int = 4
    per_step: int = 1

    def __post_init__(self) -> None:
        for name, value in (("depth", self.depth), ("per_step", self.per_step)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"FreeDave: {name} must be an integer of at least 1; found {value!r}")

    @property
    def lossless(self) -> bool:
        """Whether it reproduces decoding slot by slot; else it reproduces ``Static(per_step=...)``."""
        return self.per_step == 1

    def start(self) -> Drafts:
        """See ``CommitPolicy.start``."""
        return Drafts(partial(draft_again, depth=self.depth, per_step=self.per_step), self.per_step, "FreeDave")
