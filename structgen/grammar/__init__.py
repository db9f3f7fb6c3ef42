"""The grammar IR: immutable values, their algebra, their analysis and their text form; no tokens, no numpy."""

from structgen.grammar.nodes.base import hooks
from structgen.grammar.printer import to_text
from structgen.grammar.pydantic_string import validated

hooks.text = to_text
hooks.pydantic = validated
