"""Prompts as messages, and chat templates."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from structgen.errors import ModelError
from structgen.models.model_input import chat_prompt, messages_of_prompt, render_chat


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
        ("{% break %}", "'break' outside loop"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
    ],
)
def test_templates_that_fail_or_escape_are_refused(template: str, evidence: str) -> None:
    """A template's own error, a syntax error and an attempt to reach Python each end in one clear error."""
    with pytest.raises(ModelError, match="the chat template refuses the messages") as caught:
        render_chat(template, messages_of_prompt("x"), name="m")
    assert evidence in caught.value.evidence


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages | tojson }}{{ tools is none }}{{ documents }}{{ {'a<': 1, 'b': ['é']} | tojson(indent=2) }}",
        "{% for m in messages %}{% generation %}{{ loop.index0 }}{{ m['content'] }}\n{% endgeneration %}{% endfor %}",
        "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m.role | upper }}{% endfor %}{{ 3 }}",
        "{% set ns = namespace(n=0) %}{% for m in messages[1:] %}{% set ns.n = ns.n + m.content | length %}{% endfor %}"
        "{{ ns.n }}{{ messages[-1].content[:2] }}{{ messages | map(attribute='role') | join(', ') }}",
        "{% macro line(m, end='|') %}{{ m.role ~ ':' ~ m.content | trim ~ end }}{% endmacro %}"
        "{% for m in messages %}{{ line(m) }}{{ caller is defined }}{% endfor %}{{ bos_token }}{{ undefined_name }}",
        "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ 'x' in messages[0].content }}"
        "{{ '%s-%03d' | format('a', 7) }}{{ '{:>5}'.format('b') }}{{ 'a,b'.split(',') }}{{ (1, 2)[0] == 1 }}",
        "{{ dict(a=1).items() | list }}{% set x %}a\n  b{% endset %}{{ x | indent(2) }}{{ x.replace('a', '**') }}"
        "{{ 7 // 2 }}{{ 7 % 4 }}{{ 'ab' * 2 }}{{ [1] + [2] }}{{ 1700000000 | string }}{{ -3 | abs }}{{ none }}",
    ],
)
def test_templates_are_rendered_as_transformers_does(template: str) -> None:
    """The filters, tags and variables that templates of models use; the clock is tested apart."""
    transformers = pytest.importorskip("transformers.utils.chat_template_utils")
    messages = [{"role": "system", "content": " be <kind> & 'short' "}, {"role": "user", "content": "why é?\n"}]
    (expected,), _ = transformers.render_jinja_template(
        [messages], chat_template=template, add_generation_prompt=True, bos_token="<s>"
    )
    assert render_chat(template, messages, name="m", special={"bos_token": "<s>"}) == expected


