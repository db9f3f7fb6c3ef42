"""What is sampled, over HTTP with OpenAI's client: compared with ``generate`` and with loops over the logits."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from openai import OpenAI
from served_model import VOCABULARY

import structgen as sg
from structgen.engine.mask import allowed_ids, empty_masks
from structgen.frontends.free_text import any_text
from structgen.integrations.server.protocol import APIError, ChatRequest, parsed
from structgen.integrations.server.runner import Runner
from structgen.integrations.server.settings import sampler_of
from structgen.integrations.server.writing import StopWatch
from structgen.models import HashModel
from structgen.samplers import SMC, Beam, RejectionTrie

pytestmark = pytest.mark.timeout(120)

PROMPT = "Who?"
MESSAGES: list[Any] = [{"role": "user", "content": PROMPT}]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"on": {"type": "boolean"}, "kind": {"enum": ["ab", "b"]}, "n": {"type": "integer"}},
    "required": ["on", "kind", "n"],
    "additionalProperties": False,
}
FORMAT: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA}}


def model() -> HashModel:
    """The model that is served."""
    return HashModel(VOCABULARY, seed=1, max_context=2000)


def log_p(tokens: list[int]) -> list[float]:
    """The model's next-token log-probabilities after the prompt and ``tokens``."""
    row = model().start().extend([*model().encode_prompt(PROMPT), *tokens]).astype(float)
    return list(row - math.log(math.fsum(np.exp(row))))


def ask(client: OpenAI, **fields: Any) -> Any:
    """A chat."""
    return client.chat.completions.create(**{"model": "hash", "messages": MESSAGES, "max_tokens": 16, **fields})


def texts_of(stream: Any) -> str:
    """The text of a stream."""
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


@pytest.mark.parametrize("described", [False, True])
def test_log_probabilities_are_those_of_the_model(client: OpenAI, *, described: bool) -> None:
    """As a whole and in a stream, of forced tokens too; the others are the most probable allowed ones."""
    fields: dict[str, Any] = {"logprobs": True, "top_logprobs": 3, "seed": 4, "max_tokens": 40}
    fields |= {"response_format": FORMAT} if described else {}
    whole = ask(client, **fields)
    entries = whole.choices[0].logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == whole.choices[0].message.content
    assert len(entries) == whole.usage.completion_tokens
    matcher = sg.compile(sg.json_schema(SCHEMA) if described else any_text(), VOCABULARY).matcher()
    tokens: list[int] = []
    spelled = {data: token for token, data in enumerate(VOCABULARY.tokens) if token}
    for entry in entries:
        expected, token = log_p(tokens), spelled[bytes(entry.bytes)]
        assert entry.logprob == pytest.approx(expected[token], abs=1e-4)
        top = {spelled[bytes(each.bytes)]: each.logprob for each in entry.top_logprobs if each.bytes}
        if not entry.forced:
            mask = empty_masks(VOCABULARY)
            matcher.fill_mask(mask, 0, budget=40 - len(tokens))
            best = sorted((expected[each] for each in allowed_ids(mask[0], VOCABULARY.size)), reverse=True)[:3]
            assert len(entry.top_logprobs) == len(best)
            assert [each.logprob for each in entry.top_logprobs] == pytest.approx(best, abs=1e-4)
        for each, logprob in top.items():
            assert logprob == pytest.approx(expected[each], abs=1e-4)
        matcher.accept(token)
        tokens.append(token)
    streamed = [chunk.choices[0] for chunk in ask(client, **fields, stream=True)]
    found = [entry for choice in streamed if choice.logprobs for entry in choice.logprobs.content]
    assert [(entry.token, entry.logprob) for entry in found] == [(entry.token, entry.logprob) for entry in entries]


def test_a_seed_and_settings_say_what_generate_says(client: OpenAI) -> None:
    """Temperature, truncation and seed are those of ``Multinomial``; negative seeds are seeds."""
    for seed, fields in ((3, {"temperature": 0.7}), (5, {"top_p": 0.4}), (2**62, {"temperature": 1.5, "top_p": 0.9})):
        sampler = sg.Multinomial(**fields)
        expected = sg.generate(model(), PROMPT, any_text(), max_tokens=16, sampler=sampler, seed=seed).text
        assert ask(client, seed=seed, **fields).choices[0].message.content == expected
    more = {"top_k": 2, "min_p": 0.2}
    expected = sg.generate(model(), PROMPT, any_text(), max_tokens=16, sampler=sg.Multinomial(**more), seed=9).text
    assert ask(client, seed=9, extra_body=more).choices[0].message.content == expected
    assert ask(client, seed=-1).choices[0].message.content == ask(client, seed=-1).choices[0].message.content


