"""The deterministic graph over bytes that a language is, built where it is reached.

Its vocabulary is one of single bytes, so that questions about a language have nothing to do with tokens.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Final, final

import numpy as np
from structgen_kernels import _native

from structgen.engine.constraint import compile_together
from structgen.engine.vocabulary import Vocabulary
from structgen.errors import GrammarError, LimitExceeded
from structgen.grammar.algebra import with_children
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Budget, Capture, SpecialToken, Tempered, TokenSet, postorder
from structgen.grammar.nodes.description import Described

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.engine.constraint import Constraint
    from structgen.engine.matcher import Matcher
    from structgen.grammar.nodes import Grammar

__all__ = ["ByteGraph", "ByteNode", "byte_graphs", "byte_vocabulary", "string_language"]

_MAX_SPECIAL_ID: Final = 1 << 20


def byte_vocabulary(*grammars: Grammar) -> Vocabulary:
    """Return a vocabulary of single bytes, an end token, and the special tokens that the grammars name.

    A special token that may be written as text is not among them, so that it is.

    Raises:
        LimitExceeded: a special token has an id that no vocabulary has.
    """
    found = [node for grammar in grammars for node in postorder(grammar) if isinstance(node, SpecialToken)]
    named = {node.token for node in found if not node.or_text}
    ids = {token for token in named if isinstance(token, int)}
    texts = sorted(token for token in named if isinstance(token, str))
    if max(ids, default=0) > _MAX_SPECIAL_ID:
        raise LimitExceeded(
            f"special token {max(ids)}",
            limit="tokens of a vocabulary",
            maximum=_MAX_SPECIAL_ID,
            remedy="name the token by its text, or give an id that a vocabulary has",
        )
    free = (index for index in itertools.count() if index not in ids)
    eos, *others = itertools.islice(free, 1 + len(texts) + 256)
    special: dict[int, str | None] = dict.fromkeys(ids) | dict(zip(others, texts, strict=False))
    tokens = [b""] * (max([eos, *others, *ids]) + 1)
    for value, index in enumerate(others[len(texts) :]):
        tokens[index] = bytes([value])
    return Vocabulary(tokens, eos=[eos], special=special)


def string_language(grammar: Grammar) -> Grammar:
    """Return ``grammar`` without what is said of tokens, captures and descriptions: the texts are the same.

    A budget of tokens and a temperature take the place of nothing, for a text alone has no tokens.

    Raises:
        GrammarError: the grammar has sets of tokens, which are no text.

    Complexity:
        O(n) for n distinct nodes; without recursion.
    """
    made: dict[int, Grammar] = {}
    for node in postorder(grammar):
        if isinstance(node, TokenSet):
            raise GrammarError(
                "grammar",
                "it has a set of tokens, which is no text",
                evidence=f"the term is {node!r}",
                remedy="ask without this part, for only a vocabulary tells what such tokens write",
            )
        children = [made[id(child)] for child in node.children]
        if isinstance(node, Budget) and node.characters is not None:
            made[id(node)] = Budget(children[0], characters=node.characters)
        elif isinstance(node, (Budget, Tempered, Capture, Described)):
            made[id(node)] = children[0]
        else:
            made[id(node)] = with_children(node, children)
    return made[id(grammar)]


_MAX_RULE_STATES: Final = 5_000
"""States of the rules of all grammars that are looked at to find bytes that none tells apart."""
_NEVER_REACHED: Final = 1 << 40
"""Nodes have ids that last until the engine forgets, which it does at a limit; who asks bounds the nodes instead."""


@final
class ByteNode:
    """A node of a :class:`ByteGraph`.

    Attributes:
        number: equal for equal nodes, in all graphs that were made together.
        is_accepting: what led here is a member.
    """

    __slots__ = ("_blocks", "_distance", "_matcher", "_next", "is_accepting", "number")

    def __init__(self, matcher: Matcher, blocks: Sequence[bytes]) -> None:
        self.number = matcher.state_id
        self.is_accepting = matcher.is_accepting
        self._matcher = matcher
        self._blocks = blocks
        self._next: dict[int, ByteNode] | None = None
        self._distance: int | None = None

    @property
    def distance(self) -> int:
        """The length of the shortest text that completes a member; a special token counts as one byte."""
        if self._distance is None:
            self._distance = 0 if self.is_accepting else len(self._matcher.shortest_completion())
        return self._distance

    def shortest_completion(self) -> tuple[int, ...]:
        """Return a shortest text that completes a member: bytes, and -1 - id for a special token."""
        return tuple(self._matcher.shortest_completion())


@final
class ByteGraph:
    """The nodes of one language.

    Attributes:
        constraint: the language, over single bytes.
        special: the special tokens that it may have, by id.
        blocks: sets of bytes that no node tells apart, a partition of all.
        start: where nothing has been read.
    """

    def __init__(self, constraint: Constraint, blocks: Sequence[bytes]) -> None:
        self.blocks = blocks
        self.special = constraint.vocabulary.special
        self.constraint = constraint
        self._block_of = {byte: index for index, block in enumerate(blocks) for byte in block}
        self._nodes: dict[int, ByteNode] = {}
        self.start = self._node(constraint.matcher())

    def __len__(self) -> int:
        return len(self._nodes)

    def successors(self, node: ByteNode) -> dict[int, ByteNode]:
        """Return the nodes that may come after ``node``: by index of a block, and -1 - id for a special token."""
        if node._next is None:
            matcher = node._matcher
            found: dict[int, ByteNode] = {}
            for byte in matcher.live_bytes():
                index = self._block_of[byte]
                if index not in found:
                    after = matcher.fork()
                    after.accept_bytes(bytes([byte]))
                    found[index] = self._node(after)
            for token in matcher.live_specials():
                after = matcher.fork()
                after.accept(token)
                found[-1 - token] = self._node(after)
            node._next = found
        return node._next

    def likely(self, index: int) -> bytes:
        """Return the byte of a block that reads best: a small letter, a digit, what is printable, or the first."""
        block = self.blocks[index]
        for wanted in (str.islower, str.isalpha, str.isdigit, str.isprintable):
            for byte in block:
                if byte < 0x80 and wanted(chr(byte)):
                    return bytes([byte])
        return block[:1]

    def _node(self, matcher: Matcher) -> ByteNode:
        number = matcher.state_id
        known = self._nodes.get(number)
        if known is None:
            known = self._nodes[number] = ByteNode(matcher, self.blocks)
        return known


def byte_graphs(*grammars: Grammar, limits: Limits | None = None) -> list[ByteGraph]:
    """Return the graphs of grammars, with the same blocks of bytes and comparable node numbers.

    Raises:
        UnsatisfiableGrammar, LimitExceeded: as ``compile``.
        GrammarError: as ``compile`` and ``texts_of``; or the grammar has values that must differ from each other, or
            labels that must decode, which no node knows.
    """
    bounds = replace(limits if limits is not None else Limits(), states=_NEVER_REACHED)
    texts = [string_language(grammar) for grammar in grammars]
    constraints = compile_together(texts, byte_vocabulary(*texts), bounds)
    for constraint in constraints:
        if constraint.native.has_scope:
            raise GrammarError(
                "grammar",
                "it asks for values or names that differ from each other, or for labels that decode, which no "
                "automaton over bytes can tell",
                evidence=f"the term is {constraint.grammar!r}",
                remedy="leave out uniqueItems and the like",
            )
    blocks = _blocks(constraints)
    return [ByteGraph(constraint, blocks) for constraint in constraints]


def _blocks(constraints: Sequence[Constraint]) -> list[bytes]:
    """Sets of bytes that no state of any rule tells apart; single bytes where there are too many states to look at."""
    tables = []
    left = _MAX_RULE_STATES
    for constraint in constraints:
        made = _native.unfold_calls(constraint.native, left) if left > 0 else None
        if made is None:
            return [bytes([byte]) for byte in range(256)]
        tables.append(made[0])
        left -= len(made[0])
    _, kinds = np.unique(np.concatenate(tables), axis=1, return_inverse=True)
    blocks: dict[int, bytearray] = {}
    for byte, kind in enumerate(kinds.reshape(-1).tolist()):
        blocks.setdefault(kind, bytearray()).append(byte)
    return [bytes(block) for block in blocks.values()]
