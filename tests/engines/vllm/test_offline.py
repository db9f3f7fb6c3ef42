"""``LLM(...)`` in this process, with the weights of the embedded model: what it writes, and what ends a request.

What vLLM writes is compared with what structgen's own loop writes with its own forward passes over the same weights.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import ENVIRONMENT
from data_folder import REAL_SCHEMAS, data_folder, sampled_schemas

import structgen as sg
from structgen.engine import Matcher
from structgen.engine.mask import allowed_ids, empty_masks
from structgen.engine.row_buffer import RowBuffer
from structgen.integrations.vllm.backend import Backend

pytestmark = pytest.mark.vllm

CONTEXT = 1024
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
CONTENT = {"type": "json_schema", "json_schema": SCHEMA}
TAG = {"type": "structural_tag", "format": {"type": "tag", "begin": "<f>", "content": CONTENT, "end": "</f>"}}
MOST, REAL, LONGEST_SCHEMA = 40, 20, 1500
CLOSE = 1e-4
"""Two logits that differ by less may come in either order: passes of other shapes sum in another order."""


@pytest.fixture(scope="module")
def llm(folder: str) -> Any:
    """An engine, selected by the environment variable."""
    with pytest.MonkeyPatch.context() as patched:
        for name, value in {**ENVIRONMENT, "STRUCTGEN_VLLM": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}.items():
            patched.setenv(name, value)
        from vllm import LLM

        return LLM(model=folder, max_model_len=CONTEXT, max_num_seqs=16, enforce_eager=True, dtype="float32")


def _params(most: int, described: dict[str, Any], **more: Any) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    return SamplingParams(
        max_tokens=most, **{"temperature": 0, **more}, structured_outputs=StructuredOutputsParams(**described)
    )


def test_answers_differ_and_are_valid(llm: Any) -> None:
    """Different schemas in one call, and two answers each; what is left of the model's length bounds them, too."""
    import jsonschema_rs
    from vllm.exceptions import VLLMValidationError

    schemas = [SCHEMA, {"type": "array", "items": {"enum": ["x", "yy"]}, "minItems": 1, "maxItems": 3}]
    asked = [_params(30, {"json": schema}, n=2, seed=1, temperature=1) for schema in schemas]
    for schema, answer in zip(schemas, llm.generate(["a", "b"], asked), strict=True):
        assert len(answer.outputs) == 2
        for each in answer.outputs:
            assert each.finish_reason == "stop"
            assert jsonschema_rs.is_valid(schema, json.loads(each.text))
    with pytest.raises(VLLMValidationError, match="takes"):
        llm.generate([{"prompt_token_ids": [1] * (CONTEXT - 60)}], _params(200, {"regex": "[0-9]{90}"}))


@dataclass(frozen=True)
class Asked:
    """A request: what vLLM is given, and the grammar that our own loop is given."""

    prompt: str
    described: dict[str, Any]
    grammar: Any


def _compiled(grammar: Any, vocabulary: sg.Vocabulary) -> sg.Constraint:
    """Within the limits that the plug-in has: what fits a budget is looked for no further than they allow."""
    return sg.compile(grammar, vocabulary, limits=sg.Limits.strict())


def _real(vocabulary: sg.Vocabulary) -> Iterator[Asked]:
    """Real schemas of objects whose shortest member fits."""
    for case in sampled_schemas(data_folder(), 29, 400):
        schema = case["schema"]
        if not isinstance(schema, dict) or not schema.get("properties") or len(json.dumps(schema)) > LONGEST_SCHEMA:
            continue
        try:
            grammar = sg.json_schema(schema)
            fits = _compiled(grammar, vocabulary).min_tokens() < MOST
        except sg.StructgenError:  # it is refused
            continue
        if fits:
            names = ", ".join(schema["properties"])[:100]
            yield Asked(f"Write a short example as JSON, with the fields {names}.", {"json": schema}, grammar)


def _regex(pattern: str) -> tuple[dict[str, Any], Any]:
    return {"regex": pattern}, sg.regex(pattern, dialect="ecma", flags="s")


