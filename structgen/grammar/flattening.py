"""From terms to programs for the native engine, and whether a grammar matches a string.

A program is a list of instructions without Python objects (``flatten.h``, ``program.h``). :func:`recognizes` compiles a
grammar over single bytes, without a vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple, NoReturn, Protocol

from structgen_kernels import _native

from structgen.errors import GrammarError, LimitExceeded, StructgenError, number_of
from structgen.grammar import nodes as ir
from structgen.grammar.algebra import with_children
from structgen.grammar.left_recursion import remove_left_recursion
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar
from structgen.grammar.nodes.description import Described
from structgen.grammar.visitor import NodeTable, fold
from structgen.memory_cache import TERMS, ContentCache

__all__ = ["flatten", "is_empty", "memory_of", "recognizes", "untrack"]


class SpecialTokens(Protocol):
    """The part of a vocabulary that flattening reads."""

    @property
    def tokens(self) -> Sequence[bytes]: ...
    @property
    def eos(self) -> tuple[int, ...]: ...
    @property
    def special(self) -> Mapping[int, str]: ...
    def token_id(self, token: str) -> int: ...


class _SeveralIds(Exception):
    """Several special tokens have the name of one that a grammar uses."""


def _namesakes(vocabulary: SpecialTokens, name: str) -> list[int]:
    """The ids of the special tokens called ``name``, without EOS."""
    return [token for token, text in vocabulary.special.items() if text == name and token not in vocabulary.eos]


class _Host:
    """Callbacks of the native flattener: token ids, and the errors that it reports."""

    @staticmethod
    def special_id(vocabulary: SpecialTokens | None, node: ir.SpecialToken) -> int | None:
        """The id of a special token that a grammar may use; ``None``: write its text instead."""
        if node.or_text and (vocabulary is None or node.token not in vocabulary.special.values()):
            return None
        if vocabulary is None:
            raise GrammarError("grammar", f"there is no vocabulary that could have the token {node.token!r}")
        token = node.token
        if isinstance(token, str):
            ids = _namesakes(vocabulary, token)
            if len(ids) > 1:
                raise _SeveralIds
            token = ids[0] if ids else vocabulary.token_id(token)
        if token in vocabulary.eos:
            raise GrammarError(
                "grammar",
                f"special token {node.token!r} is an EOS token of the vocabulary",
                remedy="EOS is allowed wherever the grammar may end; leave it out of the grammar",
            )
        if token not in vocabulary.special:
            raise GrammarError(
                "grammar",
                f"token {node.token!r} is no special token of the vocabulary",
                remedy="write ordinary text as text",
            )
        return token

    @staticmethod
    def token_ranges(vocabulary: SpecialTokens | None, node: ir.TokenSet) -> tuple[tuple[int, int], ...]:
        """The id ranges of a token set: tokens with text and special tokens, without EOS."""
        if vocabulary is None:
            raise GrammarError("grammar", "there is no vocabulary that could have the tokens of a set")
        size = len(vocabulary.tokens)
        named = bytearray(size)
        for token in node.tokens:
            if isinstance(token, str):
                low = high = vocabulary.token_id(token)
                for other in _namesakes(vocabulary, token):
                    named[other] = 1
            else:
                low, high = (token, token) if isinstance(token, int) else token
            if high >= size:
                raise GrammarError(
                    "grammar",
                    f"token {high} of a set is out of range",
                    evidence=f"the vocabulary has {number_of(size, 'token')}",
                    remedy="name tokens that the vocabulary has",
                )
            named[low : high + 1] = b"\x01" * (high + 1 - low)
        included = 0 if node.is_excluded else 1
        eos, special, texts = frozenset(vocabulary.eos), vocabulary.special, vocabulary.tokens
        ranges: list[tuple[int, int]] = []
        for token, mark in enumerate(named):
            if mark != included or token in eos or not (texts[token] or token in special):
                continue
            if ranges and ranges[-1][1] == token - 1:
                ranges[-1] = ranges[-1][0], token
            else:
                ranges.append((token, token))
        if not ranges:
            raise GrammarError(
                "grammar",
                "a set of tokens has no token that could be written",
                evidence="there are only EOS tokens, or tokens without text that are not special",
                remedy="EOS is allowed wherever the grammar may end; leave it out of the grammar",
            )
        return tuple(ranges)

    @staticmethod
    def undefined(name: str) -> NoReturn:
        """A reference has no rule."""
        raise GrammarError(
            "grammar", f"rule {name!r} is not defined", remedy="bind it in a Rules node around the reference"
        )

    @staticmethod
    def recursive(node: Grammar) -> NoReturn:
        """A rule reaches itself through ``node``."""
        name = node.name if isinstance(node, ir.Reference) else type(node).__name__
        raise GrammarError(
            "grammar",
            f"rule {name!r} is recursive where the language must be regular",
            evidence="it is used inside an intersection, a complement, a JSON string value or a budget of characters",
            remedy="write that part without recursion",
        )

    @staticmethod
    def special_in_regular(node: ir.SpecialToken | ir.TokenSet) -> NoReturn:
        """A special token in a regular context."""
        name = "a set of tokens" if isinstance(node, ir.TokenSet) else f"special token {node.token!r}"
        raise GrammarError(
            "grammar",
            f"{name} is used where the language must be regular text",
            remedy="keep special tokens out of intersections, complements, JSON strings and budgets of characters",
        )

    @staticmethod
    def distinct_in_regular(_: ir.Distinct) -> NoReturn:
        """A distinct term in a regular context."""
        raise GrammarError(
            "grammar",
            "a distinct term is used where the language must be regular",
            remedy="keep arrays and objects without repetition out of intersections and complements",
        )

    @staticmethod
    def budget_in_regular(node: ir.Budget) -> NoReturn:
        """A token budget in a regular context."""
        raise GrammarError(
            "grammar",
            f"a budget of {number_of(node.tokens or 0, 'token')} is used where the language must be regular text",
            evidence="it is inside an intersection, a complement, a JSON string value or a budget of characters",
            remedy="bound the tokens of the whole part, or the characters of this one",
        )

    @staticmethod
    def label_in_regular(_: ir.Label) -> NoReturn:
        """A label in a regular context."""
        raise GrammarError(
            "grammar",
            "a label is used where the language must be regular",
            remedy="keep labels out of intersections, complements and JSON strings",
        )

    @staticmethod
    def unknown(node: object) -> NoReturn:
        """``node`` is not a node of the IR."""
        raise GrammarError("grammar", f"unknown node {type(node).__name__}")

    @staticmethod
    def exceeded(limit: str, maximum: int) -> NoReturn:
        """The grammar is too large."""
        remedy = "" if limit == "grammar_nodes" else "simplify the grammar"
        raise LimitExceeded("grammar", limit=limit, maximum=maximum, remedy=remedy)


_NODE_CLASSES: Final = (  # in the order of `NodeClass` in flatten.h
    ir.Literal,
    ir.ByteClass,
    ir.CharClass,
    ir.Sequence,
    ir.Choice,
    ir.Repeat,
    ir.Reference,
    ir.Rules,
    ir.Intersection,
    ir.Complement,
    ir.Capture,
    ir.SpecialToken,
    ir.JsonString,
    ir.Shared,
    Described,
    ir.Permutation,
    ir.Distinct,
    ir.Label,
    ir.TokenSet,
    ir.Tempered,
    ir.Budget,
)
_FLATTENER: Final = _native.Flattener(tuple(NodeTable("flattening", dict.fromkeys(_NODE_CLASSES))))


def flatten(
    grammar: Grammar,
    known: dict[int, tuple[Grammar, int]],
    vocabulary: SpecialTokens | None,
    max_nodes: int,
    rewrite: Callable[[ir.Rules], Grammar] | None = None,
) -> _native.FlatGrammar:
    """Return the program of a closed grammar.

    Args:
        grammar: a closed term.
        known: the shared nodes that an engine has compiled, as (node, term) by the id of the node.
        vocabulary: resolves special tokens; ``None``: the grammar has none.
        max_nodes: the limit on its nodes.
        rewrite: returns an equal term for outermost rules.

    Raises:
        GrammarError: a free reference, a recursive rule where the language must be regular, or a special token
            that the grammar may not use.
        LimitExceeded: more nodes than ``max_nodes``, or boolean operators nested too deeply.

    Complexity: linear in the nodes; a node counts once for each scope in which it occurs.
    """
    if isinstance(grammar, Described) and isinstance(grammar.plain, _native.FlatGrammar):
        if grammar.plain.size > max_nodes:
            _Host.exceeded("grammar_nodes", max_nodes)
        return grammar.plain
    try:
        return _FLATTENER.flatten(grammar, known, _Host, vocabulary, max_nodes, rewrite)
    except _SeveralIds:
        return flatten(_with_sets(grammar, vocabulary), known, vocabulary, max_nodes, rewrite)


def untrack(term: Grammar) -> None:
    """Take the nodes of a term that will be kept from Python's cycle collector, except for descriptions.

    Terms are immutable, so no node is a part of a cycle, unless a description within the term refers to an object that
    refers to the term: such terms must not be given.  The caches hold hundreds of thousands of nodes, and a full
    collection, in which no thread runs, would look at each of them.

    Complexity: linear in the nodes that are tracked.
    """
    _FLATTENER.untrack(term)


def _with_sets(grammar: Grammar, vocabulary: SpecialTokens | None) -> Grammar:
    """Return a grammar with the set of all ids in place of each special token whose name has several."""

    def combine(node: Grammar, parts: list[Grammar]) -> Grammar:
        if vocabulary is None or not isinstance(node, ir.SpecialToken) or not isinstance(node.token, str):
            return with_children(node, parts)
        return ir.TokenSet([node.token]) if len(_namesakes(vocabulary, node.token)) > 1 else node

    return fold(grammar, combine)


_LIMITS: Final = Limits()
_BYTES: Final = 256


def recognizes(grammar: Grammar, text: str) -> bool:
    """Whether a closed grammar without special tokens matches ``text``.

    Raises:
        GrammarError: the grammar is not closed, or not regular where it must be.
        LimitExceeded: a bound of the engine was reached.

    >>> from structgen.frontends.lark import lark
    >>> nested = lark('start: "(" start ")" | "x"')
    >>> recognizes(nested, "((x))"), recognizes(nested, "((x)")
    (True, False)
    """
    try:
        data = text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which no grammar matches
        return False
    alone = _alone(grammar)
    if alone.constraint is None:
        return False
    matcher = _native.Matcher(alone.constraint)
    is_member = matcher.accept_bytes(data) == len(data) and matcher.is_accepting
    _engines.put(grammar.digest, alone, alone.engine.memory_bytes)  # it has grown
    return is_member


def is_empty(grammar: Grammar) -> bool:
    """Whether a closed grammar without special tokens matches no string.

    Raises:
        GrammarError: the grammar is not closed, or not regular where it must be.
        LimitExceeded: a bound of the engine was reached.

    >>> from structgen.frontends.regex import regex
    >>> is_empty(regex("a+") & regex("b+")), is_empty(regex("a+") & regex("a|b"))
    (True, False)
    """
    return _alone(grammar).constraint is None


class _Alone(NamedTuple):
    """A grammar over single bytes in an engine of its own; no constraint if it matches no string."""

    engine: _native.Engine
    constraint: _native.Constraint | None


_engines: Final[ContentCache[_Alone]] = ContentCache(TERMS)


def _alone(grammar: Grammar) -> _Alone:
    alone = _engines.get(grammar.digest)
    if alone is None:
        alone = _made_alone(grammar)
        _engines.put(grammar.digest, alone, alone.engine.memory_bytes)
    return alone


def _made_alone(grammar: Grammar) -> _Alone:
    engine = _native.Engine(_trie(), _BYTES)
    bounds = _native.Limits()
    flat = flatten(grammar, {}, None, _LIMITS.grammar_nodes)
    found = _native.couple(engine, flat, (), bounds, is_own=True)
    if found is not None and found[2]:
        flat = flatten(grammar, {}, None, _LIMITS.grammar_nodes, lambda rules: remove_left_recursion(rules, _LIMITS))
        found = _native.couple(engine, flat, (), bounds, is_own=True)
    return _Alone(engine, found[0] if found is not None else None)


@cache
def _trie() -> _native.TokenTrie:
    return _native.TokenTrie([bytes([byte]) for byte in range(_BYTES)])


_BYTES_PER_BYTE: Final = 4
"""Bytes of the nodes of a term for each byte of its program: 3.0 to 3.2, measured on large ones."""
_NODE_BYTES: Final = 128
_MAX_SHARED: Final = 256
_known_shared: dict[int, tuple[Grammar, int]] = {}
"""``Shared`` nodes, which belong to no single grammar; by identity."""


def memory_of(grammar: Grammar) -> int:
    """About the memory of the nodes of a grammar in bytes, those of ``Shared`` terms not counted.

    Complexity: linear in its nodes, up to a third of the time to make them.

    >>> from structgen.grammar.nodes import Literal
    >>> memory_of(Literal(b"x" * 10_000)) > 10_000
    True
    """
    try:
        flat = flatten(grammar, _known_shared, None, 1 << 31)
    except StructgenError:  # a part of a grammar, or one with special tokens
        return _NODE_BYTES * sum(1 for _ in ir.postorder(grammar, known=lambda node: isinstance(node, ir.Shared)))
    if len(_known_shared) > _MAX_SHARED:
        _known_shared.clear()
    _known_shared.update((id(node), (node, 0)) for node in flat.shared if isinstance(node, ir.Shared))
    return _NODE_BYTES + _BYTES_PER_BYTE * flat.memory_bytes
