"""Tools: which a request has, how the prompt describes them, and how the model may reply.

A model writes calls in the form of its family, which its chat template shows.  Models of no known family write them as
lines of JSON, ``{"tool": NAME, "arguments": {...}}``, and a sentence in the system message says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, final

from structgen.decode.step.result import spelled_text
from structgen.engine import compile
from structgen.errors import GrammarError
from structgen.frontends.chat import Family, load_family, think, tool_calls
from structgen.frontends.chat.family import Calls, FreeText, Layout, family_of_tags, family_of_template, thought_tags
from structgen.frontends.chat.reply import TOOL_NAME
from structgen.frontends.chat.stream import ReplyReader
from structgen.frontends.json_schema import JsonPolicy, json_schema
from structgen.grammar.nodes import choice, literal, sequence
from structgen.integrations.server.custom import TextInput, parameters_of, text_input
from structgen.integrations.server.description import Description, located, only
from structgen.integrations.server.message import messages_of
from structgen.integrations.server.protocol import wrong
from structgen.models.control_tokens import token_test
from structgen.models.model_input import free_variables, template_of
from structgen.models.protocol import Chat

if TYPE_CHECKING:
    from structgen.decode import AnyModel
    from structgen.engine import Vocabulary
    from structgen.grammar.limits import Limits
    from structgen.grammar.nodes import Grammar
    from structgen.integrations.server.protocol import ChatRequest, Message

__all__ = ["PLAIN", "Form", "Tools"]

_PLAIN_START: Final = '{"tool": "'
PLAIN: Final = Family(
    name="plain",
    summary="models that were trained on no calls",
    source="structgen",
    tokens=(),
    whitespace="single",
    thought=None,
    text=FreeText(Layout.of("$text"), _PLAIN_START),
    never_begins="",
    text_before=None,
    calls=Calls((Layout.of(_PLAIN_START + '$name", "arguments": $arguments}'),), "", "\n", "", "", is_parallel=True),
)
"""Calls as lines of JSON."""

_NO_PARAMETERS: Final = {"type": "object", "properties": {}, "additionalProperties": False}
_KNOWN: Final = {
    "function": frozenset({"name", "description", "parameters", "strict"}),
    "custom": frozenset({"name", "description", "format"}),
}
"""The fields that describe tools, by their types."""
_SHARES: Final = {"minimal": 1 / 8, "low": 1 / 4, "medium": 1 / 2, "high": 3 / 4, "xhigh": 7 / 8}
"""The part of the tokens of a reply that a thought may take, by ``reasoning_effort``."""


@final
@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a request.

    Attributes:
        functions: each ``{"type": "function", "function": {"name": ..., "parameters": schema}}``, custom tools too.
        choice: ``"auto"``, ``"required"`` or ``"none"``.
        allowed: the names of those that may be called.
        is_parallel: whether a reply may hold several calls.
        inputs: what the inputs of custom tools may be, by their names.
    """

    functions: tuple[dict[str, Any], ...] = ()
    choice: str = "none"
    allowed: tuple[str, ...] = ()
    is_parallel: bool = True
    inputs: Mapping[str, TextInput] = field(default_factory=dict)

    @classmethod
    def of(cls, request: ChatRequest, limits: Limits) -> Tools:
        """Read the tools of a request.

        Raises:
            APIError: one is malformed, or the choice names none of them.
        """
        functions: list[dict[str, Any]] = []
        inputs: dict[str, TextInput] = {}
        for at, given in enumerate(request.tools or ()):
            kind, place = given.get("type", "function"), f"tools[{at}]"
            if not isinstance(kind, str) or kind not in _KNOWN:
                wrong(f"{place}.type", f"tools are of type 'function' or 'custom'; found {kind!r:.60}")
            held = given.get(kind)
            if not isinstance(held, dict):
                wrong(f"{place}.{kind}", "expected an object with 'name'")
            only(place, given, {"type", kind})
            place += f".{kind}"
            function = _name_and_description(place, held, _KNOWN[kind])
            name = function["name"]
            if name in (each["function"]["name"] for each in functions):
                wrong(f"{place}.name", f"there are two tools called {name!r}")
            if kind == "custom":
                inputs[name] = text_input(f"{place}.format", held.get("format"), limits)
                function["parameters"] = parameters_of(inputs[name])
            else:
                function["parameters"] = _parameters(f"{place}.parameters", held.get("parameters"))
            functions.append({"type": "function", "function": function})
        kinds = {each["function"]["name"]: "function" for each in functions} | dict.fromkeys(inputs, "custom")
        mode, allowed, is_named = _choice(request.tool_choice, kinds)
        is_parallel = request.parallel_tool_calls is not False and not is_named
        return cls(tuple(functions), mode, allowed, is_parallel, inputs)

    @property
    def called(self) -> list[dict[str, Any]]:
        """The functions that may be called."""
        if self.choice == "none":
            return []
        return [each for each in self.functions if each["function"]["name"] in self.allowed]


