"""Superposed decoding: several drafts for the cost of one, since the model reads a mixture of their last tokens.

Source: E. Shen et al., "Superposed Decoding: Multiple Generations from a Single Autoregressive Inference Pass" (NeurIPS
2024, arXiv 2405.18400), there without a grammar.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, ClassVar, Final, final

import numpy as np

from structgen.decode.sampling.protocol import Sample, Samples
from structgen.decode.step.distribution import BARE_END
from structgen.errors import GenerationError
from structgen.methods.samplers.ngram_lookahead import END
from structgen.methods.strategies.branch_ops import at_least, best
from structgen.models.protocol import Extension, PackedModel, SuperposableSession

if TYPE_CHECKING:
    from structgen.decode.sampling.branch import Branch
    from structgen.decode.sampling.branch_set import Branches
    from structgen.decode.step.distribution import Distribution
    from structgen.decode.step.result import Stats, Step
    from structgen.methods.samplers.ngram_lookahead import NGram
    from structgen.models.protocol import Logits, Mixture, Session

__all__ = ["Superposed"]

_PASS_TOKENS: Final = 512
"""Tokens that are scored in one forward pass."""


@final
@dataclass(frozen=True, slots=True)
class Superposed:
    """Several drafts in parallel, with one forward pass of one position in each step, not one for each draft.

    At the next position the model reads a mixture of the drafts' last tokens, weighted by the drafts' values, and its
    answer is used as the distribution after every draft. It is the exact distribution of none, and fits worse the more
    the drafts differ. Each draft has its own grammar state and mask: it is continued with the most probable allowed
    tokens, and the best ``drafts`` of all continuations are retained, complete ones among them, by

        value = sum over its tokens of (1 - alpha) log p(token) + alpha g(token), plus the score of potentials

    ``g(token)`` is the mean, over the bytes of the token, of the log-probability that ``ngram`` gives to each after the
    bytes of the output before it; for EOS, that of ``END``. Without ``ngram``, and for tokens without bytes, it is
    ``log p(token)``. The search ends when all retained drafts are complete.

    Then the model reads the drafts themselves, all of them at once if it packs sequences. So the steps of a result hold
    the model's true distribution, and a sample's ``log_weight`` is the true log-probability of the draft and its EOS,
    plus the scores of potentials; samples are ranked by it.

    Deviations from the paper: probabilities are not renormalised over the most probable tokens, since these differ
    between drafts; n-grams are of the output's bytes alone, so that they fit any vocabulary, and averaged over a token,
    since a sum would penalise long tokens; complete drafts are among the retained; and drafts are read again at the
    end.

    Attributes:
        drafts: the number of retained drafts.
        candidates: tokens that continue each draft; None for ``drafts``.
        temperature: of the weights in the mixture, ``exp(value / temperature)``. If low, the mixture is nearly the last
            token of the best draft, which the others then follow.
        ngram: an n-gram model of bytes; None for none.
        alpha: the share of ``ngram``; 0.54 is the paper's.

    Raises:
        ValueError: a number is out of range.
    """

    drafts: int = 3
    candidates: int | None = None
    temperature: float = 1.0
    ngram: NGram | None = None
    alpha: float = 0.54

    lossless: ClassVar[bool] = False
    takes_best: ClassVar[bool] = True
    target: ClassVar[str] = (
        "no distribution: drafts by the distribution after a mixture of them, which is the distribution after none"
    )

    def __post_init__(self) -> None:
        at_least("Superposed", 1, drafts=self.drafts, candidates=1 if self.candidates is None else self.candidates)
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise ValueError(f"Superposed: temperature must be finite and positive; found {self.temperature!r}")
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"Superposed: alpha must be in [0, 1]; found {self.alpha!r}")

    def run(self, branches: Branches, generator: np.random.Generator) -> Samples:
        """See ``SequenceSampler``; uses no random numbers.

        Raises:
            GenerationError: the model does not read mixtures.
        """
        root = branches.root()
        (row,) = branches.logits([root])
        session = _own_session(branches, root)
        drafts = [_DraftBranch(root, root.score)]
        cost = _Cost()
        while True:
            drafts = self._extended(branches, drafts, row)
            live = [draft for draft in drafts if not draft.is_finished]
            if not live:
                break
            with cost.one_pass():
                row = session.extend_mixed([self._mixture(live)])
        session.close()
        return _draft_samples(branches, drafts, cost, particles=self.drafts)

    def _extended(self, branches: Branches, drafts: Sequence[_DraftBranch], row: Logits) -> list[_DraftBranch]:
        """Continue all drafts by the logits ``row``, and retain the best.

        Of equal values complete drafts come first, then by tokens.
        """
        width = self.drafts if self.candidates is None else self.candidates
        grown = [draft for draft in drafts if draft.is_finished]
        for draft in drafts:
            if not draft.is_finished:
                distribution = branches.distribution(draft.branch, row)
                grown += [
                    self._after(branches, draft, distribution, index)
                    for index in best(branches, draft.branch, distribution, width)
                ]
        ordered = sorted(grown, key=lambda each: (-each.value, not each.is_finished, each.branch.hypothesis.tokens))
        return [draft for draft in ordered[: self.drafts] if draft.value > -math.inf]

    def _after(self, branches: Branches, draft: _DraftBranch, distribution: Distribution, index: int) -> _DraftBranch:
        """Return a draft extended by the token at an index of a distribution; ``draft`` is unchanged."""
        token, log_p = int(distribution.ids[index]), float(distribution.log_p[index])
        gain = log_p
        if self.ngram is not None and not distribution.ends:
            usual = _ngram_score(self.ngram, draft.branch, None if token == distribution.stop else token)
            gain = gain if usual is None else (1 - self.alpha) * gain + self.alpha * usual
        child = branches.grown(draft.branch, distribution, token, log_p)
        return _DraftBranch(child, draft.value + gain + child.score - draft.branch.score, draft, token)

    def _mixture(self, live: Sequence[_DraftBranch]) -> Mixture:
        """The last tokens of drafts with the drafts' weights; equal last tokens add up."""
        top = max(draft.value for draft in live)
        weights: dict[int, float] = {}
        for draft in live:
            token = draft.branch.hypothesis.tokens[-1]
            weights[token] = weights.get(token, 0.0) + math.exp((draft.value - top) / self.temperature)
        total = math.fsum(weights.values())
        return {token: weight / total for token, weight in weights.items() if weight / total > 0}


