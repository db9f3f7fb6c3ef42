"""Lookahead decoding: a window of draft tokens that passes correct, and the pool of phrases that come of it.

``Extended`` makes the drafts of another drafter longer by phrases of such a pool.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, final

import numpy as np

from structgen.decode.speculative.acceptance import Calibration
from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask, Verified
from structgen.decode.speculative.drafters.likely_tokens import node_top_tokens
from structgen.decode.speculative.grammar_position import GrammarPosition
from structgen.methods.drafters.jacobi import most_probable

if TYPE_CHECKING:
    from structgen.decode.step.context import Context
    from structgen.engine import Matcher, Vocabulary
    from structgen.models.protocol import Logits

__all__ = ["Extended", "Lookahead", "PhrasePool", "phrases_of_pass"]


@final
class PhrasePool:
    """Phrases: of each first token those that came last.

    A phrase that is the prefix of another one with the same first token is not kept beside it.

    Source: the n-gram pool of Y. Fu et al., "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding"
    (2024, arXiv 2402.02057), and the phrase pool of W. Zhao et al., "Ouroboros" (2024, arXiv 2402.13720).

    Threads may share one.

    Args:
        each: phrases with the same first token; at least 1.
        most: first tokens; at least 1.  Those that got no phrase longest are forgotten.
        length: tokens of a phrase, the first included; at least 2.  Longer ones are cut off.

    Raises:
        ValueError: a number is too small.
    """

    def __init__(self, *, each: int = 8, most: int = 8_192, length: int = 8) -> None:
        if each < 1 or most < 1 or length < 2:
            raise ValueError(
                f"PhrasePool: each and most must be at least 1, length at least 2; found {each}, {most} and {length}"
            )
        self.each = each
        self.most = most
        self.length = length
        self._phrases: OrderedDict[tuple[bytes, int], list[tuple[int, ...]]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return sum(map(len, list(self._phrases.values())))

    def add(self, vocabulary: Vocabulary, phrases: Iterable[Sequence[int]]) -> None:
        """Add phrases; the last counts as the latest; those of a single token are left out."""
        with self._lock:
            for phrase in phrases:
                added = tuple(phrase[: self.length])
                if len(added) < 2:
                    continue
                key = (vocabulary.digest, added[0])
                known = self._phrases.get(key, [])
                longer = next((each for each in known if each[: len(added)] == added), added)
                kept = [each for each in known if longer[: len(each)] != each]
                self._phrases[key] = [longer, *kept][: self.each]
                self._phrases.move_to_end(key)
            while len(self._phrases) > self.most:
                self._phrases.popitem(last=False)

    def after(self, vocabulary: Vocabulary, token: int) -> list[tuple[int, ...]]:
        """What the phrases that begin with ``token`` go on with, the latest first."""
        with self._lock:
            return [phrase[1:] for phrase in self._phrases.get((vocabulary.digest, token), ())]

    def __repr__(self) -> str:
        return f"<PhrasePool of {len(self)} phrases>"


_HIT_PRIOR: Final = 0.4
_WINDOW_PRIOR: Final = 0.2


@final
@dataclass(frozen=True)
class Lookahead(Drafter):
    """Draft tokens by Jacobi's iteration with a memory.

    What the window went through becomes phrases, and these are tried.

    The window is a trunk of ``window`` draft tokens.  After each of them hangs what the passes since have said about
    the positions after it, one token for each pass, the oldest first; so each pass tells one more token after every
    such branch, and a branch of ``size`` tokens is a phrase that the model has written by itself, token by token.
    Phrases go into a pool.  Those that begin with the last token of the output are run as branches of their own, to be
    verified; window and branches are one tree, and its rows serve both.

    Draft tokens are the most probable tokens that the grammar allows after the draft tokens before them; one that the
    trunk as it is now no longer allows is drafted anew.  Hand it over without a cost model: a draft token of the window
    is run for what its row says.

    Source: Y. Fu et al., "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding" (2024, arXiv
    2402.02057), section 3: ``window`` is its W, ``size`` its N, and ``hits`` its G.

    Attributes:
        window: draft tokens of the trunk; at least 1.
        size: tokens of a phrase, the first included; at least 2.
        hits: phrases that are verified in one pass at most; at least 1.
        pool: where phrases are kept; outputs that share it find for each other.
        calibration: how often draft tokens came, by where they are from and their distance.

    Raises:
        ValueError: a number is too small.
    """

    window: int = 5
    size: int = 4
    hits: int = 3
    pool: PhrasePool = field(default_factory=PhrasePool)
    calibration: Calibration = field(default_factory=Calibration)

    def __post_init__(self) -> None:
        if self.window < 1 or self.hits < 1 or self.size < 2:
            raise ValueError(
                "Lookahead: window and hits must be at least 1, size at least 2; "
                f"found {self.window!r}, {self.hits!r} and {self.size!r}"
            )

    @property
    def name(self) -> str:
        """See ``Drafter.name``."""
        return "lookahead"

    def start(self, context: Context, task: DraftTask) -> Drafting:
        """See ``Drafter.start``."""
        return _LookaheadDrafting(self, task)


class _WindowColumn(NamedTuple):
    """A draft of the trunk with what hangs after it.

    Attributes:
        above: the tokens of the tree before it.
        tokens: its own and those after it.
        place: the position in the sequence that follows.
        choice: the same in the grammar.
        complete: whether every level of the window has its token in it.
    """

    above: tuple[int, ...]
    tokens: tuple[int, ...]
    place: int
    choice: GrammarPosition
    complete: bool


@final
class _LookaheadDrafting(Drafting):
    def __init__(self, drafter: Lookahead, task: DraftTask) -> None:
        self._drafter = drafter
        self._vocabulary = task.constraint.vocabulary
        self._start = -1
        self._levels: list[dict[int, int]] = [{}]  # what each pass said, by position; the oldest first
        self._columns: list[_WindowColumn] = []
        self._row: Logits | None = None  # after the sequence, as it was last
        self._tree = DraftTree()
        self._keys: list[tuple[str, int]] = []

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        """See ``Drafting.propose``."""
        tokens = context.tokens
        if self._start >= 0:
            self._learn(tokens[self._start :])
        self._start, self._tree, self._keys, self._columns = len(tokens), DraftTree(), [], []
        for phrase in self._drafter.pool.after(self._vocabulary, tokens[-1])[: self._drafter.hits]:
            allowed = state.matcher.validate(phrase)
            self._extend("hit", ROOT, phrase[:allowed], budget)
        if self._row is not None:
            self._fill(GrammarPosition.of(state), self._row, budget)
        return self._tree

    def observe(self, verified: Verified) -> None:
        """See ``Drafting.observe``."""
        self._row = verified.rows[0]
        if verified.start != self._start:  # a pass without draft tokens, elsewhere
            return
        said: dict[int, int] = {}
        phrases: list[tuple[int, ...]] = []
        for column in self._columns:
            node = _node_at(verified.tree, (*column.above, *column.tokens))
            if node is None or np.isnan(verified.rows[node + 1, 0]):
                continue
            token = most_probable(verified.rows[node + 1], column.choice, 0)
            phrases.append((*column.tokens, token))
            if column.complete:
                said[column.place] = token
        self._columns = []
        self._drafter.pool.add(self._vocabulary, phrases)
        if said:
            self._levels = [*self._levels, said][1 - self._drafter.size :]

    def _fill(self, choice: GrammarPosition, row: Logits, budget: int) -> None:
        """Add the trunk and what hangs on it, as far as there is room."""
        node, place = ROOT, self._start
        above: tuple[int, ...] = ()
        for _ in range(self._drafter.window):
            wanted = self._levels[0].get(place)
            token = wanted if wanted is not None and choice.allows(wanted) else most_probable(row, choice, 0)
            after = choice.then(token)
            if after is None:
                return
            tokens = (token, *after.forced)
            if len(self._tree) + len(tokens) > budget:
                return
            node = self._extend("window", node, tokens, budget, forced=1)
            place += len(tokens)
            self._hang(node, place, above, tokens, after, budget)
            choice = after
            above = (*above, *tokens)

    def _hang(
        self,
        node: int,
        place: int,
        above: tuple[int, ...],
        tokens: tuple[int, ...],
        choice: GrammarPosition,
        budget: int,
    ) -> None:
        """Add what the later passes said after a draft token of the trunk, as far as the grammar allows it."""
        complete = True
        for level in self._levels[1:]:
            token = level.get(place)
            after = None if token is None or not choice.allows(token) else choice.then(token)
            if token is None or after is None or len(self._tree) + 1 + len(after.forced) > budget:
                complete = False
                break
            node = self._extend("window", node, (token, *after.forced), budget, forced=1)
            tokens = (*tokens, token, *after.forced)
            place += 1 + len(after.forced)
            choice = after
        self._columns.append(_WindowColumn(above, tokens, place, choice, complete))

    def _extend(self, origin: str, node: int, tokens: Sequence[int], budget: int, *, forced: int | None = None) -> int:
        """Add tokens one after the other; those from index ``forced`` on leave no choice."""
        tree = self._tree
        distance = 0 if node == ROOT else self._keys[node][1] + 1
        for index, token in enumerate(tokens):
            if tree.child(node, token) is None and len(tree) >= budget:
                break
            key = (origin, distance + index)
            prior = _HIT_PRIOR if origin == "hit" else _WINDOW_PRIOR
            certain = forced is not None and index >= forced
            chance = 1.0 if certain else self._drafter.calibration.probability(key, prior)
            node = tree.add(node, token, chance, source=FORCED if certain else "")
            if node == len(self._keys):
                self._keys.append(key)
        return node

    def _learn(self, came: Sequence[int]) -> None:
        tree, node = self._tree, ROOT
        for token in came:
            self._drafter.calibration.record_all(
                (self._keys[child], tree.tokens[child] == token)
                for child in tree.children(node)
                if tree.sources[child] != FORCED
            )
            found = tree.child(node, token)
            if found is None:
                return
            node = found


def _node_at(tree: DraftTree, tokens: Sequence[int]) -> int | None:
    """The node at the end of a path of tokens."""
    node = ROOT
    for token in tokens:
        child = tree.child(node, token)
        if child is None:
            return None
        node = child
    return node


_PRIOR: Final = 0.5
_DISTANCES: Final = 8


@final
@dataclass(frozen=True)
class Extended(Drafter):
    """The draft tokens of ``base``, and after each path of them phrases that begin with its last token.

    Phrases come from what passes tell: wherever a draft token was what the model would have said itself after the draft
      tokens
    before it, the two belong to a phrase, whether the output got there or not; so what was refused is of use too.
    Where ``base`` draft tokens nothing, the phrases that begin with the last token of the output are drafted.

    Source: W. Zhao et al., "Ouroboros: Generating Longer Drafts Phrase by Phrase for Faster Speculative Decoding"
    (2024, arXiv 2402.13720).

    Attributes:
        base: the drafter.
        pool: where phrases are kept; outputs that share it find for each other.
        phrases: how many are added to a path at most; at least 1.
        calibration: how often tokens of phrases came, by the rank of the phrase and their distance in it.

    Raises:
        ValueError: ``phrases`` is below 1.
    """

    base: Drafter
    pool: PhrasePool = field(default_factory=PhrasePool)
    phrases: int = 2
    calibration: Calibration = field(default_factory=Calibration)

    def __post_init__(self) -> None:
        if self.phrases < 1:
            raise ValueError(f"Extended: phrases must be at least 1; found {self.phrases!r}")

    @property
    def name(self) -> str:
        """See ``Drafter.name``."""
        return f"{self.base.name} + phrases"

    def start(self, context: Context, task: DraftTask) -> Drafting:
        """See ``Drafter.start``."""
        return _ExtendedDrafting(self, self.base.start(context, task), context, task)


@final
class _ExtendedDrafting(Drafting):
    def __init__(self, drafter: Extended, base: Drafting, context: Context, task: DraftTask) -> None:
        self._drafter = drafter
        self._base = base
        self._context = context
        self._vocabulary = task.constraint.vocabulary
        self._matcher: Matcher | None = None
        self._start = 0
        self._tree = DraftTree()
        self._keys: dict[int, Hashable] = {}

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        """See ``Drafting.propose``."""
        tokens = context.tokens
        self._learn(tokens[self._start :])
        self._start, self._matcher, self._keys = len(tokens), state.matcher.fork(), {}
        proposed = self._base.propose(context, state, budget)
        self._tree = tree = proposed.kept(range(len(proposed)))  # the base may learn from its own
        for node, source in enumerate(tree.sources):
            tree.sources[node] = source or self._drafter.base.name
        reach = tree.reach()
        for leaf in sorted(tree.leaves(), key=lambda node: (-reach[node], node)) or [ROOT]:
            last = tokens[-1] if leaf == ROOT else tree.tokens[leaf]
            prefix = tree.prefix(leaf)
            for rank, phrase in enumerate(self._drafter.pool.after(self._vocabulary, last)[: self._drafter.phrases]):
                allowed = state.matcher.validate([*prefix, *phrase]) - len(prefix)
                self._extend(leaf, phrase[: max(allowed, 0)], rank, budget)
        return tree

    def observe(self, verified: Verified) -> None:
        """See ``Drafting.observe``."""
        self._base.observe(verified)
        matcher = self._matcher if verified.start == self._start else None
        last = self._context.tokens[verified.start - 1]
        pool = self._drafter.pool
        pool.add(self._vocabulary, phrases_of_pass(verified, last, pool.length, matcher))

    def close(self) -> None:
        """See ``Drafting.close``."""
        self._base.close()

    def _extend(self, node: int, phrase: Sequence[int], rank: int, budget: int) -> None:
        tree = self._tree
        for distance, token in enumerate(phrase):
            child = tree.child(node, token)
            if child is None:
                if len(tree) >= budget:
                    return
                key = (rank, min(distance, _DISTANCES - 1))
                chance = self._drafter.calibration.probability(key, _PRIOR / (1 + rank))
                child = tree.add(node, token, chance, source=self._drafter.name)
                self._keys[child] = key
            node = child

    def _learn(self, came: Sequence[int]) -> None:
        tree, node = self._tree, ROOT
        for token in came:
            self._drafter.calibration.record_all(
                (self._keys[child], tree.tokens[child] == token) for child in tree.children(node) if child in self._keys
            )
            found = tree.child(node, token)
            if found is None:
                return
            node = found


def phrases_of_pass(
    verified: Verified, last: int, length: int, matcher: Matcher | None = None
) -> Iterator[tuple[int, ...]]:
    """The phrases that a pass tells: from each token that was run, the way that the model takes from there.

    The way follows the most probable tokens for as long as they are in the tree, and what is forced after them; the
    last most probable token, which need not be in it, ends the phrase.

    Args:
        verified: the pass.
        last: the token before it.
        length: tokens of a phrase at most.
        matcher: where the output stood, to take the most probable tokens among those that are allowed.
    """
    tree = verified.tree
    best = {node: tokens[0] for node, tokens, _ in node_top_tokens(verified, 1, matcher) if tokens}
    for start in range(len(tree) - 1, ROOT - 1, -1):  # what follows the sequence itself comes last, as the latest
        node: int | None = start
        phrase = [last if start == ROOT else tree.tokens[start]]
        while node is not None and len(phrase) < length:
            forced = [child for child in tree.children(node) if tree.sources[child] == FORCED]
            token = tree.tokens[forced[0]] if forced else best.get(node)
            if token is None:
                break
            phrase.append(token)
            node = tree.child(node, token)
        if len(phrase) > 1:
            yield tuple(phrase)
