"""Model replies: thoughts, answers and tool calls as grammars, and parsing of replies.

The family of the model defines how each part is written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, final

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

__all__ = ["Reply", "ToolCall", "answer", "read_reply", "think", "tool_calls"]


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


_TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_.:/-]+")
_CHOICES: Final = ("none", "auto", "required")
_DEFAULT_LIMITS: Final = Limits()
_TOOL_STEPS: Final = 60


class _Tool(NamedTuple):
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

    Captures: ``text``, ``name`` and ``arguments`` (as JSON); ``read_reply`` reads a reply into values.

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
    known = _tools(tools)
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
        options.append(calls)
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
    family: Family, tools: list[_Tool], policy: JsonPolicy, limits: Limits, *, parallel: bool | int
) -> Grammar:
    layouts = family.calls
    identifier = regex(layouts.id).named("id") if layouts.id else literal("")
    each: list[Grammar] = []
    for tool in tools:
        spend(_TOOL_STEPS, f"tool {tool.name}")
        try:
            arguments = json_schema(tool.parameters, policy=policy, limits=limits)
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


def _tools(tools: Iterable[Any]) -> list[_Tool]:
    found: list[_Tool] = []
    for at, given in enumerate(tools):
        tool = _tool(at, given)
        if any(tool.name == other.name for other in found):
            raise GrammarError(f"tools[{at}]", f"there are two tools called {tool.name!r}", remedy="rename one of them")
        found.append(tool)
    return found


def _tool(at: int, given: Any) -> _Tool:
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
    if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
        raise GrammarError(
            subject,
            "its name has characters that calls cannot contain",
            evidence=f"found {name!r:.60}",
            remedy="use ASCII letters, digits and _ . : / -",
        )
    return _Tool(name, parameters)


def _requested_tool(choice: str | Mapping[str, Any], tools: list[_Tool]) -> str:
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


def _description(family: Family, tools: list[_Tool], requested: str, *, parallel: bool | int) -> Description:
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


_DECODER: Final = json.JSONDecoder()
_WRITTEN_NAME: Final = re.compile(r"[A-Za-z0-9_.:/-]+?")


@final
@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call.

    Attributes:
        name: of the tool.
        arguments: by name.
        id: the id that the model gives the call; None if the family has none.
    """

    name: str
    arguments: Any
    id: str | None = None


@final
@dataclass(frozen=True, slots=True)
class Reply:
    """A parsed reply.

    Attributes:
        text: for the user; may be empty.
        calls: in order.
        thought: None if there is none.
    """

    text: str
    calls: tuple[ToolCall, ...] = ()
    thought: str | None = None


class _Match(NamedTuple):
    values: dict[str, Any]
    end: int


def read_reply(text: str, *, family: str | Path | Family = "hermes", is_open: bool = False) -> Reply:
    r"""Parse the text of a reply, special tokens written out (``Result.spelled``).

    Args:
        text: a string of ``tool_calls``, or of ``think`` and ``tool_calls``.
        family: as for ``tool_calls``.
        is_open: the prompt held the start tag of the thought.

    Raises:
        GrammarError: it is no such reply; the error has the position.

    >>> read_reply('<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>')
    Reply(text='', calls=(ToolCall(name='add', arguments={'a': 1}, id=None),), thought=None)
    """
    chosen = family if isinstance(family, Family) else load_family(family)
    thought, at = None, 0
    if chosen.thought is not None:
        layout = chosen.thought.layout
        if is_open and layout.prefix:
            layout = Layout(layout.parts[1:])
        found = _free_text(text, 0, chosen.thought, layout)
        if found is not None:
            thought, at = found.values["thought"], found.end
    for said, begin in _text_prefixes(text, at, chosen):
        calls = _read_calls(text, begin, chosen)
        if calls is not None:
            return Reply(said, calls, thought)
    found = _free_text(text, at, chosen.text, chosen.text.layout, to_the_end=True)
    if found is None:
        raise GrammarError(
            f"reply, character {at}",
            f"not in the format of {chosen.name} models",
            evidence=f"found {text[at : at + 40]!r}",
        )
    return Reply(found.values["text"], (), thought)


def _text_prefixes(text: str, at: int, family: Family) -> Iterator[tuple[str, int]]:
    """The possible texts before calls, and where the calls then begin."""
    yield "", at
    written = family.text_before
    if written is not None:
        found = _free_text(text, at, written, written.layout)
        if found is not None:
            yield found.values["text"], found.end


def _free_text(text: str, at: int, written: FreeText, layout: Layout, *, to_the_end: bool = False) -> _Match | None:
    """Read free text up to the stop, without the text of the layout before the stop."""
    if not text.startswith(layout.prefix, at):
        return None
    begin = at + len(layout.prefix)
    (name,) = layout.placeholders
    if to_the_end:
        return _Match({name: text[begin:]}, len(text))
    stop = text.find(written.stop, begin)
    if stop < 0:
        return None
    # The stop is in the text after the placeholder, or after the layout.
    end = stop - layout.end.find(written.stop) if written.stop in layout.end else stop - len(layout.end)
    if end < begin or not text.startswith(layout.end, end):
        return None
    return _Match({name: text[begin:end]}, end + len(layout.end))


def _read_calls(text: str, at: int, family: Family) -> tuple[ToolCall, ...] | None:
    layouts = family.calls
    if not text.startswith(layouts.before, at):
        return None
    at += len(layouts.before)
    found: list[ToolCall] = []
    while True:
        call = next((read for layout in layouts.layouts if (read := _call(text, at, layout, layouts.id))), None)
        if call is None:
            return None
        found.append(ToolCall(call.values["name"], call.values["arguments"], call.values.get("id")))
        at = call.end
        if len(text) - at == len(layouts.after) and text.startswith(layouts.after, at):
            return tuple(found)
        if not text.startswith(layouts.between, at):
            return None
        at += len(layouts.between)


def _call(text: str, at: int, layout: Layout, identifier: str) -> _Match | None:
    values: dict[str, Any] = {}
    for index, part in enumerate(layout.parts):
        if isinstance(part, str):
            if not text.startswith(part, at):
                return None
            at += len(part)
            continue
        after = layout.parts[index + 1] if index + 1 < len(layout.parts) else ""
        read = _read_placeholder(text, at, part, after if isinstance(after, str) else "", identifier)
        if read is None:
            return None
        values[part.name], at = read
    return _Match(values, at)


def _read_placeholder(
    text: str, at: int, placeholder: Placeholder, after: str, identifier: str
) -> tuple[Any, int] | None:
    if placeholder.name == "arguments":
        try:
            return _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):  # a reply may nest as deep as it is long
            return None
    pattern = _WRITTEN_NAME.pattern if placeholder.name == "name" else identifier
    match = re.compile(f"(?:{pattern})(?={re.escape(after)})").match(text, at)
    return None if match is None else (match[0], match.end())
