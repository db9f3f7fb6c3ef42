"""The forward passes of one output, and the choice of its next token among what is allowed.

Tokens are chosen on the host, or on the device where the logits are. Forced tokens are scored by the same passes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree
from structgen.decode.step.distribution import log_mass, nothing_possible, project, runners_up, unusable_logits
from structgen.decode.step.logits_row import DeviceRow, LogitsRow, LogitsRows, log_probability, on_host
from structgen.decode.step.result import Step
from structgen.decode.step.sampler import Greedy, Multinomial, Sampler, at_temperature
from structgen.engine.mask import allowed_ids, empty_masks, only_token
from structgen.errors import GenerationError, LimitExceeded
from structgen.models.protocol import LogitsQuery, SampleQuery, SamplingParams, ScoreQuery

if TYPE_CHECKING:
    from structgen.decode.autoregressive.allowed import Allowed
    from structgen.decode.autoregressive.output import Costs, Output
    from structgen.decode.speculative.speculation import SpeculationRounds
    from structgen.engine import Matcher
    from structgen.models.protocol import Logits, ResidentLogits, SampleAnswer

__all__ = ["ScoredPasses", "TokenChoice", "prefetch", "sample_query", "sampling_params", "tree_queries"]

_ARGMAX = SamplingParams(temperature=0.0)


def sampling_params(sampler: Sampler) -> SamplingParams | None:
    """What a device has to know of a sampler; None where it has to see the distribution itself."""
    match sampler:
        case Greedy():
            return _ARGMAX
        case Multinomial():
            return SamplingParams(sampler.temperature, sampler.top_k, sampler.top_p, sampler.min_p)
    return None


def sample_query(
    row: int, mask: NDArray[np.int32], shape: SamplingParams, generator: np.random.Generator
) -> SampleQuery:
    """The question for the next token under a mask that is not empty; it takes a random number where one is drawn."""
    if shape.temperature == 0 or only_token(mask) is not None:
        return SampleQuery(row, mask.tobytes(), _ARGMAX)
    return SampleQuery(row, mask.tobytes(), shape, generator.random())


def tree_queries(
    tree: DraftTree, told: LogitsRows, matcher: Matcher, shape: SamplingParams, generator: np.random.Generator
) -> Iterator[tuple[ResidentLogits, LogitsQuery]]:
    """What will be asked after the tokens of a tree where they come.

    Args:
        tree: what was looked at, with what the grammar forces after each draft token.
        told: the logits after the sequence and each of its nodes.
        matcher: where the output stands; it is not moved.
        shape: what tokens are drawn from.
        generator: the sampler's; it is not moved.  The next choice takes its next number, the choice after it the one
            after that.
    """
    masks = empty_masks(matcher.constraint.vocabulary, 1 + len(tree))
    try:
        matcher.fill_mask_tree(tree.tokens, tree.parents, masks)
    except LimitExceeded:  # the limits are for outputs, not for draft tokens
        return
    forced = {
        parent: token
        for token, parent, source in zip(tree.tokens, tree.parents, tree.sources, strict=True)
        if source == FORCED
    }
    were_run = told.were_run()
    reference = copy.deepcopy(generator)
    uniforms = [reference.random() for _ in range(tree.depth() + 1)]
    taken: list[int] = []  # choices down to each node
    for node, (parent, source) in enumerate(zip(tree.parents, tree.sources, strict=True)):
        taken.append((0 if parent == ROOT else taken[parent]) + (source != FORCED))
        row, mask = told[1 + node], masks[1 + node]
        if not isinstance(row, DeviceRow) or not were_run[1 + node] or not mask.any():
            continue
        only = forced.get(node, only_token(mask))
        if only is not None:
            yield row.logits, ScoreQuery(row.place, only)
        else:
            uniform = 0.0 if shape.temperature == 0 else uniforms[taken[node]]
            yield row.logits, SampleQuery(row.place, mask.tobytes(), shape, uniform)


def prefetch(questions: Iterable[tuple[ResidentLogits, LogitsQuery]]) -> None:
    """Foresee questions, those to the same logits at once."""
    passes: dict[int, tuple[ResidentLogits, list[LogitsQuery]]] = {}
    for logits, question in questions:
        passes.setdefault(id(logits), (logits, []))[1].append(question)
    for logits, asked in passes.values():
        logits.foresee(asked)


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
        drafts: what verifies draft tokens that were drawn; None where there are none.
        alternatives: see above.
    """

    def __init__(
        self,
        output: Output,
        allowed: Allowed,
        sampler: Sampler,
        generator: np.random.Generator,
        *,
        drafts: SpeculationRounds | None,
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

    def step(self, row: LogitsRow) -> Step | None:
        """Choose among what the mask allows; None where potentials forbid all of it, which is blocked then.

        Args:
            row: the logits of the next token.

        Raises:
            GenerationError: the logits are no distribution, or leave nothing to choose.
        """
        shape = self._shape() if isinstance(row, DeviceRow) else None
        if isinstance(row, DeviceRow) and shape is not None:
            return self._step_there(row, shape)
        return self._step_on_host(on_host(row))

    def questions(self, row: DeviceRow, tree: DraftTree | None) -> list[tuple[ResidentLogits, LogitsQuery]]:
        """What ``step`` will ask of a row, and of those after a tree.

        None where it has to look at the distribution itself.

        Args:
            row: the logits of the next token.
            tree: what was looked at in the same pass; None for nothing.
        """
        shape = self._shape()
        if shape is None:
            return []
        asked: list[tuple[ResidentLogits, LogitsQuery]] = []
        ends = self._allowed.ends
        if len(ends) > 1:  # the stop is all of them together
            asked += ((row.logits, ScoreQuery(row.place, token)) for token in ends)
        asked.append((row.logits, sample_query(row.place, self._allowed.mask, shape, copy.deepcopy(self._generator))))
        ahead = self._output.context.ahead
        if tree is not None and ahead is not None and self._allowed.is_plain:
            asked += tree_queries(tree, ahead.told, self._output.matcher, shape, self._generator)
        return asked

    def _sampler_here(self) -> Sampler:
        temperature = self._output.matcher.temperature() if self._is_tempered else None
        return self._sampler if temperature is None else at_temperature(self._sampler, temperature)

    def _shape(self) -> SamplingParams | None:
        """What the next token is drawn from where logits are asked for it; None where they have to be looked at."""
        if self.alternatives or (self._drafts is not None and self._drafts.has_drawn):
            return None
        return sampling_params(self._sampler_here())

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
            ids = ids[~np.isin(ids, list(allowed.blocked_here()))]
            if not len(ids):
                return None
        others = runners_up(projection, index, self.alternatives)
        if token in eos:
            # Stopping is one event, whichever of several EOS ids is drawn.
            ends = np.isin(ids, eos)
            return Step(None, False, log_mass(projection.log_p[ends]), projection.log_z, others)
        return Step(token, False, float(projection.log_p[index]), projection.log_z, others)

    def _step_there(self, row: DeviceRow, shape: SamplingParams) -> Step | None:
        """As ``_step_on_host``, where the logits stay with the model."""
        allowed, eos = self._allowed, self._output.vocabulary.eos
        while True:
            chosen = row.logits.ask(sample_query(row.place, allowed.mask, shape, self._generator))
            if not chosen.is_finite:
                raise unusable_logits()
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

    def _stop_log_p(self, row: DeviceRow, chosen: SampleAnswer) -> float:
        """Of the stop among what is allowed: one event, whichever of several EOS ids is drawn."""
        ends = self._allowed.ends
        return chosen.log_p if len(ends) == 1 else min(log_probability(row, ends) - chosen.log_z, 0.0)


@final
class ScoredPasses:
    """Runs what the model has not seen of an output.

    Args:
        output: what is run and scored.
        allowed: what may come next in it, for drafts.
        drafts: draft tokens that are run with it; None not to.
        costs: where the time is noted.
        jump_forward: run forced tokens together with the next token that has to be chosen, not one by one.
    """

    def __init__(
        self, output: Output, allowed: Allowed, drafts: SpeculationRounds | None, costs: Costs, *, jump_forward: bool
    ) -> None:
        self._output = output
        self._allowed = allowed
        self._drafts = drafts
        self._costs = costs
        self._jump_forward = jump_forward

    def next_row(self, choice: TokenChoice | None = None) -> LogitsRow:
        """Run the pending tokens, score the forced ones among them, and return the logits of the next token.

        Args:
            choice: how the next token is chosen, under the mask, where that comes next: draft tokens are run with the
                pending tokens then, and what it asks of logits that stay with the model is asked at once.
        """
        return self._run(ahead=True, choice=choice)[-1]

    def score_ending(self) -> None:
        """Score the forced steps at the end of a finished output."""
        output = self._output
        stops = output.has_unscored_stop
        if not stops and output.scored >= len(output.tokens):
            return
        last = self._run(ahead=stops, stops=stops)[-1]
        if stops:
            output.score_stop(log_probability(last, output.vocabulary.eos))

    def _run(self, *, ahead: bool, choice: TokenChoice | None = None, stops: bool = False) -> list[LogitsRow]:
        """Run the pending tokens and score the forced ones among them.

        Args:
            ahead: whether the last of them is run too, so that the last row is what comes after it.
            choice: see ``next_row``.
            stops: whether the stop is scored after the last of them.

        Returns:
            The logits before each unscored token, and those after the last one if ``ahead``.
        """
        output, context, costs = self._output, self._output.context, self._costs
        unscored = output.unscored
        count = len(unscored) + ahead
        end = len(context) - (not ahead)
        drafts = None if choice is None else self._drafts
        if drafts is not None and len(context.known(count, end=end)) < count:
            drafts.settle(context)
            drafts.propose(context, output.matcher, self._allowed.mask, output.remaining)
        elif drafts is not None:
            drafts.spare()
            drafts = None
        began = perf_counter()
        tree = None if drafts is None else drafts.tree
        rows = self._rows(count, end, tree)
        in_masks = self._foresee(rows, unscored, tree, choice, stops=stops)
        spent = perf_counter() - began - in_masks
        costs.mask_s += in_masks
        costs.model_s += spent
        if drafts is not None:
            drafts.observe(context, rows[-1], spent)
        if unscored:
            output.score([log_probability(row, [token]) for row, token in zip(rows, unscored, strict=False)])
        return rows

    def _rows(self, count: int, end: int, tree: DraftTree | None) -> list[LogitsRow]:
        """The logits after each of the last ``count`` of ``end`` tokens of the context."""
        context = self._output.context
        size = self._output.vocabulary.size
        rows: list[LogitsRow]
        if self._jump_forward:
            rows = context.rows(count, tree.token_tree() if tree else None, end=end)
        else:
            session = context.session
            unseen = context.tokens[session.length : end]
            first = len(unseen) - count + 1
            rows = [session.extend(unseen[:first]), *(session.extend([token]) for token in unseen[first:])]
        if rows[-1].shape != (size,):
            raise GenerationError(
                f"model {context.model.name!r}",
                f"it returned {rows[-1].shape[-1]} logits",
                evidence=f"its vocabulary has {size} tokens",
                remedy="give the vocabulary the width of the model's head (size=...)",
            )
        return rows

    def _foresee(
        self,
        rows: Sequence[LogitsRow],
        unscored: Sequence[int],
        tree: DraftTree | None,
        choice: TokenChoice | None,
        *,
        stops: bool,
    ) -> float:
        """Ask what will be asked of a pass, all at once; return the seconds that masks took of it.

        Where the logits are arrays there is nothing to do.
        """
        row = rows[-1]
        if not isinstance(row, DeviceRow):
            return 0.0
        asked: list[tuple[ResidentLogits, LogitsQuery]] = [
            (each.logits, ScoreQuery(each.place, token))
            for each, token in zip(rows, unscored, strict=False)
            if isinstance(each, DeviceRow)
        ]
        if stops:
            asked += ((row.logits, ScoreQuery(row.place, token)) for token in self._output.vocabulary.eos)
        began = perf_counter()
        choosing = [] if choice is None else choice.questions(row, tree)
        in_masks = perf_counter() - began
        prefetch([*asked, *choosing])
        if choice is not None and not choosing:  # it has to look at the distribution itself
            on_host(row)
        return in_masks
