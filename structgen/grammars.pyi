"""Builders and options of grammars beside the core ones."""

from structgen.frontends.chat import answer, read_reply, think, tool_calls
from structgen.frontends.convert import write
from structgen.frontends.free_text import any_text, substring_of
from structgen.frontends.indentation import NEWLINE, Indentation, block, indented
from structgen.frontends.json_schema import JsonPolicy
from structgen.frontends.python_types.markers import Lark, Regex
from structgen.frontends.xml_arguments import read_xml_arguments, xml_arguments
from structgen.grammar.algebra import text, token
from structgen.methods.infilling import hole
from structgen.methods.monitors.sql.grammar import select_grammar

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
    "read_xml_arguments",
    "select_grammar",
    "substring_of",
    "text",
    "think",
    "token",
    "tool_calls",
    "write",
    "xml_arguments",
]
