"""A sampler of whole outputs in the place where tokens are chosen one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, final

import numpy as np

from structgen.decode.potentials import Hypothesis, Potential
from structgen.decode.sampling import run_sampler
from structgen.decode.speculative.draft_stats import DraftStats

if TYPE_CHECKING:
    from structgen.decode.context import Context
    from structgen.decode.result import Result
    from structgen.decode.sampling import SequenceSampler
    from structgen.decode.speculative.speculation import Speculation
    from structgen.engine import Constraint

__all__ = ["Withheld", "Writer"]


@final
class Withheld(Potential):
    """Forbids what was rejected.

    Args:
        withheld: which tokens must not come, by the tokens before them; an EOS is the stop.
    """

    def __init__(self, withheld: Mapping[tuple[int, ...], Set[int]]) -> None:
        self._withheld = withheld

    def prefix(self, hypothesis: Hypothesis, /) -> float:
        """See ``Potential``."""
        tokens = hypothesis.tokens
        for before, ids in self._withheld.items():
            length = len(before)
            if len(tokens) > length and tokens[length] in ids and tokens[:length] == before:
                return -np.inf
        return 0.0

    def complete(self, hypothesis: Hypothesis, /) -> float:
        """See ``Potential``."""
        ids = self._withheld.get(hypothesis.tokens, frozenset())
        return self.prefix(hypothesis) if ids.isdisjoint(hypothesis.vocabulary.eos) else -np.inf


@final
class Writer:
    """Writes all that is missing of an output.

    Args:
        sampler: how.
        context: the prompt and what is written.
        constraint: what the output is a member of.
        max_tokens: of the whole output.
        speculation: how to guess tokens; None not to.
    """

    def __init__(
        self,
        sampler: SequenceSampler,
        context: Context,
        constraint: Constraint,
        max_tokens: int,
        speculation: Speculation | None = None,
    ) -> None:
        self._sampler = sampler
        self._context = context
        self._constraint = constraint
        self._max_tokens = max_tokens
        self._speculation = speculation
        self._complete: tuple[int, ...] | None = None
        self._drafts: list[DraftStats] = []

    @property
    def drafts(self) -> DraftStats | None:
        """What drafts brought to all that was written; None where there are none."""
        return DraftStats.total(self._drafts) if self._drafts else None

    def is_complete(self, tokens: tuple[int, ...]) -> bool:
        """Whether ``tokens`` were written as an output that ends without a stop."""
        return self._complete == tokens

    def write(self, tokens: tuple[int, ...], potentials: Sequence[Potential], generator: np.random.Generator) -> Result:
        """Write an output that begins with ``tokens``, which the context holds; only the steps after them are in it.

        Raises:
            GenerationError: all weights are zero, or a potential is not usable.
        """
        samples = run_sampler(
            self._sampler,
            self._context,
            self._constraint,
            potentials=potentials,
            max_tokens=self._max_tokens,
            generator=generator,
            begun=tokens,
            speculation=self._speculation,
        )
        if samples.drafts is not None:
            self._drafts.append(samples.drafts)
        result = samples.best() if self._sampler.takes_best else samples.draw(generator)
        has_stop = bool(result.steps) and result.steps[-1].token is None
        self._complete = None if has_stop else result.tokens
        return result
