"""Draft trees under a grammar: refused tokens are removed and forced tokens added, whatever the tokenization."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Self, final

from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree, SampledChildren
from structgen.decode.step.context import shared_length
from structgen.errors import LimitExceeded, VocabularyError

if TYPE_CHECKING:
    from structgen.engine import Matcher, Vocabulary

__all__ = ["DraftToken", "TextCursor", "cursors_after", "draft_tokens_at", "grammar_filtered"]


class TextCursor(NamedTuple):
    """The end of a text in a tree: after a node, or within its token.

    Attributes:
        tree: draft tokens.
        origins: for each node, the node of the drafter's tree that it comes from.
        node: the last node that the text reaches; ``ROOT`` before the first.
        rest: the bytes of that node's token after the text.
    """

    tree: DraftTree
    origins: Sequence[int]
    node: int = ROOT
    rest: bytes = b""

    @classmethod
    def before(cls, tree: DraftTree) -> Self:
        """Return the cursor before a drafter's tree."""
        return cls(tree, range(len(tree)))

    def children(self) -> list[TextCursor]:
        """Return the cursors after the children of the node."""
        return [TextCursor(self.tree, self.origins, child) for child in self.tree.children(self.node)]

    @property
    def token(self) -> int:
        """The token of the node."""
        return self.tree.tokens[self.node]


class DraftToken(NamedTuple):
    """A draft for the next token.

    Attributes:
        token: its id.
        confidence: estimated probability that it is accepted.
        source: its drafter.
        origin: the node of the drafter's tree that it is, or begins in.
        cursors: the cursors after it.
    """

    token: int
    confidence: float
    source: str
    origin: int
    cursors: list[TextCursor]


def cursors_after(cursors: Iterable[TextCursor], token: int, vocabulary: Vocabulary) -> list[TextCursor]:
    """Return the cursors after the bytes of a token, however the tree tokenizes them; special tokens match by id.

    Complexity: O(bytes) for each branch that begins with them.
    """
    texts = vocabulary.tokens
    piece = texts[token]
    if not piece:
        return [child for cursor in cursors if not cursor.rest for child in cursor.children() if child.token == token]
    result: list[TextCursor] = []
    for cursor in cursors:
        if cursor.rest and not _agree(cursor.rest, piece):
            continue
        unread = [(cursor._replace(rest=cursor.rest[len(piece) :]), piece[len(cursor.rest) :])]
        while unread:
            here, left = unread.pop()
            if not left:
                result.append(here)
                continue
            deeper = []
            for child in here.children():
                text = texts[child.token]
                if text and _agree(text, left):
                    deeper.append((child._replace(rest=text[len(left) :]), left[len(text) :]))
            unread.extend(reversed(deeper))
    return result


def draft_tokens_at(cursors: Iterable[TextCursor], vocabulary: Vocabulary) -> list[DraftToken]:
    """Return the drafts for the next token, each token once.

    If a text ends within a token, the rest of the branch is tokenized again from there.
    """
    drafts: dict[int, DraftToken] = {}
    for cursor in cursors:
        start = _respelled(cursor, vocabulary) if cursor.rest else cursor
        for child in start.children():
            confidence = start.tree.confidences[child.node]
            known = drafts.get(child.token)
            if known is None:
                source, origin = start.tree.sources[child.node], start.origins[child.node]
                drafts[child.token] = DraftToken(child.token, confidence, source, origin, [child])
            else:
                known.cursors.append(child)
                drafts[child.token] = known._replace(confidence=max(known.confidence, confidence))
    return list(drafts.values())


def _agree(first: bytes, second: bytes) -> bool:
    """Whether one of two texts begins with the other."""
    return first.startswith(second) or second.startswith(first)


def _respelled(cursor: TextCursor, vocabulary: Vocabulary) -> TextCursor:
    """The branches from within a token on, tokenized by the tokenizer.

    The confidence of a token is the product of those of the draft tokens that begin in it.  A branch ends before a
    special token.
    """
    texts, drafts = vocabulary.tokens, cursor.tree
    tree = DraftTree()
    for nodes in _branches(cursor, vocabulary):
        pieces = [cursor.rest, *(texts[drafts.tokens[node]] for node in nodes[1:])]
        try:
            tokens = vocabulary.tokenize(b"".join(pieces))
        except VocabularyError:  # a part of a character, which the tokenizer cannot spell
            continue
        parent = ROOT
        reached = begun = 0  # bytes of the tokens so far, and of the draft tokens that begin in them
        following = zip(nodes, pieces, strict=True)
        for token in tokens:
            reached += len(texts[token])
            confidence = 1.0
            while begun < reached:
                node, piece = next(following)
                confidence *= drafts.confidences[node]
                begun += len(piece)
            parent = tree.add(parent, token, confidence, source=drafts.sources[cursor.node])
    return TextCursor(tree, [cursor.origins[cursor.node]] * len(tree))


