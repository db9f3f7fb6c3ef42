"""Tools: which a request has, how the model is told of them, and how it may reply.

A model writes calls in the form of its family, which its chat template shows.  Models of no known family write them as
lines of JSON, ``{"tool": NAME, "arguments": {...}}``, and a sentence in the system message says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, final

from structgen.engine import compile
from structgen.errors import GrammarError, VocabularyError
from structgen.frontends.chat import Family, families, load_family, think, tool_calls
from structgen.frontends.chat.family import Calls, FreeText, Layout, Placeholder, family_of_tags, stop_string_of
from structgen.frontends.chat.reply import TOOL_NAME
from structgen.frontends.chat.stream import ReplyReader
from structgen.frontends.json_schema import JsonPolicy, json_schema
from structgen.grammar.nodes import choice, literal, sequence
from structgen.integrations.server.description import Description, located, only, wrong
from structgen.integrations.server.message import messages_of
from structgen.models.model_input import template_of
from structgen.models.protocol import Chat

if TYPE_CHECKING:
    from structgen.engine import Vocabulary
    from structgen.grammar.limits import Limits
    from structgen.grammar.nodes import Grammar
    from structgen.integrations.server.protocol import ChatRequest, Message
    from structgen.models import LanguageModel

__all__ = ["PLAIN", "Form", "Tools", "family_of_template"]

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
_FUNCTION: Final = frozenset({"name", "description", "parameters", "strict"})
_SHARES: Final = {"minimal": 1 / 8, "low": 1 / 4, "medium": 1 / 2, "high": 3 / 4, "xhigh": 7 / 8}
"""The part of the tokens of a reply that a thought may take, by ``reasoning_effort``."""
_LEAST_MATCH: Final = 8


@final
@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a request.

    Attributes:
        functions: each ``{"type": "function", "function": {"name": ..., "parameters": schema}}``.
        choice: ``"auto"``, ``"required"``, ``"none"``, or the name of the function to call.
        allowed: the names of those that may be called.
        is_parallel: whether a reply may hold several calls.
    """

    functions: tuple[dict[str, Any], ...] = ()
    choice: str = "none"
    allowed: tuple[str, ...] = ()
    is_parallel: bool = True

    @classmethod
    def of(cls, request: ChatRequest) -> Tools:
        """Read the tools of a request.

        Raises:
            APIError: one is malformed, or the choice names none of them.
        """
        functions = tuple(_function(f"tools[{at}]", given) for at, given in enumerate(request.tools or ()))
        names = [each["function"]["name"] for each in functions]
        for at, name in enumerate(names):
            if name in names[:at]:
                wrong(f"tools[{at}].function.name", f"there are two tools called {name!r}")
        mode, allowed = _choice(request.tool_choice, names)
        return cls(functions, mode, allowed, request.parallel_tool_calls is not False)

    @property
    def called(self) -> list[dict[str, Any]]:
        """The functions that may be called."""
        if self.choice == "none":
            return []
        return [each for each in self.functions if each["function"]["name"] in self.allowed]


def _function(place: str, given: Mapping[str, Any]) -> dict[str, Any]:
    if given.get("type", "function") != "function":
        wrong(f"{place}.type", f"only tools of type 'function' are supported; found {given.get('type')!r:.60}")
    held = given.get("function")
    if not isinstance(held, dict):
        wrong(f"{place}.function", "expected an object with 'name' and 'parameters'")
    only(place, given, {"type", "function"})
    only(f"{place}.function", held, _FUNCTION)
    name: Any = held.get("name")
    said = held.get("description")
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name) or len(name) > 128:
        wrong(f"{place}.function.name", "expected up to 128 ASCII letters, digits and _ . : / -")
    if not isinstance(said, (str, type(None))):
        wrong(f"{place}.function.description", "expected a text")
    if not isinstance(held.get("strict"), (bool, type(None))):
        wrong(f"{place}.function.strict", "expected true or false")
    parameters = _parameters(f"{place}.function.parameters", held.get("parameters"))
    described = {} if said is None else {"description": said}
    return {"type": "function", "function": {"name": name, **described, "parameters": parameters}}


