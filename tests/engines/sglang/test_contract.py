"""The grammar backend in SGLang's own classes, driven by a scheduler that is a script; no server is started.

SGLang's servers need a GPU or a special build.  ``make engines-sglang`` installs its Python files alone and runs this.
"""

from __future__ import annotations

import argparse
import json
import re
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sglang", reason="SGLang is not installed: make engines-sglang")
jsonschema_rs = pytest.importorskip("jsonschema_rs")
torch = pytest.importorskip("torch")

from scripted_sglang import (  # noqa: E402
    END_THINK,
    EOS,
    IM_END,
    WIDTH,
    byte_tokenizer,
    decode,
    mask_of,
    request,
    served,
    take,
    text_of,
)
from sglang.srt.constrained.base_grammar_backend import InvalidGrammarObject  # noqa: E402

from structgen import compile, regex as sg_regex  # noqa: E402
from structgen.grammar.limits import Limits  # noqa: E402
from structgen.integrations.sglang import backend as backend_module, plugin  # noqa: E402
from structgen.integrations.sglang.grammar import StructgenGrammar  # noqa: E402
from structgen.memory_cache import cache_limits  # noqa: E402

pytestmark = [pytest.mark.sglang, pytest.mark.filterwarnings("ignore")]

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
LIST = {"type": "array", "items": {"type": "integer"}, "maxItems": 100}
TAG = {
    "type": "structural_tag",
    "format": {
        "type": "tag",
        "begin": "<call>",
        "content": {"type": "json_schema", "json_schema": PERSON},
        "end": "</call>",
    },
}
LEGACY = {"structures": [{"begin": "<f>", "schema": PERSON, "end": "</f>"}], "triggers": ["<f>"]}
LARK = '%llguidance {}\nstart: "a"~2 /[0-9]{3}/'


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    plugin.register()
    return byte_tokenizer()


@pytest.fixture
def manager(tokenizer: Any) -> Any:
    with served(tokenizer) as made:
        yield made


def _id(manager: Any, letter: str) -> int:
    (token,) = manager.scheduler.tokenizer.encode(letter)
    return int(token)


def stop(req: Any) -> Any:
    return req.finished_reason.to_json()


def test_the_name_is_a_choice_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang's plug-ins are found by their entry point; then its parser takes the name."""
    from importlib.metadata import EntryPoint

    from sglang.srt import plugins
    from sglang.srt.arg_groups.choices import GRAMMAR_BACKEND_CHOICES
    from sglang.srt.server_args import ServerArgs

    while plugin.NAME in GRAMMAR_BACKEND_CHOICES:
        GRAMMAR_BACKEND_CHOICES.remove(plugin.NAME)
    point = EntryPoint("structgen", "structgen.integrations.sglang.plugin:register", plugins.GENERAL_PLUGINS_GROUP)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point] if group == point.group else [])
    monkeypatch.setattr(plugins, "_plugins_loaded", False)
    plugins.load_plugins()
    plugin.register()
    assert GRAMMAR_BACKEND_CHOICES.count(plugin.NAME) == 1
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    given = parser.parse_args(["--model-path", "m", "--grammar-backend", "structgen"])
    assert given.grammar_backend == "structgen"


