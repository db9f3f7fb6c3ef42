"""The node types of the grammar IR, one module a kind; this package offers all of them."""

from __future__ import annotations

from typing import cast

from structgen.grammar.nodes import base, regular as operators
from structgen.grammar.nodes.base import Grammar, postorder
from structgen.grammar.nodes.recursive import Budget, Capture, Reference, Rules, Shared, Tempered
from structgen.grammar.nodes.regular import (
    ANY_CHAR,
    EMPTY,
    EPSILON,
    MAX_CODE_POINT,
    SURROGATES,
    ByteClass,
    CharClass,
    Choice,
    Complement,
    Intersection,
    Literal,
    Permutation,
    Repeat,
    Sequence,
    choice,
    choice_of,
    choices_of,
    literal,
    repeat,
    sequence,
    sequence_of,
    sequences_of,
)
from structgen.grammar.nodes.special import MAX_TOKEN_ID, Distinct, JsonString, Label, LabelKind, SpecialToken, TokenSet

__all__ = [
    "ANY_CHAR",
    "EMPTY",
    "EPSILON",
    "MAX_CODE_POINT",
    "MAX_TOKEN_ID",
    "SURROGATES",
    "Budget",
    "ByteClass",
    "Capture",
    "CharClass",
    "Choice",
    "Complement",
    "Distinct",
    "Grammar",
    "Intersection",
    "JsonString",
    "Label",
    "LabelKind",
    "Literal",
    "Permutation",
    "Reference",
    "Repeat",
    "Rules",
    "Sequence",
    "Shared",
    "SpecialToken",
    "Tempered",
    "TokenSet",
    "choice",
    "choice_of",
    "choices_of",
    "literal",
    "postorder",
    "repeat",
    "sequence",
    "sequence_of",
    "sequences_of",
]

base.hooks.operators = cast("base.Operators", operators)
