"""The front ends: whatever is written in a notation becomes a grammar, or an error of structgen."""

from __future__ import annotations

import json
import random
from typing import Any, Final

from json_mutation import mutated_json, mutated_schema
from tag_mutation import mutated_tag
from targets import BOUNDS, Target, decoded, explored, with_letter
from text_mutation import NOTATIONS, mutated_text

import structgen as sg
from structgen.frontends.chat.family import _read_family, families
from structgen.frontends.json_schema import JsonPolicy
from structgen.grammar.nodes import Grammar
from structgen.grammars import answer, any_text, read_reply, substring_of, think, tool_calls

__all__ = ["TARGETS"]

_REGEX: Final = [(dialect, flags) for dialect in ("python", "ecma", "rust") for flags in ("", "i", "s", "m")]


def _regex(data: bytes) -> str:
    dialect, flags = _REGEX[data[0] % len(_REGEX)] if data else ("python", "")
    return explored(sg.regex(decoded(data[1:]), dialect=dialect, flags=flags, limits=BOUNDS), data)


_POLICIES: Final = (
    JsonPolicy(),
    JsonPolicy(whitespace="flexible", additional="written"),
    JsonPolicy(whitespace="compact", order="any", numbers="all", escapes="all"),
    JsonPolicy(additional="written", repeated="forbidden", formats="annotation"),
    JsonPolicy(required="all", max_depth=3, max_length=5, max_items=3, max_members=3),
)


def _json_schema(data: bytes) -> str:
    policy = _POLICIES[data[0] % len(_POLICIES)] if data else _POLICIES[0]
    return explored(sg.json_schema(decoded(data[1:]), policy=policy, limits=BOUNDS), data)


def _structural_tag(data: bytes) -> str:
    policy = _POLICIES[data[0] % len(_POLICIES)] if data else _POLICIES[0]
    return explored(sg.structural_tag(decoded(data[1:]), policy=policy, limits=BOUNDS), data)


def _lark(data: bytes) -> str:
    lexer = "contextual" if data[:1] == b"b" else "any"
    return explored(sg.lark(decoded(data[1:]), lexer=lexer, limits=BOUNDS), data)  # type: ignore[arg-type]


def _bnf(data: bytes) -> str:
    read = sg.ebnf if data[:1] == b"b" else sg.gbnf
    return explored(read(decoded(data[1:]), limits=BOUNDS), data)


def _chat(data: bytes) -> str:
    """A JSON document of what a client of a server may send: tools, a choice of one, a reply, tags, a schema."""
    try:
        document = json.loads(data[1:])
    except (ValueError, RecursionError):
        return "no document"
    if not isinstance(document, dict):
        return "no document"
    name = families()[data[0] % len(families())]
    made: list[Grammar] = []
    if "family" in document:  # the content of a family's file
        family = _read_family("own", str(document["family"]).encode("utf-8", "replace").decode())
    else:
        family = None
    chosen: Any = family or name
    tools = document.get("tools")
    if isinstance(reply := document.get("reply"), str):
        read_reply(reply, family=chosen, tools=tools if isinstance(tools, list) else None)
    if isinstance(tools, list):
        parallel = document.get("parallel", True)
        parallel = parallel if isinstance(parallel, bool) or (isinstance(parallel, int) and parallel > 0) else True
        made.append(
            tool_calls(tools, family=chosen, choice=document.get("choice", "auto"), parallel=parallel, limits=BOUNDS)
        )
    tags = document.get("think")
    if isinstance(tags, list) and len(tags) == 2 and all(map(_is_text, tags)):
        made.append(think(5, start=tags[0], end=tags[1]))
    if _is_text(stop := document.get("until")):
        made.append(any_text(stop))
    if _is_text(source := document.get("quote")) and any(map(str.isalnum, source)):
        made.append(substring_of(source))
    if "answer" in document:
        made.append(answer(json.dumps(document["answer"]), limits=BOUNDS))
    if not made:
        return "read"
    grammar = made[0]
    for more in made[1:]:
        grammar = grammar + more
    return explored(grammar, data)


def _is_text(value: object) -> bool:
    """Arguments of the builders: that others are refused by ``ValueError`` is part of their contract."""
    return isinstance(value, str) and bool(value) and not any("\ud800" <= character <= "\udfff" for character in value)


def _mutated_chat(text: str, others: list[str], rng: random.Random) -> str:
    """Change the document, or a schema in it as a schema."""
    if rng.random() < 0.5:
        return mutated_json(text, others, rng)
    try:
        document = json.loads(text)
    except ValueError:
        return rng.choice(others)
    if not isinstance(document, dict):
        return rng.choice(others)
    tools = document.get("tools")
    if isinstance(tools, list) and tools and isinstance(tool := rng.choice(tools), dict):
        holder = tool.get("function", tool)
        if isinstance(holder, dict):
            holder["parameters"] = json.loads(mutated_schema(json.dumps(holder.get("parameters", {})), [], rng))
    else:
        document["answer"] = json.loads(mutated_schema(json.dumps(document.get("answer", {})), [], rng))
    return json.dumps(document)


def _mutate_notation(name: str) -> Any:
    notation = NOTATIONS[name]
    return lambda text, others, rng: mutated_text(text, others, notation, rng)


TARGETS: Final = (
    Target("regex", _regex, with_letter(_mutate_notation("regex"), len(_REGEX))),
    Target("json_schema", _json_schema, with_letter(mutated_schema, len(_POLICIES))),
    Target("structural_tag", _structural_tag, with_letter(mutated_tag, len(_POLICIES))),
    Target("lark", _lark, with_letter(_mutate_notation("lark"), 8)),
    Target("bnf", _bnf, with_letter(_mutate_notation("gbnf"), 2)),
    Target("chat", _chat, with_letter(_mutated_chat, len(families()))),
)