@pytest.mark.parametrize("seed", range(4))
def test_a_batch_of_all_descriptions(manager: Any, seed: int) -> None:
    """Each answer in one batch is what its description says, within its limit, and the free one is free."""
    asked: dict[str, dict[str, Any]] = {
        "json": {"json_schema": json.dumps(PERSON)},
        "any": {"json_schema": "$$ANY$$"},
        "regex": {"regex": r"[a-z]{2,5}-\d{3}"},
        "ebnf": {"ebnf": 'root ::= "yes" | "no" [0-9]+'},
        "lark": {"ebnf": LARK},
        "tag": {"structural_tag": json.dumps(TAG)},
        "legacy": {"structural_tag": json.dumps(LEGACY)},
        "free": {},
    }
    reqs = {name: request(manager, name, **params) for name, params in asked.items()}
    decode(list(reqs.values()), seed)
    for name, req in reqs.items():
        assert stop(req)["type"] == ("length" if name == "free" and len(req.output_ids) == 64 else "stop"), name
        assert len(req.output_ids) <= 64
    texts = {name: text_of(req) for name, req in reqs.items()}
    jsonschema_rs.validator_for(PERSON).validate(json.loads(texts["json"]))
    json.loads(texts["any"])
    assert re.fullmatch(r"[a-z]{2,5}-\d{3}", texts["regex"])
    assert re.fullmatch(r"yes|no[0-9]+", texts["ebnf"])
    assert re.fullmatch(r"aa[0-9]{3}", texts["lark"])
    (inside,) = re.findall(r"\A<call>(.*)</call>\Z", texts["tag"], re.DOTALL)
    jsonschema_rs.validator_for(PERSON).validate(json.loads(inside))
    for inside in re.findall(r"<f>(.*?)</f>", texts["legacy"], re.DOTALL):
        jsonschema_rs.validator_for(PERSON).validate(json.loads(inside))


@pytest.mark.parametrize("most", [3, 4, 9, 30])
def test_answers_are_complete_within_max_new_tokens(manager: Any, most: int) -> None:
    """A list that need not end ends in time, with room for EOS, so that the reason is no length."""
    reqs = [request(manager, str(seed), json_schema=json.dumps(LIST), max_new_tokens=most) for seed in range(3)]
    decode(reqs, most, tilt={EOS: -50.0, _id(manager, "]"): -50.0})
    for req in reqs:
        assert len(req.output_ids) <= most
        assert stop(req)["type"] == "stop"
        jsonschema_rs.validator_for(LIST).validate(json.loads(text_of(req)))


@pytest.mark.parametrize(
    ("settings", "written"),
    [
        ({}, "[1, 2]"),
        ({"constrained_json_disable_any_whitespace": True}, "[1,2]"),
        ({"constrained_json_max_whitespace_cnt": 0}, "[1,2]"),
        ({"constrained_json_whitespace_pattern": "\n"}, None),
        ({"constrained_json_whitespace_pattern": " ?"}, "[ 1 , 2 ]"),
    ],
)
def test_white_space_is_as_the_server_says(tokenizer: Any, settings: dict[str, Any], written: str | None) -> None:
    """SGLang's settings of white space hold; a pattern that always writes some is refused at the start."""
    schema = {"const": [1, 2]}
    if written is None:
        with pytest.raises(ValueError, match="constrained_json_whitespace_pattern"), served(tokenizer, **settings):
            pass
        return
    with served(tokenizer, **settings) as manager:
        req = request(manager, "spaced", json_schema=json.dumps(schema))
        for token in tokenizer.encode(written):
            mask_of([req])
            take(req, token)
        assert not req.finished()
        take(req, EOS)
        assert stop(req)["type"] == "stop"


