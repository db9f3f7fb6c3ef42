"""More work where the model is uncertain: several trials (``Cautious``), or a look-ahead of some tokens (``AdaDec``).

Sources: Y. Wang et al., "Cautious Next Token Prediction" (Findings of ACL 2025, arXiv 2507.03038), there up to
punctuation and without a grammar. K. He et al., "Towards Better Code Generation: Adaptive Decoding with Uncertainty
Guidance" (2025, arXiv 2506.08980), there without a grammar.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.sampling.branch import Branch
from structgen.decode.sampling.branch_set import Branches
from structgen.decode.sampling.protocol import Problem
from structgen.decode.step.context import check_start, constraint_of
from structgen.decode.step.sampler import Greedy, Multinomial, Sampler
from structgen.methods.strategies.branch_ops import (
    Boundary,
    Rollout,
    at_least,
    best,
    chosen,
    look,
    next_token,
    outcome,
    roll,
    take,
    total,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.decode.sampling.protocol import Samples
    from structgen.engine import Constraint
    from structgen.grammar.limits import Limits
    from structgen.grammar.nodes import Grammar
    from structgen.models.protocol import LanguageModel, Prompt

__all__ = ["AdaDec", "Cautious", "Trace", "learn_threshold", "trace"]


@final
@dataclass(frozen=True, slots=True)
class Cautious:
    """Samples token by token; where the entropy is high, runs several trials up to a boundary and keeps the best.

    The entropy is that of the allowed tokens, so structure without a choice is never uncertain. Trials share the cache
    of their prefix, and equal trials are one. The best trial has the lowest perplexity under the model itself, without
    the mask: a mask that leaves few tokens makes none of them more probable.

    Attributes:
        threshold: entropy, in nats, up to which one token is sampled.
        full: entropy from which on there are ``trials``; in between the number grows linearly.
        trials: the maximal number of trials.
        boundary: where a trial ends.
        sampler: samples the tokens.

    Raises:
        ValueError: a number is out of range.
    """

    threshold: float = 0.5
    full: float = 2.0
    trials: int = 8
    boundary: Boundary = field(default_factory=Boundary)
    sampler: Sampler = field(default_factory=Multinomial)

    lossless: ClassVar[bool] = False
    takes_best: ClassVar[bool] = True
    target: ClassVar[str] = "no closed-form distribution: where uncertain, the most probable of a few trials"

    def __post_init__(self) -> None:
        at_least("Cautious", 0.0, threshold=self.threshold)
        at_least("Cautious", float(self.threshold), full=self.full)
        at_least("Cautious", 1, trials=self.trials)

    def trials_at(self, entropy: float) -> int:
        """Return the number of trials at an entropy; it grows with the entropy."""
        if entropy <= self.threshold:
            return 1
        if entropy >= self.full:
            return self.trials
        return 1 + math.ceil((self.trials - 1) * (entropy - self.threshold) / (self.full - self.threshold))

    def run(self, branches: Branches, generator: np.random.Generator) -> Samples:
        """See ``SequenceSampler``."""
        branch: Branch | None = branches.root()
        while branch is not None and branch.finish_reason is None:
            (distribution,) = look(branches, [branch])
            count = self.trials_at(distribution.entropy)
            if count == 1:
                branch = next_token(branches, branch, distribution, self.sampler, generator)
            else:
                branch = self._best_trial(branches, branch, count, generator)
        return outcome(branches, [] if branch is None else [(branch, 0.0)])

    def _best_trial(
        self, branches: Branches, branch: Branch, count: int, generator: np.random.Generator
    ) -> Branch | None:
        trials = roll(
            branches,
            [Rollout.of(branch, count)],
            sampler=self.sampler,
            generator=generator,
            ended=lambda trial: self.boundary.ends(trial.branch, trial.steps),
        )
        best = chosen(branches, trials)
        return None if best is None else best.branch


_RIDGE: Final = 1e-3
_ROUNDS: Final = 100


@final
@dataclass(frozen=True, slots=True)
class AdaDec:
    """The most probable token; where the entropy is high, the token with the best continuation.

    There the output is continued greedily from each of the most probable allowed tokens, for a few tokens. The token
    whose continuation, itself included, has the highest mean log-probability under the model is taken. The continuation
    itself is dropped.

    Attributes:
        threshold: entropy after masking, in nats, above which to look ahead; see ``learn_threshold``.
        candidates: the number of compared tokens.
        lookahead: the number of tokens after each.

    Raises:
        ValueError: a number is out of range.
    """

    threshold: float
    candidates: int = 3
    lookahead: int = 5

    lossless: ClassVar[bool] = False
    takes_best: ClassVar[bool] = True
    target: ClassVar[str] = "no distribution: the most probable token at each step, by a look-ahead where uncertain"

    def __post_init__(self) -> None:
        at_least("AdaDec", 0.0, threshold=self.threshold)
        at_least("AdaDec", 1, candidates=self.candidates)
        at_least("AdaDec", 0, lookahead=self.lookahead)

    def run(self, branches: Branches, generator: np.random.Generator) -> Samples:
        """See ``SequenceSampler``; uses no random numbers."""
        branch: Branch | None = branches.root()
        while branch is not None and branch.finish_reason is None:
            (distribution,) = look(branches, [branch])
            count = self.candidates if distribution.entropy > self.threshold else 1
            children = take(branches, branch, distribution, best(branches, branch, distribution, count))
            branch = self._best(branches, branch, children, generator)
        return outcome(branches, [] if branch is None else [(branch, 0.0)])

    def _best(
        self, branches: Branches, before: Branch, children: Sequence[Branch], generator: np.random.Generator
    ) -> Branch | None:
        """The child with the best continuation; the others are dropped."""
        if len(children) <= 1:
            return children[0] if children else None
        branches.logits([child for child in children if child.finish_reason is None])
        start = total(before)
        ahead = [
            Rollout(
                child if child.finish_reason is not None else branches.copy(child), 1, start, steps=1, origin=origin
            )
            for origin, child in enumerate(children)
        ]
        if self.lookahead:
            length = 1 + self.lookahead
            ahead = roll(
                branches, ahead, sampler=Greedy(), generator=generator, ended=lambda each: each.steps >= length
            )
        means = {rollout.origin: rollout.mean for rollout in ahead}
        for rollout in ahead:
            branches.drop(rollout.branch)
        winner = max(range(len(children)), key=lambda origin: (means.get(origin, -math.inf), -origin))
        for origin, child in enumerate(children):
            if origin != winner:
                branches.drop(child)
        return children[winner]


class Trace(NamedTuple):
    """A step of a reference output.

    Attributes:
        entropy: of the distribution after masking, in nats.
        mistaken: whether the most probable token differs from that of the reference.
    """

    entropy: float
    mistaken: bool


def trace(  # noqa: PLR0913  as generate, with the reference
    model: LanguageModel,
    prompt: Prompt,
    grammar: Grammar | Constraint,
    reference: str,
    *,
    max_tokens: int = 256,
    chat: bool = True,
    limits: Limits | None = None,
) -> list[Trace]:
    """Return for each step of a good answer the model's uncertainty and whether it would be wrong.

    Args:
        model: the language model.
        prompt: as for ``generate``.
        grammar: likewise.
        reference: a string of ``grammar``; it is tokenized canonically.
        max_tokens: as for ``generate``; at least as many as the reference has.
        chat: as for ``generate``.
        limits: likewise.

    Returns:
        The steps at which there is a choice.

    Raises:
        ValueError: the reference is not a string of the grammar with at most ``max_tokens`` tokens.
        GenerationError, VocabularyError, GrammarError, LimitExceeded, ModelError: as ``generate``.
    """
    constraint = constraint_of(grammar, model, limits)
    ids = tuple(model.encode_prompt(prompt, chat=chat))
    tokens = list(constraint.vocabulary.tokenize(reference))
    matcher = constraint.matcher()
    if matcher.validate(tokens) < len(tokens):
        raise ValueError(f"trace: the grammar refuses the reference at token {matcher.validate(tokens)}: {reference!r}")
    if len(tokens) > max_tokens:
        raise ValueError(f"trace: the reference has {len(tokens)} tokens, max_tokens is {max_tokens}")
    check_start(model, len(ids), constraint, max_tokens)
    traces: list[Trace] = []
    with Branches(Problem(model, ids, constraint, (), max_tokens)) as branches:
        branch = branches.root()
        for token in [*tokens, None]:
            (distribution,) = look(branches, [branch])
            choice = distribution.stop if token is None else token
            if choice is None:
                if not branch.matcher.is_accepting:
                    raise ValueError(f"trace: the reference is an incomplete string of the grammar: {reference!r}")
                break
            index = distribution.index(choice)
            if len(distribution) > 1:
                traces.append(Trace(distribution.entropy, int(distribution.log_q.argmax()) != index))
            (branch,) = take(branches, branch, distribution, [index])
    return traces


def learn_threshold(traces: Iterable[Trace]) -> float:
    """Return the entropy from which on a mistake is more probable than not.

    By logistic regression of mistakes on entropy, with a penalty on the slope so weak that it matters only if the two
    kinds of steps are separable.

    Returns:
        0 if that entropy would be negative, infinity if no step is mistaken.

    Raises:
        ValueError: there are no steps, or mistakes do not become more frequent with entropy.

    Complexity: O(steps) for each of a few rounds.
    """
    steps = list(traces)
    if not steps:
        raise ValueError("learn_threshold: there are no steps; trace answers whose grammar allows a choice")
    entropy = np.array([step.entropy for step in steps])
    mistaken = np.array([step.mistaken for step in steps], dtype=np.float64)
    if not mistaken.any():
        return math.inf
    if mistaken.all():
        return 0.0
    scale = float(entropy.std())
    if not scale:
        raise ValueError("learn_threshold: all steps have the same entropy; trace more answers")
    offset, slope = _logistic((entropy - entropy.mean()) / scale, mistaken)
    if slope <= 0:
        raise ValueError(
            f"learn_threshold: mistakes do not become more frequent with entropy (slope {slope / scale:.3g} a nat, "
            f"{len(steps)} steps); trace more answers"
        )
    return max(0.0, float(entropy.mean() - offset / slope * scale))


def _logistic(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    """Offset and slope of the logistic regression of ``y`` on ``x``, by Newton's method with halved steps."""
    rows = np.stack([np.ones_like(x), x])
    penalty = np.array([0.0, _RIDGE * len(x)])

    def loss(at: NDArray[np.float64]) -> float:
        z = at @ rows
        return float((np.logaddexp(0, z) - y * z).sum() + (penalty * at**2).sum() / 2)

    at = np.zeros(2)
    for _ in range(_ROUNDS):
        p = 1 / (1 + np.exp(-(at @ rows)))
        gradient = rows @ (p - y) + penalty * at
        step = np.linalg.solve((rows * (p * (1 - p))) @ rows.T + np.diag(penalty), gradient)
        size = 1.0
        while loss(at - size * step) > loss(at) and size > 1e-9:
            size /= 2
        at = at - size * step
        if np.abs(size * step).max() < 1e-12:
            break
    return float(at[0]), float(at[1])
