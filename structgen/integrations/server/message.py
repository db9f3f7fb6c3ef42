"""Messages: those of a request as chat templates take them, and a reply as clients do, whole or in deltas."""

from __future__ import annotations

import codecs
import json
import re
import uuid
from collections.abc import Sequence, Set as AbstractSet
from dataclasses import replace
from typing import TYPE_CHECKING, Any, final

from structgen.decode.step.result import spelled_bytes
from structgen.frontends.chat.stream import ReplyPiece
from structgen.integrations.server.custom import InputReader
from structgen.integrations.server.protocol import wrong

if TYPE_CHECKING:
    from structgen.engine import Vocabulary
    from structgen.frontends.chat.stream import ReplyReader
    from structgen.integrations.server.protocol import Message
    from structgen.integrations.server.tools import Form

__all__ = ["MessageWriter", "messages_of", "past_arguments"]


@final
class MessageWriter:
    """Writes one message.

    Args:
        vocabulary: of the tokens of the reply.
        reader: reads the reply; None: it is all text.
        call_id: a regex for the ids that the family of the model gives calls; ``""``: it gives none.
        customs: the names of custom tools.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        reader: ReplyReader | None,
        *,
        call_id: str = "",
        customs: AbstractSet[str] = frozenset(),
    ) -> None:
        self._vocabulary = vocabulary
        self._reader = reader
        self._call_id = call_id
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._calls = 0
        self._customs = customs
        self._inputs: dict[int, InputReader] = {}

    @property
    def is_plain(self) -> bool:
        """Whether the message is all text."""
        return self._reader is None

    def pieces(self, text: str, tokens: Sequence[int]) -> list[ReplyPiece]:
        """The pieces that more tokens add, which are ``text``.

        Each call has an id; the arguments of one of a custom tool are its input.

        Raises:
            GrammarError: the tokens are no reply of the family.
        """
        if self._reader is None:
            return [ReplyPiece("text", text)] if text else []
        return self._noted(self._reader.read(self._decoder.decode(spelled_bytes(self._vocabulary, tokens))))

    def width(self, token: int) -> int:
        """How many bytes a token has in the reply, special tokens written out."""
        return len(spelled_bytes(self._vocabulary, (token,)))

    def last_pieces(self) -> list[ReplyPiece]:
        """The last pieces.

        Raises:
            GrammarError: the reply ends too early.
        """
        if self._reader is None:
            return []
        return self._noted(self._reader.read(self._decoder.decode(b"", final=True), is_last=True))

    def _noted(self, pieces: Sequence[ReplyPiece]) -> list[ReplyPiece]:
        noted: list[ReplyPiece] = []
        for piece in pieces:
            made = piece
            if piece.kind == "call":
                self._calls += 1
                made = replace(piece, id=self._id(piece))
                if piece.text in self._customs:
                    self._inputs[piece.index] = InputReader()
            elif piece.kind == "arguments" and self.is_custom(piece):
                made = replace(piece, text=self._inputs[piece.index].read(piece.text))
            if made.text:
                noted.append(made)
        return noted

    def is_custom(self, piece: ReplyPiece) -> bool:
        """Whether a piece of a call is of one of a custom tool."""
        return piece.index in self._inputs

    def deltas(self, text: str, tokens: Sequence[int]) -> list[dict[str, Any]]:
        """The deltas for more tokens, which add ``text``.

        Raises:
            GrammarError: the tokens are no reply of the family.
        """
        return list(map(self._delta, self.pieces(text, tokens)))

    def end(self) -> list[dict[str, Any]]:
        """The last deltas.

        Raises:
            GrammarError: the reply ends too early.
        """
        return list(map(self._delta, self.last_pieces()))

    def _delta(self, piece: ReplyPiece) -> dict[str, Any]:
        match piece.kind:
            case "thought":  # both names are in use
                return {"reasoning_content": piece.text, "reasoning": piece.text}
            case "text":
                return {"content": piece.text}
        kind, written = ("custom", "input") if self.is_custom(piece) else ("function", "arguments")
        if piece.kind == "call":
            call = {"id": piece.id, "type": kind, kind: {"name": piece.text, written: ""}}
            return {"tool_calls": [{"index": piece.index, **call}]}
        return {"tool_calls": [{"index": piece.index, kind: {written: piece.text}}]}

    def _id(self, piece: ReplyPiece) -> str:
        """An id that the chat template of the family takes back; numbers of calls are no ids, for they come again."""
        if piece.id is not None and not piece.id.isdigit():
            return piece.id
        short = uuid.uuid4().hex[:9]
        return short if self._call_id and re.fullmatch(self._call_id, short) else f"call_{uuid.uuid4().hex[:24]}"

    def message(self, text: str, tokens: Sequence[int]) -> dict[str, Any]:
        """The message of a whole reply.

        Raises:
            GrammarError: it is no reply of the family.
        """
        said: dict[str, str] = {}
        calls: list[dict[str, Any]] = []
        for delta in [*self.deltas(text, tokens), *self.end()]:
            for call in delta.pop("tool_calls", ()):
                if "id" in call:
                    calls.append({name: value for name, value in call.items() if name != "index"})
                else:
                    kind = "custom" if "custom" in call else "function"
                    for name, part in call[kind].items():
                        calls[call["index"]][kind][name] += part
            for name, more in delta.items():
                said[name] = said.get(name, "") + more
        content = said.pop("content", None if calls else "")
        called = {"tool_calls": calls} if calls else {}
        return {"role": "assistant", "content": content, "refusal": None, **said, **called}

    @property
    def has_calls(self) -> bool:
        """Whether the reply holds calls so far."""
        return self._calls > 0


def messages_of(messages: Sequence[Message], form: Form) -> list[dict[str, Any]]:
    """Messages as chat templates take them, texts joined; calls and results as texts where the template has none.

    Raises:
        APIError: a message has parts that are no text, or calls that are malformed.
    """
    rendered: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for at, message in enumerate(messages):
        place = f"messages[{at}]"
        role = {"developer": "system", "function": "tool"}.get(message.role, message.role)
        content = _text_of(f"{place}.content", message.content) or (message.refusal or "")
        made: dict[str, Any] = {"role": role, "content": content}
        if message.name and role != "tool":
            made["name"] = message.name  # for templates that distinguish participants
        calls = message.tool_calls
        if not calls and message.function_call is not None:  # what tool_calls has replaced
            calls = [{"function": message.function_call}]
        if role == "assistant" and calls:
            made["tool_calls"] = _past_calls(f"{place}.tool_calls", calls, names)
            if not form.has_tools:
                called = [each["function"] for each in made["tool_calls"]]
                pairs = [(each["name"], json.dumps(each["arguments"], ensure_ascii=False)) for each in called]
                made = {"role": role, "content": "\n".join(filter(None, (content, form.written(pairs))))}
        if role == "assistant" and form.has_tools and (thought := message.reasoning_content or message.reasoning):
            made["reasoning_content"] = thought
        if role == "tool":
            call = message.tool_call_id or ""
            name = message.name or names.get(call, "")
            made |= {"tool_call_id": call, **({"name": name} if name else {})}
            if not form.has_tools:
                made = {"role": "user", "content": f"{name or 'The function'} returned: {content}"}
        rendered.append(made)
    return rendered


def _past_calls(place: str, calls: object, names: dict[str, str]) -> list[dict[str, Any]]:
    """Calls of an earlier turn, with their arguments as values; ``names`` gets the names by the ids of the calls."""
    if not isinstance(calls, list):
        wrong(place, "expected a list of calls")
    found = []
    for index, call in enumerate(calls):
        kind = "custom" if isinstance(call, dict) and call.get("type") == "custom" else "function"
        written, here = "input" if kind == "custom" else "arguments", f"{place}[{index}].{kind}"
        held = call.get(kind) if isinstance(call, dict) else None
        if not isinstance(held, dict) or not isinstance(held.get("name"), str):
            wrong(here, f"expected an object with 'name' and {written!r}")
        arguments = past_arguments(f"{here}.{written}", held.get(written), is_input=kind == "custom")
        identifier = str(call.get("id") or "")
        names[identifier] = held["name"]
        found.append({"id": identifier, "type": "function", "function": {"name": held["name"], "arguments": arguments}})
    return found


def past_arguments(place: str, given: object, *, is_input: bool = False) -> dict[str, Any]:
    """The arguments of an earlier call, which are JSON text, or their values; of a custom tool, from its input.

    Raises:
        APIError: they are no object, or the input is no text.
    """
    if is_input:
        return {"input": given if isinstance(given, str) else wrong(place, "expected a text")}
    try:
        found = json.loads(given or "{}") if isinstance(given, (str, type(None))) else given
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else wrong(place, "expected a JSON object, as text")


def _text_of(place: str, content: Any) -> str:
    """The text of a message.

    Raises:
        APIError: it has parts that are no text.
    """
    if not isinstance(content, list):
        if not isinstance(content, (str, type(None))):
            wrong(place, f"expected a text or a list of parts; found {type(content).__name__}")
        return content or ""
    texts = []
    for at, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if not isinstance(part, dict) or kind not in ("text", "input_text", "output_text", "refusal"):
            wrong(f"{place}[{at}]", f"the model reads text only; found a part of type {kind!r:.60}")
        name = "refusal" if kind == "refusal" else "text"
        text = part.get(name, "")
        texts.append(text if isinstance(text, str) else wrong(f"{place}[{at}].{name}", "expected a text"))
    return "".join(texts)
