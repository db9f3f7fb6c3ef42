"""What vLLM's scheduler does to a grammar, done to structgen's, without vLLM."""

import json
import re
import threading
from collections.abc import Sequence
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import structgen as sg
from structgen.engine.mask import allowed_ids
from structgen.frontends.json_schema import JsonPolicy
from structgen.integrations.vllm.backend import Backend, RequestGrammar, options_of
from structgen.integrations.vllm.endpoints import answer
from structgen.integrations.vllm.proposer import PLACEHOLDER, ForcedText, copied
from structgen.integrations.vllm.rows import batch_rows
from structgen.integrations.wire import WireError

torch = pytest.importorskip("torch", reason="torch is not installed")

EOS, TURN, STRANGE = 256, 257, 258
SIZE = 260  # the head of the model is wider than the tokenizer
VOCABULARY = sg.Vocabulary(
    [bytes([value]) for value in range(256)], eos=[EOS], special={TURN: "<turn>", STRANGE: '<"x>'}, size=SIZE
)
Kind = Enum("Kind", ["JSON", "JSON_OBJECT", "REGEX", "GRAMMAR", "CHOICE", "STRUCTURAL_TAG"])
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def _backend(**settings: Any) -> Backend:
    return Backend(VOCABULARY, **settings)


def _params(**described: Any) -> Any:
    return SimpleNamespace(**described)


def _request(max_tokens: int = 1000, stops: Sequence[int] = (EOS,), **described: Any) -> Any:
    sampling = SimpleNamespace(structured_outputs=_params(**described), all_stop_token_ids=set(stops))
    return SimpleNamespace(
        sampling_params=sampling,
        max_tokens=max_tokens,
        num_prompt_tokens=10,
        num_output_tokens=0,
        request_id="r",
        structured_output_request=SimpleNamespace(grammar=None),
    )


class _Engine:
    """The steps of vLLM's scheduler with constrained requests: rows, then tokens of the rows, then the grammar."""

    def __init__(self, backend: Backend, requests: Sequence[Any], most: int = 0, thoughts: int = 0) -> None:
        self.requests = {str(at): each for at, each in enumerate(requests)}
        self.thoughts = thoughts
        for each in requests:
            each.structured_output_request.grammar = backend.grammar(each, 4096)
        config = SimpleNamespace(
            scheduler_config=SimpleNamespace(max_num_seqs=len(requests)), num_speculative_tokens=most
        )
        self.manager = SimpleNamespace(
            backend=backend,
            vllm_config=config,
            reasoner_cls=thoughts or None,
            enable_in_reasoning=False,
            _grammar_bitmask=None,
            _get_constraint_bounds=self._bounds,
        )

    def _bounds(self, request: Any, spec_tokens: Sequence[int]) -> tuple[int, int]:
        start = max(0, self.thoughts - request.num_output_tokens)
        return start, start

    def rows(self, drafts: dict[str, list[int]] | None = None) -> np.ndarray[Any, Any]:
        return batch_rows(self.manager, self.requests, list(self.requests), drafts or {})

    def grammar(self, at: int = 0) -> RequestGrammar:
        return self.requests[str(at)].structured_output_request.grammar

    def feed(self, at: int, tokens: list[int]) -> bool:
        self.requests[str(at)].num_output_tokens += len(tokens)
        return self.grammar(at).accept_tokens(str(at), tokens)


def _allowed(row: np.ndarray[Any, Any]) -> set[int]:
    return set(allowed_ids(row, SIZE).tolist())


def _long(allowed: set[int]) -> int:
    """What keeps the answer going."""
    return ord("9") if ord("9") in allowed else max(allowed)


def _written(engine: _Engine, at: int, pick: Any = _long) -> tuple[str, int]:
    """Let a request be answered by a rule of choice; the text, and how many tokens, the end included."""
    found: list[int] = []
    while not engine.grammar(at).is_terminated():
        token = pick(_allowed(engine.rows()[at]))
        assert engine.feed(at, [token])
        found.append(token)
        assert len(found) <= engine.requests[str(at)].max_tokens
    return bytes(found[:-1]).decode(), len(found)


