"""Thoughts with a budget, and the answer after them: ``think(200) + answer(schema)``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from structgen.errors import GrammarError
from structgen.frontends.chat.family import Family, Layout, free_text, load_family, stop_string_of
from structgen.frontends.json_schema import json_schema
from structgen.grammar.nodes import Budget, Grammar

__all__ = ["answer", "think"]


def think(
    budget: int | None = None,
    *,
    family: str | Path | Family | None = None,
    start: str = "<think>",
    end: str = "</think>",
    is_open: bool = False,
) -> Grammar:
    r"""A thought: ``start``, any text, ``end``.

    The tags are special tokens where the vocabulary has such, and text elsewhere.  The text of the thought is the
    capture ``thought``; ``end`` does not occur in it.

    Args:
        budget: the most tokens of the text between the tags; None leaves only the budget of the whole output.
        family: take the layout of a family of models instead of ``start`` and ``end``.
        start: the tag before the thought.
        end: the tag after it.
        is_open: leave out what stands before the thought, for the prompt ends with it already.

    Raises:
        GrammarError: the family is not known, or its models do not write thoughts.
        ValueError: the budget is no positive number, or ``end`` is empty.

    >>> print(think(start="[", end="]"))
    token?("[") @thought(~(.* "]" .*)) token?("]")
    """
    if budget is not None and budget <= 0:
        raise ValueError(f"think: the budget is a number of tokens from 1 on; found {budget}")
    if not end:
        raise ValueError("think: without a text at its end, nothing tells where a thought ends")
    tokens: tuple[str, ...] = tuple(tag for tag in (start, end) if tag)
    layout, stop = Layout.of(f"{start}$thought{end}"), end
    if family is not None:
        chosen = family if isinstance(family, Family) else load_family(family)
        if chosen.thought is None:
            raise GrammarError(
                f"family {chosen.name!r}",
                "its models write no thoughts",
                remedy="leave the family out, or think() away",
            )
        layout, tokens = chosen.thought.layout, chosen.tokens
        stop = stop_string_of(layout.end, tokens)
    if is_open:
        layout = Layout(layout.parts[1:] if layout.beginning else layout.parts)
    text: Grammar = free_text(stop)
    if budget is not None:
        text = Budget(text, tokens=budget)
    return layout.filled({"thought": text.named("thought")}, tokens)


def answer(what: Any, **options: Any) -> Grammar:
    r"""An answer, which is the capture ``answer``: a grammar, or what ``json_schema`` takes, with its options.

    >>> print(answer({"const": 1}))
    @answer("1")
    """
    grammar = what if isinstance(what, Grammar) else json_schema(what, **options)
    return grammar.named("answer")