def test_options_of_the_environment_hold(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They go before SGLang's settings, for schemas and for any JSON; limits hold; what is none ends the start."""
    monkeypatch.setenv(backend_module.OPTIONS, '{"whitespace": "compact", "limits": {"nesting": 9}}')
    nested: dict[str, Any] = {}
    for _ in range(20):
        nested = {"type": "array", "items": nested}
    with served(tokenizer, constrained_json_max_whitespace_cnt=2) as manager:
        for schema in (json.dumps({"const": [1, 2]}), "$$ANY$$"):
            req = request(manager, schema, json_schema=schema)
            for token in tokenizer.encode("[1,"):
                mask_of([req])
                take(req, token)
            space = _id(manager, " ")
            assert not int(mask_of([req]).grammar_mask.vocab_mask[0, space >> 5]) >> (space & 31) & 1
        assert "nesting=9" in request(manager, "deep", json_schema=json.dumps(nested)).to_finish.message
    for wrong, said in (("{", "no JSON"), ('{"space_s": 1}', "space_s: there is no such option"), ("[]", "an object")):
        monkeypatch.setenv(backend_module.OPTIONS, wrong)
        with pytest.raises(ValueError, match=said), served(tokenizer):
            pass


def test_a_limit_without_room_for_eos(manager: Any) -> None:
    """An answer that takes all of the limit is complete, though SGLang says that it is the length."""
    req = request(manager, "tight", regex="[0-9]{4}", max_new_tokens=4)
    decode([req], 1)
    assert re.fullmatch("[0-9]{4}", text_of(req))
    assert stop(req)["type"] in ("length", "stop")


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"json_schema": '{"type": "strin"}'}, "structgen:.*json_schema.*strin"),
        ({"json_schema": "{"}, "structgen:.*json_schema"),
        ({"regex": "(a"}, "structgen:.*regex"),
        ({"ebnf": "root ::= missing"}, "structgen:.*ebnf.*missing"),
        ({"structural_tag": '{"type": "structural_tag"}'}, "structgen:.*structural_tag"),
        ({"regex": "[a-z]{70}"}, "structgen:.*70"),
        ({"regex": "[a-z]", "min_new_tokens": 3}, "structgen:.*min_new_tokens"),
        ({"regex": "[a-z]", "ignore_eos": True}, "structgen:.*ignore_eos"),
        ({"regex": "[a-z]", "stop_token_ids": [5]}, "structgen:.*token 5 cannot end"),
    ],
)
def test_what_cannot_be_served_is_a_bad_request(manager: Any, params: dict[str, Any], message: str) -> None:
    """The error has the message, at the first request and at the next with the same description."""
    for name in ("first", "second"):
        req = request(manager, name, **params)
        req.update_finish_state()
        found = stop(req)
        assert (found["type"], int(found["status_code"])) == ("abort", 400)
        assert re.search(message, found["message"])
        assert req.grammar is None or isinstance(req.grammar, InvalidGrammarObject)


def test_diffusion_models_are_refused(tokenizer: Any) -> None:
    """SGLang would answer without the constraint."""
    with served(tokenizer, dllm_algorithm="LowConfidence") as manager:
        req = request(manager, "canvas", regex="[ab]{3}")
        req.update_finish_state()
        assert "diffusion" in stop(req)["message"]


def test_stop_tokens_of_a_request_end_its_answer(manager: Any) -> None:
    """A special token in stop_token_ids is allowed where EOS is, and nowhere else."""
    req = request(manager, "ends", regex="[a-z]{2,3}", stop_token_ids=[IM_END])
    tilt = {IM_END: 40.0}
    decode([req], 2, tilt=tilt)
    assert re.fullmatch("[a-z]{2,3}", text_of(req))
    assert req.output_ids[-1] == IM_END
    assert stop(req)["type"] == "stop"


def test_time_outs_are_not_remembered(manager: Any) -> None:
    """A description whose compilation SGLang gave up waiting for is compiled for the next request."""
    manager.SGLANG_GRAMMAR_MAX_POLL_ITERATIONS = 1
    backend = manager.grammar_backend
    hung: Future[Any] = Future()
    usual = backend.executor.submit
    backend.executor.submit = lambda *_: hung
    late = request(manager, "late", regex="[ab]{3}", ready=False)
    manager.get_ready_grammar_requests()
    assert "timed out" in late.to_finish.message
    backend.executor.submit = usual
    req = request(manager, "again", regex="[ab]{3}")
    decode([req], 3)
    assert re.fullmatch("[ab]{3}", text_of(req))


def test_the_cache_is_used_and_bounded(manager: Any) -> None:
    """A description is compiled once; many large ones stay within the bound in bytes."""
    first = request(manager, "first", regex="[ab]{3}")
    again = request(manager, "again", regex="[ab]{3}", ready=False)
    assert again.grammar.constraint is first.grammar.constraint
    assert again.grammar.grammar_stats.is_cache_hit
    before = cache_limits().megabytes
    cache_limits(megabytes=8)
    try:
        for number in range(60):
            manager.grammar_backend.set_cache(("regex", f"{number}" + "a" * 9_999), first.grammar.copy())
        held = manager.grammar_backend.cache._held.info()
        assert held.bytes <= cache_limits().bytes["constraints"]
        assert held.entries < 60
    finally:
        cache_limits(megabytes=before)


