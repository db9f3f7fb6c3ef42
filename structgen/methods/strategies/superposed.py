"""Several drafts at the price of one: what the model reads is a mixture of their last tokens.

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
    """Several drafts side by side, for one forward pass of one position at each step, not one for each draft.

    What the model reads as the next position is a mixture of the drafts' last tokens, weighted by what the drafts are
    worth, and what it answers is taken for the distribution after every one of them.  It is the distribution of none:
    the more the drafts differ, the less it fits any.  Each draft has its own place in the grammar, and so its own mask:
    it is continued with the most probable tokens that this allows, and the best ``drafts`` of all continuations stay,
    complete ones among them, by

        worth = sum over its tokens of (1 - alpha) log p(token) + alpha g(token), and what potentials say of it

    ``g(token)`` is the mean, over the bytes of the token, of the log-probability that ``ngram`` gives to each after the
    bytes of the output before it; of the stop, that of ``END``.  Without ``ngram``, and of tokens without bytes, it is
    ``log p(token)``.  It ends when all that stay are complete.

    Then the model reads the drafts themselves, all of them at once where it packs sequences.  So what the steps of a
    result say is the model's true distribution, and a sample's ``log_weight`` is the true log-probability of the draft
    and its stop, with the scores of potentials: they are ranked by that.

    Deviations from the paper: probabilities are not renormalised over the most probable tokens, since each draft has
    others of these; n-grams are of the bytes of the output alone, as they go with any vocabulary, and averaged over a
    token, since a sum would punish long tokens for text that others have yet to write; complete drafts are among those
    that stay; and drafts are read again at the end.

    Attributes:
        drafts: how many stay.
        candidates: tokens that each is continued with; None is ``drafts``.
        temperature: of the weights in the mixture, ``exp(worth / temperature)``.  With a low one it is nearly the last
            token of the best draft, and the others follow that one more than themselves.
        ngram: what usually follows what; None for nothing.
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
        """See ``SequenceSampler``; draws no random number.

        Raises:
            GenerationError: the model does not read mixtures.
        """
        root = branches.root()
        (row,) = branches.logits([root])
        session = _own_session(branches, root)
        held = [_DraftBranch(root, root.score)]
        cost = _Cost()
        while True:
            held = self._kept(branches, held, row)
            live = [draft for draft in held if not draft.is_finished]
            if not live:
                break
            with cost.one_pass():
                row = session.extend_mixed([self._mixture(live)])
        session.close()
        return _draft_samples(branches, held, cost, drawn=self.drafts)

    def _kept(self, branches: Branches, held: Sequence[_DraftBranch], row: Logits) -> list[_DraftBranch]:
        """Continue all drafts after which the model is taken to say ``row``, and keep the best.

        Of equally good ones complete ones come first, then those whose tokens come first in order.
        """
        width = self.drafts if self.candidates is None else self.candidates
        grown = [draft for draft in held if draft.is_finished]
        for draft in held:
            if not draft.is_finished:
                distribution = branches.distribution(draft.branch, row)
                grown += [
                    self._after(branches, draft, distribution, index)
                    for index in best(branches, draft.branch, distribution, width)
                ]
        ordered = sorted(grown, key=lambda each: (-each.worth, not each.is_finished, each.branch.hypothesis.tokens))
        return [draft for draft in ordered[: self.drafts] if draft.worth > -math.inf]

    def _after(self, branches: Branches, draft: _DraftBranch, distribution: Distribution, index: int) -> _DraftBranch:
        """Go on with what is at an index of a distribution; ``draft`` stays as it is."""
        token, log_p = int(distribution.ids[index]), float(distribution.log_p[index])
        gain = log_p
        if self.ngram is not None and not distribution.ends:
            usual = _ngram_score(self.ngram, draft.branch, None if token == distribution.stop else token)
            gain = gain if usual is None else (1 - self.alpha) * gain + self.alpha * usual
        child = branches.grown(draft.branch, distribution, token, log_p)
        return _DraftBranch(child, draft.worth + gain + child.score - draft.branch.score, draft, token)

    def _mixture(self, live: Sequence[_DraftBranch]) -> Mixture:
        """The last tokens of drafts, with the weights of these; drafts with the same last token count together."""
        top = max(draft.worth for draft in live)
        weights: dict[int, float] = {}
        for draft in live:
            token = draft.branch.hypothesis.tokens[-1]
            weights[token] = weights.get(token, 0.0) + math.exp((draft.worth - top) / self.temperature)
        total = math.fsum(weights.values())
        return {token: weight / total for token, weight in weights.items() if weight / total > 0}


