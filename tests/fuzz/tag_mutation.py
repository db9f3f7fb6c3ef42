"""Mutations of structural tags, as values: the results are JSON, and most are tags."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Sequence
from typing import Final

from json_mutation import (
    PATTERNS,
    Json,
    Maker,
    Place,
    change_value,
    made_members,
    made_schema,
    mutated_schema,
    parsed,
    places_in,
)

__all__ = ["mutated_tag"]

_TEXTS: Final = ("<a>", "</a>", "<", "a", "ab", "\n", "é", "```", "<think>", '"', " ", "</parameter>")
_TOKENS: Final = ("<think>", "</think>", "<tool_call>", 5, 97, 98, 270)
_TRIGGERS: Final = ("<f", "<g=", "[", "aab")
_STYLES: Final = (
    *("json", "json", "qwen_xml", "minimax_xml", "minimax_m3_xml", "deepseek_xml", "deepseek_v4_1_xml", "glm_xml"),
    *("cohere_xml", "kimi_k3_xml", "yaml"),
)
_EBNF: Final = (
    'root ::= "a" | "b" root',
    "root ::= [a-z]{1,3} x\nx ::= [0-9]+",
    "root ::= root 'a' | 'b'",
    'root ::= ""',
)


def _texts(rng: random.Random, _: int) -> Json:
    return rng.sample(_TEXTS, rng.randint(0, 2))


def _tokens(rng: random.Random, _: int) -> Json:
    return rng.sample(_TOKENS, rng.randint(0, 2))


def _flag(rng: random.Random, _: int) -> Json:
    return rng.random() < 0.5


def _edge(rng: random.Random) -> Json:
    return {"type": "token", "token": rng.choice(_TOKENS)} if rng.random() < 0.15 else rng.choice(_TEXTS)


def _end(rng: random.Random) -> Json:
    return rng.sample(_TEXTS, 2) if rng.random() < 0.2 else "" if rng.random() < 0.1 else _edge(rng)


def _tag(rng: random.Random, depth: int, begin: Json) -> Json:
    return {"type": "tag", "begin": begin, "content": _format(rng, depth), "end": _end(rng)}


def _triggered(rng: random.Random, depth: int) -> Json:
    triggers = rng.sample(_TRIGGERS, rng.randint(1, 2))
    return {"triggers": triggers, "tags": [_tag(rng, depth, each + rng.choice(("", "x>", "="))) for each in triggers]}


def _token_triggered(rng: random.Random, depth: int) -> Json:
    tokens = rng.sample(_TOKENS, rng.randint(1, 2))
    tags = [_tag(rng, depth, {"type": "token", "token": each}) for each in tokens]
    return {"trigger_tokens": tokens, "tags": tags}


def _elements(rng: random.Random, depth: int) -> Json:
    return {"elements": [_format(rng, depth) for _ in range(rng.randint(1, 3))]}


def _content(rng: random.Random, depth: int) -> Json:
    return {"content": _format(rng, depth)}


def _rules(kind: str, options: Sequence[Json]) -> Callable[[random.Random, int], Json]:
    return lambda rng, depth: {
        "type": kind,
        "rules": [[each, _format(rng, depth)] for each in rng.sample(options, rng.randint(1, 2))],
    }


_FORMAT: Final[dict[str, Maker]] = {
    "const_string": lambda rng, _: {"value": rng.choice(("", *_TEXTS))},
    "json_schema": lambda rng, depth: {"json_schema": made_schema(rng, depth + 1), "style": rng.choice(_STYLES)},
    "qwen_xml_parameter": lambda rng, depth: {
        "json_schema": {"type": "object", "properties": made_members(rng, depth)}
    },
    "any_text": lambda rng, depth: {"excludes": _texts(rng, depth)},
    "token": lambda rng, _: {"token": rng.choice(_TOKENS)},
    "exclude_token": lambda rng, depth: {"exclude_tokens": _tokens(rng, depth)},
    "any_tokens": lambda rng, depth: {"exclude_tokens": _tokens(rng, depth)},
    "grammar": lambda rng, _: {"grammar": rng.choice(_EBNF)},
    "regex": lambda rng, _: {"pattern": rng.choice(PATTERNS)},
    "sequence": _elements,
    "or": _elements,
    "optional": _content,
    "star": _content,
    "plus": _content,
    "repeat": lambda rng, depth: {"min": rng.randint(0, 2), "max": rng.choice((-1, 2, 3)), **_content(rng, depth)},
    "tag": lambda rng, depth: _tag(rng, depth, _edge(rng)),
    "triggered_tags": _triggered,
    "token_triggered_tags": _token_triggered,
    "tags_with_separator": lambda rng, depth: {"tags": [_tag(rng, depth, "<a>")], "separator": rng.choice(("", ","))},
    "dispatch": _rules("dispatch", _TRIGGERS),
    "token_dispatch": _rules("token_dispatch", _TOKENS),
}
_LEAVES: Final = [kind for kind in _FORMAT if kind not in {"sequence", "or", "optional", "star", "plus", "repeat"}][:9]
_OPTIONS: Final[dict[str, tuple[tuple[str, ...], Maker]]] = {
    "excludes": (("json_schema", "any_text", "triggered_tags", "dispatch"), _texts),
    "exclude_tokens": (("exclude_token", "any_tokens", "token_triggered_tags", "token_dispatch"), _tokens),
    "max_tokens": (("any_text", "any_tokens"), lambda rng, _: rng.choice((0, 1, 5, None))),
    "max_chars": (("any_text",), lambda rng, _: rng.choice((0, 1, 5, 1000))),
    "any_order": (("json_schema",), _flag),
    "max_whitespace_cnt": (("json_schema",), lambda rng, _: rng.choice((0, 1, 3))),
    "at_least_one": (("triggered_tags", "token_triggered_tags", "tags_with_separator"), _flag),
    "stop_after_first": (("triggered_tags", "token_triggered_tags", "tags_with_separator"), _flag),
    "loop": (("dispatch", "token_dispatch"), _flag),
}
"""The fields that may be left out, with the formats that have them."""


def _format(rng: random.Random, depth: int) -> Json:
    kind = rng.choice(_LEAVES if depth <= 0 else list(_FORMAT))
    made = {"type": kind, **_FORMAT[kind](rng, depth - 1)}
    if rng.random() < 0.4:
        _set_option(made, rng)
    return made


def _set_option(form: dict[str, Json], rng: random.Random) -> None:
    suited = [name for name, (kinds, _) in _OPTIONS.items() if form.get("type") in kinds]
    name = rng.choice(suited if suited and rng.random() < 0.98 else list(_OPTIONS))
    if suited or rng.random() < 0.05:
        form[name] = _OPTIONS[name][1](rng, 1)


def _format_places(top: Json) -> list[Place]:
    """Where formats stand that are no edge of a tag, not those inside schemas."""
    found: list[Place] = []
    if not isinstance(top, dict):
        return found
    for holder, key in places_in(top):
        value = holder[key]
        if isinstance(value, dict) and str(value.get("type")) in _FORMAT and key not in ("begin", "end"):
            found.append((holder, key))
    return found


def mutated_tag(text: str, others: Sequence[str], rng: random.Random) -> str:
    """Change a structural tag, given as JSON text, in a few places; ``others`` are tags whose parts it may take."""
    tag = parsed(text)
    if not _format_places(tag) or rng.random() < 0.05:
        tag = {"type": "structural_tag", "format": _format(rng, 3)}
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = _format_places(tag)
        if not places:  # an edit has lost them
            break
        holder, key = rng.choice(places)
        form, is_tag = holder[key], holder[key]["type"] == "tag"
        match rng.randrange(8):
            case 0 if not is_tag:
                holder[key] = _format(rng, 2)
            case 1 if not is_tag:
                kind = rng.choice(("sequence", "or", "optional", "star", "plus", "tag"))
                inner = {"elements": [form, _format(rng, 1)]} if kind in {"sequence", "or"} else {"content": form}
                edges = {"begin": _edge(rng), "end": _end(rng)} if kind == "tag" else {}
                holder[key] = {"type": kind, **inner, **edges}
            case 2 if isinstance(form.get("json_schema"), dict):
                form["json_schema"] = json.loads(mutated_schema(json.dumps(form["json_schema"]), [], rng))
            case 3 if others and not is_tag and (more := _format_places(parsed(rng.choice(others)))):
                from_holder, from_key = rng.choice(more)
                holder[key] = copy.deepcopy(from_holder[from_key])
            case 4 if is_tag:
                form["end"] = _end(rng)
            case 5 if rng.random() < 0.15:
                change_value([form], rng)
            case 6 if isinstance(form.get("tags"), list) and form["tags"]:
                form["tags"].append(copy.deepcopy(rng.choice(form["tags"])))
            case _:
                _set_option(form, rng)
    return json.dumps(tag, ensure_ascii=rng.random() < 0.5)
