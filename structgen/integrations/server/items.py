"""The items of ``/v1/responses``: a conversation as the messages of a chat, and a reply as items with their events."""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, final

from structgen.integrations.server.message import MessageWriter, past_arguments
from structgen.integrations.server.protocol import wrong

if TYPE_CHECKING:
    from structgen.frontends.chat.stream import ReplyPiece

__all__ = ["ItemWriter", "messages_of_items"]

Event = tuple[str, dict[str, Any]]
"""The kind of an event without ``response.``, and its fields."""

_STORED: Final = ("item_reference", "compaction")
_THOUGHT: Final = {"role", "content", "reasoning_content"}
"""The members of the message of a thought."""
_WRITTEN: Final = {"function_call": "arguments", "custom_tool_call": "input"}
"""The field of a call that the model writes, by the type of its item."""
_OUTPUTS: Final = tuple(f"{kind}_output" for kind in _WRITTEN)


def messages_of_items(items: Sequence[Mapping[str, Any]], place: str = "input") -> list[dict[str, Any]]:
    """The messages of a chat for the items of a conversation; what one reply consists of is one message.

    Raises:
        APIError: an item is malformed, or of a type that is not done.
    """
    said: list[dict[str, Any]] = []
    called: set[str] = set()
    for at, item in enumerate(items):
        here, kind = f"{place}[{at}]", item.get("type", "message")
        if kind == "message":
            _add_message(said, item)
        elif kind == "reasoning":
            if thought := _thought(here, item):
                said.append({"role": "assistant", "content": None, "reasoning_content": thought})
        elif kind in _WRITTEN:
            call_id, written = _text(f"{here}.call_id", item.get("call_id")), _WRITTEN[kind]
            called.add(call_id)
            name, is_input = _text(f"{here}.name", item.get("name")), written == "input"
            arguments = past_arguments(f"{here}.{written}", item.get(written), is_input=is_input)
            if not said or said[-1]["role"] != "assistant":
                said.append({"role": "assistant", "content": None})
            call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            said[-1].setdefault("tool_calls", []).append(call)
        elif kind in _OUTPUTS:
            call_id = _text(f"{here}.call_id", item.get("call_id"))
            if call_id not in called:
                wrong(f"{here}.call_id", f"there is no call {call_id!r:.60} before it in the input")
            said.append({"role": "tool", "tool_call_id": call_id, "content": item.get("output")})
        else:
            _refuse(here, kind)
    return said


def _add_message(said: list[dict[str, Any]], item: Mapping[str, Any]) -> None:
    role, content = item.get("role"), item.get("content")
    is_thought = bool(said) and said[-1].keys() == _THOUGHT and said[-1]["content"] is None
    if role == "assistant" and is_thought:
        said[-1]["content"] = content
    else:
        said.append({"role": role, "content": content})


def _thought(place: str, item: Mapping[str, Any]) -> str:
    """The text of an earlier thought.

    Raises:
        APIError: it is encrypted.
    """
    parts = item.get("content") or item.get("summary") or ()
    if not isinstance(parts, (list, tuple)) or not all(isinstance(part, dict) for part in parts):
        wrong(f"{place}.content", "expected a list of parts")
    if not parts and item.get("encrypted_content") is not None:
        wrong(f"{place}.encrypted_content", "this server encrypts no thoughts; leave the item out")
    return "".join(_text(f"{place}.content", part.get("text")) for part in parts)


def _text(place: str, value: object) -> str:
    return value if isinstance(value, str) else wrong(place, "expected a text")


def _refuse(place: str, kind: object) -> NoReturn:
    if kind in _STORED:
        wrong(f"{place}.type", "this server stores no responses; send the whole conversation in input")
    wrong(f"{place}.type", f"items are messages, calls, their outputs, or thoughts; found {kind!r:.60}")


