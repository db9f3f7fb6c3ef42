"""How canvases are filled, as values.

The settings of a run (``Unmasking``) and the record of one output (``Filling``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from structgen.decode.diffusion.canvas_run import Snapshot
    from structgen.decode.diffusion.commit_policy import CommitPolicy
    from structgen.decode.diffusion.forward_pass import Reuse
    from structgen.decode.diffusion.posterior import Canvas, CanvasSampler

__all__ = ["Filling", "Unmasking"]


@final
@dataclass(frozen=True, slots=True)
class Unmasking:
    """How the canvas of each answer is filled; see ``structgen.generate``, whose arguments these are.

    Attributes:
        canvas: slots of every canvas, or (for ``generate``) the canvas itself with some of them fixed; None lets the
            grammar say.
        policy: what is committed when; None for the default.
        temperature: of the mean-field law.
        block: slots that are filled before those right of them; None is the whole canvas.
        reuse: which slots each pass runs; None runs all.
        stream: called with a ``Snapshot`` of every canvas after each commit, and once at its start.

    Raises:
        ValueError: a number is out of range.
    """

    canvas: int | Canvas | None = None
    policy: CommitPolicy | None = None
    temperature: float = 1.0
    block: int | None = None
    reuse: Reuse | None = None
    stream: Callable[[Snapshot], object] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, count in (("canvas", self.canvas), ("block", self.block)):
            if isinstance(count, (int, float, str)) and (not isinstance(count, int) or count < 1):
                raise ValueError(f"Unmasking: {name} must be a number of slots, at least 1; found {count!r}")
        if not 0 < self.temperature < float("inf"):
            raise ValueError(
                f"Unmasking: temperature must be positive and finite; found {self.temperature!r}; "
                "Dingo() takes the most probable canvas at any"
            )


@final
@dataclass(frozen=True, slots=True)
class Filling:
    """How a canvas was filled: what a ``Result`` knows beside text and costs, where a diffusion model wrote it.

    Attributes:
        tokens: the token of every slot, EOS tail included.
        commits: the slots that were filled together, by commit; what was forced from the start is first.
        forced: the slots, tail included, for which the language left one token, so that no pass was spent on them.
        policy: what decided which slots were committed.
        sampler: what took completions.
        block: slots that were filled before those right of them; None for the whole canvas.
    """

    tokens: tuple[int, ...]
    commits: tuple[tuple[int, ...], ...]
    forced: tuple[int, ...]
    policy: CommitPolicy
    sampler: CanvasSampler
    block: int | None

    @property
    def slots(self) -> int:
        """How many slots the canvas has."""
        return len(self.tokens)
