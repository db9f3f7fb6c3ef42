"""Lookahead decoding: a window of draft tokens that passes correct, and a pool of the phrases found by it.

``Extended`` extends the drafts of another drafter by phrases of such a pool.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, final

import numpy as np

from structgen.cache import Locked
from structgen.decode.speculative.acceptance import Calibration
from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask, GrammarPosition, Verified
from structgen.decode.speculative.drafters.likely_tokens import node_top_tokens
from structgen.methods.drafters.jacobi import most_probable

if TYPE_CHECKING:
    from structgen.decode.step.context import Context
    from structgen.engine import Matcher, Vocabulary
    from structgen.models.protocol import Logits

__all__ = ["Extended", "Lookahead", "PhrasePool", "phrases_of_pass"]


@final
class PhrasePool(Locked):
    """The latest phrases for each first token.

    A phrase that is a prefix of another phrase is not kept.

    Source: the n-gram pool of Y. Fu et al., "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding"
    (2024, arXiv 2402.02057), and the phrase pool of W. Zhao et al., "Ouroboros" (2024, arXiv 2402.13720).

    Threads may share one.

    Args:
        each: the largest number of phrases with the same first token; at least 1.
        most: the largest number of first tokens; at least 1.  The least recently extended one is dropped.
        length: the largest number of tokens of a phrase, the first included; at least 2.  Longer phrases are cut.

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
        """Add phrases, the last as the latest; phrases of a single token are left out."""
        with self._lock:
            for phrase in phrases:
                added = tuple(phrase[: self.length])
                if len(added) < 2:
                    continue
                key = (vocabulary.digest, added[0])
                phrases_of_key = self._phrases.get(key, [])
                longer = next((each for each in phrases_of_key if each[: len(added)] == added), added)
                others = [each for each in phrases_of_key if longer[: len(each)] != each]
                self._phrases[key] = [longer, *others][: self.each]
                self._phrases.move_to_end(key)
            while len(self._phrases) > self.most:
                self._phrases.popitem(last=False)

    def after(self, vocabulary: Vocabulary, token: int) -> list[tuple[int, ...]]:
        """Return the phrases that begin with ``token``, without it, the latest first."""
        with self._lock:
            return [phrase[1:] for phrase in self._phrases.get((vocabulary.digest, token), ())]

    def __repr__(self) -> str:
        return f"<PhrasePool of {len(self)} phrases>"


_HIT_PRIOR: Final = 0.4
_WINDOW_PRIOR: Final = 0.2


