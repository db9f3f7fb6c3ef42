"""The forward pass and the choice of the next token: the last stages of its walk through the loop.

One pass runs the pending tokens, and draft tokens with them; it returns the logits of the next token and scores the
forced tokens that it runs.  The mask restricts the logits, the sampler chooses, and potentials may block what it chose.
A sampler with a form for devices chooses where the logits are; any other chooses on the host.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree
from structgen.decode.step.distribution import log_mass, nothing_possible, project, unusable_logits
from structgen.decode.step.logits_row import DeviceRow, LogitsRow, LogitsRows, check_width, log_probability, on_host
from structgen.decode.step.result import Step
from structgen.decode.step.sampler import Greedy, Multinomial, Sampler, at_temperature
from structgen.engine.mask import allowed_ids, empty_masks, only_token
from structgen.errors import LimitExceeded
from structgen.models.protocol import LogitsQuery, SampleQuery, SamplingParams, ScoreQuery

if TYPE_CHECKING:
    from structgen.decode.autoregressive.allowed import Allowed
    from structgen.decode.autoregressive.output import Costs, Output
    from structgen.decode.speculative.speculation import SpeculationRounds
    from structgen.engine import Matcher
    from structgen.models.protocol import Logits, ResidentLogits, SampleAnswer

__all__ = ["ScoredPasses", "TokenChoice"]

_ARGMAX = SamplingParams(temperature=0.0)


def _sampling_params(sampler: Sampler) -> SamplingParams | None:
    """Return a sampler's form for devices; None if it has to see the distribution."""
    match sampler:
        case Greedy():
            return _ARGMAX
        case Multinomial():
            return SamplingParams(sampler.temperature, sampler.top_k, sampler.top_p, sampler.min_p)
    return None


def _sample_query(
    row: int, mask: NDArray[np.int32], params: SamplingParams, generator: np.random.Generator
) -> SampleQuery:
    """Return the query for a token under a mask that is not empty; takes a random number if the token is sampled."""
    if params.temperature == 0 or only_token(mask) is not None:
        return SampleQuery(row, mask.tobytes(), _ARGMAX)
    return SampleQuery(row, mask.tobytes(), params, generator.random())