@final
@dataclass(frozen=True, slots=True)
class _DraftBranch:
    """One draft.

    Attributes:
        branch: its branch, without a cache.
        value: the value by which drafts are retained.
        before: the draft without its last token; None for an empty draft.
        taken: the last token, as in the distribution.
    """

    branch: Branch
    value: float
    before: _DraftBranch | None = None
    taken: int = BARE_END

    @property
    def is_finished(self) -> bool:
        return self.branch.finish_reason is not None

    def choices(self) -> list[tuple[Branch, int]]:
        """The branches before each token, the first one first, and the tokens."""
        choices, draft = [], self
        while draft.before is not None:
            choices.append((draft.before.branch, draft.taken))
            draft = draft.before
        return choices[::-1]


@final
class _Cost:
    """Forward passes that the branches do not count, and their time."""

    def __init__(self) -> None:
        self.forwards = 0
        self.time_s = 0.0

    @contextmanager
    def one_pass(self) -> Iterator[None]:
        """Count the body as one pass."""
        began = perf_counter()
        yield
        self.time_s += perf_counter() - began
        self.forwards += 1

    def added(self, stats: Stats) -> Stats:
        """Return the stats with these costs added."""
        return replace(
            stats,
            forwards=stats.forwards + self.forwards,
            time_model_s=stats.time_model_s + self.time_s,
            time_other_s=max(stats.time_other_s - self.time_s, 0.0),
        )


