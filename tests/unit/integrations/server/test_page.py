"""The page of the server, in Chromium: what a reader sees is what the server says, and nothing comes from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from browser import BROWSER, Page, browser

pytestmark = pytest.mark.timeout(180)

needs_browser = pytest.mark.skipif(BROWSER is None, reason="needs chromium")

SCHEMA = {
    "type": "object",
    "properties": {"<b>": {"enum": ["<img src=x onerror=alert(1)>", "<i>"]}, "n": {"type": "integer", "minimum": 10}},
    "required": ["<b>", "n"],
}


@pytest.fixture(scope="module")
def opened(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The page, in a browser."""
    with browser(tmp_path_factory.mktemp("profile")) as page:
        page.size(1280, 900)
        page.open(f"{url}/")
        yield page


def ask(page: Page, seed: int = 0) -> None:
    page.run(
        f"$('description').value = {json.dumps(json.dumps(SCHEMA))}; $('max').value = 60; $('seed').value = {seed};"
        "$('run').click()"
    )
    page.wait("!$('run').disabled && $('status').textContent.includes('in ')")


def streamed(url: str, seed: int = 0) -> list[dict[str, Any]]:
    """The tokens of the same request, as the server streams them."""
    body = {
        "messages": [{"role": "user", "content": "Name a city in France, with its population."}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}},
        "stream": True,
        "max_tokens": 60,
        "temperature": 0,
        "seed": seed,
        "structgen": {"trace": True},
    }
    lines = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).text.split("\n")
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    told = [chunk["choices"][0].get("structgen", {}) for chunk in chunks]
    tokens = [token for each in told if "trace" in each for token in each["trace"]["tokens"]]
    assert "".join(token["text"] for token in tokens) == text
    return tokens


@needs_browser
def test_the_output_is_what_the_server_streams(opened: Page, url: str) -> None:
    """Each token with its kind, its probability and the size of its mask; markup in it stays text."""
    ask(opened)
    tokens = streamed(url)
    shown = opened.run("[...$('output').children].map(each => [each.textContent, each.className, each.title])")
    assert [each[0] for each in shown] == [token["text"] for token in tokens]
    assert [each[1] for each in shown] == [f"token {token['kind']}" for token in tokens]
    assert all(f"{token['allowed']} allowed" in each[2] for each, token in zip(shown, tokens, strict=True))
    assert {token["kind"] for token in tokens} >= {"forced", "chosen"}
    assert opened.run("document.querySelectorAll('#output b, #output img, #output i').length") == 0
    assert opened.run("$('masks').children.length") == len(tokens)
    counted = sum(token["kind"] == "forced" for token in tokens)
    assert f"{len(tokens)} tokens ({counted} forced" in opened.run("$('status').textContent")


@needs_browser
def test_a_token_is_chosen_with_the_keyboard_and_another_explained(opened: Page, url: str) -> None:
    """At the number, where a letter may not stand."""
    ask(opened)
    opened.run("$('output').focus()")
    opened.key("End")
    assert "token" in opened.run("document.querySelector('#output .selected').className")
    before = "".join(token["text"] for token in streamed(url)[:-1])
    opened.run("$('other').value = 'x'; $('ask').requestSubmit()")
    opened.wait("$('answer').textContent.includes('not allowed')")
    answer = httpx.post(
        f"{url}/v1/structgen/explain",
        json={
            "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}},
            "text": before,
            "token": "x",
        },
    ).json()
    told = opened.run("$('answer').textContent")
    assert answer["token"]["expected"] in told
    assert f"{answer['allowed_tokens']} of {answer['vocabulary_size']}" in told


@needs_browser
def test_what_is_refused_is_said(opened: Page) -> None:
    """By the server, and by the page where the schema is no JSON."""
    for text, said in (
        ("{", "no JSON"),
        ('{"type": "strin"}', "#/type"),
        ('{"type": "string", "minLength": 900}', "at least"),
    ):
        opened.run(f"$('description').value = {json.dumps(text)}; $('run').click()")
        opened.wait(f"!$('problem').hidden && $('problem').textContent.includes({said!r}) && !$('run').disabled")
    opened.run("$('description').value = '{\"type\": \"null\"}'; $('check').click()")
    opened.wait("$('report').textContent.includes('type at #/type') && $('problem').hidden")


@needs_browser
@pytest.mark.parametrize("is_dark", [False, True])
@pytest.mark.parametrize("width", [380, 1280])
def test_it_fits_its_window(opened: Page, width: int, *, is_dark: bool) -> None:
    """Nothing is wider than the window, every field has a name, and the policy was never violated."""
    opened.size(width, 800, is_dark=is_dark)
    assert opened.run("document.documentElement.scrollWidth") <= width
    unnamed = "[...document.querySelectorAll('input, textarea')].filter(e => !e.labels.length && !e.ariaLabel).length"
    assert opened.run(unnamed) == 0
    assert not [each for each in opened.messages if "Content Security Policy" in each or "exceptionThrown" in each]
    opened.size(1280, 900)


def test_it_loads_nothing_from_elsewhere(url: str) -> None:
    """By its policy, whose hashes are of the page itself; and it needs no key."""
    answer = httpx.get(f"{url}/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "://" not in answer.text.replace("http://www.w3.org/2000/svg", "")
    assert not any(f" {name}=" in answer.text for name in ("style", "onclick", "onload", "src"))