def _tree_queries(
    tree: DraftTree, rows: LogitsRows, matcher: Matcher, params: SamplingParams, generator: np.random.Generator
) -> Iterator[tuple[ResidentLogits, LogitsQuery]]:
    """Yield the queries that will follow if the output takes tokens of a draft tree with the logits ``rows``.

    The query of a node takes the random number that the choice after the node's path will take.  The matcher, at the
    end of the output, and the sampler's generator stay as they are.
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
    were_run = rows.were_run()
    copied = copy.deepcopy(generator)
    uniforms = [copied.random() for _ in range(tree.depth() + 1)]
    choices: list[int] = []  # on the path to each node
    for node, (parent, source) in enumerate(zip(tree.parents, tree.sources, strict=True)):
        choices.append((0 if parent == ROOT else choices[parent]) + (source != FORCED))
        row, mask = rows[1 + node], masks[1 + node]
        if not isinstance(row, DeviceRow) or not were_run[1 + node] or not mask.any():
            continue
        only = forced.get(node, only_token(mask))
        if only is not None:
            yield row.logits, ScoreQuery(row.position, only)
        else:
            uniform = 0.0 if params.temperature == 0 else uniforms[choices[node]]
            yield row.logits, SampleQuery(row.position, mask.tobytes(), params, uniform)


@final
class TokenChoice:
    """Chooses the next token of one output from the logits, under the mask of ``allowed``.

    Attributes:
        alternatives: how many other tokens each step records.

    Args:
        output: the output.
        allowed: the mask, and the potentials.
        sampler: chooses tokens.
        generator: the sampler's random numbers.
        drafts: verifies draft tokens that were sampled; None if nothing is drafted.
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
        """Let the sampler choose an index into normalised log-probabilities."""
        return 0 if len(log_p) == 1 else self._sampler_here().draw(log_p, self._generator)

    def step(self, row: LogitsRow) -> Step | None:
        """Choose one of the allowed tokens; None if potentials forbid all of them, which are blocked from now on.

        Raises:
            GenerationError: the logits contain NaN or infinity, or give no allowed token any probability.
        """
        params = self._device_params() if isinstance(row, DeviceRow) else None
        if isinstance(row, DeviceRow) and params is not None:
            return self._step_on_device(row, params)
        return self._step_on_host(on_host(row))

    def queries(self, row: DeviceRow, tree: DraftTree | None) -> list[tuple[ResidentLogits, LogitsQuery]]:
        """Return the queries of the next ``step``, and of the steps that may follow; none if it samples on the host.

        ``tree`` is the draft tokens that the same pass ran; None for none.
        """
        params = self._device_params()
        if params is None:
            return []
        queries: list[tuple[ResidentLogits, LogitsQuery]] = []
        ends = self._allowed.ends
        if len(ends) > 1:  # all EOS ids are one event
            queries += ((row.logits, ScoreQuery(row.position, token)) for token in ends)
        query = _sample_query(row.position, self._allowed.mask, params, copy.deepcopy(self._generator))
        queries.append((row.logits, query))
        ahead = self._output.context.ahead
        if tree is not None and ahead is not None and self._allowed.is_plain:
            queries += _tree_queries(tree, ahead.logits, self._output.matcher, params, self._generator)
        return queries

    def _sampler_here(self) -> Sampler:
        temperature = self._output.matcher.temperature() if self._is_tempered else None
        return self._sampler if temperature is None else at_temperature(self._sampler, temperature)

    def _device_params(self) -> SamplingParams | None:
        """The sampler's form for devices; None if the next token has to be chosen on the host."""
        if self.alternatives or (self._drafts is not None and self._drafts.has_sampled):
            return None
        return _sampling_params(self._sampler_here())

    def _step_on_host(self, logits: Logits) -> Step | None:
        output, allowed, eos = self._output, self._allowed, self._output.vocabulary.eos
        total = log_mass(logits)
        ids = allowed_ids(allowed.mask, output.vocabulary.size)
        projection = project(logits, ids, total)
        chosen: int | None = None
        if self._drafts is not None:
            chosen = self._drafts.choose(
                projection,
                output.context,
                output.matcher,
                output.remaining,
                self._generator,
                is_plain=allowed.is_plain,
            )
        while True:
            index, chosen = self.draw(projection.log_p) if chosen is None else chosen, None
            token = int(ids[index])
            if allowed.admits(None if token in eos else token):
                break
            ids = ids[~np.isin(ids, list(allowed.blocked_here()))]
            if not len(ids):
                return None
            projection = project(logits, ids, total)
        others = projection.runners_up(index, self.alternatives)
        if token in eos:
            # Stopping is one event, whichever of several EOS ids is sampled.
            ends = np.isin(ids, eos)
            logprob = log_mass(projection.log_p[ends])
            return Step(None, forced=False, logprob=logprob, log_z=projection.log_z, alternatives=others)
        logprob = float(projection.log_p[index])
        return Step(token, forced=False, logprob=logprob, log_z=projection.log_z, alternatives=others)

    def _step_on_device(self, row: DeviceRow, params: SamplingParams) -> Step | None:
        allowed, eos = self._allowed, self._output.vocabulary.eos
        while True:
            chosen = row.logits.ask(_sample_query(row.position, allowed.mask, params, self._generator))
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
            return Step(chosen.token, forced=False, logprob=chosen.log_p, log_z=chosen.log_z)
        return Step(None, forced=False, logprob=self._stop_log_p(row, chosen), log_z=chosen.log_z)

    def _stop_log_p(self, row: DeviceRow, chosen: SampleAnswer) -> float:
        """Log-probability of stopping among the allowed tokens: all EOS ids are one event."""
        ends = self._allowed.ends
        return chosen.log_p if len(ends) == 1 else min(log_probability(row, ends) - chosen.log_z, 0.0)


