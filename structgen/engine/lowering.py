"""From IR terms to the hash-consed terms of the native engine.

The nodes are flattened to a program (``structgen.grammar.flattening``), and the engine makes terms from it without
the GIL (``program.h``), without recursion.  What terms mean is stated a second time, from the nodes, by
``structgen.testing.reference``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from structgen_kernels import _native

from structgen.errors import GrammarError, LimitExceeded
from structgen.grammar.flattening import flatten
from structgen.grammar.left_recursion import remove_left_recursion

if TYPE_CHECKING:
    from collections.abc import Callable

    from structgen.engine.shared_engine import SharedEngine
    from structgen.engine.vocabulary import Vocabulary
    from structgen.grammar.limits import Limits
    from structgen.grammar.nodes import Grammar, Rules

__all__ = ["Coupled", "couple"]

Coupled: TypeAlias = "tuple[_native.Constraint | None, int | None, int | None, int]"
"""A grammar in an engine: the constraint, ``None`` if it has no members; length of the shortest member in bytes; a byte
that it needs somewhere and that no token holds, if there is one; size of the program that it was flattened to.
"""


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
    flat = flatten(grammar, engine.lowered, vocabulary, limits.grammar_nodes, rewrite)
    try:
        native, shared, is_left_recursive, shortest, unspellable, engine.memory_bytes = _native.couple(
            engine.native, flat, vocabulary.eos, bounds
        )
    except LimitExceeded:
        raise
    except ValueError as error:  # of a distinct term or a label
        remedy = "let every member be one JSON array or object, or begin with a label"
        raise GrammarError("grammar", str(error), remedy=remedy) from None
    if native is not None and native.has_scope and native.has_token_sets:
        raise GrammarError(
            "grammar",
            "sets of tokens stand beside items that must differ, or labels that must decode",
            evidence="which tokens those have read would not be known",
            remedy="leave uniqueItems and formats of host names out of the schema, or name special tokens one by one",
        )
    if shared:
        engine.remember(flat.shared, shared)
    return None if is_left_recursive else (native, shortest, unspellable, flat.memory_bytes)
