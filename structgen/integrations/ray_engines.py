"""Requests to the engines of ``ray.data.llm`` for a row of a program, and how their answers are read.

The program runs twice: before the engine, up to the request for its answer; and after it, with that answer, which is
checked as that of any server.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, final, get_type_hints

from structgen.decode import Greedy
from structgen.errors import ArgumentError, ModelError, ProgramError
from structgen.integrations.openai_server.dialects import (
    DIALECTS,
    Kind,
    Translation,
    check_refusal,
    ending_of,
    sampling_of,
    translation_of,
)
from structgen.program.backends.remote_answer import Ending
from structgen.program.batch_row import COLUMNS, error_row, item_row, item_seed
from structgen.program.definition import Program

if TYPE_CHECKING:
    from structgen.decode import AnySampler
    from structgen.program import Answer
    from structgen.program.backends.remote_answer import RemotePrompt

__all__ = ["Call", "HTTPAsking", "Packed", "Reading", "VLLMAsking", "asking_of", "row_table"]

_VARIABLE: Final = "STRUCTGEN_VLLM"
_ERROR: Final = "__inference_error__"  # Ray's: rows with a text there pass by the engine
_SEEDS: Final = 1 << 31


@final
@dataclass(frozen=True)
class Packed:
    """A program to be sent to another process: by name, or by its function if the main script defines it."""

    program: Program[..., Any] | None
    parts: tuple[Any, ...] = ()

    @staticmethod
    def of(program: Program[..., Any]) -> Packed:
        """Pack a program."""
        if program.__module__ != "__main__":  # else other processes have another module of this name
            return Packed(program)
        return Packed(None, (_resolved(program.function), program.settings, program.system))

    def unpacked(self) -> Program[..., Any]:
        """Return the program."""
        if self.program is not None:
            return self.program
        function, settings, system = self.parts
        return Program(function, settings, system=system)


def _resolved(function: Any) -> Any:
    """A copy whose annotations are no texts: of the names in these, pickle takes none along."""
    if not isinstance(function, FunctionType):
        return function
    parts = function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    copy: Any = functools.update_wrapper(FunctionType(*parts), function)
    copy.__kwdefaults__ = function.__kwdefaults__
    del copy.__wrapped__
    with contextlib.suppress(NameError):  # then the return annotation is of a kind that needs no names
        copy.__annotations__ = get_type_hints(function, include_extras=True)
    return copy


@final
@dataclass(frozen=True)
class Call:
    """How a row is run."""

    id_column: str
    seed: int
    settings: Mapping[str, Any]

    def id_of(self, row: Mapping[str, Any]) -> Any:
        """The identity of a row.

        Raises:
            ArgumentError: the row has no such column, and so has none of them.
        """
        if self.id_column not in row:
            raise ArgumentError(
                "id_column",
                f"the rows have no column {self.id_column!r}",
                evidence=f"they have {', '.join(map(repr, row))}"[:300],
                remedy="name the column that tells rows apart: processor(..., id_column=...)",
            )
        return row[self.id_column]

    def arguments(self, program: Program[..., Any], row: Mapping[str, Any]) -> dict[str, Any]:
        """The columns that are arguments of the program."""
        return {name: row[name] for name in inspect.signature(program.function).parameters if name in row}


def row_table(rows: list[dict[str, Any]], table: Any, id_column: str) -> Any:
    """The rows with fixed types: blocks without errors, or without values, have those of all others."""
    import pyarrow as pa

    kinds = {"value": pa.string(), "error": pa.string(), "losses": pa.list_(pa.string())}
    kinds |= {"tokens": pa.int64(), "attempt": pa.int64()}
    columns = {id_column: pa.array([row["id"] for row in rows], table.schema.field(id_column).type)}
    for name in COLUMNS[1:]:
        held = [row[name] for row in rows]
        if name == "value":
            held = [json.dumps(row["value"], ensure_ascii=False) if row["error"] is None else None for row in rows]
        columns[name] = pa.array(held, kinds[name])
    return pa.table(columns)


class _Asked(Exception):
    """A program has asked for its first answer."""

    def __init__(self, prompt: RemotePrompt, answer: Answer, max_tokens: int, sampler: AnySampler, seed: int) -> None:
        super().__init__("asked")
        self.prompt = prompt
        self.answer = answer
        self.max_tokens = max_tokens
        self.sampler = sampler
        self.seed = seed


@final
class _Asks:
    """A ``RemoteModel`` that ends the program when it asks."""

    name, tries = "an engine of Ray", 1

    def serve(self, prompt: RemotePrompt, answer: Answer, **settings: Any) -> Generator[str, None, Ending]:
        raise _Asked(prompt, answer, **settings)
        yield  # a generator


@final
@dataclass
class _Answers:
    """A ``RemoteModel`` that has one answer."""

    text: str
    ending: Ending
    name: str = "an engine of Ray"
    tries: int = 1
    is_asked: bool = field(default=False, init=False)

    def serve(self, prompt: RemotePrompt, answer: Answer, **settings: Any) -> Generator[str, None, Ending]:
        if self.is_asked:
            raise ProgramError(
                "an engine of Ray",
                "it is asked once for a row, and the program asks again",
                remedy="leave out engine=, with the address of the server as model=",
            )
        self.is_asked = True
        yield self.text
        return self.ending


@dataclass(frozen=True)
class _Asking(ABC):
    """Makes of a row what an engine takes: ``preprocess``."""

    packed: Packed
    call: Call

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        program = self.packed.unpacked()
        key = self.call.id_of(row)
        try:
            asked = self.asked(program, key, self.call.arguments(program, row))
            return {**self.request(asked), _ERROR: ""}
        except Exception as error:  # the other rows go on
            return {**self.empty(), _ERROR: error_row(key, error)["error"]}

    def asked(self, program: Program[..., Any], key: Any, arguments: Mapping[str, Any]) -> _Asked:
        try:
            program.run(**arguments, **self.call.settings, seed=item_seed(self.call.seed, key), model=_Asks())
        except _Asked as asked:
            return asked
        raise ProgramError(f"program {program.name}", "it asks for no answer")

    def row(self, row: dict[str, Any]) -> dict[str, Any]:
        """The row of an answer."""
        key = self.call.id_of(row)
        if row.get(_ERROR):
            return error_row(key, row[_ERROR])
        program = self.packed.unpacked()
        arguments = self.call.arguments(program, row)
        try:
            model = self.answers(row, self.asked(program, key, arguments).answer)
        except Exception as error:
            return error_row(key, error)
        seed = item_seed(self.call.seed, key)
        return item_row(program, key, arguments, model=model, seed=seed, settings=self.call.settings)

    def check(self) -> None:
        """Refuse a program whose answer the engine cannot write, if its annotation shows that.

        Raises:
            GrammarError, ProgramError: it is such a one.
        """
        program = self.packed.unpacked()
        if self.call.settings.get("think", program.settings.think):
            raise ProgramError(
                f"program {program.name}",
                "thoughts are requests of their own, and an engine is asked once for a row",
                remedy="leave out think=, or engine= (with the address of the server as model=)",
            )
        if not inspect.isgeneratorfunction(program.function):
            sampler = self.call.settings.get("sampler", program.settings.sampler) or Greedy()
            self.request(_Asked(({"role": "user", "content": ""},), program.answer, 1, sampler, 0))

    @abstractmethod
    def request(self, asked: _Asked) -> dict[str, Any]:
        """The columns that the engine reads."""

    @abstractmethod
    def empty(self) -> dict[str, Any]:
        """The same columns, for rows that pass by."""

    @abstractmethod
    def answers(self, row: dict[str, Any], answer: Answer) -> _Answers:
        """What the engine has answered, as a model."""


@final
@dataclass(frozen=True)
class VLLMAsking(_Asking):
    """Requests for vLLM's engine.  Schemas go as text: Arrow would merge dicts of different shapes."""

    has_plugin: bool

    def translation(self, answer: Answer, *, chat: bool) -> Translation:
        """The constraint that the engine enforces."""
        made = translation_of(answer, "vllm", chat=chat)
        if self.has_plugin and answer.schema is not None:
            return Translation({"structured_outputs": {"json": answer.schema}})  # which our plug-in enforces as it is
        return made

    def request(self, asked: _Asked) -> dict[str, Any]:
        """The columns that the engine reads."""
        translation = self.translation(asked.answer, chat=not isinstance(asked.prompt, str))
        outputs = dict(translation.parameters.get("structured_outputs", {}))
        if "json" in outputs:
            outputs["json"] = json.dumps(outputs["json"], ensure_ascii=False)
        params = {**sampling_of(asked.sampler, "vllm"), "max_tokens": asked.max_tokens, "seed": asked.seed % _SEEDS}
        if outputs:
            params["structured_outputs"] = outputs
        if isinstance(asked.prompt, str):
            return {"prompt": asked.prompt, "sampling_params": params}
        return {"messages": list(asked.prompt), "sampling_params": params}

    def empty(self) -> dict[str, Any]:
        """The same columns, for rows that pass by."""
        return {"messages": [{"role": "user", "content": ""}], "sampling_params": {"max_tokens": 1}}

    def answers(self, row: dict[str, Any], answer: Answer) -> _Answers:
        """What the engine has answered, as a model."""
        tokens, limit = row.get("num_generated_tokens"), (row.get("sampling_params") or {}).get("max_tokens")
        is_cut = tokens is not None and limit is not None and tokens >= limit
        losses = self.translation(answer, chat="messages" in row).losses
        ending = Ending("length" if is_cut else "stop", row.get("num_input_tokens"), tokens, losses)
        return _Answers(row["generated_text"], ending)