def _choice(*texts: str) -> tuple[dict[str, Any], Any]:
    return {"choice": [*texts]}, sg.select(texts)


WRITTEN = sg.JsonPolicy(additional="written")
LARK = 'start: "yes" | "no, " /[a-z ]{3,30}/ "."'
LIST = 'start: "[" item ("," item)* "]"\nitem: /[0-9]{1,3}/ | start'
EBNF = 'root ::= "I " verb " " [a-z]+ "."\nverb ::= "like" | "see" | "know"'
OTHERS: list[tuple[str, tuple[dict[str, Any], Any]]] = [
    ("When was the first moon landing?", _regex(r"\d{4}-\d{2}-\d{2}")),
    ("Name a colour.", _regex("[a-z]{3,12}")),
    ("Write a number.", _regex(r"-?(0|[1-9]\d*)(\.\d+)?")),
    ("Write an e-mail address.", _regex(r"[a-z]{1,10}@[a-z]{1,10}\.(com|org)")),
    ("Say something about Paris.", _regex(r"Paris is [^.\n]{5,60}\.")),
    ("Write a word in Greek.", _regex(r"[\u03b1-\u03c9]{2,8}")),
    ("Is the sky blue?", _choice("yes", "no")),
    ("What is two and two?", _choice("three", "four", "five")),
    ("Which language is this?", _choice("English", "Deutsch", "français", "日本語")),
    ("Is it warm?", _choice("It is warm today.", "It is warm.", "It is cold.")),
    ("Pick one.", _choice("a", "aa", "aaa")),
    ("Do you like tea?", ({"grammar": LARK}, sg.lark(LARK))),
    ("Write a list of numbers.", ({"grammar": LIST}, sg.lark(LIST))),
    ("What do you like?", ({"grammar": EBNF}, sg.ebnf(EBNF))),
    ("And what do you know?", ({"grammar": EBNF}, sg.ebnf(EBNF))),
    ("Give an object.", ({"json_object": True}, sg.json_schema({"type": "object"}, policy=WRITTEN))),
    ("Call f.", ({"structural_tag": json.dumps(TAG)}, sg.structural_tag(TAG))),
    ("Which number?", ({"json": SCHEMA}, sg.json_schema(SCHEMA))),
    ("True?", ({"json": {"type": "boolean"}}, sg.json_schema({"type": "boolean"}))),
    ("A pair?", ({"json": {"enum": [[1, 2], [1, 3]]}}, sg.json_schema({"enum": [[1, 2], [1, 3]]}))),
]


def _is_greedy(model: Any, prompt: list[int], constraint: sg.Constraint, tokens: list[int]) -> tuple[bool, bool]:
    """Whether each token has the largest logit of a mask, in a pass of our own; and whether each has it alone."""
    session = model.start()
    rows = session.extend_all([*prompt, *tokens[:-1]])[len(prompt) - 1 :]
    session.close()
    matcher, mask, is_alone = constraint.matcher(), empty_masks(constraint.vocabulary, 1), True
    for at, (token, logits) in enumerate(zip(tokens, rows, strict=True)):
        matcher.fill_mask(mask, 0, budget=MOST - at)
        allowed = list(allowed_ids(mask[0], constraint.vocabulary.size))
        if token not in allowed or logits[token] < max(logits[allowed]) - CLOSE:
            return False, False
        is_alone = is_alone and int((logits[allowed] > logits[token] - CLOSE).sum()) == 1
        matcher.accept(token)
    return matcher.is_terminated, is_alone


def _is_forced(constraint: sg.Constraint, ours: list[int], theirs: list[int]) -> bool:
    """Whether the first of our tokens that differs spells text that is forced, in the tokenizer's own way."""
    at = next(at for at, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1])
    matcher = constraint.matcher()
    assert all(matcher.accept(token) for token in ours[:at])
    return matcher.forced_tokens()[:1] == [ours[at]]


