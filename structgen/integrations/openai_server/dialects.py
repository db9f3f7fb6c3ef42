"""How each kind of server is given a constraint and sampling parameters in the parameters of a request.

Sources, as of this version:

* vLLM: "Structured Outputs", https://docs.vllm.ai/en/latest/features/structured_outputs/ (``structured_outputs``; up to
  0.11 ``guided_json``, ``guided_choice``, ``guided_grammar``, which 0.12 removed and ignores), and the extra
  parameters of "OpenAI-Compatible Server".
* SGLang: "Structured Outputs", https://docs.sglang.io/advanced_features/structured_outputs.html
* llama-server: ``tools/server/README.md`` and ``grammars/README.md`` of llama.cpp.
* OpenAI: the guide "Structured Outputs".
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, final

from structgen.decode import Greedy, Multinomial
from structgen.errors import GenerationError, GrammarError, LimitExceeded, ProgramError
from structgen.frontends.convert import write
from structgen.grammar.nodes import ANY_CHAR, Repeat
from structgen.integrations.openai_server.schemas import LLAMA_SERVER, OPENAI, XGRAMMAR, translated, wrapped
from structgen.program.backends.remote_answer import Ending

if TYPE_CHECKING:
    from collections.abc import Mapping

    from structgen.decode import AnySampler
    from structgen.grammar.nodes import Grammar
    from structgen.program import Answer, Loss

__all__ = [
    "DIALECTS",
    "Dialect",
    "Kind",
    "Translation",
    "check_refusal",
    "ending_of",
    "gbnf_of",
    "sampling_of",
    "translation_of",
]


def gbnf_of(grammar: Grammar) -> str:
    r"""Write a grammar in GBNF; the language is the same.

    Captures and temperatures are left out: the answer is read here again, with all that the grammar says.

    Raises:
        UnsupportedFeature: a part of it has no GBNF (``docs/reference/conversion.md``).
        UnsatisfiableGrammar: no text belongs to it.
        GrammarError: a reference leads nowhere.

    >>> from structgen.grammar.nodes import CharClass, Literal, Repeat, Sequence
    >>> print(gbnf_of(Sequence([Literal(b"a"), Repeat(CharClass([(48, 57)]), 1, 3)])), end="")
    root ::= "a" [0-9]{1,3}
    """
    return write(grammar, "gbnf").text


Kind: TypeAlias = Literal["vllm", "sglang", "llama_server", "openai"]
"""The kind of a server."""

Dialect: TypeAlias = Literal["vllm", "vllm_guided", "sglang", "llama_server", "openai"]
"""A kind with the names of its parameters."""

DIALECTS: Final[dict[Kind, tuple[Dialect, ...]]] = {
    "vllm": ("vllm", "vllm_guided"),
    "sglang": ("sglang",),
    "llama_server": ("llama_server",),
    "openai": ("openai",),
}
"""The dialects that a server of each kind may speak, the newest first."""

_SUBSETS: Final = {
    "vllm": XGRAMMAR,
    "vllm_guided": XGRAMMAR,
    "sglang": XGRAMMAR,
    "llama_server": LLAMA_SERVER,
    "openai": OPENAI,
}
_ANY_TEXT: Final = Repeat(ANY_CHAR, 0, None)


@final
@dataclass(frozen=True, slots=True)
class Translation:
    """A constraint as a server takes it.

    Attributes:
        parameters: of the request.
        losses: what the server is not known to enforce; it is checked here.
        is_wrapped: whether the answer comes within an object, as the property ``"answer"``.
    """

    parameters: dict[str, Any]
    losses: tuple[Loss, ...] = ()
    is_wrapped: bool = False


def translation_of(answer: Answer, dialect: Dialect, *, chat: bool = True) -> Translation:
    """Write the constraint of an answer as request parameters, for a chat or a completion.

    Raises:
        UnsupportedFeature: a part of it can't be said; it is named.
        GrammarError: OpenAI takes no grammars, and no constraint on completions.
    """
    if answer.grammar == _ANY_TEXT:
        return Translation({})
    if dialect == "openai" and not chat:
        raise GrammarError(
            "answer", "OpenAI's completions take no constraint", remedy="leave chat=True, or use another server"
        )
    if answer.schema is not None:
        made = _of_schema(answer.schema, dialect, chat=chat, closes=answer.policy.additional == "forbidden")
        grammar = _instead_of_losses(answer.grammar) if made.losses and dialect == "llama_server" else None
        return made if grammar is None else Translation({"grammar": grammar})
    if dialect == "openai":
        if not answer.choices:
            raise GrammarError(
                "answer",
                "OpenAI takes JSON Schemas alone, no grammars",
                remedy="ask for a Literal, or for a str with Field(pattern=...), or use a server that takes grammars "
                "(vLLM, SGLang, llama-server)",
            )
        schema = wrapped({"type": "string", "enum": list(answer.choices)})
        return Translation({"response_format": _format(schema, strict=True)}, is_wrapped=True)
    if answer.choices and dialect == "vllm":
        return Translation({"structured_outputs": {"choice": list(answer.choices)}})
    if answer.choices and dialect == "vllm_guided":
        return Translation({"guided_choice": list(answer.choices)})
    grammar = gbnf_of(answer.grammar)
    if dialect == "vllm":
        return Translation({"structured_outputs": {"grammar": grammar}})
    return Translation(
        {{"vllm_guided": "guided_grammar", "sglang": "ebnf", "llama_server": "grammar"}[dialect]: grammar}
    )


def _instead_of_losses(grammar: Grammar) -> str | None:
    """A schema's grammar for llama-server, whose own reader of schemas leaves out more; None if it has no GBNF."""
    try:
        return gbnf_of(grammar)
    except (GrammarError, LimitExceeded):
        return None


