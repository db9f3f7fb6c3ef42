"""A drafter against a known output: what a loop would do with its trees, counted pass by pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import thread_time

import numpy as np

from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask
from structgen.decode.step.context import Context
from structgen.decode.step.sampler import Greedy
from structgen.engine import Constraint, Matcher
from structgen.models import HashModel

_STOP = -1


@dataclass(frozen=True)
class Replay:
    """What a drafter did for an output.

    Attributes:
        tokens: the number of tokens of the output, and one for a stop that the model has to choose.
        passes: the number of forward passes of a loop that runs each tree.
        seconds: the processor time of the drafter for each pass.
        trees: the trees that were run.
        spans: the tokens of the output that each pass gave, with those forced before the next pass.
        reached: for each node whose parent was accepted, its confidence and whether it was accepted.
    """

    tokens: int
    passes: int
    seconds: tuple[float, ...]
    trees: tuple[DraftTree, ...]
    reached: tuple[tuple[float, bool], ...]
    spans: tuple[tuple[int, int], ...]


def replay(
    drafter: Drafter | None,
    constraint: Constraint,
    prompt: Sequence[int],
    output: Sequence[int],
    *,
    budget: int = 24,
    seed: int = 0,
) -> Replay:
    """Let a drafter draft at every place of ``output`` where a pass is needed."""
    run = _Run(constraint, prompt, output)
    task = DraftTask(constraint, Greedy(), len(prompt), np.random.default_rng(seed))
    drafting = None if drafter is None else drafter.start(run.context, task)
    seconds: list[float] = []
    trees: list[DraftTree] = []
    while run.needs_pass():
        tree = DraftTree()
        if drafting is not None:
            began = thread_time()
            proposed = drafting.propose(run.context, run.state(), budget)
            seconds.append(thread_time() - began)
            assert len(proposed) <= budget
            tree = _looked_at(proposed, run.matcher, budget)
        trees.append(tree)
        run.follow(tree)
    if drafting is not None:
        drafting.close()
    run.context.close()
    return Replay(len(output) + 1, len(trees), tuple(seconds), tuple(trees), tuple(run.reached), tuple(run.spans))


class _Run:
    """An output that is written as a loop writes it."""

    def __init__(self, constraint: Constraint, prompt: Sequence[int], output: Sequence[int]) -> None:
        self.context = Context(HashModel(constraint.vocabulary), prompt)
        self.matcher = constraint.matcher()
        self.left = [*output, _STOP]
        self.spans: list[tuple[int, int]] = []
        self.reached: list[tuple[float, bool]] = []
        self._length = len(self.left)
        self._vocabulary = constraint.vocabulary
        self._mask = np.zeros((1, (constraint.vocabulary.size + 31) // 32), dtype=np.int32)

    def state(self) -> DraftState:
        self.matcher.fill_mask(self._mask)
        return DraftState(self.matcher, self._mask[0].copy(), 1 << 20, 0)

    def needs_pass(self) -> bool:
        """Take what is forced; return whether a choice is left."""
        while forced := self.matcher.forced_tokens():
            assert forced == self.left[: len(forced)]
            for _ in forced:
                self._take()
        return bool(self.left) and (self.left[0] != _STOP or self._goes_on())

    def follow(self, tree: DraftTree) -> None:
        """Take tokens as long as the distribution for the next one is known."""
        start = self._length - len(self.left)
        node: int | None = ROOT
        while node is not None and self.left:
            token = self.left[0]
            following = tree.child(node, token)
            self.reached += [(tree.confidences[each], each == following) for each in tree.children(node)]
            node = following
            self._take()
        self.spans.append((start, self._length - len(self.left)))

    def _take(self) -> None:
        token = self.left.pop(0)
        if token != _STOP:
            assert self.matcher.accept(token)
            self.context.append([token])

    def _goes_on(self) -> bool:
        self.matcher.fill_mask(self._mask)
        words = self._mask[0].view(np.uint32).copy()
        for eos in self._vocabulary.eos:
            words[eos // 32] &= ~np.uint32(1 << eos % 32)
        return bool(words.any())


def _looked_at(proposed: DraftTree, matcher: Matcher, budget: int) -> DraftTree:
    """The tree without what the grammar refuses and with what it forces, cut to the nodes of largest reach."""
    whole = DraftTree()
    nodes: dict[int, int] = {ROOT: ROOT}
    for node, (token, parent) in enumerate(zip(proposed.tokens, proposed.parents, strict=True)):
        if parent not in nodes:
            continue
        before = whole.prefix(nodes[parent]) if nodes[parent] != ROOT else []
        if matcher.validate([*before, token]) <= len(before):
            continue
        nodes[node] = whole.add(nodes[parent], token, proposed.confidences[node])
        probe = matcher.fork()
        assert all(probe.accept(each) for each in [*before, token])
        whole.extend(nodes[node], probe.forced_tokens(), 1.0)
    reach = whole.reach()
    best = sorted(range(len(whole)), key=lambda node: -reach[node])[:budget]
    return whole.kept(best)


def draft_for(drafter: Drafter, constraint: Constraint, prompt: Sequence[int]) -> tuple[Drafting, Context, DraftState]:
    """What a drafter makes of a prompt, with a context to continue in and the state at the start of the output."""
    run = _Run(constraint, prompt, ())
    task = DraftTask(constraint, Greedy(), len(prompt), np.random.default_rng(0))
    return drafter.start(run.context, task), run.context, run.state()
