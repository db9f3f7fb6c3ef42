"""How the next token of an output is chosen among what may come: on the host, or where the logits are."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.projection import allowed_ids, log_mass, no_law, nothing_possible, project, runners_up
from structgen.decode.resident_questions import choosing, shape_of, tree_questions
from structgen.decode.result import Step
from structgen.decode.rows import ResidentRow, Row, log_probability, on_host
from structgen.decode.tempering import at_temperature
from structgen.models.protocol import Scoring

if TYPE_CHECKING:
    from structgen.decode.allowed import Allowed
    from structgen.decode.output import Output
    from structgen.decode.sampler import Sampler
    from structgen.decode.speculative.draft_tree import DraftTree
    from structgen.decode.speculative.drafts import Drafts
    from structgen.models.protocol import Chosen, Logits, Question, ResidentLogits, Shaping

__all__ = ["TokenChoice"]


@final
class TokenChoice:
    """Lets model and sampler choose.

    Attributes:
        alternatives: how many other tokens are noted at each choice.

    Args:
        output: what is chosen for.
        allowed: what may come next in it.
        sampler: chooses tokens.
        generator: the sampler's random numbers.
        drafts: what verifies guesses that were drawn; None where there are none.
        alternatives: see above.
    """

    def __init__(
        self,
        output: Output,
        allowed: Allowed,
        sampler: Sampler,
        generator: np.random.Generator,
        *,
        drafts: Drafts | None,
        alternatives: int,
    ) -> None:
        self.alternatives = alternatives
        self._output = output
        self._allowed = allowed
        self._sampler = sampler
        self._generator = generator
        self._drafts = drafts
        self._is_tempered = output.constraint.has_temperatures

    def draw(self, log_p: NDArray[np.float64]) -> int:
        """Let the sampler choose an index of normalised log-probabilities."""
        return 0 if len(log_p) == 1 else self._sampler_here().draw(log_p, self._generator)

    def step(self, row: Row) -> Step | None:
        """Choose among what the mask allows; None where potentials forbid all of it, which is withheld then.

        Args:
            row: the logits of the next token.

        Raises:
            GenerationError: the logits are no law, or leave nothing to choose.
        """
        shape = self._shape() if isinstance(row, ResidentRow) else None
        if isinstance(row, ResidentRow) and shape is not None:
            return self._step_there(row, shape)
        return self._step_on_host(on_host(row))

    def questions(self, row: ResidentRow, tree: DraftTree | None) -> list[tuple[ResidentLogits, Question]]:
        """What ``step`` will ask of a row, and of those behind a tree; none where it has to look at the law itself.

        Args:
            row: the logits of the next token.
            tree: what was looked at in the same pass; None for nothing.
        """
        shape = self._shape()
        if shape is None:
            return []
        asked: list[tuple[ResidentLogits, Question]] = []
        ends = self._allowed.ends
        if len(ends) > 1:  # the stop is all of them together
            asked += ((row.logits, Scoring(row.place, token)) for token in ends)
        asked.append((row.logits, choosing(row.place, self._allowed.mask, shape, copy.deepcopy(self._generator))))
        ahead = self._output.context.ahead
        if tree is not None and ahead is not None and self._allowed.is_plain:
            asked += tree_questions(tree, ahead.told, self._output.matcher, shape, self._generator)
        return asked

    def _sampler_here(self) -> Sampler:
        temperature = self._output.matcher.temperature() if self._is_tempered else None
        return self._sampler if temperature is None else at_temperature(self._sampler, temperature)

    def _shape(self) -> Shaping | None:
        """What the next token is drawn from where logits are asked for it; None where they have to be looked at."""
        if self.alternatives or (self._drafts is not None and self._drafts.has_drawn):
            return None
        return shape_of(self._sampler_here())

    def _step_on_host(self, logits: Logits) -> Step | None:
        output, allowed, eos = self._output, self._allowed, self._output.vocabulary.eos
        total = log_mass(logits)
        ids = allowed_ids(allowed.mask, output.vocabulary.size)
        chosen: int | None = None
        if self._drafts is not None:
            chosen = self._drafts.choose(
                project(logits, ids, total),
                output.context,
                output.matcher,
                output.remaining,
                self._generator,
                is_plain=allowed.is_plain,
            )
        while True:
            projection = project(logits, ids, total)
            index, chosen = self.draw(projection.log_p) if chosen is None else chosen, None
            token = int(ids[index])
            if allowed.admits(None if token in eos else token):
                break
            ids = ids[~np.isin(ids, list(allowed.withheld_here()))]
            if not len(ids):
                return None
        others = runners_up(projection, index, self.alternatives)
        if token in eos:
            # Stopping is one event, whichever of several EOS ids is drawn.
            ends = np.isin(ids, eos)
            return Step(None, False, log_mass(projection.log_p[ends]), projection.log_z, others)
        return Step(token, False, float(projection.log_p[index]), projection.log_z, others)

    def _step_there(self, row: ResidentRow, shape: Shaping) -> Step | None:
        """As ``_step_on_host``, where the logits stay with the model."""
        allowed, eos = self._allowed, self._output.vocabulary.eos
        while True:
            chosen = row.logits.ask(choosing(row.place, allowed.mask, shape, self._generator))
            if not chosen.is_finite:
                raise no_law()
            if chosen.token < 0:
                raise nothing_possible(allowed_ids(allowed.mask, self._output.vocabulary.size))
            if allowed.admits(None if chosen.token in eos else chosen.token):
                break
            allowed.exclude()
            if not allowed.mask.any():
                return None
        if chosen.token not in eos:
            return Step(chosen.token, False, chosen.log_p, chosen.log_z)
        return Step(None, False, self._stop_log_p(row, chosen), chosen.log_z)

    def _stop_log_p(self, row: ResidentRow, chosen: Chosen) -> float:
        """Of the stop among what is allowed: one event, whichever of several EOS ids is drawn."""
        ends = self._allowed.ends
        return chosen.log_p if len(ends) == 1 else min(log_probability(row, ends) - chosen.log_z, 0.0)