@final
class ItemWriter:
    """Writes the items of one reply.

    Args:
        writer: reads the reply.
        scores: the log-probabilities of tokens by their numbers, from one up to another; ``[]`` if none are wanted.

    Attributes:
        items: those that have begun.
        reasoning_tokens: tokens of the thought, its tags included.
    """

    def __init__(self, writer: MessageWriter, scores: Callable[[int, int], list[dict[str, Any]]]) -> None:
        self.items: list[dict[str, Any]] = []
        self.reasoning_tokens = 0
        self._writer = writer
        self._scores = scores
        self._is_open = False
        self._read = 0  # tokens
        self._ends: list[int] = []  # of tokens, in bytes
        self._from = self._scored = self._to = 0  # the tokens of the message

    def begin(self) -> Iterator[Event]:
        """The events before the first token: a reply that is all text is a message from the start."""
        if self._writer.is_plain:
            yield from self._begin_message()

    def add(self, text: str, tokens: Sequence[int]) -> Iterator[Event]:
        """The events of more tokens, which add ``text``.

        Raises:
            GrammarError: the tokens are no reply of the family.
        """
        each = [(text, tokens)] if self._writer.is_plain else [("", (token,)) for token in tokens]
        for part, taken in each:  # one by one, so that it is known which tokens the text consists of
            pieces = self._writer.pieces(part, taken)
            self._read += len(taken)
            for token in taken:
                self._ends.append((self._ends or [0])[-1] + self._writer.width(token))
            for piece in pieces:
                yield from self._piece(piece)

    def end(self, status: str) -> Iterator[Event]:
        """The last events; ``status`` is that of a message at the end.

        Raises:
            GrammarError: the reply ends too early.
        """
        for piece in self._writer.last_pieces():
            yield from self._piece(piece)
        if not self.items or self._is("reasoning"):  # it says nothing
            yield from self._begin_message()
        if self._writer.is_plain:
            self._to = self._read
        yield from self._close(status)

    def _piece(self, piece: ReplyPiece) -> Iterator[Event]:
        match piece.kind:
            case "thought":
                if not self._is("reasoning"):
                    yield from self._open({"type": "reasoning", "id": _id("rs"), "summary": [], "content": []})
                    yield from self._open_part({"type": "reasoning_text", "text": ""})
                self.items[-1]["content"][0]["text"] += piece.text
                self.reasoning_tokens = self._read
                yield "reasoning_text.delta", {**self.place(0), "delta": piece.text}
            case "text":
                if not self._is("message"):
                    yield from self._begin_message(piece.text)
                self.items[-1]["content"][0]["text"] += piece.text
                self._to = self._read
                scores = self._scores(self._scored, self._to)
                self._scored += len(scores)
                yield "output_text.delta", {**self.place(0), "delta": piece.text, "logprobs": scores}
            case "call":
                kind, short = ("custom_tool_call", "ctc") if self._writer.is_custom(piece) else ("function_call", "fc")
                call = {"type": kind, "id": _id(short), "call_id": piece.id, "name": piece.text}
                yield from self._open({**call, _WRITTEN[kind]: ""})
            case "arguments":
                item = self.items[-1]
                kind, written = item["type"], _WRITTEN[item["type"]]
                item[written] += piece.text
                yield f"{kind}_{written}.delta", {**self.place(), "delta": piece.text}

    def _begin_message(self, text: str = "") -> Iterator[Event]:
        yield from self._open({"type": "message", "id": _id("msg"), "role": "assistant", "content": []})
        yield from self._open_part({"type": "output_text", "text": "", "annotations": [], "logprobs": []})
        begins = (self._ends or [0])[-1] - len(text.encode())
        first = 0 if self._writer.is_plain else bisect_right(self._ends, begins)
        self._from = self._scored = self._to = first

    def _is(self, kind: str) -> bool:
        return self._is_open and self.items[-1]["type"] == kind

    def place(self, part: int | None = None) -> dict[str, Any]:
        """Where the last item is, or a part of it."""
        place = {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}
        return place if part is None else {**place, "content_index": part}

    def _open(self, item: dict[str, Any]) -> Iterator[Event]:
        yield from self._close("completed")
        self.items.append({**item, "status": "in_progress"})
        self._is_open = True
        yield "output_item.added", {"output_index": len(self.items) - 1, "item": _copied(self.items[-1])}

    def _open_part(self, part: dict[str, Any]) -> Iterator[Event]:
        self.items[-1]["content"].append(part)
        yield "content_part.added", {**self.place(0), "part": dict(part)}

    def _close(self, status: str) -> Iterator[Event]:
        if not self._is_open:
            return
        self._is_open, item = False, self.items[-1]
        item["status"] = status if item["type"] == "message" else "completed"
        if (kind := item["type"]) in _WRITTEN:
            written = _WRITTEN[kind]
            yield f"{kind}_{written}.done", {**self.place(), written: item[written], "name": item["name"]}
        else:
            part = item["content"][0]
            done = {"text": part["text"]}
            if item["type"] == "message":
                done["logprobs"] = part["logprobs"] = self._scores(self._from, self._to)
            kind = "output_text" if kind == "message" else "reasoning_text"
            yield f"{kind}.done", {**self.place(0), **done}
            yield "content_part.done", {**self.place(0), "part": dict(part)}
        yield "output_item.done", {"output_index": len(self.items) - 1, "item": _copied(item)}

    def score(self) -> None:
        """Give the message its scores, once all are known: those of some tokens come later than their text."""
        for item in self.items:
            if item["type"] == "message":
                item["content"][0]["logprobs"] = self._scores(self._from, self._to)


def _copied(item: Mapping[str, Any]) -> dict[str, Any]:
    """An item as it is now: an event is written later."""
    return {**item, **({"content": list(map(dict, item["content"]))} if "content" in item else {})}


def _id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"
