"""The grammar IR: immutable values, their algebra, their analysis and their text form; no tokens, no numpy."""

from typing import Any

from structgen.grammar.nodes.base import Grammar, hooks
from structgen.grammar.printer import to_text


def _validated(grammar: Grammar, shown: str, source: Any, handler: Any) -> Any:
    from structgen.grammar.pydantic_string import validated  # where a grammar annotates a type of pydantic

    return validated(grammar, shown, source, handler)


hooks.text = to_text
hooks.pydantic = _validated
