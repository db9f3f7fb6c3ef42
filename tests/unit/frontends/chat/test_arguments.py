"""Arguments of calls that are not JSON: typed values, xgrammar's formats of the same models, other parsers."""

from __future__ import annotations

import ast
import itertools
import json
import re
from typing import Any

import pytest
from chat_replies import CASES, FIND
from jsonschema import Draft202012Validator

from structgen.errors import GrammarError, UnsupportedFeature
from structgen.frontends.chat import families, load_family, read_reply, tool_calls
from structgen.grammar.flattening import recognizes

ODD: dict[str, Any] = {
    "name": "odd",
    "parameters": {
        "type": "object",
        "properties": {
            "t": {"type": "string"},
            "n": {"type": ["string", "number", "null"]},
            "l": {"type": "array", "items": {"type": ["boolean", "string"]}},
            "o": {"type": "object", "properties": {"k": {"type": "boolean"}}, "additionalProperties": False},
        },
        "additionalProperties": False,
    },
}
NOT_JSON = [name for name in families() if load_family(name).arguments.style != "json"]
UNTYPED = ("qwen3-coder", "glm-4.5", "glm-4.7", "minimax-m2", "minimax-m3")
M3 = "]<]minimax[>["
MEMBER = {
    "qwen3-coder": "<parameter=KEY>\nVALUE\n</parameter>\n",
    "glm-4.5": "<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n",
    "glm-4.7": "<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>",
    "minimax-m2": '<parameter name="KEY">VALUE</parameter>\n',
    "deepseek-v3.2": '<｜DSML｜parameter name="KEY" string="TEXT">VALUE</｜DSML｜parameter>\n',
    "deepseek-v4": '<｜DSML｜parameter name="KEY" string="TEXT">VALUE</｜DSML｜parameter>\n',
    "deepseek-v4.1": '<｜DSML｜ parameter name="KEY" string="TEXT">VALUE</｜DSML｜ parameter>\n',
    "kimi-k3": '<|open|>argument key="KEY" type="TYPE"<|sep|>VALUE<|close|>argument<|sep|>',
}
"""One argument in the families that write containers as JSON."""
NESTED = {
    "llama-python": 't="1", n=None, l=[True, "a<b"], o={"k": False}',
    "cohere-cofl": '<cofl:value name="t" type="raw">1</cofl:value><cofl:value name="n" type="json">null</cofl:value>'
    '<cofl:value name="l" type="list"><cofl:value type="json">true</cofl:value><cofl:value type="raw">a<b</cofl:value>'
    '</cofl:value><cofl:value name="o" type="dict"><cofl:value name="k" type="json">false</cofl:value></cofl:value>',
    "minimax-m3": f"{M3}<t>1{M3}</t>{M3}<n>null{M3}</n>{M3}<l>{M3}<item>true{M3}</item>{M3}<item>a<b{M3}</item>"
    f"{M3}</l>{M3}<o>{M3}<k>false{M3}</k>{M3}</o>",
}
ARGUMENT = re.compile(
    r'text="né"|<parameter.*</parameter>\n|<｜DSML｜ ?parameter.*parameter>\n|<arg_key>.*</arg_value>\n?'
    r"|<cofl:value.*</cofl:value>|<\|open\|>argument.*argument<\|sep\|>|\]<\]minimax\[>\[<text>.*</text>",
    re.DOTALL,
)
"""The argument of the call of ``find`` in the cases."""


def call_of(name: str, arguments: str, tool: str = "odd") -> str:
    """The call of a tool with these arguments: that of ``find``, with others in their place."""
    text = next(case.text for case in CASES if (case.family, case.name) == (name, "find"))
    return ARGUMENT.sub(lambda _: arguments, text).replace("find", tool)


def members(name: str, values: dict[str, Any]) -> str:
    """Arguments of a family whose containers are JSON."""
    types = {str: "string", bool: "boolean", int: "number", type(None): "null", list: "array", dict: "object"}
    return "".join(
        MEMBER[name]
        .replace("KEY", key)
        .replace("TEXT", str(isinstance(value, str)).lower())
        .replace("TYPE", types[type(value)])
        .replace("VALUE", value if isinstance(value, str) else json.dumps(value))
        for key, value in values.items()
    )


