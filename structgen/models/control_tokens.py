"""Prompts in which only the chat template writes control tokens: their spellings in messages are ordinary text.

Else ``<|im_end|>`` in a document would end the user's turn, and the text after it would speak as the system.

Control tokens are the special tokens of a tokenizer, and those of its added tokens that the template writes, that are
spelled like control tokens (``<|...|>``), or that are tags of a family of chat models (``<tool_call>``): DeepSeek's
``<｜User｜>`` is not special.  Other added tokens, as for white space or code, are ordinary.
"""

from __future__ import annotations

import re
import secrets
import unicodedata
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final

from structgen.errors import VocabularyError
from structgen.frontends.chat import families, load_family
from structgen.models.protocol.language import Chat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from structgen.engine import Vocabulary

__all__ = ["ControlTokens", "token_test"]

_CONTROL: Final = re.compile(r"<\|.*\|>|<｜.*｜>", re.DOTALL)
_UNSEEN: Final = frozenset({"Mn", "Me", "Cc", "Cf"})
_UNSEEN_ASCII: Final = dict.fromkeys([*range(32), 127])


class ControlTokens:
    """The control tokens of a model.

    Args:
        special: the special tokens, by their spellings.
        others: the other tokens that the tokenizer finds in texts before all else.
        template: the chat template, Jinja source.
    """

    def __init__(self, special: Mapping[str, int], others: Mapping[str, int], template: str | None = None) -> None:
        tags, written = _family_tags(), "" if template is None else _literals_of(template)
        control = {
            name: token
            for name, token in others.items()
            if name in tags or _CONTROL.fullmatch(name) or (len(name) > 1 and not name.isspace() and name in written)
        }
        self._ids = {**control, **special}
        self._names = _names(tuple(self._ids))
        own = {name for name in tags if name not in special and not _CONTROL.fullmatch(name)}
        self._names_of_others = _names(tuple(name for name in self._ids if name not in own))

    def chat_ids(
        self,
        messages: list[dict[str, str]],
        render: Callable[[list[dict[str, str]]], str],
        encode: Callable[[str], list[int]],
        encode_text: Callable[[str], list[int]],
    ) -> list[int]:
        """Return the tokens of rendered messages, in which only the template writes control tokens.

        Where no message spells one, they are the tokens of the rendered text as a whole.  Else each such spelling is
        tokenized by itself, as ordinary text.  Only in messages of the assistant, the tags of thoughts and calls that
        are not special stay tokens: the model writes them, and templates look for them.

        Args:
            messages: mappings with role and content.
            render: writes messages by the chat template.
            encode: tokenizes a text with its control tokens.
            encode_text: tokenizes a text without special tokens.
        """
        marks = _Marks(self._names, self._names_of_others)
        pieces = marks.split(render(_hide_all(messages, marks)))
        known = {
            (text, is_trusted): encode(text) if is_trusted else self._plain_ids(text, encode_text)
            for text, is_trusted in dict.fromkeys(pieces)
        }
        return [token for piece in pieces for token in known[piece]]

    def text_ids(
        self, text: str, encode: Callable[[str], list[int]], encode_text: Callable[[str], list[int]]
    ) -> list[int]:
        """Return the tokens of a text after those that ``encode`` adds; spellings of control tokens are text."""
        if not self._names.spelled(text):
            return encode(text)
        return [*encode(""), *self._plain_ids(text, encode_text)]

    def _plain_ids(self, text: str, encode_text: Callable[[str], list[int]]) -> list[int]:
        """Tokenize a text without control tokens: one in which the tokenizer finds any is cut in two."""
        ids: list[int] = []
        waiting = [text]
        while waiting:
            part = waiting.pop()
            found, middle = encode_text(part), len(part) // 2
            if middle and any(self._ids[name] in found for name in self._names.spelled(part)):
                waiting += [part[middle:], part[:middle]]
            else:
                ids += found
        return ids


class _Names:
    """The spellings of control tokens, and where a text holds or touches one."""

    def __init__(self, names: Iterable[str]) -> None:
        ordered = sorted({name for name in names if name}, key=lambda name: (-len(name), name))
        self.pattern = re.compile("|".join(map(re.escape, ordered)) or r"(?!)")
        self._anywhere = re.compile(f"(?=({self.pattern.pattern}))")  # also where spellings overlap
        self._folded: dict[str, list[str]] = {}
        for name in ordered:
            self._folded.setdefault(_folded(name), []).append(name)
        self._anyhow = re.compile("|".join(re.escape(name) for name in self._folded if name) or r"(?!)")
        self._width = max(map(len, ordered), default=1) - 1
        self._heads = {name[:size] for name in ordered for size in range(1, len(name))}
        self._tails = {name[size:] for name in ordered for size in range(1, len(name))}

    def spelled(self, text: str) -> list[str]:
        """The names that a tokenizer may find in a text; some normalise it first."""
        folded = _folded(text)
        if not self._anyhow.search(folded):
            return []
        return [name for form, names in self._folded.items() if form and form in folded for name in names]

    def may_start_in(self, text: str) -> bool:
        return any(text[-size:] in self._heads for size in range(1, min(self._width, len(text)) + 1))

    def may_end_in(self, text: str) -> bool:
        return any(text[:size] in self._tails for size in range(1, min(self._width, len(text)) + 1))

    def cross(self, left: str, right: str) -> bool:
        """Whether a spelling begins in ``left`` and ends in ``right``."""
        near = left[-self._width :] if self._width else ""
        found = self._anywhere.finditer(near + right[: self._width])
        return any(match.start() < len(near) < match.end(1) for match in found)