def _branches(cursor: TextCursor, vocabulary: Vocabulary) -> Iterator[list[int]]:
    """The paths from a node, itself included, down to the last tokens that have bytes."""
    texts, drafts = vocabulary.tokens, cursor.tree
    paths = [[cursor.node]]
    while paths:
        path = paths.pop()
        while children := [child for child in drafts.children(path[-1]) if texts[drafts.tokens[child]]]:
            paths += ([*path, child] for child in reversed(children[1:]))
            path.append(children[0])
        yield path


def grammar_filtered(
    tree: DraftTree, matcher: Matcher, *, remaining: int, budget: int, forced: bool = True, least: float = 0.0
) -> DraftTree:
    """Return the part of a draft tree that can be accepted, with the forced tokens added.

    Every path continues as the decoding loop would: where the grammar forces a text or a token, the path takes it,
    whatever was drafted.  Draft tokens that spell the same bytes in other tokens are followed, and tokenized again if
    the forced text ends within one.  A path ends at a choice, since nothing else needs a logits row.  Forced nodes have
    confidence 1 and the source ``FORCED``.

    Of sampled children, only those that the grammar refuses are removed, or all from some child on; a sampled EOS
    stays, since its absence would depend on the sample.  Other EOS tokens are removed.

    Args:
        tree: draft tokens; ids of the vocabulary.
        matcher: the state of the output; it is moved, and moved back.
        remaining: tokens that are left of the budget of the output.  A branch ends at a choice whose mask depends on
            them, if that is cheap to check.
        budget: the largest number of nodes.  The nodes of largest reach are retained, each with all forced tokens after
            it or not at all; if any were sampled, the first nodes.
        forced: whether forced tokens are added; otherwise every allowed node stays.
        least: draft tokens of less reach are removed, sampled ones apart.

    Complexity: a few calls of the matcher for each node of the result and for each refused node.
    """
    walk = _GrammarWalk(tree, matcher, remaining, budget, forced=forced, least=least)
    before = matcher.history_length
    try:
        walk.run()
    except LimitExceeded:
        pass  # limits are for outputs, not for draft tokens; the tree so far is valid
    finally:
        matcher.rollback(matcher.history_length - before)
    return walk.out


class _NodeCandidates(NamedTuple):
    """Drafts for a token after a node; the smallest tuple is tried first."""

    order: float
    origin: int  # the first node of the drafter's tree among them
    number: int  # different for each
    parent: int
    reach: float  # of the parent
    drafts: list[DraftToken]  # one, or the sampled children
    sampled: SampledChildren | None


