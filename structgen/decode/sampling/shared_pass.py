"""What the branches of one run share: forward passes, contexts, explored draft trees, and how deep to look ahead."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from time import perf_counter
from typing import TYPE_CHECKING, Final, NamedTuple, final

from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.step.context import Context
from structgen.decode.step.result import SourceStats
from structgen.errors import GenerationError
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
    """Contexts that hold the prompt, and after it what each was used for last.

    A prefix goes to the context that has most of it already, so that mostly one token is left to run.  There are as
    many as prefixes were ever asked for together.

    Args:
        start: returns a new context with the prompt.
        prompt_tokens: how many tokens that has.
    """

    def __init__(self, start: Callable[[], Context], prompt_tokens: int) -> None:
        self._start = start
        self._prompt_tokens = prompt_tokens
        self._contexts: list[Context] = []
        self._held: list[tuple[int, ...]] = []

    def placed(self, paths: Sequence[tuple[int, ...]]) -> list[Context]:
        """Return a context for each of the paths, which holds it and has a token of it, or of the prompt, to run.

        Complexity: O(paths^2 length).
        """
        while len(self._contexts) < len(paths):
            self._contexts.append(self._start())
            self._held.append(())
        free = list(range(len(self._contexts)))
        placed = []
        for path in paths:
            index = max(free, key=lambda at: _shared_length(self._held[at], path))
            free.remove(index)
            self._replace(index, path)
            placed.append(self._contexts[index])
        return placed

    def _replace(self, index: int, path: tuple[int, ...]) -> None:
        context = self._contexts[index]
        shared = _shared_length(self._held[index], path)
        if shared < len(self._held[index]) or shared == len(path):
            context.truncate(self._prompt_tokens + shared)
        context.append(path[shared:])
        self._held[index] = path


def _shared_length(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    """How many tokens two paths begin with alike."""
    count = min(len(first), len(second))
    if first[:count] == second[:count]:
        return count
    return next(at for at in range(count) if first[at] != second[at])


_MAX_PASS_TOKENS: Final = 512
"""Tokens that are run in one forward pass."""


@final
class Passes:
    """The forward passes of one run.

    Attributes:
        count: how many there were; one that several sequences share counts once.
        time_s: seconds that they took.

    Args:
        model: what is run.
        size: of the vocabulary.
    """

    def __init__(self, model: LanguageModel, size: int) -> None:
        self.count = 0
        self.time_s = 0.0
        self._name = model.name
        self._size = size
        self._packed = model if isinstance(model, PackedModel) else None

    @property
    def is_packed(self) -> bool:
        """Whether the model runs several sequences in one pass."""
        return self._packed is not None

    def run(self, contexts: Sequence[Context], trees: Sequence[TokenTree | None] = ()) -> list[Logits]:
        """Run what the model has not seen yet of each context; ``[V]`` after each.

        Args:
            contexts: see above.
            trees: what may follow each of them, which is looked at in the same pass where its session and the model
                can; none for no context.

        Raises:
            GenerationError: the model's distributions are of another size than the vocabulary.
        """
        began = perf_counter()
        rows: list[Logits] = []
        for pack in _packs([*zip(contexts, trees or repeat(None), strict=False)]):
            if self._packed is not None and len(pack) > 1:
                looked = [(context, tree if context.branches else None) for context, tree in pack]
                told = self._packed.extend_many([context.extension(tree) for context, tree in looked])
                rows += [context.told(tree, each) for (context, tree), each in zip(looked, told, strict=True)]
                self.count += 1
            else:
                before = sum(context.forwards for context, _ in pack)
                rows += [context.distributions(1, tree)[0] for context, tree in pack]
                self.count += sum(context.forwards for context, _ in pack) - before
        self.time_s += perf_counter() - began
        for row in rows:
            if row.shape != (self._size,):
                raise GenerationError(
                    f"model {self._name!r}",
                    f"it returned {row.shape[-1]} logits",
                    evidence=f"its vocabulary has {self._size} tokens",
                    remedy="give the vocabulary the width of the model's head (size=...)",
                )
        return rows


def _packs(
    contexts: Sequence[tuple[Context, TokenTree | None]],
) -> Iterator[list[tuple[Context, TokenTree | None]]]:
    """What is to be run, in parts of a bounded number of tokens."""
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
    """A tree that was looked at.

    Attributes:
        tree: what was run.
        taken: the nodes that some sequence took.
        heights: of each node how many more tokens the tree has after it, at the most.
    """

    tree: DraftTree
    taken: set[int] = field(default_factory=set)
    heights: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.heights = [0] * len(self.tree)
        for node in range(len(self.tree) - 1, -1, -1):
            parent = self.tree.parents[node]
            if parent != ROOT:
                self.heights[parent] = max(self.heights[parent], self.heights[node] + 1)

    def depth_taken(self) -> int:
        """How many tokens of it some sequence took, one after the other."""
        return max((len(self.tree.path(node)) for node in self.taken), default=0)


class TreePosition(NamedTuple):
    """Where a sequence stands in the tree that was looked at last after it or its prefix."""

    looked: _ExploredTree
    node: int

    @property
    def tree(self) -> DraftTree:
        """The tree."""
        return self.looked.tree

    @property
    def height(self) -> int:
        """How many tokens the longest path has that goes on from here."""
        heights = self.looked.heights
        return 1 + max(heights, default=-1) if self.node == ROOT else heights[self.node]


@final
class ExploredTrees:
    """All of them.  Sequences that split stay in the same tree, each at its own place."""

    def __init__(self) -> None:
        self._all: list[_ExploredTree] = []
        self._places: dict[Context, TreePosition] = {}

    def look(self, context: Context, tree: DraftTree) -> None:
        """A pass looked at ``tree`` after a sequence."""
        self._all.append(_ExploredTree(tree))
        self._places[context] = TreePosition(self._all[-1], ROOT)

    def leave(self, context: Context) -> None:
        """A sequence goes on outside of its tree, or no more."""
        self._places.pop(context, None)

    def height(self, context: Context) -> int:
        """How far the tree goes on that a sequence stands in."""
        place = self._places.get(context)
        return 0 if place is None else place.height

    def split(self, context: Context, tokens: Sequence[int], children: Sequence[Context]) -> TreePosition | None:
        """A sequence goes on with each of ``tokens``; return where it stood.

        Args:
            context: that of the sequence, which one of ``children`` may be.
            tokens: none twice.
            children: the contexts that go on with them.
        """
        place = self._places.pop(context, None)
        if place is not None:
            for token, child in zip(tokens, children, strict=True):
                node = place.tree.child(place.node, token)
                if node is not None:
                    place.looked.taken.add(node)
                    self._places[child] = TreePosition(place.looked, node)
        return place

    def sources(self) -> dict[str, SourceStats]:
        """What each drafter brought; tokens that several sequences took count once."""
        drafted = Counter(source for each in self._all for source in each.tree.sources)
        taken = Counter(each.tree.sources[node] for each in self._all for node in each.taken)
        return {name: SourceStats(count, taken[name]) for name, count in sorted(drafted.items())}

    def lengths(self) -> dict[int, int]:
        """How many trees were followed how far."""
        return dict(sorted(Counter(each.depth_taken() for each in self._all).items()))


class Outlook(NamedTuple):
    """What may be known of one sequence after further tokens: the ``d``-th entries are about ``d + 1`` more of them.

    Attributes:
        shares: estimated probability that the distribution after so many tokens is known.
        nodes: rows that it takes.
        particles: how many the sequence stands for; each takes tokens of its own.
    """

    shares: list[float]
    nodes: list[int]
    particles: int = 1


def outlook(tree: DraftTree, particles: int = 1) -> Outlook:
    """What a pass tells that runs ``tree`` after a sequence of so many particles."""
    depths = tree.token_tree().depths()
    deepest = 1 + max(depths, default=-1)
    shares, nodes = [0.0] * deepest, [0] * deepest
    for depth, reach in zip(depths, tree.reach(), strict=True):
        shares[depth] += reach
        nodes[depth] += 1
    return Outlook([min(share, 1.0) for share in shares], nodes, particles)


def joint_depth(outlooks: Sequence[Outlook], cost: CostModel, *, pending: int, budget: int) -> int:
    """Return to which depth it pays to look ahead: the one that is expected to save the most time, or 0.

    A round that needs no pass saves one over one row.  A row that is taken would have been run later, at the price of a
    row, by a pass that had to come or by the one that is spared.

    Args:
        outlooks: of all sequences that grow together; of those that this pass need not run, without nodes.
        cost: of passes.
        pending: rows that the pass has in any case.
        budget: the most nodes, of all sequences together.

    Complexity: O(sequences * depth).
    """
    best, found = 0.0, 0
    gain, rows = 0.0, 0
    before = cost.relative(pending)
    for depth in range(max((len(each.shares) for each in outlooks), default=0)):
        level = [each for each in outlooks if depth < len(each.shares)]
        rows += sum(each.nodes[depth] for each in level)
        if len(level) < len(outlooks) or rows > budget:
            break
        price = cost.relative(pending + rows) - before
        taken = sum(each.shares[depth] for each in level if each.nodes[depth])
        spared = math.prod(each.shares[depth] ** each.particles for each in level)
        gain += spared + (max(taken - 1.0, 0.0) * price / rows if rows else 0.0)
        if gain - price > best:
            best, found = gain - price, depth + 1
    return found


@final
class BranchContexts:
    """The contexts of the branches of one run: the prompt, its logits, and what is open.

    Args:
        model: the language model.
        prompt: its tokens.
        passes: runs forward passes.
        context: the prompt in a context that may have it cached; it is forked, not used.
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
        self._pool = ContextPool(lambda: self.prompted()[0], len(prompt))

    def close(self) -> None:
        """Free all caches."""
        for context in self._open:
            context.close()
        self._open.clear()
        if self._base is not None:
            self._base.close()

    def unprompted(self) -> Context:
        """A context with the prompt, whose last token is still to run."""
        context = self.fork(self._prompt())
        context.prepare()
        return context

    def prompt_logits(self) -> Logits:
        """The logits after the prompt; all the model has read then."""
        if self._base_logits is None:
            base = self._prompt()
            base.prepare()
            (self._base_logits,) = self._passes.run([base])
        return self._base_logits

    def prompted(self) -> tuple[Context, Logits]:
        """A context with the prompt, which the model has read, and the logits after it."""
        logits = self.prompt_logits()
        return self.fork(self._prompt()), logits

    def fork(self, context: Context) -> Context:
        """Return a copy, which is closed with the others."""
        copy = context.fork()
        self._open.add(copy)
        return copy

    def discard(self, context: Context) -> None:
        """Close a context."""
        self._open.discard(context)
        context.close()

    def placed(self, paths: Sequence[tuple[int, ...]]) -> list[Context]:
        """See ``ContextPool.placed``."""
        return self._pool.placed(paths)

    def _prompt(self) -> Context:
        if self._base is None:
            self._base = Context(self._model, self._prompt_tokens)
        return self._base