@final
@dataclass(frozen=True)
class HTTPAsking(_Asking):
    """Bodies of chat completions."""

    model: str
    kind: Kind

    def translation(self, answer: Answer) -> Translation:
        """The constraint that the server enforces."""
        return translation_of(answer, DIALECTS[self.kind][0])

    def request(self, asked: _Asked) -> dict[str, Any]:
        """The columns that the engine reads."""
        dialect = DIALECTS[self.kind][0]
        if isinstance(asked.prompt, str):
            raise ProgramError("program", "chat=False is for the engine itself", remedy="leave chat=True")
        limit = "max_completion_tokens" if dialect == "openai" else "max_tokens"
        body = {"model": self.model, "messages": list(asked.prompt), limit: asked.max_tokens}
        body |= {**sampling_of(asked.sampler, dialect), "seed": asked.seed % _SEEDS}
        return {"payload": {"body": json.dumps(body | self.translation(asked.answer).parameters)}}

    def empty(self) -> dict[str, Any]:
        """The same columns, for rows that pass by."""
        return {"payload": {"body": ""}}

    def answers(self, row: dict[str, Any], answer: Answer) -> _Answers:
        """What the engine has answered, as a model."""
        response = row.get("http_response") or {}
        choices = response.get("choices")
        if not choices:
            error = response.get("error") or response
            told = error.get("message") if isinstance(error, dict) else error
            raise ModelError("server", "it refuses the request", evidence=str(told or error)[:300])
        message, translation = choices[0]["message"], self.translation(answer)
        check_refusal("server", message)
        text = message.get("content") or ""
        if translation.is_wrapped:
            text = _unwrapped(text, answer)
        return _Answers(text, ending_of("server", choices[0], response.get("usage") or {}, translation.losses))


