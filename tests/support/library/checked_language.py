"""What a module of ``library_checkers`` says about a language, independently of its grammar and of structgen."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module


@dataclass(frozen=True)
class Language:
    """A language, as described by a source other than structgen.

    Attributes:
        problem: the parser's complaint about a text; None if there is none, or if README.md names it as a known gap.
        documents: realistic texts of any length, sampled with the generator that is given, or found on the machine.
        covers: whether README.md says that a text without a problem is in the language; None where that is open.
            Where this is given, the grammar and the parser must agree on every text.
        problems: the complaints about many texts, where the parser is faster on many.
        alphabet: characters for mutations of texts, beside those of the cases.
    """

    problem: Callable[[str], str | None]
    documents: Callable[[random.Random], Iterator[str]]
    covers: Callable[[str], bool | None] | None = None
    alphabet: str = ""
    problems: Callable[[list[str]], list[str | None]] | None = None

    def check(self, texts: list[str]) -> None:
        """Fail at the first text that has a problem."""
        found = list(map(self.problem, texts)) if self.problems is None else self.problems(texts)
        for text, problem in zip(texts, found, strict=True):
            assert problem is None, (text, problem)


def everything(text: str) -> bool:
    """For grammars that exclude nothing."""
    return True


def language(name: str) -> Language:
    """The language of the folder with this name."""
    found: Language = import_module(f"{name}_checker").LANGUAGE
    return found


def problem_of(parse: Callable[[str], object], *errors: type[Exception]) -> Callable[[str], str | None]:
    """The parser's complaint, where the parser reports it by one of these errors."""

    def problem(text: str) -> str | None:
        try:
            parse(text)
        except errors as error:
            return f"{type(error).__name__}: {error}"
        return None

    return problem