def _parameters(place: str, given: object) -> dict[str, Any]:
    """The schema of arguments, which are an object; without one there are none."""
    if given is None:
        return _NO_PARAMETERS
    if not isinstance(given, dict):
        wrong(place, "expected a JSON Schema of type 'object'")
    if given.get("type", "object") != "object":
        wrong(f"{place}#/type", f"arguments are an object; found {given['type']!r:.60}")
    return {"type": "object", **given}


def _choice(given: str | Mapping[str, Any] | None, names: list[str]) -> tuple[str, tuple[str, ...]]:
    """The mode or the name of the function to call, and the names of those that may be called."""
    place, every = "tool_choice", tuple(names)
    if given is None:
        return "auto" if names else "none", every
    if isinstance(given, str):
        if given not in ("none", "auto", "required"):
            wrong(place, f"expected 'none', 'auto', 'required' or a function; found {given!r:.60}")
        if given == "required" and not names:
            wrong(place, "a call is required, and there are no tools")
        return given if names else "none", every
    match given.get("type"):
        case "function":
            name = _named(place, given, names)
            return name, (name,)
        case "allowed_tools":
            held = given.get("allowed_tools")
            place = f"{place}.allowed_tools"
            if not isinstance(held, dict) or held.get("mode") not in ("auto", "required"):
                wrong(f"{place}.mode", "expected 'auto' or 'required'")
            listed = held.get("tools")
            if not isinstance(listed, list) or not listed or not all(isinstance(each, dict) for each in listed):
                wrong(f"{place}.tools", "expected a list of one or more functions")
            found = [_named(f"{place}.tools[{at}]", each, names) for at, each in enumerate(listed)]
            return str(held["mode"]), tuple(dict.fromkeys(found))
    return wrong(f"{place}.type", f"expected 'function' or 'allowed_tools'; found {given.get('type')!r:.60}")


