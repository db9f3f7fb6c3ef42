"""Tool calls in the format of each model family, with and without special tokens."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from chat_replies import ADD, CASES, FIND, SUM, TOOLS, Case

from structgen import Vocabulary, compile
from structgen.engine import Matcher
from structgen.errors import GrammarError
from structgen.frontends.chat import ToolCall, families, load_family, read_reply, tool_calls
from structgen.grammar.flattening import recognizes
from structgen.grammar.nodes import Grammar
from structgen.program import tool


def vocabulary(special: tuple[str, ...] = ()) -> Vocabulary:
    """Single bytes, an end, and special tokens."""
    tokens = [bytes([value]) for value in range(256)] + [b""] * (1 + len(special))
    return Vocabulary(tokens, eos=[256], special=dict(enumerate(special, 257)))


def spelled(text: str, special: tuple[str, ...]) -> list[int]:
    """The ids of a text, with special tokens where their texts stand."""
    ids: list[int] = []
    while text:
        token = next((token for token in special if text.startswith(token)), None)
        ids.extend([257 + special.index(token)] if token else text[0].encode())
        text = text[len(token or text[0]) :]
    return ids


def reads(grammar: Grammar, text: str, special: tuple[str, ...]) -> bool:
    matcher: Matcher = compile(grammar, vocabulary(special)).matcher()
    ids = spelled(text, special)
    return matcher.validate(ids) == len(ids) and all(map(matcher.accept, ids)) and matcher.is_accepting


def test_every_family_has_cases() -> None:
    assert {case.family for case in CASES} == set(families())


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.family}-{case.name}")
def test_formats(case: Case) -> None:
    family = load_family(case.family)
    grammar = tool_calls(TOOLS, family=family)
    for special in ((), family.tokens):
        assert reads(grammar, case.text, special), special
    reply = read_reply(case.text, family=family, tools=TOOLS)
    assert (reply.text, [(call.name, call.arguments) for call in reply.calls]) == (case.said, list(case.calls))


@pytest.mark.parametrize(
    "case", [case for case in CASES if SUM in case.calls], ids=lambda case: f"{case.family}-{case.name}"
)
def test_what_is_refused(case: Case) -> None:
    family = load_family(case.family)
    grammar = tool_calls(TOOLS, family=family)
    assert not recognizes(tool_calls(TOOLS, family=family, choice="none"), case.text)
    quoted = re.sub(r"(\ba\b[^0-9]*)1", r'\1"1"', case.text, count=1)
    assert quoted != case.text
    assert not recognizes(grammar, quoted)
    assert not recognizes(grammar, case.text.replace("add", "sub"))
    assert not recognizes(grammar, case.text + "x")
    for token in family.tokens:  # a tag that is a token cannot be written as text
        if token in case.text:
            others = tuple(other for other in family.tokens if other != token)
            matcher = compile(grammar, vocabulary(family.tokens)).matcher()
            ids = spelled(case.text, others)
            assert matcher.validate([index if index < 257 else 257 + family.tokens.index(others[index - 257])
                                     for index in ids]) < len(ids)  # fmt: skip


@pytest.mark.parametrize("name", families())
def test_choices(name: str) -> None:
    family = load_family(name)
    texts = {case.name: case.text for case in CASES if case.family == name}
    one, said = texts["one"], texts["text"]
    choices: list[tuple[str | dict[str, Any], bool, bool, bool]] = [
        ("auto", True, True, True),
        ("none", True, False, False),
        ("required", False, True, True),
        ("add", False, True, False),
        ("find", False, False, True),
        ({"type": "function", "function": {"name": "add"}}, False, True, False),
    ]
    for choice, has_text, has_add, has_find in choices:
        grammar = tool_calls(TOOLS, family=family, choice=choice)
        found = texts["find"]
        assert [recognizes(grammar, text) for text in (said, one, found)] == [has_text, has_add, has_find], choice
    if "two" in texts:
        assert family.calls.is_parallel
        assert recognizes(tool_calls(TOOLS, family=family, parallel=2), texts["two"])
        assert not recognizes(tool_calls(TOOLS, family=family, parallel=1), texts["two"])
        assert not recognizes(tool_calls(TOOLS, family=family, parallel=False), texts["two"])
    else:
        assert not family.calls.is_parallel


def allowed(mode: str, *names: str) -> dict[str, Any]:
    """A choice of OpenAI's that allows some of the tools."""
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [{"name": name} for name in names]}}


