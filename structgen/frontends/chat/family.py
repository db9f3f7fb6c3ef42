"""Families of models, read from their TOML files: tags, layouts with placeholders such as ``$name``, special tokens."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, final

from structgen.errors import GrammarError
from structgen.frontends.chat.arguments import ARGUMENT_STYLES, ArgumentStyle
from structgen.frontends.json_schema.policy import Whitespace
from structgen.grammar.nodes import ANY_CHAR, Complement, Grammar, Repeat, SpecialToken, literal, sequence

__all__ = [
    "Calls",
    "Family",
    "FreeText",
    "Layout",
    "Placeholder",
    "families",
    "family_of_tags",
    "family_of_template",
    "load_family",
    "spelled",
    "stop_string_of",
    "text_without",
    "thought_tags",
]


_PLACEHOLDER: Final = re.compile(r"\$(name|arguments|id|text|thought)")


@final
@dataclass(frozen=True, slots=True)
class Placeholder:
    """A variable part of a layout: ``name``, ``arguments``, ``id``, ``text`` or ``thought``."""

    name: str


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """Strings and placeholders in order.

    Attributes:
        parts: no two strings are adjacent, and none is empty.
    """

    parts: tuple[str | Placeholder, ...]

    @classmethod
    def of(cls, text: str) -> Layout:
        """Read a layout.

        >>> Layout.of("<f=$name>").parts
        ('<f=', Placeholder(name='name'), '>')
        """
        pieces = _PLACEHOLDER.split(text)
        parts = (Placeholder(piece) if at % 2 else piece for at, piece in enumerate(pieces))
        return cls(tuple(part for part in parts if part))

    @property
    def placeholders(self) -> tuple[str, ...]:
        """The names of the placeholders, in order."""
        return tuple(part.name for part in self.parts if isinstance(part, Placeholder))

    @property
    def prefix(self) -> str:
        """The text before the first placeholder."""
        return self.parts[0] if self.parts and isinstance(self.parts[0], str) else ""

    @property
    def end(self) -> str:
        """The text after the last placeholder."""
        return self.parts[-1] if self.parts and isinstance(self.parts[-1], str) else ""

    def filled(self, values: Mapping[str, Grammar], tokens: Sequence[str]) -> Grammar:
        """The layout with ``values`` for its placeholders; ``tokens`` may be special tokens in its strings."""
        return sequence(
            *(values[part.name] if isinstance(part, Placeholder) else spelled(part, tokens) for part in self.parts)
        )


def spelled(text: str, tokens: Sequence[str]) -> Grammar:
    """A string in which each of ``tokens`` is a special token if the vocabulary has one.

    >>> print(spelled("a<b>c", ["<b>"]))
    "a" token?("<b>") "c"
    """
    return sequence(*(SpecialToken(piece, or_text=True) if is_token else literal(piece)
                      for piece, is_token in _split_at_tokens(text, tokens)))  # fmt: skip


def text_without(stop: str) -> Grammar:
    """Any text in which ``stop`` does not occur; any text if ``stop`` is empty.

    In contrast to ``any_text(until=stop)``, its end may overlap with a stop after it.
    """
    anything = Repeat(ANY_CHAR, 0, None)
    return Complement(sequence(anything, literal(stop), anything)) if stop else anything


def stop_string_of(text: str, tokens: Sequence[str]) -> str:
    """The part of ``text`` that ends the free text before it.

    That is its first token, or else all of it without leading white space.
    """
    for piece, is_token in _split_at_tokens(text, tokens):
        if is_token:
            return piece
    return text.lstrip()


def _split_at_tokens(text: str, tokens: Sequence[str]) -> Iterable[tuple[str, bool]]:
    if not tokens:
        return [(text, False)] if text else []
    longest_first = sorted(tokens, key=len, reverse=True)
    pieces = re.split("(" + "|".join(map(re.escape, longest_first)) + ")", text)
    return [(piece, at % 2 == 1) for at, piece in enumerate(pieces) if piece]


_FOLDER: Final = resources.files(__package__).joinpath("families")
_KEYS: Final[Mapping[str, Mapping[str, type]]] = {
    "": {
        "summary": str, "source": str, "tokens": list, "whitespace": str, "thought": dict, "text": dict, "calls": dict,
        "arguments": dict,
    },
    "thought": {"layout": str},
    "text": {"layout": str, "before_calls": str, "never_begins": str, "is_always_before": bool},
    "calls": {
        "layouts": list, "before": str, "between": str, "after": str, "id": str, "is_parallel": bool, "marker": str,
    },
    "arguments": {"style": str, "after": str, "middle": str, "value": str, "text": str},
}  # fmt: skip


@final
@dataclass(frozen=True, slots=True)
class FreeText:
    """Free text of the model.

    Attributes:
        layout: with one placeholder.
        stop: the string that ends the text and does not occur in it.
        offset: how many characters lie between the text and the stop.
    """

    layout: Layout
    stop: str
    offset: int = 0


@final
@dataclass(frozen=True, slots=True)
class Calls:
    """How calls are written: ``before``, then calls with ``between`` them, then ``after``.

    Attributes:
        layouts: the ways to write one call.
        before, between, after: fixed strings.
        id: a regex for call ids; ``""`` for none.
        is_parallel: whether a reply may hold several calls.
    """

    layouts: tuple[Layout, ...]
    before: str
    between: str
    after: str
    id: str
    is_parallel: bool


_JSON: Final = ArgumentStyle()


@final
@dataclass(frozen=True, slots=True)
class Family:
    """Models that write calls in the same way.

    Attributes:
        name: its name in structgen.
        summary: which models belong to it.
        source: where the format is described.
        tokens: the tags that are special tokens in some vocabularies of the family.
        whitespace: how the JSON of arguments is spaced.
        thought: how a thought is written; None if the family has none.
        text: how a reply without calls is written.
        never_begins: a prefix that such a reply never has; ``""``: none.
        text_before: how text before calls is written; None if there is none.
        is_always_before: whether calls without text follow an empty one.
        calls: how calls are written.
        arguments: how the arguments of a call are written.
    """

    name: str
    summary: str
    source: str
    tokens: tuple[str, ...]
    whitespace: Whitespace
    thought: FreeText | None
    text: FreeText
    never_begins: str
    text_before: FreeText | None
    calls: Calls
    arguments: ArgumentStyle = _JSON
    is_always_before: bool = False


def families() -> tuple[str, ...]:
    """The names of the families that come with the package.

    >>> "hermes" in families()
    True
    """
    return tuple(
        sorted(entry.name.removesuffix(".toml") for entry in _FOLDER.iterdir() if entry.name.endswith(".toml"))
    )


def load_family(name: str | Path) -> Family:
    """Return a family by its name, or read the file of one.

    Args:
        name: one of ``families()``, or the path of a ``.toml`` file like theirs.

    Raises:
        GrammarError: there is no such family, or the file is malformed.
    """
    if isinstance(name, Path) or name.endswith(".toml"):
        path = Path(name)
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise GrammarError(f"family {path}", "cannot be read", evidence=str(error)) from None
        return _read_family(path.stem, text)
    return _builtin_family(name)


def family_of_tags(is_token: Callable[[str], bool]) -> Family | None:
    """The family that writes thoughts between tags that are tokens of a vocabulary; None if there is none.

    If the tags of several families are tokens, it is the one with the most of them; of equals, the one with the fewest
    tags that are none.

    >>> family_of_tags({"<think>", "</think>", "<tool_call>"}.__contains__).name
    'hermes'
    """
    found: list[tuple[int, int, Family]] = []
    for family in map(_builtin_family, families()):
        tags = (
            [] if family.thought is None else [tag for tag in family.tokens if tag in _text_of(family.thought.layout)]
        )
        if tags and all(map(is_token, tags)):
            known = sum(map(is_token, family.tokens))
            found.append((known, known - len(family.tokens), family))
    return max(found, key=lambda each: each[:2])[2] if found else None


def _text_of(layout: Layout) -> str:
    return "".join(part for part in layout.parts if isinstance(part, str))


@lru_cache(maxsize=64)
def _builtin_family(name: str) -> Family:
    if name not in families():
        raise GrammarError(
            f"family {name!r}",
            "no family has this name",
            evidence=f"there are {', '.join(families())}",
            remedy="name one of these, or the path of a file like theirs",
        )
    return _read_family(name, _FOLDER.joinpath(f"{name}.toml").read_text("utf-8"))


def _read_family(name: str, text: str) -> Family:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise GrammarError(f"family {name!r}", "its file is not valid TOML", evidence=str(error)) from None
    _check(name, "", data)
    if "text" not in data or "calls" not in data:
        raise _malformed(name, "text and calls", "both tables are needed")
    for table in ("thought", "text", "calls", "arguments"):
        _check(name, table, data.get(table, {}))
    tokens = tuple(data.get("tokens", ()))
    written = data["calls"]
    calls = Calls(
        layouts=tuple(_read_layout(name, "calls.layouts", each, ("name", "arguments")) for each in written["layouts"]),
        before=written.get("before", ""),
        between=written.get("between", ""),
        after=written.get("after", ""),
        id=written.get("id", ""),
        is_parallel=written.get("is_parallel", True),
    )
    for each in calls.layouts:
        if ("id" in each.placeholders) > bool(calls.id):
            raise _malformed(name, "calls.id", "a layout has the placeholder $id, but no regex is given for it")
    start = calls.before + calls.layouts[0].prefix
    marker = written.get("marker") or stop_string_of(start, tokens)

    def free(table: str, key: str, placeholder: str, after: str, stop: str = "") -> FreeText | None:
        spelled = data.get(table, {}).get(key)
        if spelled is None:
            return None
        layout = _read_layout(name, f"{table}.{key}", spelled, (placeholder,))
        found = stop or stop_string_of(layout.end + after, tokens)
        return FreeText(layout, found, max((layout.end + after).find(found), 0))

    plain = free("text", "layout", "text", "", marker)
    if plain is None:
        raise _malformed(name, "text.layout", "it is missing")
    return Family(
        name=name,
        summary=data.get("summary", name),
        source=data.get("source", ""),
        tokens=tokens,
        whitespace=data.get("whitespace", "single"),
        thought=free("thought", "layout", "thought", ""),
        text=plain,
        never_begins=data["text"].get("never_begins", ""),
        text_before=free("text", "before_calls", "text", start),
        calls=calls,
        arguments=_read_arguments(name, data.get("arguments", {})),
        is_always_before=data["text"].get("is_always_before", False),
    )


def _read_arguments(name: str, data: Mapping[str, str]) -> ArgumentStyle:
    style = data.get("style", "json")
    if style not in ARGUMENT_STYLES:
        raise _malformed(name, "arguments.style", f"no such style; there are {', '.join(sorted(ARGUMENT_STYLES))}")
    if data.keys() - {"style"} and style in ("json", "python"):
        raise _malformed(name, "arguments", f"arguments in {style} have no marks with white space around")
    spacing = tuple((key, text) for key, text in data.items() if key != "style")
    if any(text.strip(" \t\r\n") for _, text in spacing):
        raise _malformed(name, "arguments", "between marks there is only white space")
    return ArgumentStyle(style, spacing)


def _read_layout(name: str, key: str, text: Any, placeholders: tuple[str, ...]) -> Layout:
    if not isinstance(text, str):
        raise _malformed(name, key, f"expected a text, found {text!r:.60}")
    layout = Layout.of(text)
    found = [name for name in layout.placeholders if name != "id"]
    if sorted(found) != sorted(placeholders):
        expected = " and ".join(f"${name}" for name in placeholders)
        raise _malformed(name, key, f"it needs {expected} once each, found {text!r:.60}")
    return layout


def _check(name: str, table: str, data: Any) -> None:
    keys = _KEYS[table]
    if not isinstance(data, dict):
        raise _malformed(name, table, "expected a table")
    for key, value in data.items():
        location = f"{table}.{key}".lstrip(".")
        if key not in keys:
            raise _malformed(name, location, f"there is no such key; there are {', '.join(keys)}")
        if not isinstance(value, keys[key]):
            raise _malformed(name, location, f"expected a {keys[key].__name__}, found {value!r:.60}")
    if table == "calls" and not data.get("layouts"):
        raise _malformed(name, "calls.layouts", "at least one is needed")


def _malformed(name: str, key: str, problem: str) -> GrammarError:
    return GrammarError(
        f"family {name!r}, {key}", problem, remedy="compare it with the files in structgen/frontends/chat/families"
    )


_MIN_MATCH: Final = 8


def family_of_template(written: str) -> Family | None:
    """The family whose calls a chat template writes; None if there is none.

    The template must have all tags of its calls; of several such families, the one with the longest texts in it counts.

    Args:
        written: the texts and string constants of the template, as ``literals_of`` returns them.
    """
    dense = _dense(written)
    best: tuple[tuple[int, int], Family | None] = (0, 0), None
    for family in map(load_family, families()):
        form = family.calls
        texts = {form.before, form.between, form.after}
        texts |= {part for layout in form.layouts for part in layout.parts if isinstance(part, str)}
        tags = set(family.tokens) - set(thought_tags(family))
        if not all(tag in written for tag in tags):
            continue
        found = sum(len(_dense(text)) for text in texts if _dense(text) in dense)
        starts = _dense(form.before + form.layouts[0].prefix) in dense
        found += sum(map(len, tags))
        begins = family.arguments.begins
        before = {a for layout in form.layouts for a, b in pairwise(layout.parts) if b == Placeholder("arguments")}
        texts |= {(text if isinstance(text, str) else "") + begins for text in before} if begins else set()
        exact = sum(len(text) for text in texts if text in written)
        if (starts or tags) and found >= _MIN_MATCH and (found, exact) > best[0]:
            best = (found, exact), family
    return best[1]


def _dense(text: str) -> str:
    """A text without what templates put between its parts."""
    return re.sub(r"[\s\0]+", "", text)


def thought_tags(family: Family) -> list[str]:
    """The tags around thoughts."""
    if family.thought is None:
        return []
    parts = family.thought.layout.parts
    text = "".join(part for part in parts if not isinstance(part, Placeholder))
    return [tag for tag in family.tokens if tag in text] or [stop_string_of(text, ())]