def _of_schema(schema: Any, dialect: Dialect, *, chat: bool, closes: bool) -> Translation:
    made, losses = translated(schema, _SUBSETS[dialect], closes=closes)
    if dialect == "vllm":
        return Translation({"structured_outputs": {"json": made}}, losses)
    if dialect == "vllm_guided":
        return Translation({"guided_json": made}, losses)
    if dialect == "openai":
        is_wrapped = made.get("type") != "object"
        made = wrapped(made) if is_wrapped else made
        return Translation({"response_format": _format(made, strict=True)}, losses, is_wrapped)
    if chat:
        return Translation({"response_format": _format(made)}, losses)
    # Completions take it at the top: SGLang as text, llama-server as it is.
    return Translation({"json_schema": json.dumps(made) if dialect == "sglang" else made}, losses)


def _format(schema: Any, **settings: bool) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **settings}}


def sampling_of(sampler: AnySampler, dialect: Dialect) -> dict[str, Any]:
    """The parameters that make a server sample tokens as ``sampler`` does.

    Raises:
        ProgramError: the server does not know how.
    """
    if isinstance(sampler, Greedy):
        return {"temperature": 0}
    if not isinstance(sampler, Multinomial):
        raise ProgramError(
            f"sampler {type(sampler).__name__}",
            "servers sample their tokens themselves, greedily or at random",
            remedy="give Greedy() or Multinomial(...)",
        )
    shapes = {"top_p": sampler.top_p, "top_k": sampler.top_k, "min_p": sampler.min_p}
    given = {name: value for name, value in shapes.items() if value is not None}
    if dialect == "openai" and given.keys() - {"top_p"}:
        raise ProgramError(
            "sampler Multinomial", "OpenAI knows no top_k and no min_p", remedy="give temperature and top_p alone"
        )
    return {"temperature": sampler.temperature, **given}


def ending_of(
    subject: str, choice: Mapping[str, Any], usage: Mapping[str, Any], losses: tuple[Loss, ...] = ()
) -> Ending:
    """How the choice of a response, or of the last event of a stream, ended.

    Raises:
        GenerationError: neither because it was complete nor because of ``max_tokens``: a filter of the server, say.
    """
    finish = choice.get("finish_reason")
    if finish not in ("stop", "length"):
        raise GenerationError(subject, f"the answer ended for {finish!r}", remedy="ask in another way")
    prompt, tokens = (
        count if isinstance(count := usage.get(name), int) else None for name in ("prompt_tokens", "completion_tokens")
    )
    return Ending("stop" if finish == "stop" else "length", prompt, tokens, losses)


def check_refusal(subject: str, message: Mapping[str, Any]) -> None:
    """Raise what the model says where it refuses to answer.

    Args:
        subject: the server.
        message: the message of a response, or the part of it in an event.

    Raises:
        GenerationError: it refuses.
    """
    if refusal := message.get("refusal"):
        raise GenerationError(subject, "the model refuses to answer", evidence=str(refusal))