@final
class ScoredPasses:
    """Runs the pending tokens of one output: those that the model has not seen.

    Args:
        output: the output.
        allowed: the mask of the next token, for drafts.
        drafts: proposes draft tokens to run with the pending tokens; None for none.
        costs: the time is added to it.
        jump_forward: run several forced tokens in one pass, not one by one.
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
            choice: chooses the next token, if that comes next.  Then draft tokens are run with the pending tokens, and
                the queries of ``choice`` to on-device logits are sent together.
        """
        return self._run(ahead=True, choice=choice)[-1]

    def score_ending(self) -> None:
        """Score the forced steps at the end of a complete output."""
        output = self._output
        stops = output.has_unscored_stop
        if not stops and output.scored >= len(output.tokens):
            return
        last = self._run(ahead=stops, stops=stops)[-1]
        if stops:
            output.score_stop(log_probability(last, output.vocabulary.eos))

    def _run(self, *, ahead: bool, choice: TokenChoice | None = None, stops: bool = False) -> list[LogitsRow]:
        """Run the pending tokens and score the forced ones among them; with ``stops``, EOS after the last of them.

        Return the logits before each unscored token; with ``ahead`` the last token runs too, for the logits after it.
        """
        output, context, costs = self._output, self._output.context, self._costs
        unscored = output.unscored
        count = len(unscored) + ahead
        end = len(context) - (not ahead)
        drafts = None if choice is None else self._drafts
        if drafts is not None and len(context.computed(count, end=end)) < count:
            output.mark_drafted(drafts.settle(context))
            drafts.propose(context, output.matcher, self._allowed.mask, output.remaining)
        elif drafts is not None:
            drafts.counts.saved += 1
            drafts = None
        began = perf_counter()
        tree = None if drafts is None else drafts.tree
        rows = self._rows(count, end, tree)
        in_masks = self._prefetch(rows, unscored, tree, choice, stops=stops)
        spent = perf_counter() - began - in_masks
        costs.mask_s += in_masks
        costs.model_s += spent
        if drafts is not None:
            drafts.observe(context, rows[-1], spent)
        if unscored:
            output.score([log_probability(row, [token]) for row, token in zip(rows, unscored, strict=False)])
        return rows

    def _rows(self, count: int, end: int, tree: DraftTree | None) -> list[LogitsRow]:
        """The logits after each of the last ``count`` of the first ``end`` tokens of the context."""
        context = self._output.context
        rows: list[LogitsRow]
        if self._jump_forward:
            rows = context.rows(count, tree.token_tree() if tree else None, end=end)
        else:
            session = context.session
            unseen = context.tokens[session.length : end]
            first = len(unseen) - count + 1
            rows = [session.extend(unseen[:first]), *(session.extend([token]) for token in unseen[first:])]
        check_width(rows[-1], self._output.vocabulary.size, context.model.name)
        return rows

    def _prefetch(
        self,
        rows: Sequence[LogitsRow],
        unscored: Sequence[int],
        tree: DraftTree | None,
        choice: TokenChoice | None,
        *,
        stops: bool,
    ) -> float:
        """Send all queries to the on-device logits of a pass together; return the seconds spent on masks."""
        row = rows[-1]
        if not isinstance(row, DeviceRow):
            return 0.0
        queries: list[tuple[ResidentLogits, LogitsQuery]] = [
            (each.logits, ScoreQuery(each.position, token))
            for each, token in zip(rows, unscored, strict=False)
            if isinstance(each, DeviceRow)
        ]
        if stops:
            queries += ((row.logits, ScoreQuery(row.position, token)) for token in self._output.vocabulary.eos)
        began = perf_counter()
        choosing = [] if choice is None else choice.queries(row, tree)
        in_masks = perf_counter() - began
        passes: dict[int, tuple[ResidentLogits, list[LogitsQuery]]] = {}  # queries by the logits they go to
        for logits, query in (*queries, *choosing):
            passes.setdefault(id(logits), (logits, []))[1].append(query)
        for logits, together in passes.values():
            logits.prefetch(together)
        if choice is not None and not choosing:  # the choice needs the whole row
            on_host(row)
        return in_masks