def test_greedy_answers_are_those_of_our_own_loop(llm: Any, folder: str, record_property: Callable[..., None]) -> None:
    """Forty requests of all kinds: each token is the likeliest of our mask in our own pass over the same weights.

    The text is that of ``generate``, byte for byte, with two exceptions: two tokens are as likely up to rounding, or
    our loop has written forced text in the tokenizer's own tokens, where vLLM lets the model choose its spelling.
    """
    if not (data_folder() / REAL_SCHEMAS).is_file():
        pytest.skip("there are no real schemas: STRUCTGEN_DATA names no folder with them")
    import torch

    from structgen.models.llama.model import LlamaModel

    model = LlamaModel(Path(folder), name="own", device=torch.device("cpu"), dtype=torch.float32)
    asked = [Asked(prompt, *each) for prompt, each in OTHERS]
    asked += [real for real, _ in zip(_real(model.vocabulary), range(REAL), strict=False)]
    assert len(asked) == 40
    chats = [[{"role": "user", "content": each.prompt}] for each in asked]
    answers = llm.chat(chats, [_params(MOST + 1, each.described) for each in asked])
    same, forced, ties = 0, [], []
    for each, answer in zip(asked, answers, strict=True):
        prompt, constraint = model.encode_prompt(each.prompt), _compiled(each.grammar, model.vocabulary)
        assert answer.prompt_token_ids == prompt
        (theirs,) = answer.outputs
        assert theirs.finish_reason == "stop"
        is_greedy, is_alone = _is_greedy(model, prompt, constraint, list(theirs.token_ids))
        assert is_greedy, (each.prompt, theirs.text)
        ours = sg.generate(model, each.prompt, constraint, max_tokens=MOST)
        if ours.text.encode() == theirs.text.encode():
            same += 1
        elif _is_forced(constraint, [*ours.tokens, -1], list(theirs.token_ids)):
            forced.append(each.prompt)
        else:
            assert not is_alone, (each.prompt, ours.text, theirs.text)
            ties.append(each.prompt)
    record_property("same, forced, ties", [same, len(forced), len(ties)])
    assert same >= 20, (forced, ties)


@pytest.mark.parametrize("method", ["completes_within", "fill_mask", "accept"])
def test_an_exception_of_a_matcher_ends_its_own_request(llm: Any, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others of its batch write what they write without it."""
    prompts = [f"Write a number below {at}." for at in range(10, 16)]
    asked = [_params(30 + (at == 2), {"regex": "The number is [0-9]{3,9}[a-z]{3}"}) for at in range(len(prompts))]
    expected = [answer.outputs[0].text for answer in llm.generate(prompts, asked)]
    broken, usual, grammar, together = [], getattr(Matcher, method), Backend.grammar, RowBuffer.fill_owned
    least = 0 if method == "completes_within" else 4

    def noted(backend: Backend, request: Any, length: int) -> Any:
        made = grammar(backend, request, length)
        if request.max_tokens == 31:
            broken.append(made.matcher.matcher)
        return made

    def is_broken(matcher: Matcher) -> bool:
        return any(matcher is each and each.history_length >= least for each in broken)

    def faulty(matcher: Matcher, *args: Any, **kwargs: Any) -> Any:
        if is_broken(matcher):
            raise RuntimeError("a fault")
        return usual(matcher, *args, **kwargs)

    def owned(rows: Any, requests: Any, ids: Any, of: Any) -> Any:
        if method == "fill_mask" and any(is_broken(of(requests[each])) for each in ids):
            raise RuntimeError("a fault of one of them")
        return together(rows, requests, ids, of)

    monkeypatch.setattr(Backend, "grammar", noted)
    monkeypatch.setattr(Matcher, method, faulty)
    monkeypatch.setattr(RowBuffer, "fill_owned", owned)
    found = [answer.outputs[0] for answer in llm.generate(prompts, asked)]
    assert len(broken) == 1
    assert found[2].finish_reason == "error"
    for at in (0, 1, 3, 4, 5):
        assert found[at].finish_reason == "stop"
        assert found[at].text == expected[at]
        assert re.fullmatch("The number is [0-9]{3,9}[a-z]{3}", found[at].text)
    monkeypatch.undo()
    assert [answer.outputs[0].text for answer in llm.generate(prompts, asked)] == expected
