"""From IR terms to the hash-consed terms of the native engine.

The nodes are flattened to a program, which holds no Python objects (``flatten.h``), and the engine makes terms from
it without the GIL (``program.h``).  A node that several parents share is lowered once for each scope that it is met
in.  Neither walk recurses.  What terms mean is stated a second time, from the nodes, by
``structgen.testing.reference``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn, TypeAlias

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
    from collections.abc import Callable

    from structgen.engine.shared_engine import SharedEngine
    from structgen.engine.vocabulary import Vocabulary
    from structgen.grammar.limits import Limits

__all__ = ["FLATTENER", "Coupled", "Host", "couple"]

Coupled: TypeAlias = "tuple[_native.Constraint | None, int | None, int | None, int]"
"""A grammar in an engine: the constraint, ``None`` if it has no members; length of the shortest member in bytes; a byte
that it needs somewhere and that no token holds, if there is one; size of the program that it was flattened to.
"""


class Host:
    """What the flattening leaves to others, and the errors that it reports."""

    @staticmethod
    def special_id(vocabulary: Vocabulary, node: SpecialToken) -> int:
        """The id of a special token that a grammar may use."""
        token = vocabulary.token_id(node.token) if isinstance(node.token, str) else node.token
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


def couple(
    grammar: Grammar, engine: SharedEngine, vocabulary: Vocabulary, bounds: _native.Limits, limits: Limits
) -> Coupled:
    """Make the native terms of a closed grammar, solve its rules, and make a constraint of them.

    Args:
        grammar: a closed term.
        engine: the engine that holds the terms.
        vocabulary: resolves special tokens, and says what ends a text.
        bounds: the native part of ``limits``.
        limits: bounds the number of nodes.

    Raises:
        GrammarError: a free reference, a recursive rule where the language must be regular, or a special token
            that the grammar may not use.
        LimitExceeded: more nodes than ``limits.grammar_nodes``, or boolean operators nested too deeply.
    """
    result = _coupled(grammar, engine, vocabulary, bounds, limits, None)
    if result is None:
        # Rare, and much dearer to look for in the grammar than in its terms: so lower first, and again if need be.
        result = _coupled(
            grammar, engine, vocabulary, bounds, limits, lambda rules: remove_left_recursion(rules, limits)
        )
    if result is None:
        raise RuntimeError("left recursion is left after it was removed")
    return result


def _coupled(
    grammar: Grammar,
    engine: SharedEngine,
    vocabulary: Vocabulary,
    bounds: _native.Limits,
    limits: Limits,
    rewrite: Callable[[Rules], Grammar] | None,
) -> Coupled | None:
    """The same; ``None`` if the grammar is left-recursive."""
    flat = FLATTENER.flatten(grammar, engine.lowered, Host, vocabulary, limits.grammar_nodes, rewrite)
    try:
        native, shared, is_left_recursive, shortest, unspellable, engine.memory_bytes = _native.couple(
            engine.native, flat, vocabulary.eos, bounds
        )
    except LimitExceeded:
        raise
    except ValueError as error:  # of a distinct term
        raise GrammarError("grammar", str(error), remedy="let every member be one JSON array or object") from None
    if shared:
        engine.remember(flat.shared, shared)
    return None if is_left_recursive else (native, shortest, unspellable, flat.memory_bytes)