@final
class _GrammarWalk:
    def __init__(
        self, tree: DraftTree, matcher: Matcher, remaining: int, budget: int, *, forced: bool, least: float
    ) -> None:
        self.out = DraftTree()
        self._drafts = tree
        self._matcher = matcher
        self._vocabulary = matcher.constraint.vocabulary
        self._eos = frozenset(self._vocabulary.eos)
        self._has_reach = matcher.constraint.native.has_reach  # otherwise needs_budget_mask may cost as much as a mask
        self._remaining = remaining
        self._budget = budget
        self._forced = forced
        self._least = least
        self._taken: list[int] = []  # by the matcher
        self._at: int | None = None  # the node of the matcher's state, if known
        self._open: list[_NodeCandidates] = []
        self._pushed = 0

    def run(self) -> None:
        if self._budget <= 0 or self._remaining <= 0:
            return
        run = self._force([TextCursor.before(self._drafts)], self._budget)
        if run is not None:
            self._open_after(ROOT, *run, 1.0)
        while self._open and self._capacity > 0:
            candidates = heapq.heappop(self._open)
            if candidates.sampled is None:
                self._try(candidates.parent, candidates.drafts[0], candidates.reach)
            else:
                self._try_sampled(candidates, candidates.sampled)

    @property
    def _capacity(self) -> int:
        return self._budget - len(self.out)

    def _try(self, parent: int, draft: DraftToken, reach: float, *, is_sampled: bool = False) -> bool:
        """Add a draft token with the forced tokens after it, if it is of use or was sampled.

        Returns:
            Whether the grammar allows the draft token.
        """
        if parent != self._at:
            self._move(self.out.prefix(parent))
            self._at = parent
        if not self._accept(draft.token):
            return False
        self._at = None
        run = self._force(draft.cursors, self._capacity - 1)
        if run is not None or is_sampled:
            node = self.out.add(parent, draft.token, draft.confidence, source=draft.source)
            if run is not None:
                self._open_after(node, *run, reach * draft.confidence)
        return True

    def _try_sampled(self, candidates: _NodeCandidates, sampled: SampledChildren) -> None:
        """Add sampled children in order, as long as any other child would fit as well."""
        parent = candidates.parent
        drafts = {draft.token: draft for draft in candidates.drafts}
        refused: set[int] = set()
        added: list[int] = []
        try:
            for token in sampled.tokens:
                if self._capacity <= 0 or token not in drafts:
                    break
                if token in refused:
                    continue
                if token in added or self._try(parent, drafts[token], candidates.reach, is_sampled=True):
                    added.append(token)
                else:
                    refused.add(token)
        finally:
            if added:
                self.out.sampled[parent] = SampledChildren(sampled.distribution, tuple(added), sampled.replaced)

    def _force(self, cursors: list[TextCursor], capacity: int) -> tuple[list[int], list[TextCursor]] | None:
        """Take the forced tokens; None if no choice follows, or there are more than ``capacity``."""
        tokens: list[int] = []
        if not self._forced:
            return tokens, cursors
        while not self._matcher.is_terminated and len(self._taken) < self._remaining:
            run = self._matcher.forced_tokens()
            if not run:
                allowed = self._matcher.allowed_tokens(2)
                if not allowed:
                    break
                if len(allowed) > 1 or (self._eos and self._matcher.is_accepting):
                    return tokens, cursors
                run = allowed
            for token in run:
                if len(tokens) == capacity or not self._accept(token):
                    return None
                tokens.append(token)
                cursors = cursors_after(cursors, token, self._vocabulary)
        return None

    def _open_after(self, node: int, tokens: list[int], cursors: list[TextCursor], reach: float) -> None:
        """Add the forced tokens after a node, and queue the drafts after them; the matcher is there."""
        if tokens:
            node = self.out.extend(node, tokens, source=FORCED)
        self._at = node
        if self._matcher.is_terminated or self._is_tight():
            return
        sampled = None
        for cursor in cursors:
            if not cursor.rest and cursor.tree is self._drafts and cursor.node in self._drafts.sampled:
                cursors, sampled = [cursor], self._drafts.sampled[cursor.node]
                break
        drafts = draft_tokens_at(cursors, self._vocabulary)
        if sampled is not None:
            together = [draft for draft in drafts if draft.token in sampled.tokens]
            if together:
                self._push(node, reach, together, sampled)
            drafts = [draft for draft in drafts if draft.token not in sampled.tokens]
        for draft in drafts:
            if draft.token not in self._eos and reach * draft.confidence >= self._least:
                self._push(node, reach, [draft], None)

    def _push(self, parent: int, reach: float, drafts: list[DraftToken], sampled: SampledChildren | None) -> None:
        order = 0.0 if self._drafts.sampled else -reach * drafts[0].confidence
        self._pushed += 1
        heapq.heappush(
            self._open, _NodeCandidates(order, drafts[0].origin, self._pushed, parent, reach, drafts, sampled)
        )

    def _is_tight(self) -> bool:
        """Whether the mask is known to depend on the remaining budget, or nothing remains."""
        left = self._remaining - len(self._taken)
        return left <= 0 or (self._has_reach and self._matcher.needs_budget_mask(left))

    def _accept(self, token: int) -> bool:
        accepted = self._matcher.accept(token)
        if accepted:
            self._taken.append(token)
        return accepted

    def _move(self, tokens: Sequence[int]) -> None:
        """Move the matcher to the end of ``tokens``, which were accepted before."""
        common = shared_length(self._taken, tokens)
        self._matcher.rollback(len(self._taken) - common)
        del self._taken[common:]
        for token in tokens[common:]:
            self._accept(token)
