"""From IR terms to the hash-consed terms of the native engine.

The nodes are flattened to a program, which holds no Python objects (``flatten.h``), and the engine makes terms from
it without the GIL (``program.h``).  A node that several parents share is lowered once for each scope that it is met
in.  Neither walk recurses.  What terms mean is stated a second time, from the nodes, by
``structgen.testing.reference``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from structgen_kernels import _native

from structgen.errors import GrammarError, LimitExceeded
from structgen.grammar.left_recursion import remove_left_recursion
from structgen.grammar.nodes import (
    ByteClass,
    Capture,
    CharClass,
    Choice,
    Complement,
    Distinct,
    Grammar,
    Intersection,
    JsonString,
    Literal,
    Permutation,
    Reference,
    Repeat,
    Rules,
    Sequence,
    Shared,
    SpecialToken,
)
from structgen.grammar.report import Described

if TYPE_CHECKING:
    from structgen.engine.shared_engine import SharedEngine
    from structgen.engine.vocabulary import Vocabulary
    from structgen.grammar.limits import Limits

__all__ = ["FLATTENER", "Host", "Lowered", "lower"]

FLATTENER: Final = _native.Flattener(
    (  # in the order of `NodeClass` in flatten.h
        Literal,
        ByteClass,
        CharClass,
        Sequence,
        Choice,
        Repeat,
        Reference,
        Rules,
        Intersection,
        Complement,
        Capture,
        SpecialToken,
        JsonString,
        Shared,
        Described,
        Permutation,
        Distinct,
    )
)


class Lowered(NamedTuple):
    """A grammar in an engine.

    Attributes:
        term: its term.
        shortest: length of its shortest member in bytes; ``None`` if it has none.
        unspellable: a byte that it needs somewhere and that no token holds, if there is one.
        program_bytes: size of the program that it was flattened to.
    """

    term: int
    shortest: int | None
    unspellable: int | None
    program_bytes: int


def lower(
    grammar: Grammar, engine: SharedEngine, vocabulary: Vocabulary, bounds: _native.Limits, limits: Limits
) -> Lowered:
    """Make the native term of a closed grammar and solve its rules.

    Args:
        grammar: a closed term.
        engine: the engine that holds the term.
        vocabulary: resolves special tokens.
        bounds: the native part of ``limits``.
        limits: bounds the number of nodes.

    Raises:
        GrammarError: a free reference, a recursive rule where the language must be regular, or a special token
            that the grammar may not use.
        LimitExceeded: more nodes than ``limits.grammar_nodes``, or boolean operators nested too deeply.
    """
    result = _lowered(grammar, engine, Host(vocabulary, limits), bounds)
    if result is None:
        # Rare, and much dearer to look for in the grammar than in its terms: so lower first, and again if need be.
        result = _lowered(grammar, engine, _RewritingHost(vocabulary, limits), bounds)
    if result is None:
        raise RuntimeError("left recursion is left after it was removed")
    return result


def _lowered(grammar: Grammar, engine: SharedEngine, host: Host, bounds: _native.Limits) -> Lowered | None:
    """The same; ``None`` if the grammar is left-recursive."""
    flat = FLATTENER.flatten(grammar, engine.lowered, host, host.limits.grammar_nodes)
    try:
        term, shared, is_left_recursive, shortest, unspellable = _native.lower(engine.native, flat, bounds)
    except LimitExceeded:
        raise
    except ValueError as error:  # of a distinct term
        raise GrammarError("grammar", str(error), remedy="let every member be one JSON array or object") from None
    if shared:
        engine.remember(flat.shared, shared)
    return None if is_left_recursive else Lowered(term, shortest, unspellable, flat.memory_bytes)


class Host:
    """What the flattening asks for, and the errors that it reports."""

    def __init__(self, vocabulary: Vocabulary, limits: Limits) -> None:
        self.vocabulary = vocabulary
        self.limits = limits

    def rewrite(self, node: Rules) -> Grammar:
        """An equal term for rules that no other rules surround."""
        return node

    def special_id(self, node: SpecialToken) -> int:
        """The id of a special token that a grammar may use."""
        token = self.vocabulary.token_id(node.token) if isinstance(node.token, str) else node.token
        if token in self.vocabulary.eos:
            raise GrammarError(
                "grammar",
                f"special token {node.token!r} is an EOS token of the vocabulary",
                remedy="EOS is allowed wherever the grammar may end; leave it out of the grammar",
            )
        if token not in self.vocabulary.special:
            raise GrammarError(
                "grammar",
                f"token {node.token!r} is no special token of the vocabulary",
                remedy="write ordinary text as text",
            )
        return token

    @staticmethod
    def undefined(name: str) -> NoReturn:
        """A reference has no rule."""
        raise GrammarError(
            "grammar", f"rule {name!r} is not defined", remedy="bind it in a Rules node around the reference"
        )

    @staticmethod
    def recursive(node: Grammar) -> NoReturn:
        """A rule comes back to itself through ``node``."""
        name = node.name if isinstance(node, Reference) else type(node).__name__
        raise GrammarError(
            "grammar",
            f"rule {name!r} is recursive where the language must be regular",
            evidence="it is used inside an intersection, a complement or a JSON string value",
            remedy="write that part without recursion",
        )

    @staticmethod
    def special_in_regular(node: SpecialToken) -> NoReturn:
        """A special token stands where only text can."""
        raise GrammarError(
            "grammar",
            f"special token {node.token!r} is used where the language must be regular text",
            remedy="keep special tokens out of intersections, complements and JSON strings",
        )

    @staticmethod
    def distinct_in_regular(_: Distinct) -> NoReturn:
        """What is no regular language stands where only text can."""
        raise GrammarError(
            "grammar",
            "a distinct term is used where the language must be regular",
            remedy="keep arrays and objects without repetition out of intersections and complements",
        )

    @staticmethod
    def unknown(node: object) -> NoReturn:
        """``node`` is of no class of the IR."""
        raise GrammarError("grammar", f"unknown node {type(node).__name__}")

    @staticmethod
    def exceeded(limit: str, maximum: int) -> NoReturn:
        """The grammar is too large."""
        raise LimitExceeded("grammar", limit=limit, maximum=maximum)


class _RewritingHost(Host):
    """Removes left recursion on the way."""

    def rewrite(self, node: Rules) -> Grammar:
        return remove_left_recursion(node, self.limits)