def _named(place: str, given: Mapping[str, Any], names: list[str]) -> str:
    held = given.get("function")
    name = held.get("name") if isinstance(held, dict) else given.get("name")
    if name not in names:
        wrong(f"{place}.function.name", f"there is no tool {name!r:.60}; there are {', '.join(names[:8]) or 'none'}")
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
    """How a model replies, and how it is told of tools.

    Attributes:
        family: how it writes thoughts and calls; ``PLAIN`` for models of no known family.
        is_told: whether its chat template tells it of tools, and shows it calls and results.
    """

    family: Family = PLAIN
    is_told: bool = False

    @classmethod
    def of(cls, model: LanguageModel, name: str | None = None) -> Form:
        """The form of a model: of the family with this name, else of the one that its chat template shows.

        Raises:
            GrammarError: there is no such family, or it writes no JSON and the template knows no tools.
        """
        template = template_of(model)
        is_told = template is not None and re.search(r"\btools\b", template) is not None
        written = ""
        if template is not None:
            from structgen.models.chat_template import literals_of

            written = literals_of(template)
        is_token = _token_test(model.vocabulary)
        if name is None:
            family = (family_of_template(written) if is_told else None) or PLAIN
        else:
            family = PLAIN if name == PLAIN.name else load_family(name)
        if family.arguments.style != "json" and not is_told:
            raise GrammarError(
                f"family {family.name!r}",
                "the model's chat template tells it of no tools",
                remedy=f"take --tool-family {PLAIN.name}",
            )
        if family is PLAIN and (other := family_of_tags(is_token)) is not None:  # it thinks all the same
            family = replace(PLAIN, thought=other.thought, tokens=other.tokens)
        elif family.thought is not None and not all(is_token(tag) or tag in written for tag in _tags(family)):
            family = replace(family, thought=None)
        return cls(family, is_told and (family.name != PLAIN.name))

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
        text = _ending(vocabulary, prompt)
        start, end = thought.layout.prefix.strip(), thought.layout.end.strip()
        is_open = bool(start) and text.endswith(start)
        share = 0.0 if effort == "none" else _SHARES.get(effort or "")
        most = None if share is None else max(1, int(share * max_tokens))
        return Thinking(is_open or not (effort == "none" or (end and text.endswith(end))), is_open, most)

    def prompt(self, messages: Sequence[Message], tools: Tools) -> list[dict[str, Any]]:
        """The messages of a chat as ``encode_prompt`` takes them, with what the model is told of its tools.

        Raises:
            APIError: a message is malformed.
        """
        told = messages_of(messages, self)
        functions = list(tools.functions) if tools.choice != "none" else []
        if self.is_told:
            return Chat(told, functions)
        if functions:
            hint = self._hint(functions, tools)
            if told[0]["role"] == "system":
                told[0] = {**told[0], "content": f"{told[0]['content']}\n\n{hint}"}
            else:
                told.insert(0, {"role": "system", "content": hint})
        return told

    def _hint(self, functions: Iterable[Mapping[str, Any]], tools: Tools) -> str:
        lines = [json.dumps(each["function"], ensure_ascii=False) for each in functions]
        when = {
            "auto": "If none of them helps, answer in plain text.",
            "required": "You must call at least one of them.",
        }.get(tools.choice, f"You must call {tools.choice}.")
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
        """What a reply may be: thought, calls, and the answer where none are required.

        Raises:
            APIError: the schema of a tool cannot be enforced, or an answer could be taken for a call.
        """
        called = tools.called
        said = None if answer.source is None else answer.grammar
        parts = answer.parts if tools.choice in ("auto", "none") else ()
        if not called and self.family.thought is None and not self.family.text.layout.prefix:
            return answer
        if called and said is not None and tools.choice == "auto":
            self._check_apart(said, vocabulary, limits, answer.source or "")
        for tool in called:
            at = tools.functions.index(tool)
            place, schema = f"tools[{at}].function.parameters", tool["function"]["parameters"]
            with located(place):
                policy = JsonPolicy(whitespace=self.family.whitespace)
                parts += ((place, json_schema(schema, policy=policy, limits=limits)),)
        with located("tools"):
            grammar = tool_calls(
                called,
                family=self.family,
                choice="none" if not called else "auto" if tools.choice == "auto" else "required",
                parallel=tools.is_parallel and tools.choice in ("auto", "required"),
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


def family_of_template(written: str) -> Family | None:
    """The family whose calls a chat template writes; None if there is none.

    The template must have all tags of its calls; of several such families, the one with the longest texts in it counts.

    Args:
        written: the texts and string constants of the template, as ``literals_of`` returns them.
    """
    dense = _dense(written)
    best: tuple[tuple[int, int], Family | None] = (0, 0), None
    for family in map(load_family, families()):
        form = family.calls
        texts = {form.before, form.between, form.after}
        texts |= {part for layout in form.layouts for part in layout.parts if isinstance(part, str)}
        tags = set(family.tokens) - set(_tags(family))
        if not all(tag in written for tag in tags):
            continue
        found = sum(len(_dense(text)) for text in texts if _dense(text) in dense)
        starts = _dense(form.before + form.layouts[0].prefix) in dense
        found += sum(map(len, tags))
        begins = family.arguments.begins
        before = {a for layout in form.layouts for a, b in pairwise(layout.parts) if b == Placeholder("arguments")}
        texts |= {(text if isinstance(text, str) else "") + begins for text in before} if begins else set()
        exact = sum(len(text) for text in texts if text in written)
        if (starts or tags) and found >= _LEAST_MATCH and (found, exact) > best[0]:
            best = (found, exact), family
    return best[1]


def _dense(text: str) -> str:
    """A text without what templates put between its parts."""
    return re.sub(r"[\s\0]+", "", text)


def _tags(family: Family) -> list[str]:
    """The tags around thoughts."""
    if family.thought is None:
        return []
    parts = family.thought.layout.parts
    text = "".join(part for part in parts if not isinstance(part, Placeholder))
    return [tag for tag in family.tokens if tag in text] or [stop_string_of(text, ())]


def _token_test(vocabulary: Vocabulary) -> Callable[[str], bool]:
    names = set(vocabulary.special.values())

    def is_token(tag: str) -> bool:
        try:
            return tag in names or len(vocabulary.tokenize(tag)) == 1
        except VocabularyError:
            return False

    return is_token


def _ending(vocabulary: Vocabulary, prompt: Sequence[int]) -> str:
    """The last text of a prompt, special tokens spelled out."""
    special, tokens = vocabulary.special, vocabulary.tokens
    last = (special[token].encode() if token in special else tokens[token] for token in prompt[-16:])
    return b"".join(last).decode("utf-8", "replace").rstrip()
