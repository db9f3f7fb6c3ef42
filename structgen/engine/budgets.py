"""What is checked of budgets of tokens (``Budget``) when a grammar is compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from structgen.errors import GrammarError, StructgenError, UnsatisfiableGrammar
from structgen.grammar.nodes import Budget, postorder
from structgen.grammar.printer import to_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from structgen.engine.constraint import Constraint
    from structgen.grammar.nodes import Grammar

__all__ = ["check_budgets", "refuse_budgets"]


def check_budgets(constraint: Constraint, compiled: Callable[[Grammar], Constraint]) -> None:
    """Check that some tokens keep to all budgets.

    Args:
        constraint: the grammar with budgets.
        compiled: compiles a part for the same vocabulary.

    Raises:
        UnsatisfiableGrammar: no tokens do; it names a part whose shortest member takes more than it may.
        GrammarError: there are budgets beside values that must differ, or labels that must decode.
    """
    if constraint.native.has_scope:
        raise GrammarError(
            "grammar",
            "it has budgets of tokens beside arrays or objects without repetition, or labels that must decode",
            evidence="both are followed along the text, and not yet together",
            remedy="bound that part in characters, or leave out uniqueItems and formats of host names",
        )
    if constraint.native.is_completable():
        return
    evidence = "every member breaks some budget"
    for node in postorder(constraint.grammar):
        if isinstance(node, Budget) and node.tokens is not None:
            try:
                needed = compiled(node.item).min_tokens()
            except StructgenError:  # a part that is not closed, or that no budget of its own could be checked of
                continue
            if needed > node.tokens:
                part = to_text(node.item, max_length=200)
                evidence = (
                    f"the shortest text of {part} takes {needed} tokens of this vocabulary, and may take {node.tokens}"
                )
                break
    raise UnsatisfiableGrammar(
        "grammar",
        "no tokens keep to its budgets",
        evidence=evidence,
        remedy="allow the part more tokens, or bound it in characters",
    )


def refuse_budgets(constraint: Constraint, subject: str) -> None:
    """Refuse budgets of tokens where tokens are not counted.

    Args:
        constraint: the constraint.
        subject: what does not count them.

    Raises:
        GrammarError: the grammar has such budgets.
    """
    if constraint.native.has_budgets:
        raise GrammarError(
            subject,
            "the grammar bounds the tokens of a part, and here tokens are not written one after the other",
            remedy="bound that part in characters, or decode with an autoregressive model",
        )