def test_tokens_outside_the_grammar_end_the_request(manager: Any) -> None:
    """A token that some other processor forced is an error that names it."""
    req = request(manager, "forced", regex="[0-9]{3}")
    mask_of([req])
    take(req, 70)
    req.update_finish_state()
    found = stop(req)
    assert (found["type"], int(found["status_code"])) == ("abort", 500)
    assert "token 70" in found["message"]


EXPLODING = "|".join(rf"(?:(?:[ab]{{1,{most}}}c?){{1,99}}d?){{1,99}}" for most in (63, 64, 65, 66))


def test_a_bound_of_the_limits_ends_its_request_and_no_other(manager: Any) -> None:
    """The answer that meets it is an error, not a shorter answer; the others of the batch go on."""
    pattern = f"x[a-f]{{3}}|y[a-f]{{3}}(?:{EXPLODING})"
    constraint = compile(sg_regex(pattern), manager.grammar_backend.vocabulary, limits=Limits(steps=1_400)).alone()
    manager.grammar_backend.set_cache(("regex", pattern), StructgenGrammar(constraint, "regex", pattern))
    hostile = request(manager, "hostile", regex=pattern)
    tame = request(manager, "tame", regex="x[a-f]{3}")
    decode([hostile, tame], 4, tilt={_id(manager, "y"): 90.0})
    assert re.fullmatch("x[a-f]{3}", text_of(tame))
    assert stop(tame)["type"] == "stop"
    found = stop(hostile)
    assert (found["type"], int(found["status_code"])) == ("abort", 500)
    assert "steps=1400" in found["message"]


def test_masks_are_those_of_sglangs_own_backend(tokenizer: Any) -> None:
    """For a regex without choices of whitespace, xgrammar inside SGLang allows the same tokens at each step."""
    rows: dict[str, list[list[int]]] = {}
    pattern, text = r"[a-c]{2}(x|yz)[0-9]{1,3}", "abyz07"
    for name in ("structgen", "xgrammar"):
        with served(tokenizer, grammar_backend=name) as manager:
            req = request(manager, name, regex=pattern)
            rows[name] = []
            for token in [*tokenizer.encode(text), EOS]:
                words = mask_of([req]).grammar_mask.vocab_mask[0].numpy()
                bits = np.unpackbits(words.view(np.uint8), bitorder="little")[:WIDTH]
                rows[name].append(np.flatnonzero(bits).tolist())
                take(req, token)
            assert req.finished()
    assert rows["structgen"] == rows["xgrammar"]


# Thoughts.


@pytest.fixture
def thinking(tokenizer: Any) -> Any:
    with served(tokenizer, reasoning_parser="qwen3") as made:
        yield made


def thought(manager: Any, name: str, length: int, **params: Any) -> Any:
    """A request that has thought some tokens; the last ends the thought."""
    req = request(manager, name, reasoning=True, **params)
    for token in [*range(1, length), END_THINK]:
        mask_of([req])
        take(req, token)
    return req


def test_thoughts_are_free_and_answers_are_not(thinking: Any) -> None:
    """Before the end of a thought all is allowed; after it the schema holds; both kinds share a batch."""
    before = request(thinking, "before", reasoning=True, json_schema=json.dumps(PERSON))
    after = thought(thinking, "after", 5, json_schema=json.dumps(PERSON))
    plain = request(thinking, "plain", reasoning=False, regex="[ab]{3}")
    mask = mask_of([before, after, plain]).grammar_mask.vocab_mask
    assert (mask[0] == -1).all()
    assert (mask[1] != -1).any()
    decode([before, after, plain], 5, tilt={END_THINK: 5.0})
    assert re.fullmatch("[ab]{3}", text_of(plain))
    for req in (before, after):
        ids = list(req.output_ids)
        answer = req.tokenizer.decode([token for token in ids[ids.index(END_THINK) + 1 :] if token < EOS])
        jsonschema_rs.validator_for(PERSON).validate(json.loads(answer))
        assert stop(req)["type"] == "stop"