def _unwrapped(text: str, answer: Answer) -> str:
    """The answer within the object that OpenAI wants around it; the text itself if it is no such object."""
    try:
        held = json.loads(text)["answer"]
    except (ValueError, KeyError, TypeError):
        return text
    return held if answer.form == "text" and isinstance(held, str) else json.dumps(held, ensure_ascii=False)


@final
class _Session:
    """A session that sends bodies as they were written: Arrow would change the schemas in them.

    It knows no empty objects and no lists of several types, and does not keep the order of members.
    """

    def __init__(self, session: Any) -> None:
        self._session = session

    async def __aenter__(self) -> _Session:
        await self._session.__aenter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._session.__aexit__(*exception)

    def post(self, url: str, *, data: str, **settings: Any) -> Any:
        return self._session.post(url, data=json.loads(data)["body"], **settings)


@final
@dataclass(frozen=True)
class _Sessions:
    """Makes sessions, by what the engine's own configuration says."""

    inner: Callable[[], Any] | None

    def __call__(self) -> _Session:
        import aiohttp

        return _Session((self.inner or aiohttp.ClientSession)())


def asking_of(engine: Any, packed: Packed, call: Call, model: Any, kind: Kind) -> tuple[Any, _Asking]:
    """The configuration of an engine as it is used here, and what makes its requests."""
    from ray.data.llm import HttpRequestProcessorConfig, vLLMEngineProcessorConfig

    asking: _Asking
    if isinstance(engine, vLLMEngineProcessorConfig):
        environment = dict(engine.runtime_env or {})
        variables = {_VARIABLE: "1", **environment.get("env_vars", {})}
        engine = engine.model_copy(update={"runtime_env": {**environment, "env_vars": variables}})
        asking = VLLMAsking(packed, call, variables[_VARIABLE] == "1")
    elif isinstance(engine, HttpRequestProcessorConfig):
        if not isinstance(model, str):
            raise ArgumentError(
                "processor", "requests name the model", evidence="model= is missing", remedy="give its name as model="
            )
        engine = engine.model_copy(update={"session_factory": _Sessions(engine.session_factory)})
        asking = HTTPAsking(packed, call, model, kind)
    else:
        raise ArgumentError(
            "processor",
            "engine is of another kind",
            evidence=f"found {type(engine).__name__}",
            remedy="give a vLLMEngineProcessorConfig, a HttpRequestProcessorConfig, or None for a pool of actors",
        )
    asking.check()
    return engine, asking


@final
@dataclass(frozen=True)
class Reading:
    """Makes rows of answers."""

    asking: _Asking

    def __call__(self, table: Any) -> Any:
        """Return the rows of a table of answers."""
        return row_table([self.asking.row(row) for row in table.to_pylist()], table, self.asking.call.id_column)