def test_penalties_and_biases_are_those_of_a_loop(client: OpenAI) -> None:
    """Greedy, one token at a time, in plain Python; only the mask of UTF-8 is the engine's."""
    prompt, tokens = model().encode_prompt(PROMPT), list[int]()
    bias = {100: 2.0, 107: -100.0}
    matcher, mask = sg.compile(any_text(), VOCABULARY).matcher(), empty_masks(VOCABULARY)
    while len(tokens) < 30:
        row = [float(each) for each in model().start().extend([*prompt, *tokens])]
        for token in {*prompt, *tokens}:
            row[token] = row[token] / 1.2 if row[token] > 0 else row[token] * 1.2
        for token, count in Counter(tokens).items():
            row[token] -= 0.5 * count + 0.25
        for token, value in bias.items():
            row[token] += value
        matcher.fill_mask(mask, 0, budget=30 - len(tokens))
        best = max(allowed_ids(mask[0], VOCABULARY.size).tolist(), key=row.__getitem__)
        if best in VOCABULARY.eos:
            break
        tokens.append(best)
        matcher.accept(best)
    answer = ask(
        client,
        temperature=0,
        max_tokens=30,
        frequency_penalty=0.5,
        presence_penalty=0.25,
        logit_bias={str(token): value for token, value in bias.items()},
        extra_body={"repetition_penalty": 1.2},
    )
    assert answer.choices[0].message.content == VOCABULARY.decode(tokens).decode()


def test_an_answer_ends_before_its_first_stop(client: OpenAI) -> None:
    """Whatever the stops, streamed or not: it is the text without them, up to the first."""
    fields: dict[str, Any] = {"seed": 8, "max_tokens": 60, "logit_bias": {"0": -100}}
    whole = ask(client, **fields).choices[0].message.content
    stops_of = [[whole[20:22]], [whole[30:31], whole[12:17]], [whole[0:3]], [whole[-2:]], ["never said"], []]
    for stops in stops_of:
        ends = [(at + len(stop), at) for stop in stops if (at := whole.find(stop)) >= 0]
        expected = whole[: min(ends)[1]] if ends else whole
        answer = ask(client, **fields, stop=stops, logprobs=True)
        assert answer.choices[0].message.content == expected
        said = b"".join(bytes(entry.bytes or ()) for entry in answer.choices[0].logprobs.content)
        assert expected.encode().startswith(said)
        assert (answer.choices[0].finish_reason == "stop") == bool(ends)
        assert texts_of(ask(client, **fields, stop=stops, stream=True)) == expected


def test_stops_do_not_depend_on_the_pieces() -> None:
    """All ways to cut a text into pieces give the same."""
    for stops, expected in (
        (["bc", "abcd"], "xa"),
        (["abc", "bc"], "x"),
        (["aab"], "xabcdab"),
        (["cda", "dab"], "xab"),
        (["bb", "xb"], "xabcdab"),
    ):
        text = "xabcdab"
        for cuts in range(1 << (len(text) - 1)):
            watch, given, piece = StopWatch(stops), "", ""
            is_over = False
            for at, character in enumerate(text):
                piece += character
                if cuts >> at & 1 or at == len(text) - 1:
                    more, is_over = watch.feed(piece)
                    given, piece = given + more, ""
                    if is_over:
                        break
            assert given + ("" if is_over else watch.rest()) == expected


