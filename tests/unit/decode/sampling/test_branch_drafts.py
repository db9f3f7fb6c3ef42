"""Drafts for particles: samples, weights and estimates equal those without drafts, in fewer passes."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drafter_tasks import PlainModel
from exact_target import exact_target, log_total, z_score
from layered_llama import write_llama
from scripted_drafters import Knowing, Noisy, ScriptedDrafter

from structgen.decode import Context, Multinomial, generate
from structgen.decode.potentials import potential
from structgen.decode.sampling import AWRS, SMC, BestOf, Samples, sample
from structgen.decode.sampling.joint_draft import DICTATED, DictatedText
from structgen.decode.sampling.proposal import RESAMPLING
from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.drafter import Drafting, DraftState, DraftTask
from structgen.decode.speculative.drafters.auto import Auto, forget
from structgen.decode.speculative.speculation import Speculation
from structgen.engine import Vocabulary, compile
from structgen.errors import DraftWarning
from structgen.frontends.json_schema import json_schema
from structgen.frontends.regex import regex
from structgen.grammar.algebra import select
from structgen.grammar.nodes import Grammar
from structgen.methods.samplers.beam import Beam
from structgen.models import HashModel
from structgen.models.toy.hash import HashSession
from structgen.samplers import Lookahead

TOKENS = [b"", b"a", b"b", b"ab", b"c", b"ca"]
TOY = Vocabulary(TOKENS, eos=[0])
MYOPIC = "a{4}|(b|c)(a|b|c){2,3}"
RECORD = json_schema(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 6}, "kind": {"enum": ["red", "green"]}},
        "required": ["name", "kind"],
        "additionalProperties": False,
    }
)
WISH = '{"name": "Ada", "kind": "red"}'
GRAMMARS: dict[str, Grammar] = {
    "record": RECORD,
    "words": regex("([a-z]{1,4} ){1,3}[a-z]+"),
    "choice": select(["yes, of course", "yes, perhaps", "no"]),
}


@potential
def even(text: str) -> bool:
    return text.count("a") % 2 == 0


@potential
def likes_a(text: str) -> float:
    return 0.7 * text.count("a")


@likes_a.early
def likes_a(text: str) -> float:
    return 0.5 * text.count("a")


class ChainSession(HashSession):
    """Has the methods for trees, but its model does not allow trees."""

    @property
    def can_branch(self) -> bool:
        return False


class ChainModel(HashModel):
    """Packs sequences, and runs no trees."""

    def start(self) -> HashSession:
        return ChainSession(self)


def same(plain: Samples, drafted: Samples) -> None:
    """Check that everything but the cost is equal, to the last bit."""
    assert [each.log_weight for each in drafted.samples] == [each.log_weight for each in plain.samples]
    assert [each.score for each in drafted.samples] == [each.score for each in plain.samples]
    assert [each.particles for each in drafted.samples] == [each.particles for each in plain.samples]
    for one, other in zip(plain.results, drafted.results, strict=True):
        assert (one.tokens, one.steps, one.finish_reason) == (other.tokens, other.steps, other.finish_reason)
    for name in ("log_evidence", "standard_error", "history", "masks", "queries", "tokens", "verification"):
        assert getattr(plain, name) == getattr(drafted, name), name


def knowing(plain: Samples, **options: Any) -> Knowing:
    result = plain.results[0]
    return Knowing(tokens=result.tokens, prompt_tokens=result.stats.prompt_tokens, **options)


def drafters(plain: Samples) -> list[Any]:
    """Right and wrong drafters, some wherever they pay, some wherever they draft."""
    found: list[Any] = ["auto", Noisy(), Speculation(Noisy(width=1, depth=6), cost="assumed"), Speculation(Auto())]
    if plain.results:
        found += [knowing(plain), Speculation(knowing(plain, length=9), cost="assumed", budget=6)]
    return found


SAMPLERS: dict[str, Any] = {
    **{f"smc-{particles}": SMC(particles) for particles in (1, 2, 5, 16)},
    **{scheme: SMC(6, ess_threshold=1, resampling=scheme) for scheme in RESAMPLING},
    "importance": SMC(4, ess_threshold=0),
    "scan": SMC(4, proposal=Multinomial()),
    "no-mask": SMC(3, proposal=AWRS(mask_after=None)),
    "late-mask": SMC(3, proposal=AWRS(mask_after=2)),
    "best-of": BestOf(5),
    "vote": BestOf(4, vote=1.0),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if at % 2 else ()) for at, name in enumerate(SAMPLERS)]
)
def test_samples_do_not_depend_on_drafts(json_vocabulary: Vocabulary, name: str) -> None:
    """This holds for any draft, whether the model packs sequences, runs them one by one, or runs no trees."""
    turn = list(SAMPLERS).index(name)
    for index, (kind, grammar) in enumerate(GRAMMARS.items()):
        potentials = [[], [even], [likes_a]][(index + turn) % 3]
        writes = WISH if kind == "record" else "yes, perhaps"
        model = HashModel(json_vocabulary, seed=index, writes=writes)
        options: dict[str, Any] = {
            "sampler": SAMPLERS[name],
            "potentials": potentials,
            "max_tokens": 30,
            "seed": index + 7,
        }
        constraint = compile(grammar, json_vocabulary)
        plain = sample(model, "say", constraint, drafter=None, **options)
        assert plain.drafts is None
        asked = drafters(plain)[(index + turn) % 2 :: 2]
        found = [sample(model, "say", constraint, drafter=drafter, **options) for drafter in asked]
        chains = ChainModel(json_vocabulary, seed=index, writes=writes)
        found.append(sample(chains, "say", constraint, drafter=Noisy(), **options))
        for drafted in found:
            same(plain, drafted)
            assert drafted.drafts is not None
            assert drafted.forwards + drafted.drafts.saved_forwards == plain.forwards
        alone = sample(PlainModel(model), "say", constraint, drafter=None, **options)
        for drafter in drafters(plain)[1::3]:
            drafted = sample(PlainModel(model), "say", constraint, drafter=drafter, **options)
            same(alone, drafted)
            assert drafted.drafts is not None
            assert drafted.forwards + drafted.drafts.saved_forwards == alone.forwards


def test_a_look_at_the_rest_changes_nothing() -> None:
    """Draft tokens do not change the arguments of potentials and expectations either."""
    model = HashModel(TOY, seed=3)
    constraint = compile(regex(MYOPIC), TOY)
    sampler = SMC(4, lookahead=Lookahead(horizon=3, strength=0.25))
    for seed in range(8):
        options: dict[str, Any] = {"sampler": sampler, "potentials": [likes_a], "max_tokens": 4, "seed": seed}
        plain = sample(model, "ab", constraint, drafter=None, **options)
        for drafter in drafters(plain):
            same(plain, sample(model, "ab", constraint, drafter=drafter, **options))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["even", pytest.param("none", marks=pytest.mark.nightly)])
def test_estimates_stay_unbiased(name: str) -> None:
    """Over 150 runs with random trees after every particle, one z-score agrees with all outputs."""
    model = HashModel(TOY, seed=3)
    constraint = compile(regex(MYOPIC), TOY)
    potentials = [even] if name == "even" else []

    def score(text: str) -> float:
        return 0.0 if name == "none" or text.count("a") % 2 == 0 else -math.inf

    target = exact_target(model, "ab", MYOPIC, 4, score)
    found = [
        sample(
            model,
            "ab",
            constraint,
            sampler=SMC(6, ess_threshold=1),
            potentials=potentials,
            max_tokens=4,
            seed=seed,
            drafter=Noisy(),
        )
        for seed in range(150)
    ]
    values = [math.exp((each.log_evidence or -math.inf) - log_total(target)) for each in found]
    assert abs(z_score(values, 1.0)) < 6
    assert {result.tokens for each in found for result in each.results} <= set(target)
    assert sum(each.drafts.saved_forwards for each in found if each.drafts is not None) > 80


def test_right_drafts_save_passes(json_vocabulary: Vocabulary) -> None:
    """With four right tokens at a time, a single particle needs one pass in five, and the counts agree."""
    model = HashModel(json_vocabulary, seed=1)
    constraint = compile(regex("[a-z]{30}"), json_vocabulary)
    options: dict[str, Any] = {"sampler": SMC(1), "max_tokens": 40}
    plain = sample(model, "say", constraint, drafter=None, **options)
    drafted = sample(model, "say", constraint, drafter=knowing(plain), **options)
    same(plain, drafted)
    assert drafted.forwards == -(-plain.forwards // 5)
    stats = drafted.drafts
    assert stats is not None
    assert stats.saved_forwards == plain.forwards - drafted.forwards
    assert stats.accepted == stats.drafted
    assert stats.sources["knowing"].rate == 1
    assert sum(stats.lengths.values()) == stats.passes
    assert sum(length * count for length, count in stats.lengths.items()) == stats.accepted


@pytest.mark.parametrize("particles", [1, 8])
@pytest.mark.parametrize("packed", [True, False])
def test_dictated_text_saves_passes(particles: int, packed: bool) -> None:
    """By default only dictated text is drafted for several particles.

    Each of its tokens has its distribution.

    Every token is one byte, so there is one spelling only.
    """
    vocabulary = Vocabulary([b"", *(bytes([byte]) for byte in range(32, 127))], eos=[0])
    grammar = regex("(red|blue), and nothing else; (one|two) of them")
    hashed = HashModel(vocabulary, seed=4)
    model: Any = hashed if packed else PlainModel(hashed)
    options: dict[str, Any] = {"sampler": SMC(particles, ess_threshold=0), "max_tokens": 60, "seed": 3}
    plain = sample(model, "say", grammar, drafter=None, **options)
    drafted = sample(model, "say", grammar, **options)
    same(plain, drafted)
    assert drafted.drafts is not None
    assert drafted.forwards < 0.5 * plain.forwards
    if particles > 1:
        assert set(drafted.drafts.sources) == {DICTATED}
        assert drafted.drafts.sources[DICTATED].rate > 0.8


def test_what_is_known_of_a_sequence_stays_known_where_it_splits() -> None:
    """Two tokens are allowed at every place and both are drafted.

    After the first pass, distributions are rarely missing.
    """
    vocabulary = Vocabulary([b"", b"a", b"b"], eos=[0])

    class Both(ScriptedDrafter):
        def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
            tree = DraftTree()
            layer = [ROOT]
            for _ in range(3):
                layer = [tree.add(parent, token, 0.5) for parent in layer for token in (1, 2)]
            return tree

    options: dict[str, Any] = {"sampler": SMC(12, ess_threshold=0), "max_tokens": 9, "seed": 1}
    model = HashModel(vocabulary, seed=2)
    plain = sample(model, "ab", regex("(a|b){8}"), drafter=None, **options)
    drafted = sample(model, "ab", regex("(a|b){8}"), drafter=Both(), **options)
    same(plain, drafted)
    assert plain.forwards == 9
    assert drafted.forwards == 3


def test_particles_of_a_network_are_the_same(tmp_path: Path) -> None:
    """On a small Llama with packed passes: the same outputs, equal weights but for rounding, and fewer passes."""
    torch = pytest.importorskip("torch")
    from structgen.models.llama.model import LlamaModel

    folder = write_llama(tmp_path / "llama", layers=2)
    model = LlamaModel(folder, name="small", device=torch.device("cpu"), dtype=torch.float32)
    constraint = compile(
        select(["the theory of it all", "the thesis of nothing"]) | regex("[a-c]{3,6}"), model.vocabulary
    )
    saved = 0
    for seed, particles in enumerate((1, 3, 8, 8)):
        options: dict[str, Any] = {"sampler": SMC(particles, ess_threshold=0.7), "max_tokens": 24, "seed": seed}
        plain = sample(model, "the", constraint, drafter=None, **options)
        for drafter in ("auto", Noisy(), knowing(plain), Speculation(knowing(plain, length=9), cost="assumed")):
            drafted = sample(model, "the", constraint, drafter=drafter, **options)
            assert [each.tokens for each in drafted.results] == [each.tokens for each in plain.results]
            assert drafted.log_evidence == pytest.approx(plain.log_evidence, abs=1e-4)
            np.testing.assert_allclose(drafted.weights, plain.weights, atol=1e-4)
            saved += plain.forwards - drafted.forwards
            assert drafted.forwards <= plain.forwards
    assert saved > 20


def test_generate_hands_the_drafter_on(json_vocabulary: Vocabulary) -> None:
    """This holds for an output of a sampler of whole outputs, with the costs of its samples, and for a proposal."""
    model = HashModel(json_vocabulary, seed=2, writes=WISH)
    forget(json_vocabulary)
    for sampler in (SMC(4), AWRS(), BestOf(3)):
        options: dict[str, Any] = {"sampler": sampler, "max_tokens": 30, "seed": 5, "potentials": [even]}
        plain = generate(model, "say", RECORD, drafter=None, **options)
        assert plain.stats.drafts is None
        for drafter in ("auto", Noisy(), Knowing(tokens=plain.tokens, prompt_tokens=plain.stats.prompt_tokens)):
            drafted = generate(model, "say", RECORD, drafter=drafter, **options)
            assert (drafted.tokens, drafted.steps) == (plain.tokens, plain.steps)
            assert drafted.stats.drafts is not None
            assert drafted.stats.drafted == drafted.stats.drafts.drafted
            assert drafted.stats.forwards + drafted.stats.drafts.saved_forwards == plain.stats.forwards
        one_by_one = generate(model, "say", RECORD, drafter=Noisy(), jump_forward=False, **options)
        assert one_by_one.tokens == plain.tokens
        assert one_by_one.stats.drafts is None


def test_searches_look_at_nothing(json_vocabulary: Vocabulary) -> None:
    """A beam continues in as many ways as it has places, so one draft token saves too little; a drafter is refused."""
    model = HashModel(json_vocabulary, seed=2)
    plain, drafted = (
        sample(model, "say", RECORD, sampler=Beam(3), max_tokens=30, drafter=drafter) for drafter in (None, "auto")
    )
    assert [each.tokens for each in plain.results] == [each.tokens for each in drafted.results]
    assert plain.forwards == drafted.forwards
    assert drafted.drafts is None
    with pytest.raises(ValueError, match="not for sampler Beam"):
        sample(model, "say", RECORD, sampler=Beam(3), max_tokens=30, drafter=Noisy())


class Failing(ScriptedDrafter):
    """Raises when it is asked."""

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        raise KeyError("lost")


def test_a_drafter_that_fails_is_dropped(json_vocabulary: Vocabulary) -> None:
    """One warning comes for each sequence that it drafted for; the samples are those without it."""
    model = HashModel(json_vocabulary, seed=2)
    options: dict[str, Any] = {"sampler": SMC(1), "max_tokens": 30}
    plain = sample(model, "say", RECORD, drafter=None, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        drafted = sample(model, "say", RECORD, drafter=Failing(), **options)
    same(plain, drafted)
    assert [each.category for each in caught] == [DraftWarning]


def test_drafters_see_where_each_sequence_stands(json_vocabulary: Vocabulary) -> None:
    """Each sequence has its own drafting, whose context agrees with its matcher; all are closed at the end."""
    constraint = compile(GRAMMARS["words"], json_vocabulary)

    class Drawing(Drafting):
        def __init__(self, context: Context, task: DraftTask) -> None:
            self.context, self.task, self.closed = context, task, 0

        def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
            assert context is self.context
            output = context.tokens[self.task.prompt_tokens :]
            matcher = constraint.matcher()
            assert all(matcher.accept(token) for token in output)
            assert matcher.state_id == state.matcher.state_id
            assert state.remaining == 20 - len(output)
            mask = np.zeros((1, len(state.mask)), dtype=np.int32)
            if matcher.needs_budget_mask(state.remaining):
                matcher.fill_mask_within(mask, 0, state.remaining)
            else:
                matcher.fill_mask(mask)
            np.testing.assert_array_equal(mask[0], state.mask)
            return DraftTree.chain([5, 6])

        def close(self) -> None:
            self.closed += 1

    begun: list[Drawing] = []

    class Recording(ScriptedDrafter):
        def start(self, context: Context, task: DraftTask) -> Drafting:
            drafting = Drawing(context, task)
            begun.append(drafting)
            return drafting

    model = HashModel(json_vocabulary, seed=6)
    options: dict[str, Any] = {"sampler": SMC(6), "max_tokens": 20, "seed": 4}
    plain = sample(model, "say", constraint, drafter=None, **options)
    same(plain, sample(model, "say", constraint, drafter=Recording(), **options))
    assert len(begun) > 1
    assert all(each.closed == 1 for each in begun)


def test_what_is_no_drafter_is_refused(json_vocabulary: Vocabulary) -> None:
    """The error comes before any pass."""
    drafter: Any = 3
    for call in (sample, generate):
        with pytest.raises(TypeError, match="found 3"):
            call(HashModel(json_vocabulary), "say", RECORD, sampler=SMC(2), drafter=drafter)


def test_dictated_text_ends_where_something_is_chosen() -> None:
    """It is found after the root and each draft token, within the budget and the tokens left; the matcher stays."""
    vocabulary = Vocabulary([b"", *(bytes([byte]) for byte in range(97, 123))], eos=[0])
    constraint = compile(regex("abc(x|y)def"), vocabulary)
    matcher = constraint.matcher()
    dictated = DictatedText(constraint)

    def ids(text: str) -> list[int]:
        return vocabulary.tokenize(text)

    tree = DraftTree()
    dictated.extend(tree, matcher, remaining=20, budget=20)
    assert tree.tokens == ids("abc")
    assert matcher.history_length == 0
    tree = DraftTree.chain(ids("abcx"), 0.5)
    dictated.extend(tree, matcher, remaining=20, budget=20)
    assert tree.tokens == ids("abcxdef")
    assert set(tree.sources[4:]) == {DICTATED}
    for remaining, budget, expected in ((20, 5, "abcxd"), (7, 20, "abcx")):
        tree = DraftTree.chain(ids("abcx"), 0.5)
        dictated.extend(tree, matcher, remaining=remaining, budget=budget)
        assert vocabulary.decode(tree.tokens).decode().startswith(expected)
    assert matcher.history_length == 0


def test_other_spellings_make_dictated_text_less_likely() -> None:
    """Counts are weighted by the model's probability: a quarter elsewhere counts as a quarter."""
    vocabulary = Vocabulary([b"", b"a", b"b", b"ab"], eos=[0])
    constraint = compile(regex("abab"), vocabulary)
    dictated = DictatedText(constraint)
    tree = DraftTree()
    dictated.extend(tree, constraint.matcher(), remaining=9, budget=9)
    assert tree.tokens == [3, 3]
    before = dictated.confidence
    dictated.learn(tree, ROOT, [(3, math.log(0.6)), (1, math.log(0.2))])
    assert dictated.confidence == pytest.approx((10 * before + 0.75) / 11)
    dictated.learn(tree, 0, [])
    dictated.learn(tree, 1, [(1, -1.0)])  # nothing was drafted there
    assert dictated.confidence == pytest.approx((10 * before + 0.75) / 11)
