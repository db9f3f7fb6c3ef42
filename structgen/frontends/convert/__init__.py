"""Grammars written in other notations, with a report of the losses; ``docs/conversion.md`` has the table.

Reading order: ``lowering`` (with ``automaton``), ``layout``, then the dialects: ``rule_spelling``, ``json_schema``.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

from structgen.frontends.convert.json_schema import json_schema_of
from structgen.frontends.convert.layout import Loss, LossLog, Treatment, Written, written_rules
from structgen.frontends.convert.lowering import Abilities, lowered
from structgen.frontends.convert.rule_spelling import (
    BnfSpelling,
    LarkSpelling,
    is_ebnf_token,
    is_gbnf_token,
    is_llguidance_token,
    with_prefix_free_terminals,
)
from structgen.grammar.nodes import Grammar

__all__ = ["DIALECTS", "Dialect", "Loss", "Treatment", "Written", "write"]

Dialect: TypeAlias = Literal["gbnf", "ebnf", "lark", "llguidance", "json-schema"]
"""A notation that grammars are written in."""

DIALECTS: Final[tuple[Dialect, ...]] = get_args(Dialect)

_ABILITIES: Final = {
    "gbnf": Abilities(is_gbnf_token, has_left_recursion=False, max_count=1_000),
    "ebnf": Abilities(is_ebnf_token),
    "lark": Abilities(lambda node: False),
    "llguidance": Abilities(is_llguidance_token),
}


def write(grammar: Grammar, dialect: Dialect, *, superset: bool = False) -> Written:
    r"""Write a grammar in another notation.

    The language stays the same: operators that the notation lacks are expressed by others, or refused by name.
      Annotations that it lacks are dropped and reported.

    Args:
        grammar: a closed term.
        dialect: ``"gbnf"`` (llama.cpp), ``"ebnf"`` (xgrammar), ``"lark"``, ``"llguidance"`` (its dialect of Lark) or
            ``"json-schema"``.
        superset: drop and report restrictions that cannot be expressed, instead of refusing.

    Raises:
        UnsupportedFeature: a part cannot be expressed.
        UnsatisfiableGrammar: the grammar matches no string.
        GrammarError: a reference has no rule.
        LimitExceeded: the result is too large.
        ValueError: there is no such dialect.

    Complexity: linear, except for intersections and complements, which become automata of up to 400 states each.

    >>> from structgen.frontends.regex import regex
    >>> written = write(regex("(?P<year>[0-9]{4})-[0-9]{2}"), "gbnf")
    >>> print(written.text, end="")
    root ::= [0-9]{4,4} "-" [0-9]{2,2}
    >>> print(*written.losses)
    Capture 'year': dropped
    """
    if dialect not in DIALECTS:
        raise ValueError(f"write: there is no dialect {dialect!r}; give one of {', '.join(DIALECTS)}")
    log = LossLog(dialect, superset=superset)
    if dialect == "json-schema":
        return Written(json_schema_of(grammar, log), log.losses)
    flat = lowered(grammar, _ABILITIES[dialect], log)
    if dialect in ("gbnf", "ebnf"):
        text = written_rules(flat, BnfSpelling(log, is_ebnf=dialect == "ebnf"), log)
    else:
        text = written_rules(with_prefix_free_terminals(flat) if dialect == "llguidance" else flat, LarkSpelling(), log)
    return Written(text, log.losses)
