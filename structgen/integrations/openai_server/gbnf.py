"""Grammars in GBNF, the notation of llama.cpp that xgrammar, and so vLLM and SGLang, reads too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from structgen.grammar.dialects import write

if TYPE_CHECKING:
    from structgen.grammar.nodes import Grammar

__all__ = ["gbnf_of"]


def gbnf_of(grammar: Grammar) -> str:
    r"""Write a grammar in GBNF; the language is the same.

    Captures and temperatures are left out: the answer is read here again, with all that the grammar says.

    Raises:
        UnsupportedFeature: a part of it has no GBNF (``docs/conversion.md``).
        UnsatisfiableGrammar: no text belongs to it.
        GrammarError: a reference leads nowhere.

    >>> from structgen.grammar.nodes import CharClass, Literal, Repeat, Sequence
    >>> print(gbnf_of(Sequence([Literal(b"a"), Repeat(CharClass([(48, 57)]), 1, 3)])), end="")
    root ::= "a" [0-9]{1,3}
    """
    return write(grammar, "gbnf").text