@final
class _DraftScoring:
    """The true distributions along a finished draft, received position by position.

    Attributes:
        tokens: the tokens that the model has to read.
        steps: the steps with the model's distributions.
        log_p: of the steps so far.
    """

    def __init__(self, branches: Branches, draft: _DraftBranch) -> None:
        self.tokens = draft.branch.hypothesis.tokens[len(branches.problem.begun) :]
        self.steps: list[Step] = []
        self.log_p = 0.0
        self._branches = branches
        self._choices = iter(draft.choices())

    def take(self, row: Logits) -> None:
        """Take the logits at the next position, if there is one."""
        prefix, token = next(self._choices, (None, BARE_END))
        if prefix is not None and token != BARE_END:  # an end without EOS is no step
            distribution = self._branches.distribution(prefix, row, tilted=False)
            index = distribution.index(token)
            self.steps.append(distribution.step(index))
            self.log_p += float(distribution.log_p[index])


def _own_session(branches: Branches, root: Branch) -> SuperposableSession:
    """Return the session of a branch over the prompt, for exclusive use.

    Raises:
        GenerationError: the session does not read mixtures.
    """
    session = _session(root)
    if not isinstance(session, SuperposableSession):
        raise GenerationError(
            f"model {branches.problem.model.name!r}",
            "it cannot read a mixture of tokens in one position, which Superposed requires",
            evidence=f"its {type(session).__name__} has no method extend_mixed",
            remedy="use the embedded model, outside of a Batch; or Beam or BestOf, which read every draft separately",
        )
    root.context = None
    return session


def _session(branch: Branch) -> Session:
    if branch.context is None:
        raise ValueError("the branch has no context")
    return branch.context.session


def _ngram_score(ngram: NGram, branch: Branch, token: int | None) -> float | None:
    """The mean log-probability of a token's bytes, or of the end (None), after a branch; None without bytes."""
    hypothesis = branch.hypothesis
    if token is None:
        return math.log(ngram.distribution(ngram.context(hypothesis.data))[END])
    added = hypothesis.vocabulary.decode([token])
    if not added:
        return None
    data = ngram.context(hypothesis.data) + added
    ends = range(len(data) - len(added), len(data))
    return math.fsum(math.log(ngram.distribution(ngram.context(data[:at]))[data[at]]) for at in ends) / len(added)


def _draft_samples(branches: Branches, drafts: Sequence[_DraftBranch], cost: _Cost, *, particles: int) -> Samples:
    """Return finished drafts as samples, with the model's own probability of each."""
    readings = [_DraftScoring(branches, draft) for draft in drafts]
    _score_drafts(branches, readings, cost)
    weighed = [
        (reading.log_p + draft.branch.score, draft.branch, reading)
        for draft, reading in zip(drafts, readings, strict=True)
    ]
    weighed = [each for each in weighed if each[0] > -math.inf]
    weighed.sort(key=lambda each: (-each[0], each[1].hypothesis.tokens))
    samples = []
    for weight, branch, reading in weighed:
        result = branches.result(branch)
        result = replace(result, steps=tuple(reading.steps), stats=cost.added(result.stats))
        samples.append(Sample(result, weight, 1, branch.score))
    result_samples = branches.samples(samples, particles=particles)
    return replace(result_samples, forwards=result_samples.forwards + cost.forwards)


def _score_drafts(branches: Branches, readings: Sequence[_DraftScoring], cost: _Cost) -> None:
    """Let the model read finished drafts, in one pass if they are short and it packs sequences."""
    if not readings:
        return
    model = branches.problem.model
    roots = [branches.root() for _ in readings]
    for reading, row in zip(readings, branches.logits(roots), strict=True):
        reading.take(row)
    length = max(1, _PASS_TOKENS // len(readings))
    for start in range(0, max(len(reading.tokens) for reading in readings), length):
        pack, packed = [], []
        for root, reading in zip(roots, readings, strict=True):
            part = reading.tokens[start : start + length]
            if part:
                pack.append(Extension(_session(root), part, all_positions=True))
                packed.append(reading)
        if isinstance(model, PackedModel):
            with cost.one_pass():
                rows = model.extend_many(pack)
        else:
            rows = []
            for extension in pack:
                with cost.one_pass():
                    rows.append(extension.session.extend_all(extension.token_ids))
        for reading, each in zip(packed, rows, strict=True):
            for row in each:
                reading.take(row)
    for root in roots:
        branches.drop(root)