def test_beside_a_description_a_stop_is_refused_where_it_could_cut(client: OpenAI) -> None:
    """And taken where it cannot occur."""
    answer = ask(client, response_format=FORMAT, stop="zzz", seed=1, max_tokens=40)
    assert set(json.loads(answer.choices[0].message.content)) == {"on", "kind", "n"}
    with pytest.raises(openai.BadRequestError, match="may occur within what response_format describes") as caught:
        ask(client, response_format=FORMAT, stop=["true"])
    assert caught.value.param == "stop"


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("min_tokens", 3, "say in the description how long"),
        ("ignore_eos", True, "may end where its description"),
        ("stop_token_ids", [1], "say it with stop"),
        ("logit_bias", {"a": 1}, "expected ids of tokens"),
        ("logit_bias", {"999": 1}, "from 0 to 262"),
        ("top_logprobs", 2, "needs logprobs"),
        ("structgen", {"magic": 1}, "not supported"),
        ("structgen", {"sampler": "smd"}, "is 'smc' meant"),
        ("structgen", {"sampler": {"name": "smc", "particles": 1000}}, "at most 64"),
        ("structgen", {"sampler": {"name": "smc", "proposal": {"x": 1}}}, "expected a number"),
        ("structgen", {"marginals": True}, "describe the answer"),
        ("structgen", {"canonical": True}, "structgen.canonical"),
        ("repetition_penalty", 0, "greater than 0"),
    ],
)
def test_what_is_not_done_is_refused_by_name(client: OpenAI, field: str, value: object, reason: str) -> None:
    """With the reason, or what to do instead."""
    with pytest.raises(openai.BadRequestError, match=reason) as caught:
        ask(client, extra_body={field: value})
    assert str(caught.value.param).startswith(field)


def test_defaults_that_change_nothing_are_taken(client: OpenAI) -> None:
    """Clients of other servers send them all."""
    body = {"min_tokens": 0, "ignore_eos": False, "use_beam_search": False, "best_of": None, "length_penalty": 1.0}
    assert ask(client, seed=3, extra_body=body).choices == ask(client, seed=3).choices


@pytest.mark.parametrize(
    ("named", "sampler"),
    [("beam", Beam()), ({"name": "smc", "particles": 5}, SMC(5)), ("greedy", sg.Greedy())],
)
def test_samplers_by_name_are_those_of_generate(client: OpenAI, named: Any, sampler: Any) -> None:
    """With all outputs and their weights, where the sampler has some."""
    grammar = sg.json_schema(SCHEMA)
    body = {"structgen": {"sampler": named}}
    answer = ask(client, response_format=FORMAT, seed=6, max_tokens=40, extra_body=body)
    text, held = answer.choices[0].message.content, answer.choices[0].structgen
    if named in ("greedy", "beam"):
        assert text == sg.generate(model(), PROMPT, grammar, max_tokens=40, sampler=sampler).text
    if named == "greedy":
        assert "samples" not in held
        return
    samples = sg.sample(model(), PROMPT, grammar, max_tokens=40, sampler=sampler, seed=6)
    assert [each["text"] for each in held["samples"]] == [each.text for each in samples.results]
    assert text in {each.text for each in samples.results}
    assert [each["weight"] for each in held["samples"]] == pytest.approx(list(samples.weights))
    assert held["lossless"] == samples.lossless


def test_what_is_known_of_an_answer_is_in_its_report(client: OpenAI) -> None:
    """Forced tokens, sums of scores, marginals of fields, and events of a stream."""
    body = {"structgen": {"marginals": True, "events": True, "seed": 5}}
    fields: dict[str, Any] = {"response_format": FORMAT, "max_tokens": 40, "extra_body": body}
    answer = ask(client, **fields)
    held, text = answer.choices[0].structgen, answer.choices[0].message.content
    alone = sg.generate(
        model(), PROMPT, sg.json_schema(SCHEMA), max_tokens=40, sampler=sg.Multinomial(), seed=5, score_ending=True
    )
    assert (held["forced_tokens"], held["seed"], text) == (alone.stats.forced, 5, alone.text)
    assert (held["logprob"], held["log_z"]) == pytest.approx((alone.logprob, alone.log_z))
    value = json.loads(text)
    assert held["fields"][-1] == {"type": "field", "pointer": "", "value": value}
    assert [(each["pointer"], each["value"]) for each in held["fields"][:-1]] == [
        (f"/{name}", value[name]) for name in SCHEMA["properties"]
    ]
    marginals = {each["pointer"]: each["values"] for each in held["marginals"]}
    assert marginals["/n"] is None
    shares = {each["value"]: each["probability"] for each in marginals["/on"]}
    assert shares == pytest.approx(_shares_of_on(), abs=1e-6)
    streamed = list(ask(client, stream=True, **fields))
    reports = [chunk.choices[0].structgen for chunk in streamed if getattr(chunk.choices[0], "structgen", None)]
    assert [event for report in reports[:-1] for event in report["events"]] == held["fields"]
    assert reports[-1]["marginals"] == held["marginals"]