def test_answers_in_one_call_under_a_reasoner(thinking: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of five answers after thoughts are filled by one call."""
    from structgen.integrations.sglang import grammar as module

    calls: list[int] = []
    usual = module.fill_rows
    monkeypatch.setattr(
        module, "fill_rows", lambda requests, *rest: (calls.append(len(requests)), usual(requests, *rest))
    )
    mask_of([thought(thinking, str(at), 3, regex="[ab]{3}") for at in range(5)])
    assert calls[-1] == 5


@pytest.mark.parametrize("most", [8, 12, 20])
def test_thoughts_count_toward_the_limit(thinking: Any, most: int) -> None:
    """An answer after five tokens of thought is complete within what is left."""
    req = thought(thinking, "t", 5, json_schema=json.dumps(LIST), max_new_tokens=most)
    decode([req], most, tilt={EOS: -50.0, _id(thinking, "]"): -50.0})
    ids = list(req.output_ids)
    assert len(ids) <= most
    assert stop(req)["type"] == "stop"
    json.loads(req.tokenizer.decode([token for token in ids[ids.index(END_THINK) + 1 :] if token < EOS]))


def test_strict_thinking_filters_tokens(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a budget for thoughts, the row at its end allows only the token that ends them, grammar or not."""
    from sglang.srt.environ import envs

    with (
        envs.SGLANG_MAX_THINK_TOKENS.override(3),
        served(tokenizer, reasoning_parser="qwen3", enable_strict_thinking=True) as manager,
    ):
        reqs = [
            request(manager, "answer", reasoning=True, regex="[ab]{3}"),
            request(manager, "free", reasoning=True),
        ]
        assert reqs[1].grammar is not None
        for token in (1, 2, 3):
            mask_of(reqs)
            for req in reqs:
                take(req, token)
        mask = mask_of(reqs).grammar_mask.vocab_mask.numpy()
        for row in mask:
            bits = np.unpackbits(row.view(np.uint8), bitorder="little")[:WIDTH]
            assert np.flatnonzero(bits).tolist() == [END_THINK]
        decode(reqs[:1], 6)
        ids = list(reqs[0].output_ids)
        assert re.fullmatch("[ab]{3}", tokenizer.decode([t for t in ids[ids.index(END_THINK) + 1 :] if t < EOS]))


@pytest.mark.parametrize(("name", "parameters"), [("gone", "x"), ("traverse_tree", "grammar")])
def test_another_sglang_is_refused(tokenizer: Any, monkeypatch: pytest.MonkeyPatch, name: str, parameters: str) -> None:
    """Where a function that grammars need has gone or has other parameters, the server does not start."""
    target = f"sglang.srt.speculative.spec_utils.{name}"
    monkeypatch.setattr(backend_module, "_WRAPPED", (*backend_module._WRAPPED, (target, print, parameters)))
    with pytest.raises(RuntimeError, match=f"{name} must have the parameters {parameters}"), served(tokenizer):
        pass


def test_grammars_inside_frames(manager: Any) -> None:
    """A frame that SGLang puts around an answer is compiled with it; Lark and legacy tags have no place in one."""
    backend = manager.grammar_backend
    tokenizer = manager.scheduler.tokenizer

    def frame(content: dict[str, Any]) -> dict[str, Any]:
        elements = [{"type": "const_string", "value": "A:"}, content]
        return {"type": "structural_tag", "format": {"type": "sequence", "elements": elements}}

    kinds = {
        "yes": backend.dispatch_json('{"enum": ["yes"]}'),
        "ab": backend.dispatch_regex("[ab]{2}"),
        "no": backend.dispatch_ebnf('root ::= "no"'),
        "<call>": backend.dispatch_structural_tag(json.dumps(TAG)),
    }
    for text, grammar in kinds.items():
        framed = backend.compile_framed_grammar(grammar, frame)
        for token in tokenizer.encode("A:" + (f'"{text}"' if text == "yes" else text)):
            framed.accept_token(token)
        with pytest.raises(ValueError, match="is not allowed"):
            framed.accept_token(tokenizer.encode("A")[0])
    assert backend.compile_framed_grammar(backend.dispatch_ebnf(LARK), frame) is None
    assert backend.compile_framed_grammar(backend.dispatch_structural_tag(json.dumps(LEGACY)), frame) is None
