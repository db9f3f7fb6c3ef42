"""Prompts as messages, and chat templates."""

from __future__ import annotations

from typing import Any

import pytest

from structgen.errors import ModelError
from structgen.models.model_input import messages_of_prompt, render_chat


def test_a_text_is_one_message_of_the_user() -> None:
    """Messages stay as they are, as plain dictionaries."""
    assert messages_of_prompt("hi") == [{"role": "user", "content": "hi"}]
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert messages_of_prompt(tuple(messages)) == messages


@pytest.mark.parametrize(
    ("prompt", "problem"),
    [
        ([], "no messages"),
        ([{"role": "user"}], "message 0 is malformed"),
        ([{"role": "user", "content": "a"}, {"role": "user", "content": 3}], "message 1 is malformed"),
        (["hello"], "message 0 is malformed"),
    ],
)
def test_malformed_messages_are_refused(prompt: Any, problem: str) -> None:
    """The error names the wrong message."""
    with pytest.raises(ModelError, match=problem):
        messages_of_prompt(prompt)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "u"}}]}, "'image_url'"),
        ({"content": [{"type": "input_audio", "input_audio": {}}]}, "'input_audio'"),
        ({"content": ["what is this?", object()]}, "'object'"),
        ({"content": "what is this?", "images": ["cat.png"]}, "'images'"),
        (
            {"content": [{"type": "text", "text": "a"}]},
            "the content of message 1 is a list; it has 1 parts of text; join",
        ),
    ],
)
def test_parts_that_are_no_text_are_refused_by_name(message: dict[str, Any], problem: str) -> None:
    """Images and sounds are named; parts of text are to be joined."""
    with pytest.raises(ModelError, match=problem):
        messages_of_prompt([{"role": "user", "content": "hi"}, {"role": "user", **message}])


@pytest.mark.parametrize("prompt", [b"hi", None, 3, {"role": "user", "content": "hi"}])
def test_a_prompt_is_a_text_or_messages(prompt: Any) -> None:
    """Bytes, None, a number and a single message are none."""
    with pytest.raises(ModelError, match="neither a text nor messages"):
        messages_of_prompt(prompt)


def test_blocks_leave_no_blank_lines() -> None:
    """Templates are written for trimmed blocks, and end with the turn of the assistant."""
    template = (
        "{% for m in messages %}\n  {% if m.role == 'user' %}\nQ: {{ m.content }}\n  {% endif %}\n"
        "{% endfor %}\n{% if add_generation_prompt %}A:{% endif %}"
    )
    assert render_chat(template, messages_of_prompt("why?"), name="m") == "Q: why?\nA:"


@pytest.mark.parametrize(
    ("template", "evidence"),
    [
        ("{{ raise_exception('only one system message') }}", "only one system message"),
        ("{% for %}", "Expected"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
    ],
)
def test_templates_that_fail_or_escape_are_refused(template: str, evidence: str) -> None:
    """A template's own error, a syntax error and an attempt to reach Python each end in one clear error."""
    with pytest.raises(ModelError, match="the chat template refuses the messages") as caught:
        render_chat(template, messages_of_prompt("x"), name="m")
    assert evidence in caught.value.evidence