@final
@dataclass(frozen=True)
class Lookahead(Drafter):
    """Drafts by Jacobi iteration over a window, and keeps the phrases that the window goes through.

    The window is a trunk of ``window`` draft tokens.  After each of them hangs a branch with the model's predictions
    from the last passes, one token for each pass, the oldest first.  Each pass adds one token to every branch, and a
    branch of ``size`` tokens is a phrase that the model has predicted token by token.  Phrases go into a pool.  Phrases
    that begin with the last token of the output become branches of their own to be verified; window and branches are
    one tree.

    Draft tokens are the most probable tokens that the grammar allows; a token that the current trunk no longer allows
    is replaced.  Use it without a cost model: a draft token of the window is run for its logits row.

    Source: Y. Fu et al., "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding" (2024, arXiv
    2402.02057), section 3: ``window`` is its W, ``size`` its N, and ``hits`` its G.

    Attributes:
        window: how many draft tokens the trunk has; at least 1.
        size: how many tokens a phrase has, the first included; at least 2.
        hits: the largest number of phrases that are verified in one pass; at least 1.
        pool: the phrases; outputs may share it.
        calibration: how often draft tokens were right, by origin and distance.

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
    """A draft token of the trunk with its branch.

    Attributes:
        above: the tokens of the tree before it.
        tokens: its own token and those of the branch.
        end: the index of the next token in the sequence.
        position: the position in the grammar at the end.
        complete: whether every level of the window has its token in it.
    """

    above: tuple[int, ...]
    tokens: tuple[int, ...]
    end: int
    position: GrammarPosition
    complete: bool


@final
class _LookaheadDrafting(Drafting):
    def __init__(self, drafter: Lookahead, task: DraftTask) -> None:
        self._drafter = drafter
        self._vocabulary = task.constraint.vocabulary
        self._start = -1
        self._levels: list[dict[int, int]] = [{}]  # the predictions of each pass by index; the oldest first
        self._columns: list[_WindowColumn] = []
        self._row: Logits | None = None  # logits after the sequence, of the last pass
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
        if verified.start != self._start:  # a pass without these draft tokens
            return
        predicted: dict[int, int] = {}
        phrases: list[tuple[int, ...]] = []
        for column in self._columns:
            path = (*column.above, *column.tokens)
            nodes = verified.tree.follow(path)
            if len(nodes) < len(path) or np.isnan(verified.rows[nodes[-1] + 1, 0]):
                continue
            token = most_probable(verified.rows[nodes[-1] + 1], column.position, 0)
            phrases.append((*column.tokens, token))
            if column.complete:
                predicted[column.end] = token
        self._columns = []
        self._drafter.pool.add(self._vocabulary, phrases)
        if predicted:
            self._levels = [*self._levels, predicted][1 - self._drafter.size :]

    def _fill(self, position: GrammarPosition, row: Logits, budget: int) -> None:
        """Add the trunk and its branches within the budget."""
        node, end = ROOT, self._start
        above: tuple[int, ...] = ()
        for _ in range(self._drafter.window):
            predicted = self._levels[0].get(end)
            is_allowed = predicted is not None and position.allows(predicted)
            token = predicted if predicted is not None and is_allowed else most_probable(row, position, 0)
            after = position.then(token)
            if after is None:
                return
            tokens = (token, *after.forced)
            if len(self._tree) + len(tokens) > budget:
                return
            node = self._extend("window", node, tokens, budget, forced=1)
            end += len(tokens)
            self._hang(node, end, above, tokens, after, budget)
            position = after
            above = (*above, *tokens)

    def _hang(
        self,
        node: int,
        end: int,
        above: tuple[int, ...],
        tokens: tuple[int, ...],
        position: GrammarPosition,
        budget: int,
    ) -> None:
        """Add the predictions of later passes after a draft token of the trunk, as far as the grammar allows them."""
        complete = True
        for level in self._levels[1:]:
            token = level.get(end)
            after = None if token is None or not position.allows(token) else position.then(token)
            if token is None or after is None or len(self._tree) + 1 + len(after.forced) > budget:
                complete = False
                break
            node = self._extend("window", node, (token, *after.forced), budget, forced=1)
            tokens = (*tokens, token, *after.forced)
            end += 1 + len(after.forced)
            position = after
        self._columns.append(_WindowColumn(above, tokens, end, position, complete))

    def _extend(self, origin: str, node: int, tokens: Sequence[int], budget: int, *, forced: int | None = None) -> int:
        """Add tokens one after the other; tokens from index ``forced`` on are forced."""
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
        tree = self._tree
        for parent, token in zip((ROOT, *tree.follow(came)), came, strict=False):
            self._drafter.calibration.record_all(
                (self._keys[child], tree.tokens[child] == token)
                for child in tree.children(parent)
                if tree.sources[child] != FORCED
            )


_PRIOR: Final = 0.5
_DISTANCES: Final = 8


@final
@dataclass(frozen=True)
class Extended(Drafter):
    """The drafts of ``base``, each path extended by phrases that begin with its last token.

    Phrases come from the logits of passes: if a draft token is the model's own prediction after the tokens before it,
    it continues their phrase, even on a path that was rejected.  If ``base`` drafts nothing, the phrases that begin
    with the last token of the output are drafted.

    Source: W. Zhao et al., "Ouroboros: Generating Longer Drafts Phrase by Phrase for Faster Speculative Decoding"
    (2024, arXiv 2402.13720).

    Attributes:
        base: the drafter.
        pool: the phrases; outputs may share it.
        phrases: the largest number of phrases after a path; at least 1.
        calibration: how often tokens of phrases were right, by rank of the phrase and distance in it.

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
        tree = self._tree
        for parent, token in zip((ROOT, *tree.follow(came)), came, strict=False):
            self._drafter.calibration.record_all(
                (self._keys[child], tree.tokens[child] == token)
                for child in tree.children(parent)
                if child in self._keys
            )


def phrases_of_pass(
    verified: Verified, last: int, length: int, matcher: Matcher | None = None
) -> Iterator[tuple[int, ...]]:
    """Yield the phrases of a pass: for each token that was run, the model's own continuation.

    A phrase follows the most probable tokens, and the forced ones, as long as they are in the tree; the last most
    probable token, which need not be in the tree, ends it.

    Args:
        verified: the pass.
        last: the token before it.
        length: the largest number of tokens of a phrase.
        matcher: the state before the tree, to restrict the most probable tokens to allowed ones; None for all tokens.
    """
    tree = verified.tree
    best = {node: tokens[0] for node, tokens, _ in node_top_tokens(verified, 1, matcher) if tokens}
    for start in range(len(tree) - 1, ROOT - 1, -1):  # the phrase of the sequence itself comes last, as the latest
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
