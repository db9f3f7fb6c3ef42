"""A fixed number of slots in every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, final

from structgen.decode.diffusion.commit_policy import rank_slots

if TYPE_CHECKING:
    from structgen.decode.diffusion.canvas_run import CanvasRun

__all__ = ["Static"]


@final
@dataclass(frozen=True, slots=True)
class Static:
    """Commits a number of slots that is known in advance.

    With ``steps``, the ``m`` slots that the first completion of a block has to fill are spread over so many steps,
    ``m // steps`` in each and one more in the first ``m % steps``.  What lies behind the end of the member is not
    counted, and what a grammar forces in the meantime costs no step, so that a block may take fewer.

    Attributes:
        steps: for each block, or for the whole canvas where there are no blocks; None to count slots instead.
        per_step: slots in every step.
        remasking: ``"low_confidence"`` commits the slots whose tokens are surest given the language, ``"random"`` any.

    Source: S. Nie et al., "Large Language Diffusion Models" (2025, arXiv 2502.09992); there confidence is that of the
    model alone, and the end of the text is a slot like all others.
    """

    steps: int | None = None
    per_step: int = 1
    remasking: Literal["low_confidence", "random"] = "low_confidence"

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"Static: steps must be at least 1, or None to commit per_step slots; found {self.steps}")
        if self.per_step < 1:
            raise ValueError(f"Static: per_step must be at least 1; found {self.per_step}")
        if self.steps is not None and self.per_step != 1:
            raise ValueError(
                f"Static: steps and per_step exclude each other; found steps={self.steps}, per_step={self.per_step}"
            )
        if self.remasking not in ("low_confidence", "random"):
            raise ValueError(f"Static: remasking must be 'low_confidence' or 'random'; found {self.remasking!r}")

    @property
    def lossless(self) -> bool:
        """Whether slots are committed one by one."""
        return self.steps is None and self.per_step == 1

    def start(self) -> _StaticCommitter:
        """See ``CommitPolicy.start``."""
        return _StaticCommitter(self)


@final
class _StaticCommitter:
    def __init__(self, policy: Static) -> None:
        self._policy = policy
        self._block: tuple[int, int] | None = None
        self._slots = 0
        self._step = 0

    def advance(self, run: CanvasRun, /) -> None:
        """See ``Committer.advance``."""
        denoised = run.denoise()
        is_random = self._policy.remasking == "random"
        ranking = rank_slots(run, denoised, run.generator.random(len(run.canvas)) if is_random else None)
        if run.block != self._block:
            self._block, self._slots, self._step = run.block, len(ranking.slots), 0
        run.commit(ranking.front(self._count()), denoised.completion)
        self._step += 1

    def _count(self) -> int:
        if self._policy.steps is None:
            return self._policy.per_step
        each, more = divmod(self._slots, self._policy.steps)
        return each + (self._step < more)
