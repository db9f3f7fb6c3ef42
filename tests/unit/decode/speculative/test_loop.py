"""Drafts in the loop: the output is the same as without drafts, seed for seed.

There are fewer passes where draft tokens are right.
"""

from __future__ import annotations

import json
import warnings
from typing import Any

import numpy as np
import pytest
from schema_as_written import as_written as json_schema
from scripted_drafters import Knowing, Noisy, ScriptedDrafter

from structgen.decode import Context, Greedy, Multinomial, Result, Sampler, generate, start_generation
from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask, Verified
from structgen.decode.speculative.speculation import Speculation
from structgen.engine import Vocabulary, compile
from structgen.errors import DraftWarning
from structgen.frontends.regex import regex
from structgen.grammar.algebra import select
from structgen.grammar.nodes import Grammar
from structgen.models.toy.hash import HashModel

RECORD = json_schema(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 130},
            "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
    }
)
GRAMMARS: dict[str, Grammar] = {
    "record": RECORD,
    "words": regex("([a-z]{1,6} ){2,6}[a-z]+"),
    "choice": select(["yes, of course", "yes, perhaps", "no"]),
    "free": regex(r"(?s).{1,40}"),
    "number": regex(r"-?(0|[1-9][0-9]*)(\.[0-9]{1,6})?"),
}
SAMPLERS: dict[str, Sampler] = {
    "greedy": Greedy(),
    "sampled": Multinomial(),
    "shaped": Multinomial(0.7, top_k=20, top_p=0.9),
}


def same(first: Result, second: Result) -> None:
    """Check that everything but the cost is equal."""
    assert first.tokens == second.tokens
    assert first.finish_reason == second.finish_reason
    for one, other in zip(first.steps, second.steps, strict=True):
        assert (one.token, one.forced) == (other.token, other.forced)
        assert one.logprob == pytest.approx(other.logprob, abs=1e-9)
        assert (one.log_z is None) == (other.log_z is None)
        if one.log_z is not None:
            assert one.log_z == pytest.approx(other.log_z, abs=1e-9)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", GRAMMARS)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_output_does_not_depend_on_drafts(json_vocabulary: Vocabulary, name: str, sampler: str) -> None:
    """With right draft tokens, wrong ones and random trees, tokens, scores and ends are those of the plain loop."""
    constraint = compile(GRAMMARS[name], json_vocabulary)
    for seed in range(6):
        model = HashModel(json_vocabulary, seed=seed, writes='{"name": "Ada", "age": 36, "tags": ["red"]}')
        options: dict[str, Any] = {
            "max_tokens": 40,
            "seed": seed,
            "sampler": SAMPLERS[sampler],
            "score_ending": seed % 2 == 0,
        }
        plain = generate(model, "say", constraint, drafter=None, **options)
        prompt = plain.stats.prompt_tokens
        for drafter in (
            Knowing(tokens=plain.tokens, prompt_tokens=prompt),
            Knowing(tokens=plain.tokens[::-1], prompt_tokens=prompt),
            Noisy(),
            Noisy(width=1, depth=6),
        ):
            drafted = generate(model, "say", constraint, drafter=drafter, **options)
            same(plain, drafted)
            assert drafted.stats.forwards <= plain.stats.forwards
            assert drafted.stats.drafts is not None