def test_templates_of_tokenizers() -> None:
    """One of several is the default; it knows the special tokens and the clock, and is bounded as all are."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models

    alphabet = {chr(code): code for code in range(32, 127)}
    held = Tokenizer(models.BPE(alphabet, []))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=held, eos_token="<e>")
    tokenizer.chat_template = {
        "default": "{{ messages[0].content }}{{ eos_token }}{{ strftime_now('%%') }}",
        "other": "x",
    }
    read = tokenizer.decode(chat_prompt(tokenizer, "hi<e>", chat=True, name="m")).replace(" ", "")
    assert read == "hi<e><e>%"
    assert chat_prompt(tokenizer, "hi<e>", chat=True, name="m").count(tokenizer.eos_token_id) == 1
    for bomb in (
        "{{ 'a' * 10**9 }}",
        "{% for i in range(10**9) %}a{% endfor %}",
        "{% for a in b",
        "{{ 5 | dictsort }}",
    ):
        tokenizer.chat_template = bomb
        with pytest.raises(ModelError, match="the chat template refuses the messages"):
            chat_prompt(tokenizer, "hi", chat=True, name="m")


def test_many_messages_are_no_bomb() -> None:
    """A thousand messages of 300 characters, through a template that calls ten functions for each."""
    template = (
        "{% for m in messages %}{% set c = m.content | trim %}{% if loop.index0 < messages | length - 1 and c != '' %}"
        "{{ '<|' ~ m.role ~ '|>' ~ c.split('</think>')[-1].strip() | replace('a', 'b') }}{% endif %}{% endfor %}"
    )
    messages = [{"role": "user", "content": "b " * 150} for _ in range(1000)]
    assert len(render_chat(template, messages, name="m")) == 999 * (8 + 299)


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(10**9) %}a{% endfor %}",
        "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
        "{{ 'a' * 10**9 }}",
        "{{ 'a' * 1000000000 }}",
        "{{ 10 ** (10 ** 9) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ 'a'.center(1000000000) }}",
        "{{ 'a' | center(1000000000) }}",
        "{% set n = namespace(a='a') %}{% for i in range(99) %}{% set n.a = n.a ~ n.a %}{% endfor %}",
        "{% set n = namespace(a='a') %}{% for i in range(99) %}{% set n.a = n.a + n.a %}{% endfor %}",
        "{{ 1 // 0 }}",
        "{% set b = 'a' * 4000000 %}{{ [b] * 30000 }}",
        "{% set b = 'a' * 4000000 %}{{ b ~ b ~ b }}",
        "{% set b = 'a' * 4000000 %}{{ b.join(['a', 'b', 'c']) }}{{ ['a', 'b', 'c'] | join(b) }}",
        "{% set b = 'a' * 4000000 %}{{ b.replace('', b) }}",
        "{% set b = 'a' * 4000000 %}{% for i in range(99999) %}{{ b }}{% endfor %}",
        "{% set b = 'a' * 4000000 %}{% set c %}{% for i in range(99999) %}{{ b }}{% endfor %}{% endset %}{{ c }}",
        "{% set b = 'a' * 4000000 %}{% for i in range(99999) %}{% if b[1:] == b[:-1] %}{% endif %}{% endfor %}",
        "{% set n = namespace(a=[1]) %}{% for i in range(99) %}{% set n.a = [n.a, n.a] %}{% endfor %}{{ n.a == n.a }}",
        "{% set n = namespace(a=3) %}{% for i in range(99) %}{% set n.a = n.a * n.a %}{% endfor %}{{ n.a }}",
        "{{ ('%9999d' * 1000) | format(1) }}",
        "{{ ('<!-- -->' * 100000) | striptags }}",
        "{{ lipsum(n=100000) }}",
        "{% for a in [1] %}" * 25 + "{% endfor %}" * 25,
        "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
        "{{ a }}" * 50_000,
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_a_chat_template_that_asks_for_gigabytes(template: str) -> None:
    """Each ends in one error; what it would need is never allocated."""
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match="the chat template refuses the messages"):
            render_chat(template, messages_of_prompt("x"), name="m")
        assert tracemalloc.get_traced_memory()[1] < 150 << 20
    finally:
        tracemalloc.stop()


def test_a_chat_template_that_calls_itself_twice() -> None:
    """The 2^60 rounds of a recursive loop are counted, though none is a round of another loop."""
    loop = "{% for x in [1, 1] recursive %}{% if loop.depth < 60 %}{{ loop([1, 1]) }}{% endif %}{% endfor %}"
    with pytest.raises(ModelError, match="it takes more than 100000 steps"):
        render_chat(loop, messages_of_prompt("x"), name="m")


def test_templates_within_their_bounds() -> None:
    """Loops know their place and length, and operators work."""
    loop = "{% for i in range(3) %}{{ loop.index }}{{ loop.last }}{{ loop.length }}{% endfor %}"
    template = loop + "{{ '%s' % 1 ~ 'b' }}{{ 2 + 3 ** 2 }}{{ '-' * 3 }}"
    assert render_chat(template, messages_of_prompt("x"), name="m") == "1False32False33True31b11---"
