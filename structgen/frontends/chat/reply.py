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
    choice as either,
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
_MODES: Final = ("none", "auto", "required")
_SCHEMA_NAMES: Final = ("parameters", "input_schema", "inputSchema")
"""The name of the field with the schema of a tool's arguments, for OpenAI, Anthropic and MCP."""
_NO_ARGUMENTS: Final = {"type": "object", "properties": {}, "additionalProperties": False}
_DEFAULT_LIMITS: Final = Limits()
_TOOL_STEPS: Final = 60


class Tool(NamedTuple):
    """A tool: its name, and the schema of its arguments."""

    name: str
    parameters: Any


def tool_calls(  # noqa: PLR0913  how replies are made, by name
    tools: Iterable[Any],
    *,
    family: str | Path | Family = "hermes",
    choice: str | Mapping[str, Any] | None = "auto",
    parallel: bool | int = True,
    answer: Grammar | None = None,
    policy: JsonPolicy | None = None,
    limits: Limits | None = None,
) -> Grammar:
    """The replies of a model with these tools, in the format of its family.

    Captures: ``text``, ``name`` and ``arguments``, as the family writes them; ``read_reply`` reads a reply into values.

    Args:
        tools: each in the format of servers (``{"type": "function", "function": {"name": ..., "parameters": schema}}``,
            or the inner object alone, where the schema may be called ``input_schema`` or ``inputSchema``), or a
            ``structgen.tool``.  A tool without a schema has no arguments.
        family: one of ``families()``, the path of a file, or a ``Family``.
        choice: ``"none"``: text and no calls.  ``"auto"`` or None: text, or calls, before which the family may allow
            text.  ``"required"``: at least one call and no text.  The name of a tool, or ``{"type": "function",
            "function": {"name": ...}}``: calls of that tool.  ``{"type": "allowed_tools", "allowed_tools": {"mode":
            "auto" or "required", "tools": [...]}}``: as the mode, with these tools alone.
        parallel: whether a reply may hold several calls, or their maximum number.
        answer: what a reply without calls says; then no text stands before calls.  None: any text.
        policy: how the JSON of arguments is written; white space as in the family by default.
        limits: bounds on the schemas.

    Raises:
        GrammarError: a tool is malformed, two tools have one name, ``choice`` names no tool, a call is required without
            tools, the schema of a tool cannot be enforced, or the family is unknown.
        ValueError: ``parallel`` is neither a truth value nor a number from 1 on.
        LimitExceeded: the tools are too many, or their schemas too large.
    """
    chosen = family if isinstance(family, Family) else load_family(family)
    known = tools_of(tools)
    mode, called = _chosen(choice, known)
    if isinstance(parallel, bool):
        max_calls = None if parallel else 1
    elif isinstance(parallel, int) and parallel >= 1:
        max_calls = parallel
    else:
        raise ValueError(f"tool_calls: parallel is a bool or a number of calls from 1 on; found {parallel!r:.60}")
    options: list[Grammar] = []
    if mode != "required":
        options.append(_plain_text(chosen, answer))
    if called:
        written = policy or JsonPolicy(whitespace=chosen.whitespace)
        bounds = limits or _DEFAULT_LIMITS
        with counted(bounds):
            calls = _calls_term(chosen, called, written, bounds, max_calls if chosen.calls.is_parallel else 1)
        before = chosen.text_before if chosen.is_always_before else None
        empty = literal("") if before is None else before.layout.filled({"text": literal("")}, chosen.tokens)
        options.append(sequence(empty, calls))
        if mode == "auto" and answer is None and chosen.text_before is not None:
            options.append(sequence(_free(chosen.text_before, chosen), calls))
    return Described(either(*options), _description(chosen, known, mode, called, parallel=parallel))


def _plain_text(family: Family, answer: Grammar | None) -> Grammar:
    text = text_without(family.text.stop) if answer is None else answer
    if family.never_begins and answer is None:
        anything = Repeat(ANY_CHAR, 0, None)
        text = Intersection([text, Complement(sequence(literal(family.never_begins), anything))])
    return family.text.layout.filled({"text": text.named("text")}, family.tokens)