@final
@dataclass(frozen=True, slots=True)
class _DraftBranch:
    """One draft.

    Attributes:
        branch: where it stands; without a cache.
        worth: what it is kept by.
        before: the draft without its last token; None where nothing is written.
        taken: that token, as its distribution has it.
    """

    branch: Branch
    worth: float
    before: _DraftBranch | None = None
    taken: int = BARE_END

    @property
    def is_finished(self) -> bool:
        return self.branch.finish_reason is not None

    def places(self) -> list[tuple[Branch, int]]:
        """Where it has been, the first place first, and what was taken there."""
        found, draft = [], self
        while draft.before is not None:
            found.append((draft.before.branch, draft.taken))
            draft = draft.before
        return found[::-1]


@final
class _Cost:
    """Forward passes that the branches know nothing of, and what they took."""

    def __init__(self) -> None:
        self.forwards = 0
        self.time_s = 0.0

    @contextmanager
    def one_pass(self) -> Iterator[None]:
        """Count what is done within as a pass."""
        began = perf_counter()
        yield
        self.time_s += perf_counter() - began
        self.forwards += 1

    def added(self, stats: Stats) -> Stats:
        """The costs of a result with these."""
        return replace(
            stats,
            forwards=stats.forwards + self.forwards,
            time_model_s=stats.time_model_s + self.time_s,
            time_other_s=max(stats.time_other_s - self.time_s, 0.0),
        )


@final
class _DraftScoring:
    """The true distribution along a finished draft, which is told place by place.

    Attributes:
        tokens: what the model has to read.
        steps: with what the model says of them.
        log_p: of the steps so far.
    """

    def __init__(self, branches: Branches, draft: _DraftBranch) -> None:
        self.tokens = draft.branch.hypothesis.tokens[len(branches.problem.begun) :]
        self.steps: list[Step] = []
        self.log_p = 0.0
        self._branches = branches
        self._places = iter(draft.places())

    def take(self, row: Logits) -> None:
        """Take what the model says at the next place, if there is one."""
        prefix, token = next(self._places, (None, BARE_END))
        if prefix is not None and token != BARE_END:  # an end without EOS is no step
            distribution = self._branches.distribution(prefix, row, tilted=False)
            index = distribution.index(token)
            self.steps.append(distribution.step(index))
            self.log_p += float(distribution.log_p[index])


def _own_session(branches: Branches, root: Branch) -> SuperposableSession:
    """Take the session of a branch, over the prompt, which may be filled with anything then.

    Raises:
        GenerationError: it does not read mixtures.
    """
    session = _session(root)
    if not isinstance(session, SuperposableSession):
        raise GenerationError(
            f"model {branches.problem.model.name!r}",
            "it cannot read several tokens in one position, as Superposed has it do",
            evidence=f"its {type(session).__name__} has no method extend_mixed",
            remedy="use the embedded model, outside of a Batch; or Beam or BestOf, which read every draft by itself",
        )
    root.context = None
    return session


def _session(branch: Branch) -> Session:
    if branch.context is None:
        raise ValueError("the branch has no context")
    return branch.context.session


def _ngram_score(ngram: NGram, branch: Branch, token: int | None) -> float | None:
    """The mean log-probability of a token's bytes, or of the end (None), after a branch; None for no bytes."""
    hypothesis = branch.hypothesis
    if token is None:
        return math.log(ngram.distribution(ngram.context(hypothesis.data))[END])
    added = hypothesis.vocabulary.decode([token])
    if not added:
        return None
    data = ngram.context(hypothesis.data) + added
    places = range(len(data) - len(added), len(data))
    return math.fsum(math.log(ngram.distribution(ngram.context(data[:at]))[data[at]]) for at in places) / len(added)


def _draft_samples(branches: Branches, drafts: Sequence[_DraftBranch], cost: _Cost, *, drawn: int) -> Samples:
    """Return finished drafts as samples, by what the model itself says of each."""
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
    found = branches.samples(samples, particles=drawn)
    return replace(found, forwards=found.forwards + cost.forwards)


def _score_drafts(branches: Branches, readings: Sequence[_DraftScoring], cost: _Cost) -> None:
    """Let the model read finished drafts, in one pass where they are short and it packs sequences."""
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
