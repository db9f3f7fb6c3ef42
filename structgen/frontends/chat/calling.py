"""Calls of tools, as a family of models writes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from structgen.errors import GrammarError
from structgen.frontends.chat.family import Family, FreeText, free_text, load_family, spelled
from structgen.frontends.json_schema import JsonPolicy, json_schema
from structgen.frontends.regex import regex
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import ANY_CHAR, Complement, Grammar, Intersection, Repeat, choice, literal, sequence
from structgen.grammar.nodes.description import Described, Description, ReportEntry, Status

__all__ = ["tool_calls"]

_NAME: Final = re.compile(r"[A-Za-z0-9_.:/-]+")
_CHOICES: Final = ("none", "auto", "required")


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
    """What a model may reply that has these tools, as its family writes it.

    Captures: ``text``, ``name`` and ``arguments`` (as JSON); ``read_reply`` reads a reply into values.

    Args:
        tools: each as servers take them (``{"type": "function", "function": {"name": ..., "parameters": schema}}``, or
            the inner object alone), or a ``structgen.tool``.
        family: one of ``families()``, the path of a file, or a ``Family``.
        choice: ``"none"``: text and no calls.  ``"auto"``: text, or calls, before which the family may allow text.
            ``"required"``: at least one call and no text.  The name of a tool, or ``{"type": "function", "function":
            {"name": ...}}``: calls of that tool.
        parallel: whether a reply may hold several calls, or how many at most.
        policy: how the JSON of arguments is written; white space is that of the family unless it is given.
        limits: bounds on the schemas.

    Raises:
        GrammarError: a tool is malformed, a name stands twice, ``choice`` names no tool, there are no tools and one
            is required, the schema of a tool cannot be enforced, or the family is not known.
        ValueError: ``parallel`` is a number below 1.
    """
    chosen = family if isinstance(family, Family) else load_family(family)
    known = _tools(tools)
    wanted = _requested_tool(choice, known)
    if isinstance(parallel, int) and not isinstance(parallel, bool) and parallel < 1:
        raise ValueError(f"tool_calls: parallel is a number of calls from 1 on; found {parallel}")
    options: list[Grammar] = []
    if wanted in ("none", "auto"):
        options.append(_plain_text(chosen))
    if wanted != "none" and known:
        called = known if wanted in _CHOICES else [tool for tool in known if tool.name == wanted]
        calls = _calls(chosen, called, parallel, policy or JsonPolicy(whitespace=chosen.whitespace), limits or Limits())
        options.append(calls)
        if wanted == "auto" and chosen.text_before is not None:
            options.append(sequence(_free(chosen.text_before, chosen), calls))
    return Described(_either(options), _description(chosen, known, wanted, parallel))


def _either(options: list[Grammar]) -> Grammar:
    return choice(*options)


def _plain_text(family: Family) -> Grammar:
    text = free_text(family.text.stop)
    if family.never_begins:
        anything = Repeat(ANY_CHAR, 0, None)
        text = Intersection([text, Complement(sequence(literal(family.never_begins), anything))])
    return family.text.layout.filled({"text": text.named("text")}, family.tokens)


def _free(written: FreeText, family: Family) -> Grammar:
    # Without the empty text: a reply that begins with calls is another alternative.
    text = Intersection([free_text(written.stop), Repeat(ANY_CHAR, 1, None)])
    return written.layout.filled({"text": text.named("text")}, family.tokens)


def _calls(family: Family, tools: list[_Tool], parallel: bool | int, policy: JsonPolicy, limits: Limits) -> Grammar:
    layouts = family.calls
    identifier = regex(layouts.id).named("id") if layouts.id else literal("")
    each: list[Grammar] = []
    for tool in tools:
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
    most = parallel if isinstance(parallel, int) and not isinstance(parallel, bool) else None
    if not layouts.is_parallel or parallel is False:
        most = 1
    between = spelled(layouts.between, family.tokens) if layouts.between else None
    return sequence(
        spelled(layouts.before, family.tokens),
        call.many(1, most, sep=between),
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
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise GrammarError(
            subject,
            "its name is none that a model can write",
            evidence=f"found {name!r:.60}",
            remedy="use ASCII letters, digits and _ . : / -",
        )
    return _Tool(name, parameters)


def _requested_tool(choice: str | Mapping[str, Any], tools: list[_Tool]) -> str:
    """``"none"``, ``"auto"``, ``"required"``, or the name of the tool that is to be called."""
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


def _description(family: Family, tools: list[_Tool], wanted: str, parallel: bool | int) -> Description:
    entries = [
        ReportEntry(
            f"tool {tool.name}",
            f"tools[{at}]",
            Status.ENFORCED if wanted in ("auto", "required", tool.name) else Status.ANNOTATION,
            "" if wanted in ("auto", "required", tool.name) else "not called, for the choice excludes it",
        )
        for at, tool in enumerate(tools)
    ]
    several = str(parallel) if family.calls.is_parallel else "one, as the family has it"
    policies = (("family", family.name), ("tool choice", wanted), ("parallel calls", several))
    return Description(source="tool calls", entries=tuple(entries), policies=policies)