TAG = {
    "type": "structural_tag",
    "format": {"type": "tag", "begin": "<f>", "content": {"type": "const_string", "value": "x"}, "end": "</f>"},
}
LEGACY = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f"]}
DESCRIBED = [
    ("JSON", json.dumps(SCHEMA), '{"a": 1}', '{"a": x}'),
    ("JSON_OBJECT", "", '{"b": [1]}', "[1]"),
    ("REGEX", r"\d{2}-\d", "12-3", "12-x"),
    ("GRAMMAR", 'start: "a" | "b"', "b", "c"),
    ("GRAMMAR", 'root ::= "a" | "b" [0-9]', "b1", "ba"),
    ("CHOICE", json.dumps(["ja", "nö"]), "nö", "no"),
    ("STRUCTURAL_TAG", json.dumps(TAG), "<f>x</f>", "<f>y"),
    ("STRUCTURAL_TAG", json.dumps(LEGACY), 'so <f>{"a": 1}</f>', "<f>x"),
]


@pytest.mark.parametrize(("kind", "spec", "good", "bad"), DESCRIBED)
def test_every_kind_of_request_is_enforced(kind: str, spec: str, good: str, bad: str) -> None:
    """As vLLM hands it over: a type and a text."""
    grammar = _backend().compile_grammar(Kind[kind], spec, stop_token_ids={EOS})
    assert grammar.accept_tokens("r", list(good.encode()))
    assert grammar.accept_tokens("r", [EOS])
    assert grammar.is_terminated()
    grammar.reset()
    assert not grammar.accept_tokens("r", list(bad.encode()))


def test_stop_tokens_and_tokens_after_the_end_are_taken() -> None:
    """The run of the last step has the token that ended the request, and maybe more."""
    engine = _Engine(_backend(), [_request(stops=[EOS, TURN], regex="ab?") for _ in range(3)])
    assert engine.feed(0, [97, EOS])
    assert engine.feed(1, [97, TURN, 5, 5])
    assert engine.feed(2, [97, 98, EOS])
    assert all(engine.grammar(at).is_terminated() for at in range(3))
    assert engine.feed(0, [1, 2])
    assert (engine.rows() == -1).all()


def test_rollback_over_the_end_and_over_nothing() -> None:
    """After drafts with the end in them, vLLM takes back what it walked."""
    grammar = _Engine(_backend(), [_request(regex="ab")]).grammar()
    grammar.rollback(0)
    assert grammar.accept_tokens("r", [97, 98, EOS, 7])
    grammar.rollback(3)
    assert not grammar.is_terminated()
    assert grammar.accept_tokens("r", [98])


def test_special_tokens_never_stand_for_text() -> None:
    """Not even inside a string, where any text may stand."""
    engine = _Engine(_backend(), [_request(stops=[EOS, TURN], json={"type": "string"})])
    assert engine.feed(0, list(b'"'))
    inside = _allowed(engine.rows()[0])
    assert not inside & {EOS, TURN, STRANGE, SIZE - 1}
    assert ord("x") in inside
    assert not engine.feed(0, [STRANGE])


