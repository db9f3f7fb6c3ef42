"""Where a text stands in a tree of guesses that may spell it in other tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Self

from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.errors import VocabularyError

if TYPE_CHECKING:
    from structgen.engine import Vocabulary

__all__ = ["Cursor", "Guess", "behind", "guesses_at"]


class Cursor(NamedTuple):
    """The end of a text in a tree: behind a node, or within its token.

    Attributes:
        tree: guesses.
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

    def children(self) -> list[Cursor]:
        """Cursors behind each token that follows the node."""
        return [Cursor(self.tree, self.origins, child) for child in self.tree.children(self.node)]

    @property
    def token(self) -> int:
        """The token of the node."""
        return self.tree.tokens[self.node]


class Guess(NamedTuple):
    """A token that may come next.

    Attributes:
        token: its id.
        confidence: estimated probability that it is taken.
        source: which drafter it is from.
        origin: the node of the drafter's tree that it is from, or begins in.
        cursors: behind it.
    """

    token: int
    confidence: float
    source: str
    origin: int
    cursors: list[Cursor]


def behind(cursors: Iterable[Cursor], token: int, vocabulary: Vocabulary) -> list[Cursor]:
    """Cursors behind the bytes of a token, in whatever tokens the tree spells them; a special token is itself.

    O(bytes) for each branch that begins with them.
    """
    texts = vocabulary.tokens
    piece = texts[token]
    if not piece:
        return [child for cursor in cursors if not cursor.rest for child in cursor.children() if child.token == token]
    found: list[Cursor] = []
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


def guesses_at(cursors: Iterable[Cursor], vocabulary: Vocabulary) -> list[Guess]:
    """The tokens that are guessed to come next, each once.

    Where a text ends within a token, what the branch spells from there on is tokenized anew.
    """
    found: dict[int, Guess] = {}
    for cursor in cursors:
        start = _respelled(cursor, vocabulary) if cursor.rest else cursor
        for child in start.children():
            confidence = start.tree.confidences[child.node]
            known = found.get(child.token)
            if known is None:
                source, origin = start.tree.sources[child.node], start.origins[child.node]
                found[child.token] = Guess(child.token, confidence, source, origin, [child])
            else:
                known.cursors.append(child)
                found[child.token] = known._replace(confidence=max(known.confidence, confidence))
    return list(found.values())


def _agree(first: bytes, second: bytes) -> bool:
    """Whether one of two texts begins with the other."""
    return first.startswith(second) or second.startswith(first)


def _respelled(cursor: Cursor, vocabulary: Vocabulary) -> Cursor:
    """The branches from within a token on, in the tokenizer's own tokens.

    A token is as likely as all the guesses together that begin in it.  A branch ends where a special token stands.
    """
    texts, guesses = vocabulary.tokens, cursor.tree
    tree = DraftTree()
    for nodes in _branches(cursor, vocabulary):
        pieces = [cursor.rest, *(texts[guesses.tokens[node]] for node in nodes[1:])]
        try:
            tokens = vocabulary.tokenize(b"".join(pieces))
        except VocabularyError:  # a beginning of a character, which no token spells alone
            continue
        parent = ROOT
        reached = begun = 0  # bytes of the tokens so far, and of the guesses that begin in them
        following = zip(nodes, pieces, strict=True)
        for token in tokens:
            reached += len(texts[token])
            confidence = 1.0
            while begun < reached:
                node, piece = next(following)
                confidence *= guesses.confidences[node]
                begun += len(piece)
            parent = tree.add(parent, token, confidence, source=guesses.sources[cursor.node])
    return Cursor(tree, [cursor.origins[cursor.node]] * len(tree))


def _branches(cursor: Cursor, vocabulary: Vocabulary) -> Iterator[list[int]]:
    """The ways on from a node, itself first, down to the last tokens that have bytes."""
    texts, guesses = vocabulary.tokens, cursor.tree
    open_ways = [[cursor.node]]
    while open_ways:
        way = open_ways.pop()
        while further := [child for child in guesses.children(way[-1]) if texts[guesses.tokens[child]]]:
            open_ways += ([*way, child] for child in reversed(further[1:]))
            way.append(further[0])
        yield way
