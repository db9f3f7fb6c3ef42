"""The trace of a run: what happened at each token, as plain data for JSON, and as a table in notebooks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, final

from structgen.markup import Row, card, grid, shortened, table
from structgen.program.json_cursor import path_text
from structgen.program.outcome import FieldScore, Outcome, Run, Served, Thinking

if TYPE_CHECKING:
    from structgen.decode import Result
    from structgen.decode.step.result import Step

__all__ = ["Trace", "plain_value", "trace_of"]

_VERSION: Final = 1


@final
class Trace(dict[str, Any]):
    """The trace of a run: a dictionary that JSON can hold, as ``structgen trace`` reads it."""

    def _repr_html_(self) -> str:
        facts = [(name, shortened(repr(value), 200)) for name, value in self["arguments"].items()]
        facts += [("value", shortened(repr(self["value"]), 200)), ("seed", str(self["seed"]))]
        tables = [part for answer in self["answers"] for part in _answer_tables(answer)]
        return card(f"Trace of {self['program']} on {self['model']}", table(facts), *tables)


def _answer_tables(answer: dict[str, Any]) -> Iterator[str]:
    for held, title in ((answer["thought"], "thought"), (answer, f"answer, {answer['form']}")):
        if held is None:
            continue
        if "steps" not in held:
            yield table([(title, held["text"]), ("", "by a server, which tells no probabilities")])
            continue
        yield grid(
            ("token", "how", "probability", "removed by the mask", "others"),
            [_row(step) for step in held["steps"]],
            title=title,
        )
    refused = [
        (f"refused: {path_text(tuple(each['path'])) or 'the answer'}", shortened(each["text"]), each["problem"])
        for each in answer["violations"]
    ]
    if refused:
        yield table(refused)


def _row(step: dict[str, Any]) -> Row:
    others = [f"{_token(other)} {_probability(other['logprob'])}" for other in step["alternatives"]]
    removed = "" if step["log_z"] is None else f"{-math.expm1(min(step['log_z'], 0.0)):.3g}"
    if step["forced"]:
        return Row((_token(step), "forced", "", removed, ""), "forced")
    return Row((_token(step), "chosen", _probability(step["logprob"]), removed, ", ".join(others)), "chosen")


def _token(held: dict[str, Any]) -> str:
    return "(stop)" if held["text"] is None else held["text"].replace("\n", "\\n")


def _probability(logprob: float | None) -> str:
    return "0" if logprob is None else f"{math.exp(logprob):.3g}"


def trace_of(run: Run[Any]) -> Trace:
    """The trace of a run."""
    return Trace(
        structgen_trace=_VERSION,
        program=run.program,
        model=run.model,
        seed=run.seed,
        arguments={name: plain_value(value) for name, value in run.arguments.items()},
        value=plain_value(run.value),
        text=run.text,
        answers=[_answer_trace(outcome) for outcome in run.outcomes],
    )


def _answer_trace(outcome: Outcome) -> dict[str, Any]:
    result = outcome.result
    return {
        "annotation": str(outcome.answer.annotation),
        "form": outcome.answer.form,
        "text": result.text,
        "finish_reason": result.finish_reason,
        "thought": None if outcome.thinking is None else _thought_trace(outcome.thinking),
        **(_served_trace(result) if isinstance(result, Served) else _score_trace(result)),
        "fields": [_field_trace(held) for held in outcome.fields],
        "violations": [
            {"path": list(each.path), "text": each.text, "problem": each.problem} for each in outcome.violations
        ],
        "limited": dict(outcome.limited),
        "evidence": [
            {"path": list(each.path), "text": each.text, "spans": list(map(list, each.spans)), "logprob": each.logprob}
            for each in outcome.evidence
        ],
    }


def _thought_trace(thinking: Thinking) -> dict[str, Any]:
    result = thinking.result
    return {
        "text": thinking.text,
        "finish_reason": result.finish_reason,
        **(_served_trace(result) if isinstance(result, Served) else _score_trace(result)),
    }


def _field_trace(held: FieldScore) -> dict[str, Any]:
    names = ("value", "start", "end", "logprob", "is_cut")
    trace = {"path": list(held.path)} | {name: getattr(held, name) for name in names}
    if held.marginals is not None:
        trace["marginals"] = [[plain_value(value), probability] for value, probability in held.marginals.items()]
    return trace


def _score_trace(result: Result) -> dict[str, Any]:
    return {
        "logprob": _finite(result.logprob),
        "log_z": _finite(result.log_z),
        "steps": [_step_trace(step, result) for step in result.steps],
        "stats": result.stats.as_dict(),
    }


def _served_trace(result: Served) -> dict[str, Any]:
    """The trace of a server's answer, which has no scores."""
    return {
        "logprob": None,
        "log_z": None,
        "requests": result.requests,
        "prompt_tokens": result.prompt_tokens,
        "tokens": result.tokens,
        "losses": [{"where": loss.where, "keyword": loss.keyword, "problem": loss.problem} for loss in result.losses],
    }


def _step_trace(step: Step, result: Result) -> dict[str, Any]:
    def text(token: int | None) -> str | None:
        stops = token is None or token in result.vocabulary.eos
        return None if stops or token is None else result.vocabulary.tokens[token].decode("utf-8", "replace")

    return {
        "token": step.token,
        "text": text(step.token),
        "forced": step.forced,
        "logprob": _finite(step.logprob),
        "log_z": None if step.log_z is None else _finite(step.log_z),
        "alternatives": [
            {"token": token, "text": text(token), "logprob": _finite(logprob)} for token, logprob in step.alternatives
        ],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def plain_value(value: Any) -> Any:
    """Return a value as JSON can hold it; what pydantic can't write is shown."""
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        return to_jsonable_python(value, fallback=repr)
    except (PydanticSerializationError, RecursionError):
        return repr(value)
