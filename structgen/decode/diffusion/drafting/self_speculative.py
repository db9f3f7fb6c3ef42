"""Self speculative decoding: the tokens of one completion, verified one after the other in one pass."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, final

from structgen.decode.diffusion.drafting.drafts import Drafts, draft_at_once

__all__ = ["SelfSpeculative"]


@final
@dataclass(frozen=True, slots=True)
class SelfSpeculative:
    """One-by-one decoding in fewer forward passes: the model drafts for itself, and verifies a chain of its drafts.

    The tokens of one completion are drafted in the order of their confidence.  The chain has a node for the canvas
    with none of them, with the first, with the first two, and so on; one pass over all nodes tells what one-by-one
    decoding commits at each, and the longest beginning of the chain stands that agrees with it.

    In terms of ``FreeDave`` the root of the chain is the first draft, which always stands.  The two share the
    verification; this one drafts everything from one completion, which takes no further work on the grammar, and as
    many slots as there are.

    Attributes:
        drafts: tokens that are drafted, so that there are ``drafts + 1`` nodes; None for all free slots.

    Raises:
        ValueError: ``drafts`` is negative; in ``advance``, the sampler draws random numbers.

    Source: Gao et al. 2025, "Self Speculative Decoding for Diffusion Large Language Models" (arXiv 2510.04147), with
    its greedy tree, which is a chain.
    """

    drafts: int | None = None

    lossless: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.drafts is not None and (not isinstance(self.drafts, int) or self.drafts < 0):
            raise ValueError(
                f"SelfSpeculative: drafts must be an integer of at least 0, or None; found {self.drafts!r}"
            )

    def start(self) -> Drafts:
        """See ``CommitPolicy.start``."""
        depth = None if self.drafts is None else self.drafts + 1
        return Drafts(partial(draft_at_once, depth=depth), 1, "SelfSpeculative")