def _shares_of_on() -> dict[bool, float]:
    """The probability of ``true`` by a sum over all token sequences that begin the answer, up to that of the value."""
    matcher = sg.compile(sg.json_schema(SCHEMA), VOCABULARY).matcher()
    mask = empty_masks(VOCABULARY)

    def mass(tokens: list[int], left: float) -> tuple[float, float]:
        text = VOCABULARY.decode(tokens)
        if b"t" in text or b"f" in text:
            return (left, 0.0) if b"t" in text else (0.0, left)
        matcher.fill_mask(mask, 0)
        ids = allowed_ids(mask[0], VOCABULARY.size).tolist()
        weights = [math.exp(log_p(tokens)[token]) for token in ids]
        if len(ids) == 1 or matcher.forced_tokens():
            ids = matcher.forced_tokens()[:1] or ids
            weights = [1.0]
        found = (0.0, 0.0)
        for token, weight in zip(ids, weights, strict=True):
            matcher.accept(token)
            more = mass([*tokens, token], left * weight / math.fsum(weights))
            matcher.rollback(1)
            found = found[0] + more[0], found[1] + more[1]
        return found

    true, false = mass([], 1.0)
    return {True: true, False: false}


def test_a_stream_that_cannot_be_completed_is_refused_by_its_status(url: str) -> None:
    """As an answer that is no stream: once the status is sent, an error is an event that few clients look for."""
    body = {"messages": MESSAGES, "response_format": FORMAT, "max_tokens": 3}
    for path, asked in (("chat/completions", {}), ("completions", {"messages": None, "prompt": PROMPT})):
        answers = [httpx.post(f"{url}/v1/{path}", json={**body, **asked, "stream": each}) for each in (True, False)]
        assert [answer.status_code for answer in answers] == [400, 400]
        assert answers[0].json() == answers[1].json()
        assert answers[0].json()["error"]["code"] == "max_tokens_too_small"


def test_room_is_kept_while_a_request_is_prepared() -> None:
    """What was admitted is never refused later, when the status of its stream is sent."""
    runner = Runner(model(), max_running=1, max_queue=1)
    with runner.admitted(), runner.admitted():
        with pytest.raises(APIError, match="0 answers are being written and 2 wait"), runner.admitted():
            pytest.fail("there is no room for a third one")
        assert runner.waiting == 2
    assert runner.waiting == 0
    with pytest.raises(APIError, match="0 wait"), runner.admitted(3):
        pytest.fail("there is no room for three")


def test_defaults_of_samplers_are_no_larger_than_what_a_request_may_ask_for() -> None:
    """``rejection`` makes up to 10,000 tries by default, and a model that seldom keeps to a grammar makes them all."""
    options = {"sampler": {"name": "rejection", "samples": 2}}
    asked = parsed(ChatRequest, {"messages": MESSAGES, "structgen": options})
    assert sampler_of(asked) == RejectionTrie(2, max_tries=1024)


class Sleepy(HashModel):
    """Each choice takes a while."""

    choices = 0

    def logits(self, state: int, matched: int) -> Any:
        """Those of the model, later."""
        self.choices += 1
        time.sleep(0.02)
        return super().logits(state, matched)


def test_the_time_is_limited_within_samplers_too(serve: Callable[..., str]) -> None:
    """Also where all outputs are written before the first one is given out: the next pass does not begin."""
    model = Sleepy(VOCABULARY, seed=1)
    url = serve(model, time_limit_s=0.3)
    body = {"prompt": "?", "regex": "[ab]{400}", "max_tokens": 400, "structgen": {"sampler": "smc"}}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "time_limit"
    made = model.choices
    assert made < 400  # of several thousands
    time.sleep(0.1)
    assert model.choices == made
