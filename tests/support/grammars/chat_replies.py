"""Replies in the formats of model families, as their makers publish them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

ADD: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}
FIND: dict[str, Any] = {
    "name": "find",
    "parameters": {
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
        "additionalProperties": False,
    },
}
TOOLS = [ADD, FIND]
SUM = ("add", {"a": 1, "b": 2})
SOUGHT = ("find", {"text": "né"})


class Case(NamedTuple):
    """A reply and its content."""

    family: str
    name: str
    text: str
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    said: str = ""


def _hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


_AB, _NE = '{"a": 1, "b": 2}', '{"text": "né"}'
_V3 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>"
_V31 = "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
_BEGIN, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_KIMI = "<|tool_call_begin|>functions.{}:{}<|tool_call_argument_begin|>{}<|tool_call_end|>"
_SECTION = "<|tool_calls_section_begin|>{}<|tool_calls_section_end|>"
_HARMONY = "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>{}"

_SUM, _SOUGHT = {"a": "1", "b": "2"}, {"text": "né"}
"""The arguments as texts between tags."""


def _tagged(template: str, arguments: dict[str, str]) -> str:
    return "".join(template.replace("KEY", key).replace("VALUE", value) for key, value in arguments.items())


def _coder(name: str, arguments: dict[str, str]) -> str:
    members = _tagged("<parameter=KEY>\nVALUE\n</parameter>\n", arguments)
    return f"<tool_call>\n<function={name}>\n{members}</function>\n</tool_call>"


def _glm(name: str, arguments: dict[str, str], line: str = "\n") -> str:
    members = _tagged(f"<arg_key>KEY</arg_key>{line}<arg_value>VALUE</arg_value>{line}", arguments)
    return f"<tool_call>{name}{line}{members}</tool_call>"


def _m2(name: str, arguments: dict[str, str]) -> str:
    members = _tagged('<parameter name="KEY">VALUE</parameter>\n', arguments)
    return f'<invoke name="{name}">\n{members}</invoke>\n'


def _m3(name: str, arguments: dict[str, str]) -> str:
    return f'N<invoke name="{name}">{_tagged("N<KEY>VALUEN</KEY>", arguments)}N</invoke>\n'


def _dsml(name: str, arguments: dict[str, str], tag: str = "｜DSML｜") -> str:
    is_text = str(name == "find").lower()
    members = _tagged(f'<{tag}parameter name="KEY" string="{is_text}">VALUE</{tag}parameter>\n', arguments)
    return f'<{tag}invoke name="{name}">\n{members}</{tag}invoke>\n'


def _cofl(name: str, arguments: dict[str, str], number: int = 0) -> str:
    kind = "raw" if name == "find" else "json"
    members = _tagged(f'<cofl:value name="KEY" type="{kind}">VALUE</cofl:value>', arguments)
    return f'<cofl:tool_call id="{number}" name="{name}">{members}</cofl:tool_call>'


def _k3(name: str, arguments: dict[str, str], number: int = 0) -> str:
    kind = "string" if name == "find" else "number"
    value = f'<|open|>argument key="KEY" type="{kind}"<|sep|>VALUE<|close|>argument<|sep|>'
    return f'<|open|>call tool="{name}" index="{number}"<|sep|>{_tagged(value, arguments)}<|close|>call<|sep|>'


def _spaced(family: str, call: Callable[[str, dict[str, str]], str], whole: str, between: str, said: str) -> list[Case]:
    """The cases of a family: ``whole`` has calls in the place of ``{}``, ``said`` is written before them."""

    def written(*calls: str) -> str:
        return whole.format(between.join(calls)).replace("N", "]<]minimax[>[" if family == "minimax-m3" else "N")

    one, found = call("add", _SUM), call("find", _SOUGHT)
    return [
        Case(family, "text", "It is 3.", said="It is 3."),
        Case(family, "one", written(one), (SUM,)),
        Case(family, "find", written(found), (SOUGHT,)),
        Case(family, "two", written(one, found), (SUM, SOUGHT)),
        *([Case(family, "both", said + written(one), (SUM,), said.strip())] if said else []),
    ]


_RESPONSE = "<|open|>response<|sep|>{}<|close|>response<|sep|>"
_K3 = "<|open|>tools<|sep|>{}<|close|>tools<|sep|><|close|>message<|sep|>"

CASES = [
    *_spaced("qwen3-coder", _coder, "{}", "\n", "I add.\n"),
    *_spaced("glm-4.5", _glm, "{}", "\n", "I add.\n"),
    *_spaced("glm-4.7", partial(_glm, line=""), "{}", "", "I add."),
    *_spaced("minimax-m2", _m2, "\n<minimax:tool_call>\n{}</minimax:tool_call>", "", "I add."),
    *_spaced("minimax-m3", _m3, "N<tool_call>\n{}N</tool_call>", "", "I add."),
    *_spaced("deepseek-v3.2", _dsml, "\n\n<｜DSML｜function_calls>\n{}</｜DSML｜function_calls>", "", "I add."),
    *_spaced("deepseek-v4", _dsml, "\n\n<｜DSML｜tool_calls>\n{}</｜DSML｜tool_calls>", "", "I add."),
    *_spaced(
        "deepseek-v4.1", partial(_dsml, tag="｜DSML｜ "), "\n\n<｜DSML｜ calls>\n{}</｜DSML｜ calls>", "", "I add."
    ),
    *_spaced("cohere-cofl", _cofl, "<cofl:tool_calls>{}</cofl:tool_calls>", "", "I add."),
    *_spaced("kimi-k3", _k3, _RESPONSE.format("") + _K3, "", "")[1:],
    Case("kimi-k3", "text", _RESPONSE.format("It is 3.") + "<|close|>message<|sep|>", said="It is 3."),
    Case("kimi-k3", "both", _RESPONSE.format("I add.") + _K3.format(_k3("add", _SUM)), (SUM,), "I add."),
    Case("llama-python", "text", "It is [3].", said="It is [3]."),
    Case("llama-python", "one", "[add(a=1, b=2)]", (SUM,)),
    Case("llama-python", "find", '[find(text="né")]', (SOUGHT,)),
    Case("llama-python", "two", '[add(a=1, b=2), find(text="né")]', (SUM, SOUGHT)),
    Case("gpt-oss", "plain", " to=functions.add<|channel|>commentary json<|message|>" + _AB, (SUM,)),
    Case("gpt-oss", "close", "<|channel|>commentary to=functions.add<|constrain|>json<|message|>" + _AB, (SUM,)),
    Case("hermes", "text", "It is 3.", said="It is 3."),
    Case("hermes", "one", _hermes("add", _AB), (SUM,)),
    Case("hermes", "find", _hermes("find", _NE), (SOUGHT,)),
    Case("hermes", "two", _hermes("add", _AB) + "\n" + _hermes("find", _NE), (SUM, SOUGHT)),
    Case("hermes", "both", "I add.\nThen:\n" + _hermes("add", _AB), (SUM,), "I add.\nThen:"),
    Case("llama3", "text", "It is {3}.", said="It is {3}."),
    Case("llama3", "one", f'{{"name": "add", "parameters": {_AB}}}', (SUM,)),
    Case("llama3", "find", f'{{"name": "find", "parameters": {_NE}}}', (SOUGHT,)),
    Case("llama3-tag", "text", "It is 3.", said="It is 3."),
    Case("llama3-tag", "one", f"<function=add>{_AB}</function>", (SUM,)),
    Case("llama3-tag", "find", f"<function=find>{_NE}</function>", (SOUGHT,)),
    Case("llama3-tag", "two", f"<function=add>{_AB}</function><function=find>{_NE}</function>", (SUM, SOUGHT)),
    Case("functionary-v3.2", "text", "all\nIt is 3.", said="It is 3."),
    Case("functionary-v3.2", "one", f"add\n{_AB}", (SUM,)),
    Case("functionary-v3.2", "find", f"find\n{_NE}", (SOUGHT,)),
    Case("functionary-v3.2", "two", f"add\n{_AB}>>>find\n{_NE}", (SUM, SOUGHT)),
    Case("functionary-v3.2", "both", f"all\nI add.>>>add\n{_AB}", (SUM,), "I add."),
    Case("functionary-v2", "text", "all\n<|content|>It is 3.", said="It is 3."),
    Case("functionary-v2", "one", f"add\n<|content|>{_AB}", (SUM,)),
    Case("functionary-v2", "find", f"find\n<|content|>{_NE}", (SOUGHT,)),
    Case(
        "functionary-v2",
        "two",
        f"add\n<|content|>{_AB}\n<|from|>assistant\n<|recipient|>find\n<|content|>{_NE}",
        (SUM, SOUGHT),
    ),
    Case(
        "functionary-v2",
        "both",
        f"all\n<|content|>I add.\n<|from|>assistant\n<|recipient|>add\n<|content|>{_AB}",
        (SUM,),
        "I add.",
    ),
    *(
        case
        for family, blank in (("mistral-v3", " "), ("mistral-tekken", ""))
        for case in (
            Case(family, "text", "It is 3.", said="It is 3."),
            Case(family, "one", f'[TOOL_CALLS]{blank}[{{"name": "add", "arguments": {_AB}}}]', (SUM,)),
            Case(
                family,
                "find",
                f'[TOOL_CALLS]{blank}[{{"name": "find", "arguments": {_NE}, "id": "Ab3456789"}}]',
                (SOUGHT,),
            ),
            Case(
                family,
                "two",
                f'[TOOL_CALLS]{blank}[{{"name": "add", "arguments": {_AB}}}, {{"name": "find", "arguments": {_NE}}}]',
                (SUM, SOUGHT),
            ),
        )
    ),
    Case("mistral-v11", "text", "It is 3.", said="It is 3."),
    Case("mistral-v11", "one", f"[TOOL_CALLS]add[ARGS]{_AB}", (SUM,)),
    Case("mistral-v11", "find", f"[TOOL_CALLS]find[CALL_ID]Ab3456789[ARGS]{_NE}", (SOUGHT,)),
    Case("mistral-v11", "two", f"[TOOL_CALLS]add[ARGS]{_AB}[TOOL_CALLS]find[ARGS]{_NE}", (SUM, SOUGHT)),
    Case("mistral-v11", "both", f"I add.[TOOL_CALLS]add[ARGS]{_AB}", (SUM,), "I add."),
    Case("deepseek-v3", "text", "It is 3.", said="It is 3."),
    Case("deepseek-v3", "one", _BEGIN + _V3.format("add", _AB) + _END, (SUM,)),
    Case("deepseek-v3", "find", _BEGIN + _V3.format("find", _NE) + _END, (SOUGHT,)),
    Case("deepseek-v3", "two", _BEGIN + _V3.format("add", _AB) + "\n" + _V3.format("find", _NE) + _END, (SUM, SOUGHT)),
    Case("deepseek-v3.1", "text", "It is 3.", said="It is 3."),
    Case("deepseek-v3.1", "one", _BEGIN + _V31.format("add", _AB) + _END, (SUM,)),
    Case("deepseek-v3.1", "find", _BEGIN + _V31.format("find", _NE) + _END, (SOUGHT,)),
    Case("deepseek-v3.1", "two", _BEGIN + _V31.format("add", _AB) + _V31.format("find", _NE) + _END, (SUM, SOUGHT)),
    Case("deepseek-v3.1", "both", "I add." + _BEGIN + _V31.format("add", _AB) + _END, (SUM,), "I add."),
    Case("gpt-oss", "text", "<|channel|>final<|message|>It is 3.", said="It is 3."),
    Case("gpt-oss", "one", _HARMONY.format("add", _AB), (SUM,)),
    Case("gpt-oss", "find", " to=functions.find<|channel|>commentary <|constrain|>json<|message|>" + _NE, (SOUGHT,)),
    Case(
        "gpt-oss",
        "both",
        "<|channel|>commentary<|message|>I add.<|end|><|start|>assistant" + _HARMONY.format("add", _AB),
        (SUM,),
        "I add.",
    ),
    Case("kimi-k2", "text", "It is 3.", said="It is 3."),
    Case("kimi-k2", "one", _SECTION.format(_KIMI.format("add", 0, _AB)), (SUM,)),
    Case("kimi-k2", "find", _SECTION.format(_KIMI.format("find", 12, _NE)), (SOUGHT,)),
    Case("kimi-k2", "two", _SECTION.format(_KIMI.format("add", 0, _AB) + _KIMI.format("find", 1, _NE)), (SUM, SOUGHT)),
]
