"""Structural tags: formats in short, random ones, and a reading of them that shares no code with the front end.

The reading is a search for all ends of a format in a text: ``str.find`` for stops and triggers, ``re`` for patterns,
``json`` and ``jsonschema`` for documents.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any, TypeAlias

import jsonschema

__all__ = ["Format", "goes_on", "is_read", "random_format"]

Format: TypeAlias = dict[str, Any]
Ends: TypeAlias = tuple[str, ...]


def const(value: str) -> Format:
    return {"type": "const_string", "value": value}


def text(**fields: Any) -> Format:
    return {"type": "any_text", **fields}


def tag(begin: str, content: Format, end: Any) -> Format:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def listed(kind: str, *elements: Format) -> Format:
    return {"type": kind, "elements": list(elements)}


def around(kind: str, content: Format, **fields: Any) -> Format:
    return {"type": kind, "content": content, **fields}


def triggered(triggers: list[str], *tags: Format, **fields: Any) -> Format:
    return {"type": "triggered_tags", "triggers": triggers, "tags": list(tags), **fields}


def separated(separator: str, *tags: Format, **fields: Any) -> Format:
    return {"type": "tags_with_separator", "tags": list(tags), "separator": separator, **fields}


def dispatch(*rules: tuple[str, Format], **fields: Any) -> Format:
    return {"type": "dispatch", "rules": [list(rule) for rule in rules], **fields}


def schema(value: Any, **fields: Any) -> Format:
    return {"type": "json_schema", "json_schema": value, **fields}


KNOWN: dict[tuple[int, str, int, Ends], set[int]] = {}
"""What ``ends_of`` has found, by the identity of the format; cleared for each format."""


def ends_of(form: Format, written: str, at: int, stops: Ends = ()) -> set[int]:
    """Where a part of ``written`` that begins at ``at`` and has this format may end; ``stops`` end the tag around."""
    key = (id(form), written, at, stops)
    if key not in KNOWN:
        KNOWN[key] = found_ends(form, written, at, stops)
    return KNOWN[key]


def is_read(form: Format, words: tuple[str, ...]) -> set[str]:
    """The words that the reading accepts."""
    KNOWN.clear()
    return {word for word in words if len(word) in ends_of(form, word, 0)}


def found_ends(form: Format, written: str, at: int, stops: Ends) -> set[int]:
    kind = form["type"]
    if kind == "const_string":
        return {at + len(form["value"])} if written.startswith(form["value"], at) else set()
    if kind == "any_text":
        most = form.get("max_chars")
        most = 0 if form.get("max_tokens") == 0 else most  # the only budget of tokens that text alone can tell
        longest = len(written) if most is None else min(len(written), at + most)
        return {end for end in free_ends(written, at, (*form.get("excludes", ()), *stops)) if end <= longest}
    if kind == "regex":
        compiled = re.compile(form["pattern"], re.DOTALL | re.ASCII)
        return {end for end in range(at, len(written) + 1) if compiled.fullmatch(written, at, end)}
    if kind == "grammar":
        return nested_ends(written, at)
    if kind == "json_schema":
        return {end for end in range(at + 1, len(written) + 1) if is_document(form, written[at:end])}
    return composed_ends(form, written, at, stops)


def composed_ends(form: Format, written: str, at: int, stops: Ends) -> set[int]:
    kind = form["type"]
    if kind == "sequence":
        found = {at}
        for element in form["elements"]:
            found = {end for start in found for end in ends_of(element, written, start, stops)}
        return found
    if kind == "or":
        return {end for element in form["elements"] for end in ends_of(element, written, at, stops)}
    if kind in ("optional", "star", "plus", "repeat"):
        least, most = {"optional": (0, 1), "star": (0, -1), "plus": (1, -1)}.get(kind) or (form["min"], form["max"])
        most = least + len(written) + 1 if most < 0 else most  # one more than can take a character each
        return repeated_ends(lambda start: ends_of(form["content"], written, start, stops), at, least, most)
    if kind == "tag":
        return tag_ends(form, written, at)
    if kind == "tags_with_separator":
        return separated_ends(form, written, at)
    if kind == "triggered_tags":
        return triggered_ends(form, written, at, (*form.get("excludes", ()), *stops))
    assert kind == "dispatch"

    def rule_ends(start: int) -> Iterator[int]:
        for pattern, content in form["rules"]:
            for middle in pattern_ends(written, start, pattern, patterns, tuple(form.get("excludes", ()))):
                yield from ends_of(content, written, middle, stops)

    patterns = tuple(pattern for pattern, _ in form["rules"])
    never = (*patterns, *form.get("excludes", ()))
    if form.get("loop", True):
        return {end for start in closure(rule_ends, at) for end in free_ends(written, start, never)}
    return set(rule_ends(at)) | free_ends(written, at, never)


def free_ends(written: str, at: int, never: Ends) -> set[int]:
    """The ends of texts without any of ``never`` (which may be empty strings, and then say nothing)."""
    firsts = [written.find(stop, at) + len(stop) for stop in never if stop and written.find(stop, at) >= 0]
    return set(range(at, min(firsts, default=len(written) + 1)))


def pattern_ends(written: str, at: int, pattern: str, patterns: Ends, never: Ends) -> Iterator[int]:
    """The end of the pattern, where it is what free text meets first; the longest of those that end together."""
    begin = written.find(pattern, at)
    if begin < 0:
        return
    end = begin + len(pattern)
    before = free_ends(written, at, (*patterns, *never))
    longer = any(
        other != pattern and written.endswith(other, at, end) and len(other) > len(pattern) for other in patterns
    )
    if end - 1 in before and not longer and not any(written.endswith(stop, at, end) for stop in never if stop):
        yield end


def closure(step: Any, at: int) -> set[int]:
    found, waiting = {at}, [at]
    while waiting:
        for end in step(waiting.pop()):
            if end not in found:
                found.add(end)
                waiting.append(end)
    return found


def repeated_ends(step: Any, at: int, least: int, most: int) -> set[int]:
    found, reached = set(), {at}
    for count in range(most + 1):
        if count >= least:
            found |= reached
        reached = {end for start in reached for end in step(start)}
    return found


def tag_ends(form: Format, written: str, at: int) -> set[int]:
    ends = (form["end"],) if isinstance(form["end"], str) else tuple(form["end"])
    if not written.startswith(form["begin"], at):
        return set()
    inside = ends_of(form["content"], written, at + len(form["begin"]), ends)
    return {middle + len(end) for middle in inside for end in ends if written.startswith(end, middle)}


def separated_ends(form: Format, written: str, at: int) -> set[int]:
    def one(start: int) -> set[int]:
        return {end for each in form["tags"] for end in tag_ends(each, written, start)}

    def more(start: int) -> set[int]:
        is_next = written.startswith(form["separator"], start)
        return one(start + len(form["separator"])) if is_next else set()

    first = one(at)
    all_of = first if form.get("stop_after_first") else {end for start in first for end in closure(more, start)}
    return all_of if form.get("at_least_one") else all_of | {at}


def triggered_ends(form: Format, written: str, at: int, never: Ends) -> set[int]:
    triggers = tuple(form["triggers"])

    def one(start: int) -> set[int]:
        return {end for each in form["tags"] for end in tag_ends(each, written, start)}

    def after_text(start: int) -> Iterator[int]:
        for trigger in triggers:
            for middle in pattern_ends(written, start, trigger, triggers, never):
                for each in form["tags"]:
                    if each["begin"].startswith(trigger):
                        yield from tag_ends(each, written, middle - len(trigger))

    must, once = form.get("at_least_one"), form.get("stop_after_first")
    if must and once:
        return one(at)
    if once:
        return set(after_text(at)) | free_ends(written, at, (*triggers, *never))
    starts = {end for first in one(at) for end in closure(after_text, first)} if must else closure(after_text, at)
    return {end for start in starts for end in free_ends(written, start, (*triggers, *never))}


def nested_ends(written: str, at: int) -> set[int]:
    """``root ::= "(" root ")" | "x"``, the only grammar of the cases."""
    count = 0
    while written.startswith("(", at + count):
        count += 1
    end = at + 2 * count + 1
    return {end} if written[at + count : end] == "x" + ")" * count else set()


def is_document(form: Format, part: str) -> bool:
    """Whether it is a valid JSON text, with members in the order of the schema and no undeclared ones."""
    if part != part.strip():
        return False
    pairs: list[list[str]] = []

    def collect(members: list[tuple[str, Any]]) -> dict[str, Any]:
        pairs.append([name for name, _ in members])
        return dict(members)

    try:
        value = json.loads(part, object_pairs_hook=collect)
    except ValueError:
        return False
    if any(len(set(names)) < len(names) for names in pairs):
        return False
    properties = form["json_schema"].get("properties")
    if properties is not None and isinstance(value, dict):
        order = [list(properties).index(name) for name in pairs[-1] if name in properties]
        if len(order) < len(pairs[-1]) or (order != sorted(order) and not form.get("any_order")):
            return False
    most = form.get("max_whitespace_cnt")
    if most is not None and re.search(rf"\s{{{most + 1},}}", re.sub(r'"(\\.|[^"\\])*"', '""', part)):
        return False
    strings = re.findall(r'"((?:\\.|[^"\\])*)"', part)
    if any(text in string for string in strings for text in form.get("excludes", ())):
        return False
    try:
        jsonschema.validate(value, form["json_schema"])
    except jsonschema.ValidationError:
        return False
    return "." not in part and "e" not in re.sub(r'"(\\.|[^"\\])*"|true|false', "", part)


def random_format(dice: random.Random, depth: int) -> Format:
    """A format over the letters a and b."""

    def some(*pool: str) -> list[str]:
        return dice.sample(pool, dice.randint(1, 2))

    def inner() -> Format:
        return random_format(dice, depth - 1)

    def random_tag(begins: list[str]) -> Format:
        ends = some("a", "b", "ab", "bb", "aab")
        return tag(dice.choice(begins), inner(), ends if dice.random() < 0.3 else ends[0])

    kind = dice.randrange(4 if depth == 0 else 12)
    if kind < 2:
        return const(dice.choice(["a", "b", "ab", "ba", ""]))
    if kind < 4:
        bounds = {"max_chars": dice.randint(0, 3)} if dice.random() < 0.3 else {}
        return text(excludes=some("a", "b", "ab", "ba", "aab", "bb") if dice.random() < 0.7 else [], **bounds)
    if kind < 6:
        return listed(dice.choice(["sequence", "or"]), *(inner() for _ in range(dice.randint(1, 3))))
    if kind == 6:
        least = dice.randint(0, 2)
        return dice.choice(
            [
                around(dice.choice(["optional", "star", "plus"]), inner()),
                around("repeat", inner(), min=least, max=dice.choice([-1, least, least + 1])),
            ]
        )
    flags = {name: dice.random() < 0.3 for name in ("at_least_one", "stop_after_first")}
    if kind == 7:
        return random_tag(["a", "b", "", "ba"])
    if kind == 8:
        return separated(dice.choice(["", "a", "ba"]), *(random_tag(["a", "b", "ab"]) for _ in range(2)), **flags)
    if kind == 9:
        rules = [(pattern, inner()) for pattern in some("a", "b", "ab", "ba", "bb")]
        return dispatch(*rules, loop=dice.random() < 0.6, excludes=some("a", "b", "aa", "ab", "bba"))
    trigger = dice.choice(["a", "b", "ba", "bb"])
    tags = [random_tag([trigger, trigger + "a", trigger + "bb"]) for _ in range(dice.randint(1, 2))]
    return triggered([trigger], *tags, excludes=some("aaa", "bb", "ab") if dice.random() < 0.4 else [], **flags)


def inner_objects(form: Any) -> Iterator[Format]:
    waiting = [form]
    while waiting:
        value = waiting.pop()
        waiting += value if isinstance(value, list) else []
        if isinstance(value, dict):
            waiting += value.values()
            yield value


def goes_on(form: Format) -> bool:
    """Whether a stop holds a trigger before its end: xgrammar takes the start of the stop for free text then."""
    objects = list(inner_objects(form))
    ends = {
        end
        for each in objects
        if "end" in each
        for end in ([each["end"]] if isinstance(each["end"], str) else each["end"])
    }
    return any(
        pattern in stop[:-1]
        for each in objects
        for pattern in [*each.get("triggers", []), *(pattern for pattern, _ in each.get("rules", []))]
        for stop in [*each.get("excludes", []), *ends]
    )
