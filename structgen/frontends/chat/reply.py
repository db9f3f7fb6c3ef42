"""Model replies: thoughts, answers and tool calls as grammars.

The family of the model defines how each part is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from structgen.errors import GrammarError
from structgen.frontends.chat.family import (
    Family,
    FreeText,
    Layout,
    Placeholder,
    load_family,
    spelled,
    stop_string_of,
    text_without,
)
from structgen.frontends.json_schema import JsonPolicy, json_schema
from structgen.frontends.regex import regex
from structgen.grammar.limits import Limits, counted, spend
from structgen.grammar.nodes import (
    ANY_CHAR,
    Budget,
    Complement,
    Grammar,
    Intersection,
    Repeat,
    choice,
    literal,
    sequence,
)
from structgen.grammar.nodes.description import Described, Description, ReportEntry, Status

__all__ = ["TOOL_NAME", "answer", "think", "tool_calls", "tools_of"]


def think(
    budget: int | None = None,
    *,
    family: str | Path | Family | None = None,
    start: str = "<think>",
    end: str = "</think>",
    is_open: bool = False,
) -> Grammar:
    r"""A thought: ``start``, any text, ``end``.

    The tags are special tokens if the vocabulary has them, else text.  The text of the thought is the
    capture ``thought``; ``end`` does not occur in it.

    Args:
        budget: the maximum number of tokens between the tags; None: only the budget of the whole output.
        family: use the layout of a family of models instead of ``start`` and ``end``.
        start: the tag before the thought.
        end: the tag after it.
        is_open: leave out the start tag, because the prompt ends with it.

    Raises:
        GrammarError: the family is unknown, or its models write no thoughts.
        ValueError: the budget is no positive number, or ``end`` is empty.

    >>> print(think(start="[", end="]"))
    token?("[") @thought(~(.* "]" .*)) token?("]")
    """
    if budget is not None and budget <= 0:
        raise ValueError(f"think: the budget is a number of tokens from 1 on; found {budget}")
    if not end:
        raise ValueError("think: the end tag is empty; give the string that ends the thought")
    tokens: tuple[str, ...] = tuple(tag for tag in (start, end) if tag)
    layout, stop = Layout(tuple(part for part in (start, Placeholder("thought"), end) if part)), end
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
        layout = Layout(layout.parts[1:] if layout.prefix else layout.parts)
    text: Grammar = text_without(stop)
    if budget is not None:
        text = Budget(text, tokens=budget)
    return layout.filled({"thought": text.named("thought")}, tokens)


def answer(what: Any, **options: Any) -> Grammar:
    r"""An answer, captured as ``answer``: a grammar, or an argument of ``json_schema`` with its options.

    >>> print(answer({"const": 1}))
    @answer("1")
    """
    grammar = what if isinstance(what, Grammar) else json_schema(what, **options)
    return grammar.named("answer")


TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_.:/-]+")
_CHOICES: Final = ("none", "auto", "required")
_DEFAULT_LIMITS: Final = Limits()
_TOOL_STEPS: Final = 60


class Tool(NamedTuple):
    """A tool: its name, and the schema of its arguments."""

    name: str
    parameters: Any


def tool_calls(
    tools: Iterable[Any],
    *,
    family: str | Path | Family = "hermes",
    choice: str | Mapping[str, Any] = "auto",
    parallel: bool | int = True,
    policy: JsonPolicy | None = None,
    limits: Limits | None = None,
) -> Grammar:
    """The replies of a model with these tools, in the format of its family.

    Captures: ``text``, ``name`` and ``arguments``, as the family writes them; ``read_reply`` reads a reply into values.

    Args:
        tools: each in the format of servers (``{"type": "function", "function": {"name": ..., "parameters": schema}}``,
            or the inner object alone), or a ``structgen.tool``.
        family: one of ``families()``, the path of a file, or a ``Family``.
        choice: ``"none"``: text and no calls.  ``"auto"``: text, or calls, before which the family may allow text.
            ``"required"``: at least one call and no text.  The name of a tool, or ``{"type": "function", "function":
            {"name": ...}}``: calls of that tool.
        parallel: whether a reply may hold several calls, or their maximum number.
        policy: how the JSON of arguments is written; white space as in the family by default.
        limits: bounds on the schemas.

    Raises:
        GrammarError: a tool is malformed, two tools have one name, ``choice`` names no tool, a call is required without
            tools, the schema of a tool cannot be enforced, or the family is unknown.
        ValueError: ``parallel`` is a number below 1.
        LimitExceeded: the tools are too many, or their schemas too large.
    """
    chosen = family if isinstance(family, Family) else load_family(family)
    known = tools_of(tools)
    requested = _requested_tool(choice, known)
    if isinstance(parallel, int) and not isinstance(parallel, bool) and parallel < 1:
        raise ValueError(f"tool_calls: parallel is a number of calls from 1 on; found {parallel}")
    options: list[Grammar] = []
    if requested in ("none", "auto"):
        options.append(_plain_text(chosen))
    if requested != "none" and known:
        called = known if requested in _CHOICES else [tool for tool in known if tool.name == requested]
        written = policy or JsonPolicy(whitespace=chosen.whitespace)
        bounds = limits or _DEFAULT_LIMITS
        with counted(bounds):
            calls = _calls_term(chosen, called, written, bounds, parallel=parallel)
        before = chosen.text_before if chosen.is_always_before else None
        empty = literal("") if before is None else before.layout.filled({"text": literal("")}, chosen.tokens)
        options.append(sequence(empty, calls))
        if requested == "auto" and chosen.text_before is not None:
            options.append(sequence(_free(chosen.text_before, chosen), calls))
    return Described(_either(options), _description(chosen, known, requested, parallel=parallel))


def _either(options: list[Grammar]) -> Grammar:
    return choice(*options)


def _plain_text(family: Family) -> Grammar:
    text = text_without(family.text.stop)
    if family.never_begins:
        anything = Repeat(ANY_CHAR, 0, None)
        text = Intersection([text, Complement(sequence(literal(family.never_begins), anything))])
    return family.text.layout.filled({"text": text.named("text")}, family.tokens)


def _free(written: FreeText, family: Family) -> Grammar:
    # Not empty: a reply that begins with calls is another alternative.
    text = Intersection([text_without(written.stop), Repeat(ANY_CHAR, 1, None)])
    return written.layout.filled({"text": text.named("text")}, family.tokens)


def _calls_term(
    family: Family, tools: list[Tool], policy: JsonPolicy, limits: Limits, *, parallel: bool | int
) -> Grammar:
    layouts = family.calls
    identifier = regex(layouts.id).named("id") if layouts.id else literal("")
    each: list[Grammar] = []
    for tool in tools:
        spend(_TOOL_STEPS, f"tool {tool.name}")
        try:
            family.arguments.check_name(tool.name)
            arguments = family.arguments.term(tool.parameters, policy, limits, _speller(family.tokens))
        except GrammarError as error:
            raise GrammarError(
                f"tool {tool.name}", "its parameters cannot be enforced", evidence=str(error), remedy=error.remedy
            ) from error
        places = {
            "name": literal(tool.name).named("name"),
            "arguments": arguments.named("arguments"),
            "id": identifier,
        }
        each.extend(layout.filled(places, family.tokens) for layout in layouts.layouts)
    call = _either(each)
    max_calls = parallel if isinstance(parallel, int) and not isinstance(parallel, bool) else None
    if not layouts.is_parallel or parallel is False:
        max_calls = 1
    between = spelled(layouts.between, family.tokens) if layouts.between else None
    return sequence(
        spelled(layouts.before, family.tokens),
        call.many(1, max_calls, sep=between),
        spelled(layouts.after, family.tokens),
    )


@lru_cache(maxsize=64)
def _speller(tokens: tuple[str, ...]) -> Callable[[str], Grammar]:
    """``spelled`` with ``tokens``: one object for equal tokens, because grammars are looked up by it."""
    return partial(spelled, tokens=tokens)


def tools_of(tools: Iterable[Any]) -> list[Tool]:
    """Read tools.

    Raises:
        GrammarError: one is malformed, or two have one name.
    """
    found: list[Tool] = []
    for at, given in enumerate(tools):
        tool = _tool(at, given)
        if any(tool.name == other.name for other in found):
            raise GrammarError(f"tools[{at}]", f"there are two tools called {tool.name!r}", remedy="rename one of them")
        found.append(tool)
    return found


def _tool(at: int, given: Any) -> Tool:
    subject = f"tools[{at}]"
    if isinstance(given, Mapping):
        described = given.get("function", given)
        if not isinstance(described, Mapping):
            raise GrammarError(subject, "'function' is no object", evidence=f"found {described!r:.60}")
        name, parameters = described.get("name"), described.get("parameters", {"type": "object"})
    else:
        name, parameters = getattr(given, "name", None), getattr(given, "arguments", None)
        if parameters is None:
            raise GrammarError(
                subject,
                f"a {type(given).__name__} is no tool",
                remedy="give {'name': ..., 'parameters': schema}, or structgen.tool(function)",
            )
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        raise GrammarError(
            subject,
            "its name has characters that calls cannot contain",
            evidence=f"found {name!r:.60}",
            remedy="use ASCII letters, digits and _ . : / -",
        )
    return Tool(name, parameters)


def _requested_tool(choice: str | Mapping[str, Any], tools: list[Tool]) -> str:
    """``"none"``, ``"auto"``, ``"required"``, or the name of the tool to call."""
    name: Any = choice
    if isinstance(choice, Mapping):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, Mapping) else choice.get("name")
    elif choice in _CHOICES:
        if choice == "required" and not tools:
            raise GrammarError("tool_calls", "a call is required, and there are no tools", remedy="give a tool")
        return choice
    if not any(tool.name == name for tool in tools):
        raise GrammarError(
            "tool_calls",
            f"choice {name!r:.60} is no tool",
            evidence=f"there are {', '.join(tool.name for tool in tools[:8]) or 'none'}",
            remedy="say 'none', 'auto', 'required' or the name of a tool",
        )
    return str(name)


def _description(family: Family, tools: list[Tool], requested: str, *, parallel: bool | int) -> Description:
    entries = [
        ReportEntry(
            f"tool {tool.name}",
            f"tools[{at}]",
            Status.ENFORCED if requested in ("auto", "required", tool.name) else Status.ANNOTATION,
            "" if requested in ("auto", "required", tool.name) else "not called: the choice excludes it",
        )
        for at, tool in enumerate(tools)
    ]
    several = str(parallel) if family.calls.is_parallel else "one, as the family has it"
    policies = (("family", family.name), ("tool choice", requested), ("parallel calls", several))
    return Description(source="tool calls", entries=tuple(entries), policies=policies)
