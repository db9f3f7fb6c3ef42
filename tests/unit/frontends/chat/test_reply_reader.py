"""Replies read in pieces: what comes out is what ``read_reply`` finds in the whole, however the text is cut."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any

import pytest
from chat_replies import CASES, TOOLS, Case

from structgen.errors import GrammarError
from structgen.frontends.chat import load_family
from structgen.frontends.chat.stream import ReplyPiece, ReplyReader


def joined(pieces: list[ReplyPiece]) -> tuple[str, str, list[tuple[str, Any]]]:
    """The thought, the text and the calls of pieces."""
    said = {kind: "".join(each.text for each in pieces if each.kind == kind) for kind in ("thought", "text")}
    calls = []
    for call in (each for each in pieces if each.kind == "call"):
        arguments = (each.text for each in pieces if each.kind == "arguments" and each.index == call.index)
        calls.append((call.text, json.loads("".join(arguments))))
    return said["thought"], said["text"], calls


def read(text: str, cuts: list[int], **options: Any) -> list[ReplyPiece]:
    """Read a text that comes in pieces."""
    reader = ReplyReader(**options)
    edges = [0, *sorted(cuts), len(text)]
    pieces = [piece for a, b in pairwise(edges) for piece in reader.read(text[a:b])]
    return pieces + reader.read("", is_last=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.family}-{case.name}")
def test_pieces_say_what_the_whole_says(case: Case) -> None:
    """In one piece, character by character, and in pieces of random lengths; with thought and without."""
    family = load_family(case.family)
    thoughts = [("", case.text)]
    if family.thought is not None:
        start, end = family.thought.layout.prefix, family.thought.layout.end
        thoughts += [("I see {1}.", start + "I see {1}." + end + case.text), ("", start + end + case.text)]
    for seed, (thought, text) in enumerate(thoughts):
        draw = random.Random(seed)
        cuts = [[], list(range(1, len(text))), *(draw.sample(range(len(text)), 6) for _ in range(8))]
        for each in cuts:
            found = joined(read(text, each, family=family, tools=TOOLS))
            assert found == (thought, case.said, list(case.calls)), each


@pytest.mark.parametrize("name", sorted({case.family for case in CASES}))
def test_what_is_written_is_passed_on(name: str) -> None:
    """Of arguments in JSON, each character when it comes; of texts, all but what may be the tag after them."""
    family = load_family(name)
    texts = {case.name: case.text for case in CASES if case.family == name}
    one = read(texts["one"], list(range(1, len(texts["one"]))), family=family, tools=TOOLS)
    counted = sum(piece.kind == "arguments" for piece in one)
    assert counted == (len('{"a": 1, "b": 2}') if family.arguments.style == "json" else 1)
    reader = ReplyReader(family=family, tools=TOOLS)
    held = len(texts["text"]) - len(family.text.layout.end)
    known = "".join(piece.text for character in texts["text"][:held] for piece in reader.read(character))
    assert "It is 3.".startswith(known.replace("[", "").replace("{", "").replace("]", "").replace("}", ""))
    assert known.endswith(".")


@pytest.mark.parametrize("name", ["hermes", "kimi-k3", "gpt-oss", "llama3"])
def test_answers_are_read_to_their_end(name: str) -> None:
    """Whatever tags they hold."""
    family = load_family(name)
    answer = json.dumps(["<tool_call>", *family.tokens, "\n<tool_call>\n{}"], ensure_ascii=False)
    layout = family.text.layout
    text = layout.prefix + answer + layout.end
    for cuts in ([], list(range(1, len(text)))):
        found = joined(read(text, cuts, family=family, tools=TOOLS, is_answer=True))
        assert found == ("", answer, [])


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "add", "arguments": {"a": 1}',
        '<tool_call>\n{"name": "sub"',
        "<think>\nhm",
        "a\n<tool_call>",
    ],
)
def test_what_is_no_reply(text: str) -> None:
    """A reply that ends too early, or calls what is not there."""
    with pytest.raises(GrammarError, match="hermes"):
        read(text, [], tools=TOOLS)
