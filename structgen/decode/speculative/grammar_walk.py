"""Draft trees under a grammar: refused tokens are cut and forced ones added, in whatever tokens a text is spelled."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Self, final

from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree, SampledChildren
from structgen.errors import LimitExceeded, VocabularyError

if TYPE_CHECKING:
    from structgen.engine import Matcher, Vocabulary

__all__ = ["DraftToken", "TextCursor", "cursors_after", "draft_tokens_at", "grammar_filtered"]


class TextCursor(NamedTuple):
    """The end of a text in a tree: after a node, or within its token.

    Attributes:
        tree: draft tokens.
        origins: the node of the drafter's own tree that each of its nodes is from.
        node: the last that the text has reached; ``ROOT`` where it has not begun.
        rest: the bytes of that node's token which the text has not reached.
    """

    tree: DraftTree
    origins: Sequence[int]
    node: int = ROOT
    rest: bytes = b""

    @classmethod
    def before(cls, tree: DraftTree) -> Self:
        """The place before a drafter's tree."""
        return cls(tree, range(len(tree)))

    def children(self) -> list[TextCursor]:
        """Cursors after each token that follows the node."""
        return [TextCursor(self.tree, self.origins, child) for child in self.tree.children(self.node)]

    @property
    def token(self) -> int:
        """The token of the node."""
        return self.tree.tokens[self.node]


class DraftToken(NamedTuple):
    """A token that may come next.

    Attributes:
        token: its id.
        confidence: estimated probability that it is taken.
        source: which drafter it is from.
        origin: the node of the drafter's tree that it is from, or begins in.
        cursors: after it.
    """

    token: int
    confidence: float
    source: str
    origin: int
    cursors: list[TextCursor]


def cursors_after(cursors: Iterable[TextCursor], token: int, vocabulary: Vocabulary) -> list[TextCursor]:
    """Cursors after the bytes of a token, in whatever tokens the tree spells them; a special token is itself.

    O(bytes) for each branch that begins with them.
    """
    texts = vocabulary.tokens
    piece = texts[token]
    if not piece:
        return [child for cursor in cursors if not cursor.rest for child in cursor.children() if child.token == token]
    found: list[TextCursor] = []
    for cursor in cursors:
        if cursor.rest and not _agree(cursor.rest, piece):
            continue
        unread = [(cursor._replace(rest=cursor.rest[len(piece) :]), piece[len(cursor.rest) :])]
        while unread:
            here, left = unread.pop()
            if not left:
                found.append(here)
                continue
            deeper = []
            for child in here.children():
                text = texts[child.token]
                if text and _agree(text, left):
                    deeper.append((child._replace(rest=text[len(left) :]), left[len(text) :]))
            unread.extend(reversed(deeper))
    return found


def draft_tokens_at(cursors: Iterable[TextCursor], vocabulary: Vocabulary) -> list[DraftToken]:
    """The tokens that are drafted to come next, each once.

    Where a text ends within a token, what the branch spells from there on is tokenized anew.
    """
    found: dict[int, DraftToken] = {}
    for cursor in cursors:
        start = _respelled(cursor, vocabulary) if cursor.rest else cursor
        for child in start.children():
            confidence = start.tree.confidences[child.node]
            known = found.get(child.token)
            if known is None:
                source, origin = start.tree.sources[child.node], start.origins[child.node]
                found[child.token] = DraftToken(child.token, confidence, source, origin, [child])
            else:
                known.cursors.append(child)
                found[child.token] = known._replace(confidence=max(known.confidence, confidence))
    return list(found.values())


def _agree(first: bytes, second: bytes) -> bool:
    """Whether one of two texts begins with the other."""
    return first.startswith(second) or second.startswith(first)