def _name_and_description(place: str, held: Mapping[str, Any], known: AbstractSet[str]) -> dict[str, Any]:
    """The name and the description of a tool."""
    only(place, held, known)
    name, said = held.get("name"), held.get("description")
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name) or len(name) > 128:
        wrong(f"{place}.name", "expected up to 128 ASCII letters, digits and _ . : / -")
    if not isinstance(said, (str, type(None))):
        wrong(f"{place}.description", "expected a text")
    if not isinstance(held.get("strict"), (bool, type(None))):
        wrong(f"{place}.strict", "expected true or false")
    return {"name": name} if said is None else {"name": name, "description": said}


def _parameters(place: str, given: object) -> dict[str, Any]:
    """The schema of arguments, which are an object; without one there are none."""
    if given is None:
        return _NO_PARAMETERS
    if not isinstance(given, dict):
        wrong(place, "expected a JSON Schema of type 'object'")
    if given.get("type", "object") != "object":
        wrong(f"{place}#/type", f"arguments are an object; found {given['type']!r:.60}")
    return {"type": "object", **given}


def _choice(given: str | Mapping[str, Any] | None, kinds: Mapping[str, str]) -> tuple[str, tuple[str, ...], bool]:
    """The mode, the names of the tools that may be called, and whether the choice is one call of one tool.

    ``kinds`` are the kinds of the tools by their names.
    """
    place, every = "tool_choice", tuple(kinds)
    if given is None:
        return "auto" if kinds else "none", every, False
    if isinstance(given, str):
        if given not in ("none", "auto", "required"):
            wrong(place, f"expected 'none', 'auto', 'required' or a tool; found {given!r:.60}")
        if given == "required" and not kinds:
            wrong(place, "a call is required, and there are no tools")
        return given if kinds else "none", every, False
    match given.get("type"):
        case "function" | "custom":
            return "required", (_named(place, given, kinds),), True
        case "allowed_tools":
            held = given.get("allowed_tools")
            place = f"{place}.allowed_tools"
            if not isinstance(held, dict) or held.get("mode") not in ("auto", "required"):
                wrong(f"{place}.mode", "expected 'auto' or 'required'")
            listed = held.get("tools")
            if not isinstance(listed, list) or not listed or not all(isinstance(each, dict) for each in listed):
                wrong(f"{place}.tools", "expected a list of one or more tools")
            found = [_named(f"{place}.tools[{at}]", each, kinds) for at, each in enumerate(listed)]
            return str(held["mode"]), tuple(dict.fromkeys(found)), False
    return wrong(f"{place}.type", f"expected 'function', 'custom' or 'allowed_tools'; found {given.get('type')!r:.60}")


def _named(place: str, given: Mapping[str, Any], kinds: Mapping[str, str]) -> str:
    kind = given.get("type", "function")
    held = given.get(kind) if isinstance(kind, str) else None
    name = held.get("name") if isinstance(held, dict) else given.get("name")
    known = [each for each, other in kinds.items() if other == kind]
    if name not in known:
        wrong(f"{place}.{kind}.name", f"there is no such tool {name!r:.60}; there are {', '.join(known[:8]) or 'none'}")
    return str(name)


