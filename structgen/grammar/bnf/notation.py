"""In what the notations of this family differ."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from structgen.grammar.nodes import Grammar

if TYPE_CHECKING:
    from structgen.grammar.bnf.parser import Parser
    from structgen.grammar.bnf.scanner import Token

__all__ = ["Notation"]


@dataclass(frozen=True, slots=True)
class Notation:
    """A notation.

    Attributes:
        source: what a description calls it: ``"gbnf"``.
        subject: what errors call a grammar in it.
        name: a regular expression for names of rules.
        tokens: regular expressions for tokens that only this notation has, by kind.
        ends_at_line: whether a rule ends with its line, except in parentheses and after ``|`` and ``::=``; else a rule
            ends where the next begins, which must be at the beginning of a line.
        hexadecimal: what follows the letter of an escape by code point, by letter.
        string_escapes: what other escapes stand for in a string, by letter.
        class_escapes: the same in a class.
        macros: what names that are followed by arguments in parentheses stand for.
        elements: what tokens of its own stand for, by kind.
        options: applies the options in brackets behind the name of a rule.
    """

    source: str
    subject: str
    name: str
    tokens: Mapping[str, str]
    ends_at_line: bool
    hexadecimal: Mapping[str, re.Pattern[str]]
    string_escapes: Mapping[str, str]
    class_escapes: Mapping[str, str]
    macros: Mapping[str, Callable[[Parser, Token], Grammar]]
    elements: Mapping[str, Callable[[Parser, Token], Grammar]]
    options: Callable[[Parser, Token, Grammar], Grammar]
