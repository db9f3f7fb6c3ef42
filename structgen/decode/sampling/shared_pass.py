"""Shared by the branches of one run: forward passes, contexts, explored draft trees, and the depth of look-ahead."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from time import perf_counter
from typing import TYPE_CHECKING, Final, NamedTuple, final

from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.step.context import Context, shared_length
from structgen.decode.step.logits_row import check_width
from structgen.decode.step.result import SourceStats
from structgen.models.protocol import PackedModel

if TYPE_CHECKING:
    from structgen.decode.speculative.cost import CostModel
    from structgen.models.protocol import LanguageModel, Logits
    from structgen.models.protocol.tree import TokenTree

__all__ = [
    "BranchContexts",
    "ContextPool",
    "ExploredTrees",
    "Outlook",
    "Passes",
    "TreePosition",
    "joint_depth",
    "outlook",
]


@final
class ContextPool:
    """Contexts for prefixes of outputs, each with the prompt and the prefix that used it last.

    A prefix goes to the context that shares most tokens with it, so that mostly one token is left to run.  The pool
    grows to the largest number of prefixes that were placed together.
    """

    def __init__(self, prompt_tokens: int) -> None:
        self._prompt_tokens = prompt_tokens
        self._contexts: list[Context] = []
        self._held: list[tuple[int, ...]] = []

    def placed(self, paths: Sequence[tuple[int, ...]], start: Callable[[], Context]) -> list[Context]:
        """Return a context for each path, which ends with the path and has at least one token to run.

        ``start`` returns a new context with the prompt.

        Complexity: O(paths^2 length).
        """
        while len(self._contexts) < len(paths):
            self._contexts.append(start())
            self._held.append(())
        free = list(range(len(self._contexts)))
        placed = []
        for path in paths:
            index = max(free, key=lambda at: shared_length(self._held[at], path))
            free.remove(index)
            self._replace(index, path)
            placed.append(self._contexts[index])
        return placed

    def _replace(self, index: int, path: tuple[int, ...]) -> None:
        context = self._contexts[index]
        shared = shared_length(self._held[index], path)
        if shared < len(self._held[index]) or shared == len(path):
            context.truncate(self._prompt_tokens + shared)
        context.append(path[shared:])
        self._held[index] = path


_MAX_PASS_TOKENS: Final = 512
"""Tokens that are run in one forward pass."""


@final
class Passes:
    """The forward passes of one run of a model with a vocabulary of ``size`` tokens.

    Attributes:
        count: number of passes; one that several sequences share counts once.
        time_s: their time in seconds.
        is_packed: whether the model runs several sequences in one pass.
    """

    def __init__(self, model: LanguageModel, size: int) -> None:
        self.count = 0
        self.time_s = 0.0
        self._name = model.name
        self._size = size
        self._packed = model if isinstance(model, PackedModel) else None
        self.is_packed = self._packed is not None

    def run(self, contexts: Sequence[Context], trees: Sequence[TokenTree | None] = ()) -> list[Logits]:
        """Run the unseen tokens of each context; return the logits after each, ``[V]``.

        Args:
            contexts: the contexts.
            trees: draft tokens after each context, which the same pass runs if session and model can; empty for none.

        Raises:
            GenerationError: the model returns another number of logits than the vocabulary has tokens.
        """
        began = perf_counter()
        rows: list[Logits] = []
        for pack in _packs([*zip(contexts, trees or repeat(None), strict=False)]):
            if self._packed is not None and len(pack) > 1:
                parts = [(context, tree if context.branches else None) for context, tree in pack]
                logits = self._packed.extend_many([context.extension(tree) for context, tree in parts])
                rows += [context.take_logits(tree, each) for (context, tree), each in zip(parts, logits, strict=True)]
                self.count += 1
            else:
                before = sum(context.forwards for context, _ in pack)
                rows += [context.rows_on_host(1, tree)[0] for context, tree in pack]
                self.count += sum(context.forwards for context, _ in pack) - before
        self.time_s += perf_counter() - began
        for row in rows:
            check_width(row, self._size, self._name)
        return rows


def _packs(contexts: Sequence[tuple[Context, TokenTree | None]]) -> Iterator[list[tuple[Context, TokenTree | None]]]:
    """Group contexts into passes of a bounded number of tokens."""
    pack: list[tuple[Context, TokenTree | None]] = []
    tokens = 0
    for context, tree in contexts:
        count = len(context.unseen) + (0 if tree is None else len(tree.token_ids))
        tokens += count
        if pack and tokens > _MAX_PASS_TOKENS:
            yield pack
            pack, tokens = [], count
        pack.append((context, tree))
    if pack:
        yield pack


@final
@dataclass(eq=False, slots=True)
class _ExploredTree:
    """A draft tree that was run."""

    tree: DraftTree
    taken: set[int] = field(default_factory=set)  # nodes that some sequence took
    heights: list[int] = field(init=False)  # by node, the length of the longest path below it

    def __post_init__(self) -> None:
        self.heights = [0] * len(self.tree)
        for node in range(len(self.tree) - 1, -1, -1):
            parent = self.tree.parents[node]
            if parent != ROOT:
                self.heights[parent] = max(self.heights[parent], self.heights[node] + 1)

    def depth_taken(self) -> int:
        """The length of the longest path that some sequence took."""
        return max((len(self.tree.path(node)) for node in self.taken), default=0)


class TreePosition(NamedTuple):
    """The position of a sequence in the last draft tree that was run after it, or after its prefix."""

    explored: _ExploredTree
    node: int

    @property
    def tree(self) -> DraftTree:
        """The tree."""
        return self.explored.tree

    @property
    def height(self) -> int:
        """The length of the longest path below this position."""
        heights = self.explored.heights
        return 1 + max(heights, default=-1) if self.node == ROOT else heights[self.node]


@final
class ExploredTrees:
    """All draft trees of a run, and the position of each sequence in its tree.  Sequences that split share a tree."""

    def __init__(self) -> None:
        self._all: list[_ExploredTree] = []
        self._positions: dict[Context, TreePosition] = {}

    def add(self, context: Context, tree: DraftTree) -> None:
        """Add a tree that a pass ran after a sequence."""
        self._all.append(_ExploredTree(tree))
        self._positions[context] = TreePosition(self._all[-1], ROOT)

    def leave(self, context: Context) -> None:
        """Note that a sequence left its tree, or ended."""
        self._positions.pop(context, None)

    def height(self, context: Context) -> int:
        """The length of the longest path below the position of a sequence; 0 without a tree."""
        position = self._positions.get(context)
        return 0 if position is None else position.height

    def split(self, context: Context, tokens: Sequence[int], children: Sequence[Context]) -> TreePosition | None:
        """Note that each of ``children`` continues the sequence with its token of ``tokens``.

        The sequence itself may be one of ``children``.  Return the position of the sequence before.
        """
        position = self._positions.pop(context, None)
        if position is not None:
            for token, child in zip(tokens, children, strict=True):
                node = position.tree.child(position.node, token)
                if node is not None:
                    position.explored.taken.add(node)
                    self._positions[child] = TreePosition(position.explored, node)
        return position

    def sources(self) -> dict[str, SourceStats]:
        """Statistics by drafter; a token that several sequences took counts once."""
        drafted = Counter(source for each in self._all for source in each.tree.sources)
        taken = Counter(each.tree.sources[node] for each in self._all for node in each.taken)
        return {name: SourceStats(count, taken[name]) for name, count in sorted(drafted.items())}

    def lengths(self) -> dict[int, int]:
        """By length of the longest path that was taken, the number of trees."""
        return dict(sorted(Counter(each.depth_taken() for each in self._all).items()))


class Outlook(NamedTuple):
    """The expected gain of running a draft tree after one sequence; entry ``d`` is about depth ``d + 1``.

    Attributes:
        shares: estimated probability that the tree has the logits after this many further tokens.
        nodes: number of rows to run at this depth.
        particles: number of particles of the sequence; each takes tokens of its own.
    """

    shares: list[float]
    nodes: list[int]
    particles: int = 1


def outlook(tree: DraftTree, particles: int = 1) -> Outlook:
    """Return the outlook of running ``tree`` after a sequence of this many particles."""
    depths = tree.token_tree().depths()
    deepest = 1 + max(depths, default=-1)
    shares, nodes = [0.0] * deepest, [0] * deepest
    for depth, reach in zip(depths, tree.reach(), strict=True):
        shares[depth] += reach
        nodes[depth] += 1
    return Outlook([min(share, 1.0) for share in shares], nodes, particles)


def joint_depth(outlooks: Sequence[Outlook], cost: CostModel, *, pending: int, budget: int) -> int:
    """Return the depth of look-ahead with the largest expected saving of time, or 0.

    A round without a pass saves a pass over one row.  A taken row saves running that row later, in a pass that is
    needed anyway or in the one that is saved.

    Args:
        outlooks: of all sequences that grow together; without nodes for those that this pass does not run.
        cost: the cost of passes.
        pending: rows that the pass has without draft tokens.
        budget: maximum number of nodes of all sequences together.

    Complexity: O(sequences * depth).
    """
    best, best_depth = 0.0, 0
    gain, rows = 0.0, 0
    before = cost.relative(pending)
    for depth in range(max((len(each.shares) for each in outlooks), default=0)):
        level = [each for each in outlooks if depth < len(each.shares)]
        rows += sum(each.nodes[depth] for each in level)
        if len(level) < len(outlooks) or rows > budget:
            break
        price = cost.relative(pending + rows) - before
        taken = sum(each.shares[depth] for each in level if each.nodes[depth])
        saved = math.prod(each.shares[depth] ** each.particles for each in level)
        gain += saved + (max(taken - 1.0, 0.0) * price / rows if rows else 0.0)
        if gain - price > best:
            best, best_depth = gain - price, depth + 1
    return best_depth


@final
class BranchContexts:
    """The contexts of the branches of one run, forked from one of the prompt.

    A given ``context`` ends with the prompt and may have it cached; it is forked.
    """

    def __init__(
        self, model: LanguageModel, prompt: tuple[int, ...], passes: Passes, context: Context | None = None
    ) -> None:
        self._model = model
        self._prompt_tokens = prompt
        self._passes = passes
        self._open: set[Context] = set()
        self._base = None if context is None else context.fork()
        self._base_logits: Logits | None = None
        self._pool = ContextPool(len(prompt))

    def close(self) -> None:
        """Free all caches."""
        for context in self._open:
            context.close()
        self._open.clear()
        if self._base is not None:
            self._base.close()

    def unprompted(self) -> Context:
        """A context with the prompt; its last token is not run yet."""
        context = self.fork(self._prompt())
        context.prepare()
        return context

    def prompt_logits(self) -> Logits:
        """The logits after the prompt, which is run once."""
        if self._base_logits is None:
            base = self._prompt()
            base.prepare()
            (self._base_logits,) = self._passes.run([base])
        return self._base_logits

    def prompted(self) -> tuple[Context, Logits]:
        """A context with the prompt, all of it run, and the logits after it."""
        logits = self.prompt_logits()
        return self.fork(self._prompt()), logits

    def fork(self, context: Context) -> Context:
        """Return a fork of a context; ``close`` closes it too."""
        copy = context.fork()
        self._open.add(copy)
        return copy

    def discard(self, context: Context) -> None:
        """Close a context."""
        self._open.discard(context)
        context.close()

    def placed(self, paths: Sequence[tuple[int, ...]]) -> list[Context]:
        """See ``ContextPool.placed``."""
        return self._pool.placed(paths, lambda: self.prompted()[0])

    def _prompt(self) -> Context:
        if self._base is None:
            self._base = Context(self._model, self._prompt_tokens)
        return self._base