@final
@dataclass(frozen=True, slots=True)
class Thinking:
    """Whether a reply begins with a thought.

    Attributes:
        may_be: it may.
        is_open: it does, for the prompt ends with the start of one.
        max_tokens: of the thought; None: no bound but that of the reply.
    """

    may_be: bool
    is_open: bool = False
    max_tokens: int | None = None


@final
@dataclass(frozen=True, slots=True)
class Form:
    """How a model replies, and how its prompt describes tools.

    Attributes:
        family: how it writes thoughts and calls; ``PLAIN`` for models of no known family.
        has_tools: whether its chat template has tools, calls and their results.
        variables: the variables of its chat template that a request may set.
    """

    family: Family = PLAIN
    has_tools: bool = False
    variables: frozenset[str] = frozenset()

    @classmethod
    def of(cls, model: AnyModel, name: str | None = None) -> Form:
        """The form of a model: of the family with this name, else of the one that its chat template shows.

        Raises:
            GrammarError: there is no such family, or it writes no JSON and the template knows no tools.
        """
        template = template_of(model)
        has_tools = template is not None and re.search(r"\btools\b", template) is not None
        written = ""
        if template is not None:
            from structgen.models.chat_template import literals_of

            written = literals_of(template)
        is_token = token_test(model.vocabulary)
        if name is None:
            family = (family_of_template(written) if has_tools else None) or PLAIN
        else:
            family = PLAIN if name == PLAIN.name else load_family(name)
        if family.arguments.style != "json" and not has_tools:
            raise GrammarError(
                f"family {family.name!r}",
                "the model's chat template tells it of no tools",
                remedy=f"take --tool-family {PLAIN.name}",
            )
        if family is PLAIN and (other := family_of_tags(is_token)) is not None:  # it thinks all the same
            family = replace(PLAIN, thought=other.thought, tokens=other.tokens)
        elif family.thought is not None and not all(is_token(tag) or tag in written for tag in thought_tags(family)):
            family = replace(family, thought=None)
        variables = frozenset[str]() if template is None else free_variables(template)
        return cls(family, has_tools and (family.name != PLAIN.name), variables)

    def thinking(self, effort: str | None, vocabulary: Vocabulary, prompt: Sequence[int], max_tokens: int) -> Thinking:
        """How the model may think after a prompt, at an effort.

        Raises:
            APIError: it writes no thoughts, and the effort asks for one.
        """
        thought = self.family.thought
        if thought is None:
            if effort not in (None, "none"):
                wrong("reasoning_effort", "the model writes no thoughts; leave it out, or say 'none'")
            return Thinking(may_be=False)
        text = spelled_text(vocabulary, prompt[-16:]).rstrip()
        start, end = thought.layout.prefix.strip(), thought.layout.end.strip()
        is_open = bool(start) and text.endswith(start)
        share = 0.0 if effort == "none" else _SHARES.get(effort or "")
        most = None if share is None else max(1, int(share * max_tokens))
        return Thinking(is_open or not (effort == "none" or (end and text.endswith(end))), is_open, most)

    def prompt(
        self, messages: Sequence[Message], tools: Tools, variables: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """The messages of a chat as ``encode_prompt`` takes them, with the description of its tools.

        ``variables`` are further ones of the chat template.

        Raises:
            APIError: a message is malformed, or the template does not name a variable.
        """
        for name in variables or ():
            if name not in self.variables:
                known = ", ".join(sorted(self.variables)) or "none"
                wrong(f"chat_template_kwargs.{name}", f"the model's chat template has no such variable; it has {known}")
        rendered = messages_of(messages, self)
        functions = list(tools.functions) if tools.choice != "none" else []
        if self.has_tools:
            return Chat(rendered, functions, variables)
        if functions:
            hint = self._hint(functions, tools)
            if rendered[0]["role"] == "system":
                rendered[0] = {**rendered[0], "content": f"{rendered[0]['content']}\n\n{hint}"}
            else:
                rendered.insert(0, {"role": "system", "content": hint})
        return Chat(rendered, (), variables) if variables else rendered

    def _hint(self, functions: Iterable[Mapping[str, Any]], tools: Tools) -> str:
        lines = [json.dumps(each["function"], ensure_ascii=False) for each in functions]
        when = {
            "auto": "If none of them helps, answer in plain text.",
            "required": f"You must call {tools.allowed[0] if len(tools.allowed) == 1 else 'at least one of them'}.",
        }[tools.choice]
        several = " Write one call after the other if you need several." if tools.is_parallel else ""
        return (
            "You can call these functions; the parameters of each are a JSON Schema:\n"
            + "\n".join(lines)
            + "\nTo call a function, write nothing but the call, in this form:\n"
            + self.written([("NAME", "ARGUMENTS")])
            + f"\n{when}{several}"
        )

    def written(self, calls: Iterable[tuple[str, str]]) -> str:
        """Calls as the family writes them, of names and arguments in JSON."""
        form = self.family.calls
        one = [
            "".join(
                part
                if isinstance(part, str)
                else {"name": name, "arguments": arguments, "id": str(index)}.get(part.name, "")
                for part in form.layouts[0].parts
            )
            for index, (name, arguments) in enumerate(calls)
        ]
        return form.before + form.between.join(one) + form.after

    def replies(
        self,
        answer: Description,
        tools: Tools,
        thinking: Thinking,
        *,
        limits: Limits,
        vocabulary: Vocabulary,
    ) -> Description:
        """The forms of a reply: thought, calls, and the answer where none are required.

        Raises:
            APIError: the schema of a tool cannot be enforced, or an answer could be taken for a call.
        """
        called = tools.called
        offered: list[Any] = []
        said = None if answer.source is None else answer.grammar
        parts = answer.parts if tools.choice in ("auto", "none") else ()
        if not called and self.family.thought is None and not self.family.text.layout.prefix:
            return answer
        if called and said is not None and tools.choice == "auto":
            self._check_apart(said, vocabulary, limits, answer.source or "")
        for tool in called:
            at, name = tools.functions.index(tool), tool["function"]["name"]
            if (text := tools.inputs.get(name)) is not None:
                parts += () if text.grammar is None else ((text.place, text.grammar),)
                offered.append({"name": name, "parameters": text.arguments(self.family, limits)})
                continue
            offered.append(tool)
            place, schema = f"tools[{at}].function.parameters", tool["function"]["parameters"]
            with located(place):
                policy = JsonPolicy(whitespace=self.family.whitespace)
                parts += ((place, json_schema(schema, policy=policy, limits=limits)),)
        with located("tools"):
            grammar = tool_calls(
                offered,
                family=self.family,
                choice=tools.choice if called else "none",
                parallel=tools.is_parallel,
                answer=said,
                limits=limits,
            )
        if thinking.may_be and self.family.thought is not None:
            thought = think(thinking.max_tokens, family=self.family, is_open=thinking.is_open)
            grammar = sequence(thought if thinking.is_open else choice(thought, literal("")), grammar)
        return Description(grammar, "tools" if called else answer.kind, "tools" if called else answer.source, parts)

    def _check_apart(self, answer: Grammar, vocabulary: Vocabulary, limits: Limits, field: str) -> None:
        """Refuse answers that may begin as a call does."""
        if self.family.text.layout.prefix:
            return
        with located(field):
            constraint = compile(answer, vocabulary, limits=limits)
            for layout in self.family.calls.layouts:
                start = (self.family.calls.before + layout.prefix).encode()
                if start and constraint.matcher().accept_bytes(start) == len(start):
                    wrong(
                        field,
                        f"an answer could begin with {start.decode()!r}, as calls do; close the objects of the "
                        "schema, or say tool_choice 'none' or 'required'",
                    )

    def reader(self, answer: Description, tools: Tools, thinking: Thinking) -> ReplyReader | None:
        """A reader of one reply; None if a reply is its text."""
        if not tools.called and self.family.thought is None and not self.family.text.layout.prefix:
            return None
        return ReplyReader(
            family=self.family,
            tools=tools.called,
            thinks=thinking.may_be,
            is_open=thinking.is_open,
            is_answer=answer.source is not None,
        )