def test_right_drafts_save_passes(json_vocabulary: Vocabulary) -> None:
    """With four right tokens at a time, one pass in five remains, and the counts agree."""
    model = HashModel(json_vocabulary, seed=1)
    constraint = compile(regex("[a-z]{30}"), json_vocabulary)
    plain = generate(model, "say", constraint, max_tokens=40, drafter=None)
    knowing = Knowing(tokens=plain.tokens, prompt_tokens=plain.stats.prompt_tokens)
    drafted = generate(model, "say", constraint, max_tokens=40, drafter=knowing)
    assert drafted.tokens == plain.tokens
    choices = plain.stats.forwards
    assert drafted.stats.forwards == -(-choices // 5)
    stats = drafted.stats.drafts
    assert stats is not None
    assert stats.saved_forwards == choices - drafted.stats.forwards
    assert stats.accepted == stats.drafted == drafted.stats.accepted
    assert stats.sources["knowing"].rate == 1
    assert sum(stats.lengths.values()) == stats.passes
    assert sum(length * count for length, count in stats.lengths.items()) == stats.accepted
    assert drafted.stats.tokens_per_forward > 4


def test_drafters_learn_from_every_pass(json_vocabulary: Vocabulary) -> None:
    """Rows are those of a fresh session after the same tokens, node by node."""
    model = HashModel(json_vocabulary, seed=5)
    noisy = Noisy()
    with Context(model, model.encode_prompt("say")) as context:
        generation = start_generation(context, compile(RECORD, json_vocabulary), max_tokens=40, drafter=noisy)
        for _ in generation:
            pass
        tokens = context.tokens
    assert len(noisy.seen) == generation.result().stats.forwards
    for verified in noisy.seen:
        for node in range(ROOT, len(verified.tree)):
            before = [*tokens[: verified.start], *(verified.tree.prefix(node) if node != ROOT else [])]
            np.testing.assert_array_equal(verified.rows[1 + node], model.start().extend(before))


class _Failing(ScriptedDrafter):
    """Raises in one of its methods."""

    def __init__(self, where: str) -> None:
        super().__init__()
        object.__setattr__(self, "where", where)

    def _fail(self, here: str) -> None:
        if self.where == here:  # type: ignore[attr-defined]
            raise KeyError("lost")

    def start(self, context: Context, task: DraftTask) -> Drafting:
        self._fail("start")
        return self

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        self._fail("propose")
        return DraftTree.chain([99_999] if self.where == "invalid" else [5])  # type: ignore[attr-defined]

    def observe(self, verified: Verified) -> None:
        self._fail("observe")

    def close(self) -> None:
        self._fail("close")


@pytest.mark.parametrize("where", ["start", "propose", "observe", "close", "invalid"])
def test_a_drafter_that_fails_is_dropped(json_vocabulary: Vocabulary, where: str) -> None:
    """There is one warning, whatever fails; the output is that of the plain loop."""
    model = HashModel(json_vocabulary, seed=2)
    plain = generate(model, "say", RECORD, max_tokens=40, drafter=None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        drafted = generate(model, "say", RECORD, max_tokens=40, drafter=_Failing(where))
    assert drafted.tokens == plain.tokens
    assert [each.category for each in caught] == [DraftWarning]
    assert "_failing" in str(caught[0].message)


@pytest.mark.parametrize(
    ("drafter", "message"), [(object(), "an object"), ("auot", "the text 'auot'"), (HashModel, "the type")]
)
def test_what_is_no_drafter_is_refused(json_vocabulary: Vocabulary, drafter: Any, message: str) -> None:
    """The error comes before any pass."""
    with pytest.raises(TypeError, match=f"found {message}"):
        generate(HashModel(json_vocabulary), "say", RECORD, drafter=drafter)


def test_settings_are_checked() -> None:
    """A budget of no tokens is refused, and so is anything but a drafter or verifier."""
    with pytest.raises(ValueError, match="budget"):
        Speculation(Noisy(), budget=0)
    with pytest.raises(TypeError, match="Drafter"):
        Speculation("noisy")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Verifier"):
        Speculation(Noisy(), verifier=Greedy())  # type: ignore[arg-type]


@pytest.mark.exhaustive
def test_a_budget_ends_inside_a_draft(json_vocabulary: Vocabulary) -> None:
    """Whatever is drafted, the output is complete within its tokens."""
    model = HashModel(json_vocabulary, seed=4, writes='{"name": "Grace Hopper", "age": 85, "tags": ["blue", "red"]}')
    constraint = compile(RECORD, json_vocabulary)
    least = constraint.min_tokens()
    for most in range(least, least + 12):
        plain = generate(model, "say", constraint, max_tokens=most, drafter=None)
        for drafter in (Knowing(tokens=plain.tokens, prompt_tokens=plain.stats.prompt_tokens, length=9), Noisy()):
            drafted = generate(model, "say", constraint, max_tokens=most, drafter=drafter)
            same(plain, drafted)
            assert len(drafted.tokens) <= most
            json.loads(drafted.text)


def test_what_is_rejected_is_taken_back_with_its_drafts(json_vocabulary: Vocabulary) -> None:
    """A generation whose outputs are rejected takes the path of the plain one."""
    model = HashModel(json_vocabulary, seed=8)
    constraint = compile(GRAMMARS["words"], json_vocabulary)

    def outputs(drafter: Drafter | None) -> list[tuple[int, ...]]:
        found = []
        with Context(model, model.encode_prompt("say")) as context:
            generation = start_generation(context, constraint, max_tokens=24, sampler=Multinomial(), drafter=drafter)
            for keep in (0, 3, 5, 2):
                for _ in generation:
                    pass
                found.append(generation.tokens)
                generation.reject(len(generation.tokens), keep=min(keep, len(generation.tokens) - 1))
        return found

    assert outputs(Noisy()) == outputs(None)
    assert outputs(Noisy(width=2, depth=5)) == outputs(None)