def _respelled(cursor: TextCursor, vocabulary: Vocabulary) -> TextCursor:
    """The branches from within a token on, in the tokenizer's own tokens.

    A token is as likely as all the draft tokens together that begin in it.  A branch ends where a special token stands.
    """
    texts, drafts = vocabulary.tokens, cursor.tree
    tree = DraftTree()
    for nodes in _branches(cursor, vocabulary):
        pieces = [cursor.rest, *(texts[drafts.tokens[node]] for node in nodes[1:])]
        try:
            tokens = vocabulary.tokenize(b"".join(pieces))
        except VocabularyError:  # a prefix of a character, which no token spells alone
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
    """The ways on from a node, itself first, down to the last tokens that have bytes."""
    texts, drafts = vocabulary.tokens, cursor.tree
    open_ways = [[cursor.node]]
    while open_ways:
        way = open_ways.pop()
        while further := [child for child in drafts.children(way[-1]) if texts[drafts.tokens[child]]]:
            open_ways += ([*way, child] for child in reversed(further[1:]))
            way.append(further[0])
        yield way


def grammar_filtered(
    tree: DraftTree, matcher: Matcher, *, remaining: int, budget: int, forced: bool = True
) -> DraftTree:
    """Return the tree that is worth running.

    Every path of it goes on as the loop does that takes its tokens: where the grammar leaves one text or one token,
    with that, whatever was drafted; a draft token that spells the same bytes in other tokens goes on after them, its
    rest tokenized anew where they end within a token.  It ends where something is chosen, for nothing else needs a row.
    Forced nodes have confidence 1 and the source ``FORCED``.

    Of children that were drawn, only what the grammar refuses is missing, or everything from some child on; a stop
    among them stays, since its absence would tell what was drawn.  Other stops are cut.

    Costs a few calls of the matcher for each node of the result and for each that is refused.

    Args:
        tree: draft tokens; ids of the vocabulary.
        matcher: where the output stands; it is moved, and moved back.
        remaining: tokens that the output may still have.  A branch ends at a choice whose mask depends on them, where
            that is cheap to tell.
        budget: the most nodes.  Those of the largest reach are kept, each with what is forced after it or not at all;
            if any were drawn, the first.
        forced: whether tokens that are forced come without a choice; else every node that the grammar allows stays.
    """
    walk = _GrammarWalk(tree, matcher, remaining, budget, forced=forced)
    before = matcher.history_length
    try:
        walk.run()
    except LimitExceeded:
        pass  # the limits are for outputs, not for draft tokens; what was found until here stands
    finally:
        matcher.rollback(matcher.history_length - before)
    return walk.out


class _NodeCandidates(NamedTuple):
    """What may be added after a node; the smallest is tried first."""

    order: float
    origin: int  # node of the drafter's tree, the first of several
    number: int  # different for each
    parent: int
    reach: float  # of the parent
    drafts: list[DraftToken]  # one, or what was drawn
    drawn: SampledChildren | None