def test_rows_end_where_the_head_ends() -> None:
    """The padding of the model's head is never allowed."""
    rows = _Engine(_backend(), [_request(json_object=True)]).rows()
    assert rows.shape == (1, (SIZE + 31) // 32)
    assert not np.unpackbits(rows.view(np.uint8), bitorder="little")[SIZE:].any()


@pytest.mark.parametrize("max_tokens", [9, 10, 12, 30])
@pytest.mark.parametrize("pick", [_long, min])
def test_every_answer_is_complete_within_its_limit(max_tokens: int, pick: Any) -> None:
    """Whatever the model prefers, with one token left for the end."""
    text, count = _written(_Engine(_backend(), [_request(max_tokens, json=SCHEMA)]), 0, pick)
    assert re.fullmatch(r'\{"a": -?\d+\}', text)
    assert isinstance(json.loads(text)["a"], int)
    assert count <= max_tokens


def test_an_answer_that_is_complete_exactly_at_its_limit_ends() -> None:
    """The last token is the end, so that vLLM says ``stop``."""
    text, count = _written(_Engine(_backend(), [_request(9, json=SCHEMA)]), 0)
    assert len(text) == 8
    assert count == 9


def test_a_limit_that_is_too_small_is_refused_with_the_number() -> None:
    """Before the model runs."""
    with pytest.raises(WireError, match=r"max_tokens=8.*takes 9 tokens"):
        _backend().check(_params(json=SCHEMA), {EOS}, 8)
    _backend().check(_params(json=SCHEMA), {EOS}, 9)


def test_the_limit_counts_from_the_end_of_thoughts() -> None:
    """Rows of thoughts allow everything; what is left afterwards bounds the answer."""
    engine = _Engine(_backend(), [_request(20, json=SCHEMA)], thoughts=6)
    for _ in range(6):
        assert (engine.rows() == -1).all()
        engine.requests["0"].num_output_tokens += 1
    text, count = _written(engine, 0)
    assert isinstance(json.loads(text)["a"], int)
    assert count == 14


def test_rows_of_drafts_are_those_of_the_tokens_one_by_one() -> None:
    """For many requests in one call, with padding, refused drafts and the end among the drafts."""
    chains = [[], [97], [97, 98, EOS], [97, 99], [97, 98, -1, -1], [-1, -1], [98, 97]]
    engine = _Engine(_backend(), [_request(regex="ab*|c") for _ in chains], most=3)
    rows = engine.rows({str(at): chain for at, chain in enumerate(chains)})
    after_a, at_start, everything = {98, EOS}, {97, 99}, set(range(SIZE))
    expected = [
        [at_start],
        [at_start, after_a],
        [at_start, after_a, after_a, everything],
        [at_start, after_a, after_a],
        [at_start, after_a, after_a, everything, everything],
        [at_start, everything, everything],
        [at_start, at_start, at_start],
    ]
    assert [_allowed(row) for row in rows] == [row for each in expected for row in each]
    assert all(engine.grammar(at).matcher.taken == 0 for at in range(len(chains)))


def test_the_end_of_thoughts_may_be_among_the_drafts() -> None:
    """Rows before it allow everything; the grammar sees the drafts after it."""
    engine = _Engine(_backend(), [_request(regex="ab"), _request(regex="cd")], most=3, thoughts=2)
    rows = engine.rows({"0": [5, 6, 97], "1": [5]})
    everything = set(range(SIZE))
    assert [_allowed(row) for row in rows] == [everything, everything, {97}, {98}, everything, everything]


def test_drafts_are_the_valid_prefix_or_forced_text() -> None:
    """Replaced only where vLLM verifies what it is given back."""
    plain = _Engine(_backend(), [_request(regex="abc[de]fg")]).grammar()
    assert plain.validate_tokens([97, 98, 7]) == [97, 98]
    forced = _Engine(_backend(most_drafts=4), [_request(regex="abc[de]fg")]).grammar()
    assert forced.validate_tokens([PLACEHOLDER]) == [97, 98, 99]
    assert forced.validate_tokens([97, 98, 99, 100]) == [97, 98, 99, 100]
    assert forced.accept_tokens("r", [97, 98, 99])
    assert forced.validate_tokens([100]) == [100, 102, 103]
    assert forced.validate_tokens([PLACEHOLDER]) == []
    assert forced.matcher.taken == 3


def test_drafts_are_proposed_at_every_step() -> None:
    """Copies of what stood before, else a token that the grammar replaces; nothing where nothing was sampled."""
    config = SimpleNamespace(num_speculative_tokens=2)
    rows = np.array([[1, 2, 3, 1, 2, 0], [1, 2, 3, 4, 5, 0]], dtype=np.int32)
    assert ForcedText(config).propose([[2], [5]], np.array([5, 5]), rows) == [[3, 1], [PLACEHOLDER]]
    assert ForcedText(config).propose([[], [5]], np.array([5, 5]), rows) == [[], [PLACEHOLDER]]
    assert copied(np.array([1]), 3) == []


def test_options_of_json_hold() -> None:
    """Those of vLLM, and those of the server's configuration."""
    backend = _backend(policy=JsonPolicy(additional="written"))

    def accepts(text: str, **options: Any) -> bool:
        grammar = RequestGrammar(backend.constraint(_params(json=SCHEMA, **options)))
        return grammar.accept_tokens("r", [*text.encode(), EOS])

    assert accepts('{"a": 1, "b": 2}')
    assert not accepts('{"a": 1}', disable_any_whitespace=True)
    assert accepts('{"a":1}', disable_any_whitespace=True)
    assert not accepts('{"a": 1, "b": 2}', disable_additional_properties=True)
    assert accepts('{"a":   1}', whitespace_pattern=" *")


@pytest.mark.parametrize(
    ("described", "place", "message"),
    [
        ({"json": "{"}, "structured_outputs.json", ""),
        (
            {"json": {"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}}},
            "structured_outputs.json#/properties/a",
            "nowhere",
        ),
        ({"json": {"type": "integer", "minimum": 3, "maximum": 2}}, "structured_outputs.json", ""),
        ({"json": {"pattern": "a{99999}", "type": "string"}}, "structured_outputs", "steps=2000000"),
        ({"regex": "("}, "structured_outputs.regex", ""),
        ({"grammar": 'root ::= "a" missing'}, "structured_outputs.grammar", "missing"),
        ({"choice": []}, "structured_outputs.choice", ""),
        ({"structural_tag": '{"type": "x"}'}, "structured_outputs.structural_tag", ""),
    ],
)
def test_what_is_refused_is_named(described: dict[str, Any], place: str, message: str) -> None:
    """With the place in the request."""
    with pytest.raises(WireError) as caught:
        _backend().check(_params(**described), {EOS}, 1000)
    assert caught.value.place.startswith(place)
    assert message in str(caught.value)


def test_a_stop_token_that_is_text_is_refused() -> None:
    """An answer may need it."""
    with pytest.raises(WireError, match="ordinary text") as caught:
        _backend().check(_params(regex="ab"), {EOS, 97}, None)
    assert caught.value.place == "stop_token_ids"


def test_threads_compile_while_others_fill() -> None:
    """Rows of one engine stay those of its requests."""
    backend = _backend()
    engine = _Engine(backend, [_request(regex="ab*c")])
    errors: list[Exception] = []

    def compiling(first: int) -> None:
        try:
            for at in range(first, first + 30):
                backend.constraint(_params(json={"type": "object", "properties": {f"k{at}": {"type": "number"}}}))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=compiling, args=(100 * at,)) for at in range(3)]
    for thread in threads:
        thread.start()
    assert engine.feed(0, [97])
    for _ in range(300):
        assert _allowed(engine.rows()[0]) == {98, 99}
    for thread in threads:
        thread.join()
    assert not errors


def test_options_are_read_or_refused() -> None:
    """From ``--additional-config``."""
    policy, limits = options_of({"structgen": {"whitespace": "compact", "limits": {"nesting": 7}}})
    assert (policy.whitespace, limits.nesting) == ("compact", 7)
    assert limits.steps == sg.Limits.strict().steps
    assert options_of({}) == options_of(None)
    for wrong in ({"spaces": 1}, {"limits": {"step": 1}}, {"whitespace": "none"}, {"limits": {"steps": 0}}, 3):
        with pytest.raises(ValueError, match="additional-config"):
            options_of({"structgen": wrong})


def test_routes_say_what_is_enforced_and_what_was_expected() -> None:
    """Without a model."""
    body = {"structured_outputs": {"json": SCHEMA}}
    found = {each["where"]: each["status"] for each in answer("check", body, {})["entries"]}
    assert found["#/required"] == "enforced"
    told = answer("explain", {**body, "text": '{"a": x'}, {})
    assert told["accepted"] == '{"a": '
    assert "'0'..'9'" in told["expected"]
    assert not told["is_complete"]
    with pytest.raises(WireError, match="structured_outputs"):
        answer("check", {"json": SCHEMA}, {})
