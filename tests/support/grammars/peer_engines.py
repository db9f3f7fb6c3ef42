"""Other engines, and which of some texts they accept for a grammar in their own notation."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, Protocol

import lark
import pytest
from lark_reference import lark_accepts

__all__ = ["Engine", "LarkEarley", "Llguidance", "Xgrammar"]


class Engine(Protocol):
    """An engine that reads a notation."""

    def members(self, grammar: str, texts: Iterable[str]) -> set[str]:
        """The texts that belong to a grammar."""


class Xgrammar:
    """xgrammar's EBNF; xgrammar reads GBNF the same way."""

    def __init__(self) -> None:
        self.library: Any = pytest.importorskip("xgrammar", reason="xgrammar is not installed")
        tokens = [b"</s>", *(bytes([value]) for value in range(256))]
        self.compiler = self.library.GrammarCompiler(self.library.TokenizerInfo(tokens, stop_token_ids=[0]))

    def members(self, grammar: str, texts: Iterable[str]) -> set[str]:
        compiled = self.compiler.compile_grammar(self.library.Grammar.from_ebnf(grammar))
        found = set()
        for text in texts:
            matcher = self.library.GrammarMatcher(compiled)
            if (not text or matcher.accept_string(text)) and matcher.accept_token(0):
                found.add(text)
        return found


class LarkEarley:
    """Lark's Earley parser with the lexer that tries every division into terminals."""

    def members(self, grammar: str, texts: Iterable[str]) -> set[str]:
        parser = lark.Lark(grammar, parser="earley", lexer="dynamic_complete", ambiguity="forest")
        return {text for text in texts if lark_accepts(parser, text)}


class Llguidance:
    """llguidance's dialect of Lark, token by token with single bytes as tokens."""

    def __init__(self) -> None:
        self.library: Any = pytest.importorskip("llguidance", reason="llguidance is not installed")

    @cache  # noqa: B019  one per test module
    def _tokenizer(self) -> Any:
        return self.library.LLTokenizer("byte")

    def members(self, grammar: str, texts: Iterable[str]) -> set[str]:
        made = self.library.LLMatcher.grammar_from_lark(grammar)
        found = set()
        first = self.library.LLMatcher(self._tokenizer(), made)
        if first.is_error():
            raise ValueError(first.get_error())
        for text in texts:
            matcher = first.deep_copy()
            tokens = list(text.encode())
            if (not tokens or matcher.try_consume_tokens(tokens) == len(tokens)) and matcher.is_accepting():
                found.add(text)
        return found