_names = lru_cache(maxsize=16)(_Names)


def _folded(text: str) -> str:
    """Return a text without what normalizers change: case, accents, widths, characters that are not seen."""
    if text.isascii():
        return text.lower().translate(_UNSEEN_ASCII)
    apart = unicodedata.normalize("NFKD", text).casefold()
    return "".join(each for each in apart if " " <= each < "\x7f" or unicodedata.category(each) not in _UNSEEN)


@lru_cache(maxsize=16)
def _literals_of(template: str) -> str:
    from structgen.models.chat_template import literals_of

    return literals_of(template)


@cache
def _family_tags() -> frozenset[str]:
    return frozenset(tag for name in families() for tag in load_family(name).tokens)


class _Marks:
    """Numbers that stand in messages for spellings of control tokens, and beside texts that touch one.

    Decimal digits survive the filters of templates (``trim``, ``upper``, ``tojson``); 30 random ones are in no message.
    """

    def __init__(self, names: _Names, names_of_others: _Names) -> None:
        self._names = names
        self._names_of_others = names_of_others
        self._start = str(10**29 + secrets.randbelow(9 * 10**29))
        self._hidden: list[str] = []

    def _mark(self, hidden: str) -> str:
        self._hidden.append(hidden)
        return f"{self._start}{len(self._hidden) - 1:08}"

    def hide(self, text: str, *, is_models: bool) -> str:
        names = self._names_of_others if is_models else self._names
        inner = text.strip()
        before, after = text[: text.index(inner)], text[text.index(inner) + len(inner) :]
        first = self._mark("") if self._names.may_end_in(inner) else ""
        last = self._mark("") if self._names.may_start_in(inner) else ""
        shown = names.pattern.sub(lambda match: self._mark(match[0]), inner)
        if names.spelled(names.pattern.sub(" ", inner)):  # a normalizer may make one
            shown = self._mark(inner)
        return before + first + shown + last + after

    def split(self, text: str) -> list[tuple[str, bool]]:
        """Return the pieces of a rendered text, and whether control tokens in a piece come from the template."""
        parts = re.split(f"{self._start}([0-9]{{8}})", text)
        pieces = [(parts[0], True)]
        for number, after in zip(parts[1::2], parts[2::2], strict=True):
            hidden, before = self._hidden[int(number)], pieces[-1][0]
            if hidden:
                pieces += [(hidden, False), (after, True)]
            elif self._names.cross(before, after):
                pieces.append((after, True))
            else:
                pieces[-1] = (before + after, True)
        return [piece for piece in pieces if piece[0]]


def _hide_all(messages: list[dict[str, Any]], marks: _Marks) -> list[dict[str, Any]]:
    """Return a copy of messages, in which marks stand for spellings in their texts and names at any depth."""
    copies: list[Any] = list(messages)
    open_lists: list[tuple[Any, bool]] = [(copies, False)]
    while open_lists:  # no recursion: messages may come from anyone
        values, is_models = open_lists.pop()
        for key, value in list(values.items() if isinstance(values, dict) else enumerate(values)):
            if isinstance(value, str) and not (key == "role" and value.isalnum()):
                values[key] = marks.hide(value, is_models=is_models)
            elif isinstance(value, (dict, list, tuple)):
                values[key] = _with_names(value, marks) if isinstance(value, dict) else list(value)
                by_model = is_models or (values is copies and values[key].get("role") == "assistant")
                open_lists.append((values[key], by_model))
    if isinstance(messages, Chat):
        # In an object of their own, so that none of them is the role of a message.
        (hidden,) = _hide_all([{"variables": messages.variables}], marks) if messages.variables else ({},)
        copies = Chat(copies, _hide_all(messages.tools, marks), hidden.get("variables"))
    return copies


def _with_names(value: dict[Any, Any], marks: _Marks) -> dict[Any, Any]:
    """Return a copy whose names have no spelling; those that templates look for are identifiers."""
    return {
        marks.hide(name, is_models=False) if isinstance(name, str) and not name.isidentifier() else name: each
        for name, each in value.items()
    }


def token_test(vocabulary: Vocabulary) -> Callable[[str], bool]:
    """Whether a tag is one token of a vocabulary."""
    names = set(vocabulary.special.values())

    @cache
    def is_token(tag: str) -> bool:
        try:
            return tag in names or len(vocabulary.tokenize(tag)) == 1
        except VocabularyError:
            return False

    return is_token