@pytest.mark.parametrize("name", NOT_JSON)
def test_arguments_of_every_type(name: str) -> None:
    """Typed arguments come back, whatever the text of a string looks like; without tools only marks tell types."""
    arguments: dict[str, Any] = {"t": "1", "n": None, "l": [True, "a<b"], "o": {"k": False}}
    grammar = tool_calls([ODD, FIND], family=name, choice="odd")
    text = call_of(name, NESTED.get(name) or members(name, arguments))
    assert recognizes(grammar, text), text
    assert [call.arguments for call in read_reply(text, family=name, tools=[ODD]).calls] == [arguments]
    (call,) = read_reply(text, family=name).calls
    assert call.arguments == ({**arguments, "t": 1} if name in UNTYPED else arguments)
    none = call_of(name, "")
    assert recognizes(grammar, none)
    assert [call.arguments for call in read_reply(none, family=name, tools=[ODD]).calls] == [{}]


def test_python_calls_are_python() -> None:
    """Python and another parser read what is accepted: the same values, which the schema allows."""
    schema = {
        "type": "object",
        "properties": {
            "s": {"type": "string", "maxLength": 2},
            "v": {"anyOf": [{"const": True}, {"type": "null"}, {"type": "integer", "maximum": 9}]},
            "d": {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "number"}}},
        },
        "required": ["s"],
        "additionalProperties": False,
    }
    grammar = tool_calls([{"name": "f.g", "parameters": schema}], family="llama-python", choice="required")
    parsing = pytest.importorskip("transformers.utils.chat_parsing.content_parsers")
    strings = [
        r'"a"',
        r'"\n"',
        r'"\u00e9"',
        r'"\u00e9\""',
        r'"abc"',
        r'"\/"',
        r'"\ud83d\ude00"',
        r'"\x41"',
        "'a'",
        '"é"',
    ]
    values = ["True", "False", "None", "true", "9", "10", "1.5", '"a"']
    objects = ['{"k": [1, 2.5]}', "{}", '{"k": 1}', "{1: []}", '{"k": []}', "[]"]
    seen = 0
    for string, value, held in itertools.product(strings, values, objects):
        text = f"[f.g(s={string}, v={value}, d={held})]"
        try:
            call = ast.parse(text, mode="eval").body.elts[0]  # type: ignore[attr-defined]
            meant = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
        except ValueError:  # "true" is a name
            meant = {}
        is_canonical = "'" not in text and not re.search(r"\\[/x]|\\ud", text)
        expected = is_canonical and bool(meant) and Draft202012Validator(schema).is_valid(meant)
        if "{1:" in text:
            expected = False
        assert recognizes(grammar, text) is expected, text
        if expected:
            seen += 1
            assert parsing.parse_content(text, "python-call-list", {}) == [{"name": "f.g", "arguments": meant}]
            (read,) = read_reply(text, family="llama-python").calls
            assert (read.name, read.arguments) == ("f.g", meant)
    assert seen > 40


@pytest.mark.parametrize(
    "text",
    ["[f(1)]", "[f(**{'a': 1})]", "[f(a=b)]", "[f(a=1j)]", "[f(a={1: 2})]", "[f(a=1, a=2)]", "[f(a=(1,))]", "[f(a=1]",
     "[f(a=1e999)]", f"[f(a={'[' * 200}{']' * 200})]", "[f(a='x)]"],
)  # fmt: skip
def test_what_is_no_call_in_python(text: str) -> None:
    """Such a reply is text, as an answer that begins with a bracket is."""
    assert read_reply(text, family="llama-python").calls == ()


def test_names_that_python_lacks() -> None:
    with pytest.raises(GrammarError, match="tool my-tool: its name cannot be called in Python"):
        tool_calls([{"name": "my-tool"}], family="llama-python")
    for name in ("a-b", "class", ""):
        with pytest.raises(GrammarError, match="is no name of a Python argument"):
            tool_calls([{"name": "f", "parameters": {"properties": {name: {}}}}], family="llama-python")
    with pytest.raises(GrammarError, match=r"tool f: its parameters cannot be enforced.*#/properties/a%3Eb") as caught:
        tool_calls([{"name": "f", "parameters": {"properties": {"a>b": {}}}}], family="qwen3-coder")
    assert isinstance(caught.value.__cause__, UnsupportedFeature)