def _free(written: FreeText, family: Family) -> Grammar:
    # Not empty: a reply that begins with calls is another alternative.
    text = Intersection([text_without(written.stop), Repeat(ANY_CHAR, 1, None)])
    return written.layout.filled({"text": text.named("text")}, family.tokens)


def _calls_term(
    family: Family, tools: list[Tool], policy: JsonPolicy, limits: Limits, max_calls: int | None
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
            raise GrammarError(f"tool {tool.name}", "its parameters cannot be enforced", evidence=str(error)) from error
        places = {
            "name": literal(tool.name).named("name"),
            "arguments": arguments.named("arguments"),
            "id": identifier,
        }
        each.extend(layout.filled(places, family.tokens) for layout in layouts.layouts)
    call = either(*each)
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
    found: dict[str, Tool] = {}
    for at, given in enumerate(tools):
        tool = _tool(at, given)
        if tool.name in found:
            raise GrammarError(f"tools[{at}]", f"there are two tools called {tool.name!r}", remedy="rename one of them")
        found[tool.name] = tool
    return list(found.values())


def _tool(at: int, given: Any) -> Tool:
    subject = f"tools[{at}]"
    if isinstance(given, Mapping):
        described = given.get("function", given)
        if not isinstance(described, Mapping):
            raise GrammarError(subject, "'function' is no object", evidence=f"found {described!r:.60}")
        name = described.get("name")
        schemas = [described[each] for each in _SCHEMA_NAMES if described.get(each) is not None]
        if len(schemas) > 1:
            raise GrammarError(
                subject, f"it has more than one of {', '.join(_SCHEMA_NAMES)}", remedy="keep one of them"
            )
        parameters = schemas[0] if schemas else _NO_ARGUMENTS
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


def _chosen(choice: str | Mapping[str, Any] | None, tools: list[Tool]) -> tuple[str, list[Tool]]:
    """``"none"``, ``"auto"`` or ``"required"``, and the tools that may be called."""
    mode: Any = "required"
    names: list[Any] = [choice]
    if choice is None or choice in _MODES:
        mode, names = choice or "auto", [tool.name for tool in tools]
    elif isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools", choice)
        mode, listed = (allowed.get("mode"), allowed.get("tools")) if isinstance(allowed, Mapping) else (None, None)
        if mode not in ("auto", "required") or not isinstance(listed, list):
            raise GrammarError(
                "tool_calls", f"choice {choice!r:.60} has no mode and list of tools", remedy="give 'mode' and 'tools'"
            )
        names = [_name_of(each) for each in listed]
    elif isinstance(choice, Mapping):
        names = [_name_of(choice)]
    if mode == "none":
        return mode, []
    known = {tool.name: tool for tool in tools}
    unknown = [name for name in names if not isinstance(name, str) or name not in known]
    if unknown:
        raise GrammarError(
            "tool_calls",
            f"choice {unknown[0]!r:.60} is no tool",
            evidence=f"there are {', '.join([*known][:8]) or 'none'}",
            remedy="say 'none', 'auto', 'required' or the name of a tool",
        )
    if mode == "required" and not names:
        raise GrammarError("tool_calls", "a call is required, and there are no tools", remedy="give a tool")
    return mode, [tool for tool in tools if tool.name in names]


def _name_of(choice: Any) -> Any:
    """The name in ``{"type": "function", "function": {"name": ...}}``, or in the inner object alone."""
    function = choice.get("function", choice) if isinstance(choice, Mapping) else None
    return function.get("name") if isinstance(function, Mapping) else None


def _description(
    family: Family, tools: list[Tool], mode: str, called: list[Tool], *, parallel: bool | int
) -> Description:
    names = {tool.name for tool in called}
    entries = [
        ReportEntry(f"tool {tool.name}", f"tools[{at}]", Status.ENFORCED)
        if tool.name in names
        else ReportEntry(f"tool {tool.name}", f"tools[{at}]", Status.ANNOTATION, "not called: the choice excludes it")
        for at, tool in enumerate(tools)
    ]
    several = str(parallel) if family.calls.is_parallel else "one, as the family has it"
    shown = mode if mode == "none" or len(called) == len(tools) else f"{mode}: {', '.join(sorted(names))}"
    policies = (("family", family.name), ("tool choice", shown), ("parallel calls", several))
    return Description(source="tool calls", entries=tuple(entries), policies=policies)
