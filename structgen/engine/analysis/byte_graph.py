"""The deterministic automaton of a language over bytes, built as it is reached.

Its vocabulary has single bytes only, so that the analysis of a language does not depend on tokens.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Final, final

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

    Special tokens that may be written as text are left out, so that they are written as text.

    Raises:
        LimitExceeded: a special token has an id that no vocabulary has.
    """
    nodes = [node for grammar in grammars for node in postorder(grammar) if isinstance(node, SpecialToken)]
    named = {node.token for node in nodes if not node.or_text}
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
    """Return ``grammar`` without token budgets, temperatures, captures and descriptions: the strings are the same.

    Raises:
        GrammarError: the grammar has token sets, which are no text.

    Complexity: O(n) for n distinct nodes; without recursion.
    """
    made: dict[int, Grammar] = {}
    for node in postorder(grammar):
        if isinstance(node, TokenSet):
            raise GrammarError(
                "grammar",
                "it has a token set, which is no text",
                evidence=f"the term is {node!r}",
                remedy="remove this part: its bytes depend on a vocabulary",
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
"""Rule states of all grammars that are examined to find bytes with the same transitions."""
_NEVER_REACHED: Final = 1 << 40
"""Limit of engine states; node ids are valid until the engine drops its states, so callers bound the nodes instead."""


@final
class ByteNode:
    """A node of a :class:`ByteGraph`.

    Attributes:
        number: equal for equal nodes, in all graphs that were made together.
        is_accepting: whether the bytes read so far are a string of the language.
    """

    __slots__ = ("_distance", "_matcher", "_next", "is_accepting", "number")

    def __init__(self, matcher: Matcher) -> None:
        self.number = matcher.state_id
        self.is_accepting = matcher.is_accepting
        self._matcher = matcher
        self._next: dict[int, ByteNode] | None = None
        self._distance: int | None = None

    @property
    def distance(self) -> int:
        """The length of a shortest completion; a special token counts as one byte."""
        if self._distance is None:
            self._distance = 0 if self.is_accepting else len(self._matcher.shortest_completion())
        return self._distance

    def shortest_completion(self) -> tuple[int, ...]:
        """Return a shortest completion: bytes, and -1 - id for a special token."""
        return tuple(self._matcher.shortest_completion())


@final
class ByteGraph:
    """The nodes of one language.

    Attributes:
        constraint: the language, over single bytes.
        special: the special tokens of the language, by id.
        blocks: sets of bytes with the same transitions from all nodes, a partition of all bytes.
        start: the start node.
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
        """Return the nodes after ``node``, by index of a block, and by -1 - id for a special token."""
        if node._next is None:
            matcher = node._matcher
            successors: dict[int, ByteNode] = {}
            for byte in matcher.live_bytes():
                index = self._block_of[byte]
                if index not in successors:
                    after = matcher.fork()
                    after.accept_bytes(bytes([byte]))
                    successors[index] = self._node(after)
            for token in matcher.live_specials():
                after = matcher.fork()
                after.accept(token)
                successors[-1 - token] = self._node(after)
            node._next = successors
        return node._next

    def likely(self, index: int) -> bytes:
        """Return the most readable byte of a block: a lower-case letter, a letter, a digit, printable, or the first."""
        block = self.blocks[index]
        for is_preferred in (str.islower, str.isalpha, str.isdigit, str.isprintable):
            for byte in block:
                if byte < 0x80 and is_preferred(chr(byte)):
                    return bytes([byte])
        return block[:1]

    def _node(self, matcher: Matcher) -> ByteNode:
        number = matcher.state_id
        node = self._nodes.get(number)
        if node is None:
            node = self._nodes[number] = ByteNode(matcher)
        return node


def byte_graphs(*grammars: Grammar, limits: Limits | None = None) -> list[ByteGraph]:
    """Return the graphs of grammars, with the same blocks of bytes and comparable node numbers.

    Raises:
        UnsatisfiableGrammar, LimitExceeded: as ``compile``.
        GrammarError: as ``compile`` and ``string_language``; or the grammar has values that must differ from each
            other, or labels that must decode, which no finite set of nodes can express.
    """
    bounds = replace(limits if limits is not None else Limits(), states=_NEVER_REACHED)
    texts = [string_language(grammar) for grammar in grammars]
    constraints = compile_together(texts, byte_vocabulary(*texts), bounds)
    for constraint in constraints:
        if constraint.native.has_scope:
            raise GrammarError(
                "grammar",
                "it requires values or names that differ from each other, or labels that decode, which no "
                "automaton over bytes can check",
                evidence=f"the term is {constraint.grammar!r}",
                remedy="remove uniqueItems, repeated='forbidden' and the like",
            )
    blocks = _blocks(constraints)
    return [ByteGraph(constraint, blocks) for constraint in constraints]


def _blocks(constraints: Sequence[Constraint]) -> list[bytes]:
    """Return sets of bytes with the same transitions from all states; single bytes if there are too many states."""
    tables = []
    left = _MAX_RULE_STATES
    for constraint in constraints:
        made = _native.unfold_calls(constraint.native, left) if left > 0 else None
        if made is None:
            return [bytes([byte]) for byte in range(256)]
        tables.append(made[0])
        left -= len(made[0])
    import numpy as np  # slow to import, and a vocabulary of bytes does not need it

    from structgen.engine.call_graph import distinct_columns

    _, kinds = distinct_columns(np.concatenate(tables))
    blocks: dict[int, bytearray] = {}
    for byte, kind in enumerate(kinds.tolist()):
        blocks.setdefault(kind, bytearray()).append(byte)
    return [bytes(block) for block in blocks.values()]