@final
class _GrammarWalk:
    def __init__(self, tree: DraftTree, matcher: Matcher, remaining: int, budget: int, *, forced: bool) -> None:
        self.out = DraftTree()
        self._drafts = tree
        self._matcher = matcher
        self._vocabulary = matcher.constraint.vocabulary
        self._stops = frozenset(self._vocabulary.eos)
        self._has_reach = matcher.constraint.native.has_reach  # else to ask for it may cost as much as a mask
        self._remaining = remaining
        self._budget = budget
        self._forced = forced
        self._taken: list[int] = []  # by the matcher
        self._at: int | None = None  # the node that it stands at, where that is known
        self._open: list[_NodeCandidates] = []
        self._pushed = 0

    def run(self) -> None:
        if self._budget <= 0 or self._remaining <= 0:
            return
        run = self._force([TextCursor.before(self._drafts)], self._budget)
        if run is not None:
            self._open_after(ROOT, *run, 1.0)
        while self._open and self._room > 0:
            candidates = heapq.heappop(self._open)
            if candidates.drawn is None:
                self._try(candidates.parent, candidates.drafts[0], candidates.reach)
            else:
                self._try_drawn(candidates, candidates.drawn)

    @property
    def _room(self) -> int:
        return self._budget - len(self.out)

    def _try(self, parent: int, draft: DraftToken, reach: float, *, is_drawn: bool = False) -> bool:
        """Add a draft token with what is forced after it, if it is of use or was drawn.

        Whether the grammar allows it.
        """
        if parent != self._at:
            self._move(self.out.prefix(parent))
            self._at = parent
        if not self._accept(draft.token):
            return False
        self._at = None
        run = self._force(draft.cursors, self._room - 1)
        if run is not None or is_drawn:
            node = self.out.add(parent, draft.token, draft.confidence, source=draft.source)
            if run is not None:
                self._open_after(node, *run, reach * draft.confidence)
        return True

    def _try_drawn(self, candidates: _NodeCandidates, drawn: SampledChildren) -> None:
        """Add children in the order in which they were drawn, for as long as any other would fit as well."""
        parent = candidates.parent
        drafts = {draft.token: draft for draft in candidates.drafts}
        refused: set[int] = set()
        kept: list[int] = []
        try:
            for token in drawn.tokens:
                if self._room <= 0 or token not in drafts:
                    break
                if token in refused:
                    continue
                if token in kept or self._try(parent, drafts[token], candidates.reach, is_drawn=True):
                    kept.append(token)
                else:
                    refused.add(token)
        finally:
            if kept:
                self.out.drawn[parent] = SampledChildren(drawn.distribution, tuple(kept), drawn.replaced)

    def _force(self, cursors: list[TextCursor], room: int) -> tuple[list[int], list[TextCursor]] | None:
        """Take what is forced; None if nothing is chosen after it, or it takes more than ``room`` tokens."""
        tokens: list[int] = []
        if not self._forced:
            return tokens, cursors
        while not self._matcher.is_terminated and len(self._taken) < self._remaining:
            run = self._matcher.forced_tokens()
            if not run:
                allowed = self._matcher.allowed_tokens(2)
                if not allowed:
                    break
                if len(allowed) > 1 or (self._stops and self._matcher.is_accepting):
                    return tokens, cursors
                run = allowed
            for token in run:
                if len(tokens) == room or not self._accept(token):
                    return None
                tokens.append(token)
                cursors = cursors_after(cursors, token, self._vocabulary)
        return None

    def _open_after(self, node: int, tokens: list[int], cursors: list[TextCursor], reach: float) -> None:
        """Add what is forced after a node, and note what may follow; the matcher stands there."""
        if tokens:
            node = self.out.extend(node, tokens, source=FORCED)
        self._at = node
        if self._matcher.is_terminated or self._is_tight():
            return
        drawn = None
        for cursor in cursors:
            if not cursor.rest and cursor.tree is self._drafts and cursor.node in self._drafts.drawn:
                cursors, drawn = [cursor], self._drafts.drawn[cursor.node]
                break
        drafts = draft_tokens_at(cursors, self._vocabulary)
        if drawn is not None:
            together = [draft for draft in drafts if draft.token in drawn.tokens]
            if together:
                self._push(node, reach, together, drawn)
            drafts = [draft for draft in drafts if draft.token not in drawn.tokens]
        for draft in drafts:
            if draft.token not in self._stops:
                self._push(node, reach, [draft], None)

    def _push(self, parent: int, reach: float, drafts: list[DraftToken], drawn: SampledChildren | None) -> None:
        order = 0.0 if self._drafts.drawn else -reach * drafts[0].confidence
        self._pushed += 1
        heapq.heappush(self._open, _NodeCandidates(order, drafts[0].origin, self._pushed, parent, reach, drafts, drawn))

    def _is_tight(self) -> bool:
        """Whether the mask is known to depend on the tokens that are left, or none are."""
        left = self._remaining - len(self._taken)
        return left <= 0 or (self._has_reach and self._matcher.needs_budget_mask(left))

    def _accept(self, token: int) -> bool:
        accepted = self._matcher.accept(token)
        if accepted:
            self._taken.append(token)
        return accepted

    def _move(self, tokens: Sequence[int]) -> None:
        """Let the matcher stand after ``tokens``, which were accepted before."""
        common = 0
        for taken, wanted in zip(self._taken, tokens, strict=False):
            if taken != wanted:
                break
            common += 1
        self._matcher.rollback(len(self._taken) - common)
        del self._taken[common:]
        for token in tokens[common:]:
            self._accept(token)