def test_choices_of_servers() -> None:
    """Modes, named tools and lists of allowed tools, in the forms of OpenAI's interfaces; a tool may be called auto."""
    tools = [{"name": "auto"}, {"name": "required"}, {"name": "find", "parameters": FIND["parameters"]}]
    auto, found = (f'<tool_call>\n{{"name": {call}}}\n</tool_call>'
                   for call in ('"auto", "arguments": {}', '"find", "arguments": {"text": "x"}'))  # fmt: skip
    flat = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "function": {"name": "find"}}]}
    choices: list[tuple[Any, bool, bool, bool]] = [
        (None, True, True, True),
        ("auto", True, True, True),
        ("none", True, False, False),
        ({"type": "function", "function": {"name": "auto"}}, False, True, False),
        ({"type": "function", "name": "required"}, False, False, False),
        (allowed("auto", "auto"), True, True, False),
        (allowed("required", "auto", "find"), False, True, True),
        (flat, False, False, True),
    ]
    for choice, *expected in choices:
        grammar = tool_calls(tools, choice=choice)
        assert [recognizes(grammar, text) for text in ("It is 3.", auto, found)] == expected, choice


def test_arguments_are_objects() -> None:
    """Whatever the schema leaves open; a tool without a schema has no arguments, as in OpenAI's interface."""
    number = {"properties": {"a": {"type": "integer"}}}
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({}, ["{}"]),
        ({"parameters": None}, ["{}"]),
        ({"parameters": number}, ["{}", '{"a": 1}']),
        ({"parameters": {**number, "type": ["object", "string"]}}, ["{}", '{"a": 1}']),
        ({"parameters": {}}, ["{}", '{"a": 1}', '{"a": "x"}']),
        ({"parameters": True}, ["{}", '{"a": 1}', '{"a": "x"}']),
        ({"parameters": {"enum": [5, {"a": 1}]}}, ['{"a": 1}']),
        ({"parameters": json.dumps(number)}, ["{}", '{"a": 1}']),
        ({"input_schema": {**number, "required": ["a"]}}, ['{"a": 1}']),
        ({"inputSchema": {**number, "required": ["a"]}}, ['{"a": 1}']),
    ]
    for given, expected in cases:
        grammar = tool_calls([{"name": "f", **given}], choice="required")
        found = [
            arguments
            for arguments in ("{}", '{"a": 1}', '{"a": "x"}', "5", '"x"', "[]", "null")
            if recognizes(grammar, f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>')
        ]
        assert found == expected, given
    for arguments in ("5", "[]", "NaN", '{"a": Infinity}'):
        assert read_reply(f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>').calls == ()


@pytest.mark.parametrize("name", ["a:1", "a:b:2", "functions.x", "x/y.z"])
def test_names_with_marks(name: str) -> None:
    """A name is read back although it has what stands after names in some families."""
    for family in families():
        if family == "llama-python":
            continue
        text = next(case.text for case in CASES if (case.family, case.name) == (family, "find")).replace("find", name)
        assert recognizes(tool_calls([{**FIND, "name": name}], family=family), text), family
        (call,) = read_reply(text, family=family, tools=[{**FIND, "name": name}]).calls
        assert (call.name, call.arguments) == (name, {"text": "né"})


def test_tools_of_functions() -> None:
    @tool
    def double(number: int) -> int:
        """Twice a number."""
        return 2 * number

    grammar = tool_calls([double], choice="required")
    assert recognizes(grammar, '<tool_call>\n{"name": "double", "arguments": {"number": 4}}\n</tool_call>')
    assert not recognizes(grammar, '<tool_call>\n{"name": "double", "arguments": {"number": "4"}}\n</tool_call>')


def test_no_tools() -> None:
    assert recognizes(tool_calls([]), "Hello.")
    with pytest.raises(GrammarError, match="a call is required, and there are no tools"):
        tool_calls([], choice="required")


@pytest.mark.parametrize(
    ("tools", "options", "message"),
    [
        ([ADD, ADD], {}, "two tools called 'add'"),
        ([{"name": "a b"}], {}, r"tools\[0\]: its name has characters that calls cannot contain"),
        ([{"name": 3}], {}, r"tools\[0\]: its name"),
        ([3], {}, "a int is no tool"),
        ([{"function": 3}], {}, "'function' is no object"),
        ([ADD], {"choice": "find"}, "choice 'find' is no tool"),
        ([ADD], {"choice": {"type": "function"}}, "choice None is no tool"),
        ([ADD], {"choice": {"type": "allowed_tools", "mode": "none", "tools": []}}, "has no mode and list of tools"),
        ([ADD], {"choice": allowed("required")}, "a call is required, and there are no tools"),
        ([ADD], {"family": "gpt-2"}, "no family has this name"),
        ([{"name": "f", "parameters": {}, "inputSchema": {}}], {}, "more than one of parameters, input_schema"),
        ([{"name": "f", "parameters": {"type": "array"}}], {}, "tool f.*arguments are an object"),
        ([{"name": "f", "parameters": {"type": "nothing"}}], {}, "tool f"),
    ],
    ids=str,
)
def test_bad_input(tools: list[Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        tool_calls(tools, **options)
    for parallel in (0, 2.5, "2"):
        with pytest.raises(ValueError, match="a number of calls from 1 on; found"):
            tool_calls([ADD], parallel=parallel)  # type: ignore[arg-type]


def test_report() -> None:
    report = compile(tool_calls(TOOLS, choice="add"), vocabulary()).report
    assert [(entry.keyword, entry.status.value) for entry in report.entries if entry.where.startswith("tools")] == [
        ("tool add", "enforced"),
        ("tool find", "annotation"),
    ]
    assert dict(report.policies)["family"] == "hermes"


def test_families_of_users(tmp_path: Any) -> None:
    file = tmp_path / "own.toml"
    file.write_text('[text]\nlayout = "$text"\n[calls]\nlayouts = ["CALL $name $arguments"]\nbetween = "; "\n')
    grammar = tool_calls(TOOLS, family=file)
    text = 'CALL add {"a": 1, "b": 2}; CALL find {"text": "x"}'
    assert recognizes(grammar, text)
    assert read_reply(text, family=file).calls[1] == ToolCall("find", {"text": "x"})
    file.write_text('[text]\nlayout = "$text"\n[calls]\nlayouts = ["$name: $arguments."]\n'
                    '[arguments]\nstyle = "glm_xml"\ntext = "  "\n')  # fmt: skip
    text = "find: <arg_key>text</arg_key><arg_value>   x  </arg_value>."
    assert recognizes(tool_calls(TOOLS, family=file), text)
    assert read_reply(text, family=file, tools=TOOLS).calls == (ToolCall("find", {"text": " x"}),)
    plain = '[text]\nlayout = "$text"\n[calls]\nlayouts = ["$name $arguments"]\n'
    for broken, message in [
        ('[text]\nlayout = "$text"\n', "both tables are needed"),
        ('[text]\nlayout = "text"\n[calls]\nlayouts = ["$name $arguments"]\n', r"text\.layout.*\$text once"),
        ('[text]\nlayout = "$text"\n[calls]\nlayouts = ["$name"]\n', r"calls\.layouts.*needs \$name and \$arguments"),
        ('[text]\nlayout = "$text"\n[calls]\nlayouts = ["$name $arguments $id"]\n', r"calls\.id"),
        ('[text]\nlayout = 3\n[calls]\nlayouts = ["$name $arguments"]\n', "expected a str, found 3"),
        ('[text]\nlayot = "$text"\n[calls]\nlayouts = ["$name $arguments"]\n', "there is no such key"),
        (f'{plain}[arguments]\nstyle = "html"\n', r"arguments\.style.*no such style; there are cohere_xml"),
        (f'{plain}[arguments]\nvalue = " "\n', "arguments in json have no marks"),
        (f"{plain}[arguments]\nstyle = 3\n", "expected a str, found 3"),
        (f'{plain}[arguments]\nstyle = "glm_xml"\nvalue = "x"\n', "between marks there is only white space"),
        ("[text", "its file is not valid TOML"),
    ]:
        file.write_text(broken)
        with pytest.raises(GrammarError, match=message):
            load_family(file)
    with pytest.raises(GrammarError, match="cannot be read"):
        load_family(tmp_path / "none.toml")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["mistral-v3", "mistral-tekken"])
def test_mistral_writes_it_so(name: str) -> None:
    """The history that mistral-common encodes contains calls that the grammar accepts."""
    messages = pytest.importorskip("mistral_common.protocol.instruct.messages")
    calls = pytest.importorskip("mistral_common.protocol.instruct.tool_calls")
    request = pytest.importorskip("mistral_common.protocol.instruct.request")
    mistral = pytest.importorskip("mistral_common.tokens.tokenizers.mistral").MistralTokenizer
    tokenizer = mistral.v3(is_tekken=name == "mistral-tekken")
    made = [({"a": 1, "b": -2}, "add", "abcdefghi"), ({"text": "größer"}, "find", "123456789")]
    history = [
        messages.UserMessage(content="hello"),
        messages.AssistantMessage(
            content=None,
            tool_calls=[
                calls.ToolCall(id=key, function=calls.FunctionCall(name=called, arguments=json.dumps(arguments)))
                for arguments, called, key in made
            ],
        ),
        *(messages.ToolMessage(content="1", tool_call_id=key) for _, _, key in made),
    ]
    text = tokenizer.encode_chat_completion(request.ChatCompletionRequest(messages=history, model="m")).text
    written = text.replace("▁", " ").split("[/INST]")[1].split("</s>")[0]
    assert recognizes(tool_calls(TOOLS, family=name), written)
    assert read_reply(written, family=name).calls == tuple(ToolCall(called, args, key) for args, called, key in made)


def test_unknown_reply() -> None:
    with pytest.raises(GrammarError, match=r"character 0: not in the format of functionary-v3\.2 models"):
        read_reply("add 1 and 2", family="functionary-v3.2")


def test_schemas_are_enforced_inside() -> None:
    grammar = tool_calls([FIND], choice="find")
    assert not recognizes(grammar, '<tool_call>\n{"name": "find", "arguments": {}}\n</tool_call>')
