"""Reasoning before an answer: a thought with a budget (``Thinking``), or the shortest of several (``FirstFinish``).

Sources: W. Lin et al., "TrimR: Verifier-based Training-Free Thinking Compression for Efficient Test-Time Scaling"
(2025, arXiv 2505.17155), where a small model evaluates the thoughts; here any function may. A. Agarwal et al., "First
Finish Search: Efficient Test-Time Scaling in Large Language Models" (2025, arXiv 2505.18149).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, final

from structgen.decode.step.sampler import Multinomial, Sampler
from structgen.methods.strategies.branch_ops import (
    Boundary,
    Rollout,
    at_least,
    look,
    next_token,
    outcome,
    roll,
    scored,
    take,
    total,
)

if TYPE_CHECKING:
    import numpy as np

    from structgen.decode.potentials import Hypothesis
    from structgen.decode.sampling.branch import Branch
    from structgen.decode.sampling.branch_set import Branches
    from structgen.decode.sampling.protocol import Samples
    from structgen.decode.step.distribution import Distribution

__all__ = ["FirstFinish", "Thinking"]


@final
@dataclass(frozen=True, slots=True)
class Thinking:
    """Samples a thought and then an answer, and ends the thought in time.

    For grammars of the form: a thought, a text that ends it, an answer. The thought is ended when it has ``most``
    tokens, when at most ``reserved`` tokens would be left after it, or when ``redundant`` returns true. The text that
    ends it is then written at once if the grammar allows it, and otherwise after the shortest continuation that the
    grammar allows. The output is complete within the budget in any case, and a thought that ends by itself is
    unchanged.

    Attributes:
        most: the maximal number of tokens of the thought; None for the budget of the output.
        end: the end of the thought: its text, or the text of a special token.
        reserved: tokens reserved for the answer.
        redundant: whether the thought so far, a text, needs no continuation; called at each ``boundary``.
        boundary: where ``redundant`` is called.
        sampler: samples the tokens.

    Raises:
        ValueError: a number is out of range, or ``end`` is empty.
    """

    most: int | None = None
    end: str = "</think>"
    reserved: int = 0
    redundant: Callable[[str], bool] | None = None
    boundary: Boundary = field(default_factory=lambda: Boundary(marks=".!?\n", forced=False))
    sampler: Sampler = field(default_factory=Multinomial)

    lossless: ClassVar[bool] = False
    takes_best: ClassVar[bool] = True
    target: ClassVar[str] = "locally constrained decoding of a thought, which is cut short, and of an answer after it"

    def __post_init__(self) -> None:
        at_least("Thinking", 0, most=0 if self.most is None else self.most, reserved=self.reserved)
        if not self.end:
            raise ValueError("Thinking: end must be the text that ends a thought; found ''")

    def run(self, branches: Branches, generator: np.random.Generator) -> Samples:
        """See ``SequenceSampler``."""
        thought = _Thought(self, branches)
        branch: Branch | None = branches.root()
        while branch is not None and branch.finish_reason is None:
            (distribution,) = look(branches, [branch])
            index = thought.forced(branch, distribution)
            if index is None:
                branch = next_token(branches, branch, distribution, self.sampler, generator)
            else:
                (branch,) = take(branches, branch, distribution, [index]) or (None,)
        return outcome(branches, [] if branch is None else [(branch, 0.0)])


@final
class _Thought:
    """The state of the thought of one output."""

    def __init__(self, sampler: Thinking, branches: Branches) -> None:
        vocabulary = branches.problem.constraint.vocabulary
        self._sampler = sampler
        self._branches = branches
        self._vocabulary = vocabulary
        self._special = next((token for token, text in vocabulary.special.items() if text == sampler.end), None)
        self._end = sampler.end.encode()
        self._ending = [self._special] if self._special is not None else list(vocabulary.tokenize(sampler.end))
        self._planned: list[int] = []  # the rest of the text that ends the thought
        self._since = 0  # tokens since the start of the thought or the last call of ``redundant``
        self._is_cut = False
        self._is_over = False

    def forced(self, branch: Branch, distribution: Distribution) -> int | None:
        """The index of the next token of the end of the thought; None if the model continues freely."""
        if self._is_over or self._has_ended(branch.hypothesis):
            self._is_over = True
            return None
        self._is_cut = self._is_cut or self._is_enough(branch)
        self._since += 1
        if not self._is_cut:
            return None
        if not self._planned:
            self._planned = self._plan(branch, distribution)
        return self._index(branch, distribution, self._planned.pop(0)) if self._planned else None

    def _has_ended(self, hypothesis: Hypothesis) -> bool:
        if self._special is not None:
            return self._special in hypothesis.tokens[-1:]
        longest = len(self._vocabulary.decode(hypothesis.tokens[-1:])) + len(self._end)
        return self._end in hypothesis.data[-longest:]

    def _is_enough(self, branch: Branch) -> bool:
        settings, written = self._sampler, len(branch.hypothesis.tokens)
        if settings.most is not None and written >= settings.most:
            return True
        if self._branches.remaining(branch) - len(self._ending) <= settings.reserved:
            return True
        if settings.redundant is None or not written or not settings.boundary.ends(branch, self._since):
            return False
        self._since = 0
        redundant = settings.redundant
        return bool(scored(lambda hypothesis: redundant(hypothesis.text), branch.hypothesis, what="redundant"))

    def _plan(self, branch: Branch, distribution: Distribution) -> list[int]:
        """The tokens to write: the end of the thought if allowed here, else one token of the shortest way to it."""
        for begun in range(len(self._end) - 1, -1, -1):  # a part of it may be written already
            if begun and (self._special is not None or not branch.hypothesis.data.endswith(self._end[:begun])):
                continue
            ending = self._rest(begun)
            if self._fits(branch, ending):
                return ending
        return self._shortest(branch, distribution)

    def _shortest(self, branch: Branch, distribution: Distribution) -> list[int]:
        """The longest token that begins the shortest completion of the output; none if the budget allows none."""
        symbols = branch.matcher.shortest_completion()  # bytes, and special tokens as -1 - id
        plain = next((at for at, symbol in enumerate(symbols) if symbol < 0), len(symbols))
        if not plain:
            return [-1 - symbols[0]] if symbols else []
        text = bytes(symbols[:plain])
        tokens = self._vocabulary.tokens
        fitting = [token for token in distribution.ids.tolist() if tokens[token] and text.startswith(tokens[token])]
        return [max(fitting, key=lambda token: len(tokens[token]))] if fitting else []

    def _rest(self, begun: int) -> list[int]:
        return self._ending if not begun else list(self._vocabulary.tokenize(self._end[begun:]))

    def _fits(self, branch: Branch, ending: list[int]) -> bool:
        """Whether the tokens are allowed here and leave the output completable within the budget."""
        matcher = branch.matcher.fork()
        if not all(matcher.accept(token) for token in ending):
            return False
        left = self._branches.remaining(branch) - len(ending)
        return left >= 0 and matcher.completes_within(left)

    def _index(self, branch: Branch, distribution: Distribution, token: int) -> int | None:
        at = distribution.index(token)
        if at == len(distribution) or distribution.ids[at] != token or not self._branches.admits(branch, token):
            self._planned = []
            return None
        return at


@final
@dataclass(frozen=True, slots=True)
class FirstFinish:
    """Samples several outputs in parallel and returns the first that is complete; the others are dropped.

    For text that reasons, where the shorter of several outputs are better. If the grammar fixes the structure, a short
    output is not a better one: use ``until`` to mark the end of the free part.

    Attributes:
        samples: the number of outputs.
        until: whether a prefix is long enough to win; only the winner is then completed. None waits for a complete
            output.
        sampler: samples the tokens.

    Of several that finish with the same token the most probable wins, then the first by tokens.

    Raises:
        ValueError: ``samples`` is less than 1.
    """

    samples: int = 4
    until: Callable[[Hypothesis], bool] | None = None
    sampler: Sampler = field(default_factory=Multinomial)

    lossless: ClassVar[bool] = False
    takes_best: ClassVar[bool] = True
    target: ClassVar[str] = "the shortest of several outputs, each sampled by locally constrained decoding"

    def __post_init__(self) -> None:
        at_least("FirstFinish", 1, samples=self.samples)

    def run(self, branches: Branches, generator: np.random.Generator) -> Samples:
        """See ``SequenceSampler``."""
        winner = self._winner(branches, generator)
        start = [] if winner is None else [Rollout.of(winner)]
        finished = roll(branches, start, sampler=self.sampler, generator=generator, ended=lambda _: False)
        return outcome(branches, [(each.branch, 0.0) for each in finished], particles=self.samples)

    def _winner(self, branches: Branches, generator: np.random.Generator) -> Branch | None:
        live = [Rollout.of(branches.root(), self.samples)]
        arrived: list[Rollout] = []
        while live and not arrived:
            grown: list[Rollout] = []
            for rollout, distribution in zip(live, look(branches, [each.branch for each in live]), strict=True):
                grown += rollout.grown(branches, distribution, self.sampler, generator)
            arrived = [rollout for rollout in grown if self._has_arrived(rollout)]
            live = grown
        arrived.sort(key=lambda each: (-total(each.branch), each.branch.hypothesis.tokens))
        winner = arrived[0] if arrived else None
        for rollout in live:
            if rollout is not winner:
                branches.drop(rollout.branch)
        return None if winner is None else winner.branch

    def _has_arrived(self, rollout: Rollout) -> bool:
        if rollout.is_finished:
            return True
        return self.until is not None and bool(scored(self.until, rollout.branch.hypothesis, what="until"))
