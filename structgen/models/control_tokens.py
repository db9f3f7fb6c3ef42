"""Prompts in which only the chat template writes control tokens: their spellings in messages are ordinary text.

Else ``<|im_end|>`` in a document would end the user's turn, and the text after it would speak as the system.
"""

from __future__ import annotations

import re
import secrets
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["chat_ids", "text_ids"]


class _Names:
    """The spellings of control tokens, and where a text holds or touches one."""

    def __init__(self, names: Iterable[str]) -> None:
        ordered = sorted({name for name in names if name}, key=lambda name: (-len(name), name))
        self.pattern = re.compile("|".join(map(re.escape, ordered)) or r"(?!)")
        self._anywhere = re.compile(f"(?=({self.pattern.pattern}))")  # also where spellings overlap
        self._width = max(map(len, ordered), default=1) - 1
        self._heads = {name[:size] for name in ordered for size in range(1, len(name))}
        self._tails = {name[size:] for name in ordered for size in range(1, len(name))}

    def may_start_in(self, text: str) -> bool:
        return any(text[-size:] in self._heads for size in range(1, min(self._width, len(text)) + 1))

    def may_end_in(self, text: str) -> bool:
        return any(text[:size] in self._tails for size in range(1, min(self._width, len(text)) + 1))

    def cross(self, left: str, right: str) -> bool:
        """Whether a spelling begins in ``left`` and ends in ``right``."""
        near = left[-self._width :] if self._width else ""
        found = self._anywhere.finditer(near + right[: self._width])
        return any(match.start() < len(near) < match.end(1) for match in found)


_names = lru_cache(maxsize=8)(_Names)


class _Marks:
    """Numbers that stand in messages for spellings of control tokens, and beside texts that touch one.

    Decimal digits survive the filters of templates (``trim``, ``upper``, ``tojson``); 30 random ones are in no message.
    """

    def __init__(self, names: _Names) -> None:
        self.names = names
        self._start = "".join(secrets.choice("123456789") for _ in range(30))
        self._hidden: list[str] = []

    def _mark(self, hidden: str) -> str:
        self._hidden.append(hidden)
        return f"{self._start}{len(self._hidden) - 1:08}"

    def hide(self, text: str) -> str:
        inner = text.strip()
        before, after = text[: text.index(inner)], text[text.index(inner) + len(inner) :]
        first = self._mark("") if self.names.may_end_in(inner) else ""
        last = self._mark("") if self.names.may_start_in(inner) else ""
        return before + first + self.names.pattern.sub(lambda match: self._mark(match[0]), inner) + last + after

    def split(self, text: str) -> list[tuple[str, bool]]:
        """Return the pieces of a rendered text, and whether control tokens in a piece come from the template."""
        parts = re.split(f"{self._start}([0-9]{{8}})", text)
        pieces = [(parts[0], True)]
        for number, after in zip(parts[1::2], parts[2::2], strict=True):
            hidden, before = self._hidden[int(number)], pieces[-1][0]
            if hidden:
                pieces += [(hidden, False), (after, True)]
            elif self.names.cross(before, after):
                pieces.append((after, True))
            else:
                pieces[-1] = (before + after, True)
        return [piece for piece in pieces if piece[0]]


def _hide_all(messages: list[dict[str, str]], marks: _Marks) -> list[dict[str, str]]:
    """Return a copy of messages, in which marks stand for spellings in their texts at any depth."""
    copies: list[Any] = list(messages)
    open_lists: list[Any] = [copies]
    while open_lists:  # no recursion: messages may come from anyone
        values = open_lists.pop()
        for key, value in list(values.items() if isinstance(values, dict) else enumerate(values)):
            if isinstance(value, str) and not (key == "role" and value.isalnum()):
                values[key] = marks.hide(value)
            elif isinstance(value, (dict, list, tuple)):
                values[key] = dict(value) if isinstance(value, dict) else list(value)
                open_lists.append(values[key])
    return copies


def chat_ids(
    messages: list[dict[str, str]],
    render: Callable[[list[dict[str, str]]], str],
    encode: Callable[[str], list[int]],
    encode_text: Callable[[str], list[int]],
    names: Iterable[str],
) -> list[int]:
    """Return the tokens of rendered messages, in which only the template writes control tokens.

    Where no message spells one, they are the tokens of the rendered text as a whole.  Else each such spelling is
    tokenized by itself, as ordinary text.

    Args:
        messages: mappings with role and content.
        render: writes messages by the chat template.
        encode: tokenizes a text with its control tokens.
        encode_text: tokenizes a text without control tokens.
        names: the spellings of all control tokens.
    """
    marks = _Marks(_names(tuple(names)))
    pieces = marks.split(render(_hide_all(messages, marks)))
    return [token for text, is_trusted in pieces for token in (encode if is_trusted else encode_text)(text)]


def text_ids(
    text: str, encode: Callable[[str], list[int]], encode_text: Callable[[str], list[int]], names: Iterable[str]
) -> list[int]:
    """Return the tokens of a text; spellings of control tokens in it are ordinary text."""
    return (encode_text if _names(tuple(names)).pattern.search(text) else encode)(text)
