"""Builders and options of grammars beside the core ones."""

from structgen.frontends.chat import (
    answer as answer,
    read_reply as read_reply,
    think as think,
    tool_calls as tool_calls,
)
from structgen.frontends.convert import write as write
from structgen.frontends.indentation import (
    NEWLINE as NEWLINE,
    Indentation as Indentation,
    block as block,
    indented as indented,
)
from structgen.frontends.json_schema import JsonPolicy as JsonPolicy
from structgen.frontends.python_types.markers import (
    Lark as Lark,
    Regex as Regex,
)
from structgen.frontends.quotation import substring_of as substring_of
from structgen.frontends.stop_string import any_text as any_text
from structgen.grammar.algebra import (
    text as text,
    token as token,
)
from structgen.methods.infilling import hole as hole
from structgen.methods.monitors.sql.grammar import select_grammar as select_grammar

__all__ = [
    "NEWLINE",
    "Indentation",
    "JsonPolicy",
    "Lark",
    "Regex",
    "answer",
    "any_text",
    "block",
    "hole",
    "indented",
    "read_reply",
    "select_grammar",
    "substring_of",
    "text",
    "think",
    "token",
    "tool_calls",
    "write",
]
