"""``Branches``: sequences that are written together and share forward passes.

Particles with the same tokens are one branch, with one cache, one mask and one next-token distribution.  A branch that
continues with several tokens splits: one child takes over its cache, the others fork it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Self, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.potentials import Hypothesis, PotentialEvaluator
from structgen.decode.sampling.branch import Branch, MaskCache, StepPath
from structgen.decode.sampling.joint_draft import BranchDrafts
from structgen.decode.sampling.protocol import Problem, Round, Sample, Samples
from structgen.decode.sampling.shared_pass import BranchContexts, Passes
from structgen.decode.step.context import Context
from structgen.decode.step.distribution import BARE_END, Distribution, log_mass
from structgen.decode.step.result import BudgetWatch, FinishReason, Result, Seconds, Stats, Step
from structgen.errors import GenerationError, LimitExceeded
from structgen.travel import Live

if TYPE_CHECKING:
    from structgen.decode.sampling.protocol import PrefixExpectation
    from structgen.decode.speculative.speculation import Speculation
    from structgen.decode.step.result import DraftStats
    from structgen.models.protocol import Logits

__all__ = ["Branches"]


@final
class Branches(Live):
    """The branches of one run, and its statistics.

    Use it in a ``with`` statement, or close it, to free the caches.

    Attributes:
        problem: the target.
        evaluator: evaluates the potentials of the problem.
        masks: the masks of its constraint.
        expectation: a twist, by which ``distribution`` proposes tokens; None for none.
        sampled: number of tokens that were added to branches, EOS included.
        limited: the limits that ended branches, by their tokens: nothing follows these, as if it were forbidden.

    Args:
        problem: the target.
        context: a context that ends with the prompt and may have it cached; it is forked.
        speculation: how to draft tokens of branches that grow together; None drafts nothing.
    """

    def __init__(
        self, problem: Problem, context: Context | None = None, *, speculation: Speculation | None = None
    ) -> None:
        self.problem = problem
        self.evaluator = PotentialEvaluator(problem.potentials)
        self.masks = MaskCache(problem.constraint.vocabulary)
        self.expectation: PrefixExpectation | None = None
        self._vocabulary = problem.constraint.vocabulary
        self._eos = np.array(sorted(self._vocabulary.eos), dtype=np.intp)
        self._stops = frozenset(self._vocabulary.eos)
        self._passes = Passes(problem.model, self._vocabulary.size)
        self._drafts: BranchDrafts | None = None
        if speculation is not None:
            self._drafts = BranchDrafts(speculation, problem, self.masks, is_packed=self._passes.is_packed)
        self._contexts = BranchContexts(problem.model, problem.prompt, self._passes, context)
        self.sampled = 0
        self.limited: dict[tuple[int, ...], LimitExceeded] = {}
        self._began = perf_counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Free all caches; results stay."""
        if self._drafts is not None:
            self._drafts.close()
        self._contexts.close()

    @property
    def forwards(self) -> int:
        """Number of forward passes so far; a pass that several branches share counts once."""
        return self._passes.count

    @property
    def drafts(self) -> DraftStats | None:
        """Statistics of the draft tokens so far; None without drafts."""
        return None if self._drafts is None else self._drafts.stats()

    @property
    def queries(self) -> int:
        """Number of queries so far: to potentials, and to the matcher about single tokens."""
        return self.masks.queries + sum(self.evaluator.evaluations.values())

    @property
    def culprits(self) -> str:
        """Which potentials forbade how much, for messages."""
        return self.evaluator.culprits()

    def samples(  # noqa: PLR0913  fields of ``Samples``, each a keyword with a default
        self,
        samples: Iterable[Sample],
        *,
        particles: int,
        lossless: bool = False,
        log_evidence: float | None = None,
        standard_error: float | None = None,
        remark: str = "",
        history: Sequence[Round] = (),
    ) -> Samples:
        """The samples of a run, with its statistics so far; ``remark`` is a text to put before ``verification``.

        The other arguments are those of ``Samples``.

        Raises:
            LimitExceeded: there are no samples, and limits ended branches.
        """
        found = tuple(samples)
        if self.limited:
            met = next(iter(self.limited.values()))
            if not found:
                raise met
            ends = f"{len(self.limited)} prefixes count as forbidden: more than {met.limit}={met.maximum} was needed"
            remark = f"{remark}; {ends}" if remark else ends
        return Samples(
            samples=found,
            lossless=lossless and not self.limited,
            log_evidence=log_evidence,
            standard_error=standard_error,
            particles=particles,
            forwards=self.forwards,
            tokens=self.sampled,
            queries=self.queries,
            verification=f"{remark}; {self.culprits}" if remark else self.culprits,
            masks=self.masks.filled,
            history=tuple(history),
            drafts=self.drafts,
        )

    @property
    def has_eos(self) -> bool:
        """Whether the vocabulary has an EOS."""
        return bool(self._stops)

    @property
    def is_packed(self) -> bool:
        """Whether the model runs several sequences in one forward pass."""
        return self._passes.is_packed

    def is_stop(self, token: int) -> bool:
        """Whether ``token``, one of a distribution, ends the output."""
        return token in self._stops or token == BARE_END

    def root(self) -> Branch:
        """Return a new branch, with the tokens that the output begins with.

        Raises:
            GenerationError: the potentials forbid every output.
        """
        problem = self.problem
        hypothesis = problem.prefix()
        score = self.evaluator.prefix(hypothesis)
        if score == -np.inf:
            raise GenerationError(
                "potentials",
                "they forbid every output",
                evidence=f"prefix gives -inf for {hypothesis!r}; {self.evaluator.culprits()}",
                remedy="relax the potential that forbids it",
            )
        matcher = problem.constraint.matcher()
        for token in problem.begun:
            if not matcher.accept(token):
                raise GenerationError("matcher", f"it refuses token {token}, which the output already has")
        context, logits = self._contexts.prompted() if self._drafts is None else (self._contexts.unprompted(), None)
        return Branch(hypothesis, matcher, context, 0.0, score, logits=logits)

    def remaining(self, branch: Branch) -> int:
        """How many tokens are left of the budget."""
        return self.problem.max_tokens - len(branch.hypothesis.tokens)

    def logits(self, branches: Sequence[Branch], counts: Sequence[int] = ()) -> list[Logits]:
        """Run the pending tokens of branches that are not finished; return the logits after each, ``[V]``.

        Args:
            branches: all branches that grow together.
            counts: for each, how many next tokens will be sampled; then the passes look ahead at draft tokens, and
                branches whose logits were computed that way are not run again.  Empty for no drafts.
        """
        pending = [branch for branch in branches if branch.logits is None]
        if any(branch.context is None for branch in pending):
            raise ValueError("a finished branch has no distribution")
        if self._drafts is not None and counts:
            self._drafts.run(branches, [self.remaining(branch) for branch in branches], counts, self._passes)
        else:
            rows = self._passes.run([branch.context for branch in pending if branch.context is not None])
            for branch, row in zip(pending, rows, strict=True):
                branch.logits = row
        return [branch.logits for branch in branches if branch.logits is not None]

    def logits_at(self, branches: Sequence[Branch]) -> list[Logits]:
        """Run branches without a cache (``grown``), or the root; return the logits after each, ``[V]``."""
        skipped = len(self.problem.begun)
        pending = [branch for branch in branches if branch.logits is None]
        paths = [branch.hypothesis.tokens[skipped:] for branch in pending]
        rows = iter(self._passes.run(self._contexts.placed([path for path in paths if path])))
        computed = iter([next(rows) if path else self._contexts.prompt_logits() for path in paths])
        return [next(computed) if branch.logits is None else branch.logits for branch in branches]

    def allowed(self, branch: Branch) -> NDArray[np.intp]:
        """The tokens that the constraint, the budget and the masks of potentials allow next, ascending.

        With one EOS id at most.  Empty at an end without EOS, and where a limit ends the branch.
        """
        if branch.hypothesis.tokens in self.limited:
            return self._eos[:0]
        remaining = self.remaining(branch)
        has_forbidding = self.evaluator.any and remaining > 0
        forbidding = self.evaluator.allowed(branch.hypothesis) if has_forbidding else None
        try:
            ids = self.masks.allowed(branch.matcher, remaining, forbidding)
            if forbidding is not None and not len(ids):
                row = self.masks.mask_for_drafter(branch.matcher, remaining)
                self.evaluator.count_emptied(branch.hypothesis, row)
            return ids
        except LimitExceeded as error:
            self._end(branch.hypothesis, error)
            return self._eos[:0]

    def distribution(
        self, branch: Branch, logits: Logits, ids: NDArray[np.intp] | None = None, *, tilted: bool = True
    ) -> Distribution:
        """The next-token distribution after a branch.

        Args:
            branch: not finished.
            logits: the logits after it, ``[V]``.
            ids: the tokens, one EOS id at most; None is ``allowed(branch)``.
            tilted: whether to compute the proposal: the tilt by ``logw_next`` of potentials and by ``expectation``.
                Searches use ``log_p`` alone.

        Raises:
            GenerationError: the logits contain NaN or infinity, or a potential fails.

        Complexity: O(V).
        """
        ids = self.allowed(branch) if ids is None else ids
        if not len(ids) and self.ends_here(branch):
            return Distribution.bare_end()
        total = log_mass(logits)
        log_p = np.subtract(logits[ids], total, dtype=np.float64)
        weights = self.evaluator.logw_next(branch.hypothesis) if tilted and self.evaluator.any else None
        tilt = None if weights is None else weights[ids]
        stop = self._stop_among(ids)
        if stop is not None and len(self._eos) > 1:
            eos = np.subtract(logits[self._eos], total, dtype=np.float64)
            log_p[stop] = min(log_mass(eos), 0.0)  # rounding
            if weights is not None and tilt is not None and log_p[stop] > -np.inf:
                tilt[stop] = log_mass(eos + weights[self._eos]) - log_p[stop]
        if tilted and self.expectation is not None:
            expected = self.expectation.tilts(branch, ids, log_p)
            tilt = expected if tilt is None else tilt + expected
        return Distribution.of(ids.astype(np.int32), log_p, stop=None if stop is None else int(ids[stop]), tilt=tilt)

    def ends_here(self, branch: Branch) -> bool:
        """Whether the output may end here without EOS: the vocabulary has none."""
        return not self._stops and branch.matcher.is_accepting and branch.hypothesis.tokens not in self.limited

    def admits(self, branch: Branch, token: int) -> bool:
        """Whether the potentials allow ``token``, which the constraint allows."""
        if not self.evaluator.any:
            return True
        if self.is_stop(token):
            return self.evaluator.complete(branch.hypothesis) > -np.inf
        hypothesis = branch.hypothesis.extended(token)
        if self.evaluator.prefix(hypothesis) > -np.inf:
            return True
        if self.evaluator.tests_more:
            matcher = branch.matcher.fork()
            if matcher.accept(token) and matcher.is_accepting:
                self.evaluator.test_forbidden(hypothesis)
        return False

    def knows_mask(self, branch: Branch) -> bool:
        """Whether ``allowed`` needs no new mask."""
        try:
            return self.masks.knows(branch.matcher, self.remaining(branch))
        except LimitExceeded as error:
            self._end(branch.hypothesis, error)
            return True

    def accepts(self, branch: Branch, token: int) -> bool:
        """Whether the constraint and the budget allow ``token``: the answer of ``allowed``, without a mask."""
        try:
            return self.masks.accepts(branch.matcher, self.remaining(branch), token)
        except LimitExceeded as error:
            self._end(branch.hypothesis.extended(token), error)
            return False

    def take(self, branch: Branch, distribution: Distribution, indices: Sequence[int]) -> list[Branch]:
        """Continue with the tokens at distinct indices into the distribution; ``branch`` must not be used again.

        Raises:
            GenerationError: as ``split``.
        """
        if distribution.ends and indices:
            return [self.finish(branch)]
        return self.split(
            branch, [distribution.step(index) for index in indices], [float(distribution.log_p[at]) for at in indices]
        )

    def split(self, branch: Branch, steps: Sequence[Step], log_ps: Sequence[float]) -> list[Branch]:
        """Continue with distinct next tokens, or EOS, of these log-probabilities; ``branch`` must not be used again.

        Raises:
            GenerationError: the matcher refuses a token that its own mask allows.
        """
        if branch.context is None:
            raise ValueError("a finished branch cannot go on")
        context = branch.context
        contexts = self._shared_contexts(branch, sum(step.token is not None for step in steps))
        if self._drafts is not None:
            tokens = [(step.token, log_p) for step, log_p in zip(steps, log_ps, strict=True) if step.token is not None]
            self._drafts.split(context, tokens, contexts[::-1])
        self.sampled += len(steps)
        return [
            self._finished(branch, step, log_p)
            if step.token is None
            else self._grown(branch, step, log_p, contexts.pop())
            for step, log_p in zip(steps, log_ps, strict=True)
        ]

    def grown(self, branch: Branch, distribution: Distribution, token: int, log_p: float) -> Branch:
        """Continue without a cache, for searches that return to many prefixes; ``branch`` stays as it is.

        ``token`` is one of ``distribution``, which may be ``blank``, and has this log-probability under the model.
        """
        if distribution.ends:
            return self.finish(branch)
        self.sampled += 1
        step = distribution.step_of(token, log_p)
        return self._finished(branch, step, log_p) if step.token is None else self._grown(branch, step, log_p, None)

    def finish(self, branch: Branch) -> Branch:
        """End a branch without EOS; it must not be used again."""
        self.drop(branch)
        score = self.evaluator.complete(branch.hypothesis)
        return Branch(branch.hypothesis, branch.matcher, None, branch.log_p, score, "stop", branch.path)

    def drop(self, branch: Branch) -> None:
        """Drop a branch, and free its cache."""
        if branch.context is not None:
            if self._drafts is not None:
                self._drafts.drop(branch.context)
            self._contexts.discard(branch.context)
            branch.context = None

    def copy(self, branch: Branch) -> Branch:
        """Return an independent copy of a branch."""
        context = None if branch.context is None else self._contexts.fork(branch.context)
        return replace(branch, matcher=branch.matcher.fork(), context=context)

    def result(self, branch: Branch) -> Result:
        """The output of a finished branch, with the statistics of the whole run so far."""
        if branch.finish_reason is None:
            raise ValueError("the branch is not finished")
        steps = tuple(branch.steps())
        tokens = branch.hypothesis.tokens
        stats = Stats.of_steps(
            steps,
            self.drafts,
            prompt_tokens=len(self.problem.prompt),
            tokens=len(tokens),
            forwards=self._passes.count,
            seconds=Seconds(self.masks.time_s, self._passes.time_s, perf_counter() - self._began),
        )
        return Result(
            data=branch.hypothesis.data,
            tokens=tokens,
            steps=steps,
            stats=stats,
            grammar=self.problem.constraint.grammar,
            vocabulary=self._vocabulary,
            cut_at=BudgetWatch(self.problem.constraint, self.problem.max_tokens).cut_at(tokens, is_complete=True),
        )

    def _end(self, hypothesis: Hypothesis, error: LimitExceeded) -> None:
        """Note that a limit ends the branches that begin so."""
        self.limited[hypothesis.tokens] = error.ended(hypothesis.data, hypothesis.tokens)

    def _stop_among(self, ids: NDArray[np.intp]) -> int | None:
        """The index of EOS in ``ids``; None if it is not among them."""
        for at, token in zip(np.searchsorted(ids, self._eos).tolist(), self._eos.tolist(), strict=True):
            if at < len(ids) and ids[at] == token:
                return int(at)
        return None

    def _shared_contexts(self, branch: Branch, count: int) -> list[Context]:
        """Return ``count`` contexts with the tokens of ``branch``, its own first."""
        if branch.context is None or count == 0:
            self.drop(branch)
            return []
        own, branch.context = branch.context, None
        return [own, *(self._contexts.fork(own) for _ in range(count - 1))]

    def _grown(self, branch: Branch, step: Step, log_p: float, context: Context | None) -> Branch:
        if step.token is None:
            raise ValueError("EOS adds no token")
        matcher = branch.matcher.fork()
        hypothesis = branch.hypothesis.extended(step.token)
        try:
            if not matcher.accept(step.token):
                raise GenerationError("matcher", f"it refuses token {step.token}, which its own mask allows")
            score = self.evaluator.prefix(hypothesis) if self.evaluator.any else 0.0
        except LimitExceeded as error:
            self._end(hypothesis, error)
            score = -np.inf
        if context is not None:
            context.append([step.token])
        return Branch(hypothesis, matcher, context, branch.log_p + log_p, score, path=StepPath(branch.path, step))

    def _finished(self, branch: Branch, step: Step, log_p: float) -> Branch:
        score = self.evaluator.complete(branch.hypothesis) if self.evaluator.any else 0.0
        is_cut = self.remaining(branch) <= 0 and self.masks.can_continue(branch.matcher)
        reason: FinishReason = "length" if is_cut else "stop"
        path = StepPath(branch.path, step)
        return Branch(branch.hypothesis, branch.matcher, None, branch.log_p + log_p, score, reason, path)
