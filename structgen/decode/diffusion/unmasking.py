"""How canvases are filled, as one value: for programs and the command line, which pass it on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from structgen.decode.diffusion.canvas_run import Snapshot
    from structgen.decode.diffusion.commit_policy import CommitPolicy
    from structgen.decode.diffusion.reuse import Reuse

__all__ = ["Unmasking"]


@final
@dataclass(frozen=True, slots=True)
class Unmasking:
    """How the canvas of each answer is filled; see ``structgen.generate``, whose arguments these are.

    Attributes:
        canvas: slots of every canvas; None lets the grammar say.
        policy: what is committed when; None for the default.
        temperature: of the mean-field law.
        block: slots that are filled before those right of them; None is the whole canvas.
        reuse: which slots each pass runs; None runs all.
        stream: called with a ``Snapshot`` of every canvas after each commit, and once at its start.

    Raises:
        ValueError: a number is out of range.
    """

    canvas: int | None = None
    policy: CommitPolicy | None = None
    temperature: float = 1.0
    block: int | None = None
    reuse: Reuse | None = None
    stream: Callable[[Snapshot], object] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, count in (("canvas", self.canvas), ("block", self.block)):
            if count is not None and (not isinstance(count, int) or count < 1):
                raise ValueError(f"Unmasking: {name} must be a number of slots, at least 1; found {count!r}")
        if not 0 < self.temperature < float("inf"):
            raise ValueError(
                f"Unmasking: temperature must be positive and finite; found {self.temperature!r}; "
                "Dingo() takes the most probable canvas at any"
            )
