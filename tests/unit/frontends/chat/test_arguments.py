"""Arguments of calls that are not JSON: typed values, xgrammar's formats of the same models, other parsers."""

from __future__ import annotations

import ast
import itertools
import json
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
from chat_replies import CASES, FIND, TOOLS
from grammar_library import walked_member
from jsonschema import Draft202012Validator

from structgen import Vocabulary, compile
from structgen.engine.parse.captures import captures_of_tokens
from structgen.errors import GrammarError, UnsupportedFeature
from structgen.frontends.chat import families, load_family, read_reply, think, tool_calls
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
    """Python reads what is accepted: values that the schema allows."""
    for text, meant in python_calls():
        expected = meant is not None
        assert recognizes(PYTHON, text) is expected, text
        if expected:
            (read,) = read_reply(text, family="llama-python").calls
            assert (read.name, read.arguments) == ("f.g", meant)


@pytest.mark.exhaustive
def test_transformers_reads_python_calls() -> None:
    """The parser of calls in Python that transformers has for chat templates reads the same values."""
    parsing = pytest.importorskip("transformers.utils.chat_parsing.content_parsers")
    for text, meant in python_calls():
        if meant is not None:
            assert parsing.parse_content(text, "python-call-list", {}) == [{"name": "f.g", "arguments": meant}]


def python_calls() -> list[tuple[str, dict[str, Any] | None]]:
    """Calls, each with the arguments that Python reads; None where they are not to be accepted."""
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
    found: list[tuple[str, dict[str, Any] | None]] = []
    for string, value, held in itertools.product(strings, values, objects):
        text = f"[f.g(s={string}, v={value}, d={held})]"
        is_canonical = not re.search(r"'|\\[/x]|\\ud|true|\{1:", text)
        meant = None
        if is_canonical:
            call = ast.parse(text, mode="eval").body.elts[0]  # type: ignore[attr-defined]
            meant = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
        is_valid = meant is not None and Draft202012Validator(F_SCHEMA).is_valid(meant)
        found.append((text, meant if is_valid else None))
    assert sum(meant is not None for _, meant in found) > 40
    return found


F_SCHEMA = {
    "type": "object",
    "properties": {
        "s": {"type": "string", "maxLength": 2},
        "v": {"anyOf": [{"const": True}, {"type": "null"}, {"type": "integer", "maximum": 9}]},
        "d": {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "number"}}},
    },
    "required": ["s"],
    "additionalProperties": False,
}
PYTHON = tool_calls([{"name": "f.g", "parameters": F_SCHEMA}], family="llama-python", choice="required")


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


@pytest.mark.nightly
@pytest.mark.parametrize("name", families())
def test_replies_are_read_as_they_were_parsed(name: str) -> None:
    """Random replies under the masks: what is read has the names, texts and thoughts of the grammar's own captures."""
    vocabulary = Vocabulary([*(bytes([value]) for value in range(256)), b""], eos=[256])
    schemas = {"odd.name": ODD["parameters"], "f": {**FIND["parameters"], "required": []}, "f_2": {"properties": {}}}
    given = [{"name": each, "parameters": schema} for each, schema in schemas.items()]
    rng = random.Random(5)
    for choice, has_thought in itertools.product(("auto", "required"), (False, True)):
        grammar = tool_calls(given, family=name, choice=choice)
        if has_thought and load_family(name).thought is not None:
            grammar = think(family=name) + grammar
        constraint = compile(grammar, vocabulary)
        for length in (30, 150):
            text = walked_member(constraint, rng, length)
            parts = captures_of_tokens(grammar, list(text.encode()), vocabulary)
            reply = read_reply(text, family=name, tools=given)
            names = parts.get("name", [])
            assert [call.name for call in reply.calls] == ([names] if isinstance(names, str) else names), text
            assert (reply.text, reply.thought or "") == (parts.get("text", ""), parts.get("thought", "")), text
            assert all(Draft202012Validator(schemas[call.name]).is_valid(call.arguments) for call in reply.calls), text


FORMATS = {
    "hermes": "qwen_3", "llama3": "llama", "kimi-k2": "kimi", "kimi-k3": "kimi_k3", "deepseek-v3": "deepseek_r1",
    "deepseek-v3.1": "deepseek_v3_1", "deepseek-v3.2": "deepseek_v3_2", "deepseek-v4": "deepseek_v4",
    "deepseek-v4.1": "deepseek_v4_1", "qwen3-coder": "qwen_3_coder", "gpt-oss": "harmony", "minimax-m2": "minimax",
    "minimax-m3": "minimax_m3", "glm-4.5": "glm_4_7", "glm-4.7": "glm_4_7", "cohere-cofl": "cohere",
}  # fmt: skip
"""xgrammar's names of the formats."""
CHANGES: dict[str, Callable[[str], str]] = {
    "as it is": lambda text: text,
    "cut short": lambda text: text[:-1],
    "another tool": lambda text: text.replace("add", "sub").replace("find", "sub"),
    "another type": lambda text: re.sub(r"(\ba\b[^0-9]*)1", r'\1"1"', text, count=1),
    "another name": lambda text: text.replace("text", "txet"),
    "text after": lambda text: text + "x",
    "twice": lambda text: text + text,
    "text before": lambda text: "I say. " + text,
}


def judgement(family: str, choice: str, change: str, name: str, *, ours: bool) -> str:
    """The row of the table in docs/reference/protocols.md that a difference belongs to."""
    if choice == "none" and not ours:
        return "tags in text"
    if change in ("text after", "twice") and not ours:
        return "text after calls"
    if change == "text before" and not ours and family in ("hermes", "qwen3-coder", "glm-4.5", "llama3"):
        return "text before calls"
    if choice == "add" and change == "twice" and ours and family == "glm-4.7":
        return "calls of a named tool"
    if family == "gpt-oss" and ours and name in ("one", "both"):
        return "harmony"
    if family == "kimi-k3" and choice in ("required", "add") and name == "both" and not ours:
        return "text with a required call"
    return ""


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", sorted(FORMATS))
def test_xgrammar_formats(family: str) -> None:
    """What xgrammar's builder of the same model accepts, except where the table of the page says otherwise."""
    xgrammar = pytest.importorskip("xgrammar")
    accepts = pytest.importorskip("xgrammar.testing")._is_grammar_accept_string
    given = [TOOLS[0], {"type": "function", "function": FIND}]
    reasons: set[str] = set()
    agreed = 0
    for choice in ("auto", "required", "none", "add"):
        chosen = choice if choice != "add" else {"type": "function", "function": {"name": "add"}}
        reasoning = "auto" if family in ("kimi-k3", "minimax-m2") else "disabled"
        theirs = xgrammar.Grammar.from_structural_tag(
            xgrammar.get_model_structural_tag(FORMATS[family], given, chosen, reasoning)
        )
        ours = tool_calls(TOOLS, family=family, choice=choice)
        for case, (change, changed) in itertools.product(CASES, CHANGES.items()):
            text = changed(case.text)
            if case.family != family or (text == case.text and change != "as it is"):
                continue
            end = ("<|call|>" if "functions." in text else "<|return|>") if family == "gpt-oss" else ""
            is_ours, is_theirs = recognizes(ours, text), accepts(theirs, text + end)
            if is_ours == is_theirs:
                agreed += 1
                continue
            reason = judgement(family, choice, change, case.name, ours=is_ours)
            assert reason, (choice, change, text, is_ours)
            reasons.add(reason)
    assert agreed > 3 * len(reasons)
    assert agreed > 50
