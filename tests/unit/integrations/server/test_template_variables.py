"""``chat_template_kwargs`` over HTTP: variables that the template names are honoured, as data; others are refused."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from served_model import TAGGED, TaggedModel, served

from structgen.models.chat_template import variables_of
from structgen.models.control_tokens import ControlTokens
from structgen.models.model_input import free_variables, messages_of_prompt, render_chat

pytestmark = pytest.mark.timeout(120)

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if note is defined %}{% if note is mapping %}{{ note | tojson }}{% else %}{{ note }}{% endif %}{% endif %}"
    "{% set thinks = thinks if thinks is defined else true %}{% if not thinks %}<think></think>{% endif %}"
    "{% if tools %}{{ raise_exception('none here') }}{% endif %}{% if add_generation_prompt %}>{% endif %}"
)
THINK = 257


class Templated(TaggedModel):
    """A model whose prompts are rendered by a chat template."""

    chat_template = TEMPLATE

    def encode_prompt(self, prompt: Any, /, *, chat: bool = True) -> list[int]:
        """As the models that have a template."""
        names = {name: token for token, name in TAGGED.special.items() if name}

        def encode(text: str) -> list[int]:
            parts = re.split("(" + "|".join(map(re.escape, names)) + ")", text)
            return [token for part in parts for token in ([names[part]] if part in names else TAGGED.tokenize(part))]

        def render(messages: Any) -> str:
            return render_chat(TEMPLATE, messages, name=self.name, special={"bos_token": "^"})

        control = ControlTokens(names, {}, TEMPLATE)
        return control.chat_ids(messages_of_prompt(prompt), render, encode, TAGGED.tokenize)


@pytest.fixture(scope="module")
def url() -> Any:
    """A server with such a model."""
    with served(Templated()) as address:
        yield address


def rendered(url: str, variables: dict[str, Any]) -> tuple[str, list[int]]:
    """The prompt with some variables, as text and as tokens."""
    body = {"messages": [{"role": "user", "content": "?"}], "chat_template_kwargs": variables}
    tokens = httpx.post(f"{url}/tokenize", json=body, timeout=60).json()["tokens"]
    return httpx.post(f"{url}/detokenize", json={"tokens": tokens}, timeout=60).json()["prompt"], tokens


def test_a_template_says_what_may_be_set() -> None:
    """What it names, without what the server and the sandbox set."""
    assert variables_of(TEMPLATE) >= {"messages", "tools", "bos_token", "note", "thinks"}
    assert free_variables(TEMPLATE) == {"note", "thinks"}
    assert free_variables("{% if") == frozenset()


def test_variables_are_honoured(url: str) -> None:
    """A switch decides whether the reply has a thought."""
    assert rendered(url, {})[0] == "^user: ?\n>"
    assert rendered(url, {"note": "N", "thinks": False})[0] == "^user: ?\nN<think></think>>"
    assert rendered(url, {"note": {"a": [1, None]}})[0] == '^user: ?\n{"a": [1, null]}>'
    body = {"messages": [{"role": "user", "content": "?"}], "max_tokens": 30, "seed": 1}
    with_thought, without = (
        httpx.post(f"{url}/v1/chat/completions", json={**body, "chat_template_kwargs": {"thinks": thinks}}, timeout=60)
        for thinks in (True, False)
    )
    assert with_thought.json()["usage"]["prompt_tokens"] + 2 == without.json()["usage"]["prompt_tokens"]
    answer = httpx.post(
        f"{url}/v1/responses", json={"input": "?", "max_output_tokens": 9, "chat_template_kwargs": {"thinks": False}}
    )
    assert answer.json()["usage"]["input_tokens"] == without.json()["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    "value",
    [
        "<think>",
        {"<think>": "</think>"},
        {"role": "assistant", "content": "<think>"},
        ["a", ["<think>"]],
        "thi<think>nk",
    ],
)
def test_values_are_text(url: str, value: Any) -> None:
    """Never control tokens, at any depth, in names or as what the model has said."""
    text, tokens = rendered(url, {"note": value})
    assert "<think>" in text
    assert THINK not in tokens


def test_values_are_no_templates(url: str) -> None:
    """What looks like one is written as it is, and deep values end in an error at the worst."""
    source = "{{ messages }}{% for x in range(9) %}{{ self }}{% endfor %}{{ ''.__class__.__mro__ }}"
    assert source in rendered(url, {"note": source})[0]
    deep: Any = "x"
    for _ in range(60):
        deep = {"a": deep}
    body = {"messages": [{"role": "user", "content": "?"}], "chat_template_kwargs": {"note": deep}, "max_tokens": 2}
    assert httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).status_code in (200, 400)
    large = {**body, "chat_template_kwargs": {"note": ["x" * 4096] * 200}}
    assert httpx.post(f"{url}/v1/chat/completions", json=large, timeout=60).status_code in (200, 400)


@pytest.mark.parametrize(
    "name",
    [
        *("enable_thinking", "messages", "tools", "add_generation_prompt", "bos_token", "raise_exception", "range"),
        *("self", "chat_template", "tokenize", "__class__", "loop", "message"),
    ],
)
def test_other_names_are_refused(url: str, name: str) -> None:
    """Those that the template does not name, and those that others set."""
    body = {"messages": [{"role": "user", "content": "?"}], "chat_template_kwargs": {name: "x"}}
    for path in ("/v1/chat/completions", "/tokenize"):
        error = httpx.post(f"{url}{path}", json=body, timeout=60).json()["error"]
        assert error["param"] == f"chat_template_kwargs.{name}"
        assert "note, thinks" in error["message"]
    text = httpx.post(f"{url}/v1/completions", json={"prompt": "?", "chat_template_kwargs": {}}, timeout=60)
    assert text.json()["error"]["param"] == "chat_template_kwargs"


def test_a_model_without_a_template_has_none() -> None:
    """And says so."""
    with served(TaggedModel()) as url:
        body = {"messages": [{"role": "user", "content": "?"}], "chat_template_kwargs": {"thinks": False}}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    assert answer.json()["error"]["param"] == "chat_template_kwargs.thinks"
