"""What is checked of budgets of tokens (``Budget``) when a grammar is compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from structgen.errors import GrammarError, StructgenError, UnsatisfiableGrammar
from structgen.grammar.nodes import Budget, Distinct, Label, postorder
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
        GrammarError: a budget lies within values that must differ or labels that must decode, or one of these within a
            part with a budget.
    """
    if constraint.native.has_budgets_in_scopes:
        raise GrammarError(
            "grammar",
            "a budget of tokens lies within an array or object without repetition or a label that must decode, or one "
            "of these within a part with a budget",
            evidence=_nested(constraint.grammar),
            remedy="bound that part in characters, put the budget beside it, or leave out uniqueItems and formats of "
            "host names",
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


def _nested(grammar: Grammar) -> str:
    """A part with a budget that lies so, where that shows without following references."""
    inside: dict[int, tuple[bool, bool]] = {}  # whether there are budgets, and scopes
    for node in postorder(grammar):
        below = [inside[id(child)] for child in node.children]
        has_budgets, has_scopes = any(one for one, _ in below), any(one for _, one in below)
        is_budget, is_scope = isinstance(node, Budget) and node.tokens is not None, isinstance(node, Distinct | Label)
        if (is_budget and has_scopes) or (is_scope and has_budgets):
            return f"it is so in {to_text(node, max_length=200)}"
        inside[id(node)] = has_budgets or is_budget, has_scopes or is_scope
    return "rules lead from the one to the other"


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
