"""Grammars of thoughts followed by answers."""

from __future__ import annotations

import pytest

from structgen import Vocabulary, compile
from structgen.errors import GrammarError
from structgen.frontends.chat import answer, families, load_family, read_reply, think, tool_calls
from structgen.grammar.flattening import recognizes
from structgen.grammar.nodes import literal


def test_think_then_answer() -> None:
    grammar = think() + answer({"type": "integer"})
    assert recognizes(grammar, "<think>so < 3, then</think>12")
    assert recognizes(grammar, "<think></think>12")
    assert not recognizes(grammar, "<think>a</think>b</think>12")
    assert not recognizes(grammar, "<think>12")
    assert not recognizes(grammar, "12")
    assert recognizes(think(is_open=True) + answer("x" + answer({"const": 1})), "hm</think>x1")


@pytest.mark.parametrize("name", [name for name in families() if load_family(name).thought])
def test_families_that_think(name: str) -> None:
    family = load_family(name)
    assert family.thought is not None
    thought = family.thought.layout
    text = f"{thought.prefix}It is\n\nclear.{thought.end}"
    said = f"{family.text.layout.prefix}Yes.{family.text.layout.end}"
    grammar = think(family=name) + tool_calls([], family=name)
    assert recognizes(grammar, text + said)
    assert not recognizes(grammar, thought.prefix + said)
    reply = read_reply(text + said, family=name)
    assert (reply.thought, reply.text) == ("It is\n\nclear.", "Yes.")
    is_open = text[len(thought.prefix) :]
    assert recognizes(think(family=name, is_open=True), is_open)
    assert read_reply(is_open + said, family=name, is_open=True) == reply


def test_tags_are_tokens_where_there_are_such() -> None:
    tokens = [bytes([value]) for value in range(128)] + [b"", b"", b""]
    vocabulary = Vocabulary(tokens, eos=[128], special={129: "<think>", 130: "</think>"})
    matcher = compile(think() + answer(literal("y")), vocabulary).matcher()
    assert not matcher.accept(ord("<"))
    # Text that spells the tag is not the tag, and is blocked, since a reader of the reply would confuse the two.
    text = [*b"</think"]
    ids = [129, *text, 130, ord("y")]
    assert matcher.validate([129, *text, ord(">")]) == 1 + len(text)
    assert matcher.validate(ids) == len(ids)


def test_tags_are_taken_as_they_are() -> None:
    """What is a placeholder in the file of a family is text in a tag."""
    assert recognizes(think(start="$text", end="$thought"), "$texthm$thought")


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="a number of tokens from 1 on"):
        think(0)
    with pytest.raises(ValueError, match="the end tag is empty"):
        think(end="")
    with pytest.raises(GrammarError, match="its models write no thoughts"):
        think(family="llama3")
