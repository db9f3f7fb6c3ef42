"""Weights and evidence are unbiased: all outcomes of whole runs are enumerated, each with its exact probability.

For every output, the sum over all outcomes of their probability times the weight of the output is the target of the
output, which ``Toy`` computes from the model and Python's ``re``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from particle_outcomes import runs_of_particles
from toy_outputs import NO_EOS, TWO_EOS, Output, Toy, few_b, palindrome, wants_c
from trie_walk_outcomes import runs_of

from structgen.decode import Greedy, Multinomial
from structgen.decode.potentials.canonical import Canonical
from structgen.decode.sampling import Samples, sample
from structgen.decode.sampling.sampler_run import weighted_sampler
from structgen.decode.step.sampler import GumbelMax
from structgen.engine import Vocabulary
from structgen.methods.samplers import trie_sampler
from structgen.models.toy.hash import HashDiffusion
from structgen.samplers import AWRS, SMC, ASAp, Beam, BestOf, ExactBest, Lookahead, RejectionTrie

TINY = {
    "letters": Toy("[abc]", 1, seed=1),
    "two eos": Toy("[ac]", 1, TWO_EOS, seed=3),
    "no eos": Toy("[ab]c?", 2, NO_EOS, seed=3),
    "scores": Toy("[ac]", 1, NO_EOS, seed=6, score=wants_c),
}
SMALL = {
    "letters": Toy("[ab]b?", 2, seed=1),
    "two eos": Toy("a[bc]?|c", 2, TWO_EOS, seed=2),
    "no eos": Toy("ab|c[ab]", 2, NO_EOS, seed=3),
    "few b": Toy("[ab]{1,2}", 2, seed=4, always=few_b),
    "scores": Toy("a|cc?", 2, seed=6, score=wants_c),
    "palindromes": Toy("a[ac]?", 2, seed=5, score=palindrome),
    "branches": Toy("a[bc]?|ca", 2, seed=1, always=few_b, score=palindrome),
}
EXACT = 1e-12
exhaustive = pytest.mark.exhaustive


class Averages:
    """Means over all outcomes.

    Attributes:
        total: sum of the probabilities.
        evidence: of the estimated evidence.
        log_evidence: of its logarithm; minus infinity if it may be zero.
        weight: by output, of the evidence times its normalised weight.
        share: by output, of its normalised weight.
        count: by output, of the share of particles that wrote it.
    """

    def __init__(self, runs: Iterable[tuple[float, Samples]]) -> None:
        self.total = self.evidence = self.log_evidence = 0.0
        self.square = self.claimed = 0.0
        self.weight: dict[Output, float] = defaultdict(float)
        self.share: dict[Output, float] = defaultdict(float)
        self.count: dict[Output, float] = defaultdict(float)
        for probability, found in runs:
            self.total += probability
            evidence = math.exp(-math.inf if found.log_evidence is None else found.log_evidence)
            self.evidence += probability * evidence
            self.square += probability * evidence**2
            self.claimed += probability * (evidence * (found.standard_error or 0)) ** 2
            self.log_evidence += probability * (math.log(evidence) if evidence else -math.inf)
            for one, weight in zip(found.samples, found.weights, strict=True):
                self.weight[one.result.tokens] += probability * evidence * weight
                self.share[one.result.tokens] += probability * weight
                self.count[one.result.tokens] += probability * one.particles / found.particles


def assert_unbiased(toy: Toy, averages: Averages) -> None:
    assert averages.total == pytest.approx(1, abs=EXACT)
    assert averages.evidence == pytest.approx(toy.z, abs=EXACT)
    assert dict(averages.weight) == pytest.approx({x: math.exp(log) for x, log in toy.target.items()}, abs=EXACT)


# one weighted output


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("sampler", [AWRS(most_rejects=2), AWRS(most_rejects=1), Multinomial()], ids=repr)
def test_one_weighted_output_is_unbiased(name: str, sampler: AWRS | Multinomial) -> None:
    toy = SMALL[name]
    runs = list(runs_of_particles(toy, weighted_sampler(sampler)))
    assert_unbiased(toy, Averages(runs))
    for _, found in runs:
        for one in found.samples:
            assert one.log_weight == found.log_evidence


@exhaustive
@pytest.mark.parametrize(
    "name", ["two eos", *(pytest.param(each, marks=pytest.mark.nightly) for each in ("few b", "palindromes"))]
)
@pytest.mark.parametrize(("most_rejects", "mask_after"), [(2, None), (2, 1), (3, 1), (1, 1), (2, 2)])
def test_weights_without_a_mask_are_unbiased(name: str, most_rejects: int, mask_after: int | None) -> None:
    """Giving up and filling the mask may meet in any order."""
    toy = SMALL[name]
    sampler = weighted_sampler(AWRS(most_rejects=most_rejects, mask_after=mask_after))
    assert_unbiased(toy, Averages(runs_of_particles(toy, sampler)))


def test_both_estimators_are_enumerated() -> None:
    """A control: the geometric and the recursive one occur above."""
    likeliest = [float(np.exp(toy.distribution(())).max()) for toy in SMALL.values()]
    masked = [
        max(weights) / sum(weights)
        for toy in SMALL.values()
        for weights in [list(map(math.exp, toy.choices(()).values()))]
    ]
    assert min(likeliest + masked) < 2 / 3 < max(masked)


def test_without_its_weight_an_output_is_one_of_masking() -> None:
    """A control, and what ``Samples.mean`` of one output is: locally constrained decoding."""
    toy = SMALL["letters"]
    averages = Averages(runs_of_particles(toy, weighted_sampler(AWRS())))
    assert dict(averages.share) == pytest.approx(toy.lcd(), abs=EXACT)
    assert max(abs(averages.share[x] - p) for x, p in toy.normalised.items()) > 0.02


@pytest.mark.parametrize("sampler", [AWRS(), Multinomial()], ids=repr)
def test_sample_takes_samplers_of_tokens_that_have_weights(sampler: AWRS | Multinomial) -> None:
    toy = SMALL["few b"]
    for seed in range(5):
        found = toy.samples(sampler, seed=seed)  # type: ignore[arg-type]
        same = toy.samples(SMC(1, ess_threshold=0, proposal=sampler), seed=seed)
        (one,) = found.samples
        assert found.lossless
        assert one.log_weight == found.log_evidence == same.log_evidence
        assert one.result.tokens == same.samples[0].result.tokens


@pytest.mark.parametrize(
    "sampler", [Greedy(), Multinomial(temperature=0.5), Multinomial(top_k=2), GumbelMax()], ids=repr
)
def test_samplers_of_tokens_without_weights_are_refused(sampler: Any) -> None:
    with pytest.raises(ValueError, match=r"chooses tokens without weights.*take Multinomial\(\).*generate") as caught:
        SMALL["letters"].samples(sampler)
    assert repr(sampler)[:20] in str(caught.value)


def test_classes_and_other_objects_are_refused() -> None:
    kinds: list[Any] = [AWRS, SMC]
    for kind in kinds:
        with pytest.raises(TypeError, match=f"pass an object: {kind.__name__}\\(\\)"):
            SMALL["letters"].samples(kind)
    with pytest.raises(TypeError, match="expected a sampler; found the text 'awrs'"):
        SMALL["letters"].samples("awrs")  # type: ignore[arg-type]


# particles


PARTICLES = {
    "default": SMC(2, proposal=AWRS(most_rejects=2)),
    "importance": SMC(2, ess_threshold=0, proposal=Multinomial()),
    "thinned": SMC(2, ess_threshold=0.01, proposal=Multinomial()),
    "lookahead": SMC(2, proposal=Multinomial(), lookahead=Lookahead(horizon=2, strength=0.5)),
    "stratified": SMC(2, ess_threshold=1, proposal=Multinomial()),
    "systematic": SMC(2, ess_threshold=1, resampling="systematic", proposal=Multinomial()),
    "residual": SMC(2, ess_threshold=1, resampling="residual", proposal=Multinomial()),
    "three": SMC(3, ess_threshold=0.8, proposal=Multinomial()),
    "multinomial": SMC(2, ess_threshold=1, resampling="multinomial", proposal=Multinomial()),
}


@pytest.mark.parametrize("sampler", PARTICLES)
@pytest.mark.parametrize(
    "name", ["letters", "no eos", "scores", pytest.param("few b", marks=pytest.mark.nightly), "branches"]
)
def test_particles_are_unbiased(name: str, sampler: str) -> None:
    """Whatever is proposed, resampled or thinned; the mean of the logarithm is too low."""
    toy = SMALL[name]
    runs = list(runs_of_particles(toy, PARTICLES[sampler]))
    averages = Averages(runs)
    assert_unbiased(toy, averages)
    assert averages.log_evidence < math.log(toy.z)
    for _, found in runs:
        total = sum(math.exp(one.log_weight) for one in found.samples)
        assert total / found.particles == pytest.approx(math.exp(found.log_evidence or 0.0), abs=EXACT)


def test_particles_are_resampled_and_thinned_in_these_runs() -> None:
    """A control of the cases above."""
    toy = SMALL["letters"]
    rounds = [each for _, found in runs_of_particles(toy, PARTICLES["stratified"]) for each in found.history]
    assert any(each.resampled for each in rounds)
    thinned = [found for _, found in runs_of_particles(toy, PARTICLES["thinned"])]
    assert any(sum(one.particles for one in found.samples) < 2 for found in thinned)


# rejection with a trie


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("outputs", [2, pytest.param(3, marks=[exhaustive, pytest.mark.nightly])])
def test_the_evidence_of_rejection_is_unbiased(name: str, outputs: int) -> None:
    """Though the run stops at an acceptance; and each output has the probability of the target."""
    toy = TINY[name]
    averages = Averages(runs_of(toy, RejectionTrie(outputs, batch=1)))
    assert_unbiased(toy, averages)
    assert averages.log_evidence < math.log(toy.z)
    assert dict(averages.share) == pytest.approx(toy.normalised, abs=EXACT)
    if outputs == 3:
        assert 0.5 < averages.claimed / (averages.square - averages.evidence**2) < 2


@pytest.mark.parametrize("name", ["two eos", "no eos", "scores"])
def test_tries_in_batches_are_unbiased(name: str) -> None:
    """A batch may go on beyond the last acceptance."""
    assert_unbiased(TINY[name], Averages(runs_of(TINY[name], RejectionTrie(2, batch=2))))


def test_a_bound_above_the_scores_is_unbiased() -> None:
    toy = TINY["scores"]
    assert_unbiased(toy, Averages(runs_of(toy, RejectionTrie(2, batch=1, score_bound=0.25))))


@pytest.mark.parametrize("outputs", [2, 3])
def test_the_rate_of_acceptances_would_be_biased(outputs: int) -> None:
    """A control: acceptances divided by the sum of ``1 / s``, where ``s`` is the success before each try."""
    toy = TINY["no eos"]
    successes: list[list[float]] = []

    biased = 0.0
    with pytest.MonkeyPatch.context() as patch:
        original = trie_sampler.RejectionTrie._evidence

        def recorded(self: RejectionTrie, accepted: int, logs: list[float]) -> Any:
            successes.append(list(logs))
            return original(self, accepted, logs)

        patch.setattr(trie_sampler.RejectionTrie, "_evidence", recorded)
        for probability, _ in runs_of(toy, RejectionTrie(outputs, batch=1)):
            biased += probability * outputs / sum(math.exp(-log) for log in successes.pop())
    assert biased > 1.02 * toy.z


def test_one_output_of_rejection_has_no_evidence() -> None:
    """It still has the probability of the target."""
    toy = TINY["letters"]
    runs = list(runs_of(toy, RejectionTrie(1, batch=1)))
    assert all(found.log_evidence is None and found.standard_error is None for _, found in runs)
    assert dict(Averages(runs).share) == pytest.approx(toy.normalised, abs=EXACT)


@pytest.mark.parametrize("tries", [2, 3, 16, 1000])
@pytest.mark.parametrize("success", [1.0, 1e-3, 1e-12])
def test_equal_successes_give_the_estimate_of_haldane(success: float, tries: int) -> None:
    found = trie_sampler._log_integral(np.full(tries, math.log(success)))
    assert found == pytest.approx(math.log(success / (tries - 1)), abs=1e-13)


@pytest.mark.parametrize(("first", "second"), [(1.0, 0.5), (1.0, 1e-6), (0.9, 0.3)])
def test_two_successes_have_a_closed_form(first: float, second: float) -> None:
    """The integral of ``a b / ((a + v) (b + v))`` is ``a b log(a / b) / (a - b)``."""
    found = trie_sampler._log_integral(np.log([first, second]))
    assert found == pytest.approx(math.log(first * second * math.log(first / second) / (first - second)), abs=1e-13)


# samplers that are not lossless


@pytest.mark.parametrize("name", ["letters", "no eos", "few b"])
def test_outputs_of_best_of_are_those_of_masking(name: str) -> None:
    toy = SMALL[name]
    averages = Averages(runs_of_particles(toy, BestOf(2)))
    lcd = toy.lcd()
    lost = 1 - sum(lcd.values())  # where potentials leave no way on
    assert sum(averages.count.values()) == pytest.approx(1 - lost, abs=EXACT)
    assert dict(averages.count) == pytest.approx(lcd, abs=EXACT)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("sampler", [Beam(2), Beam(4), ExactBest(n=2), ExactBest(n=100)], ids=repr)
def test_searches_give_a_lower_bound_of_the_evidence(name: str, sampler: Beam | ExactBest) -> None:
    """A weight is the target of its output; if all outputs are found, their sum is the evidence."""
    toy = SMALL[name]
    found = toy.samples(sampler)
    for one in found.samples:
        assert one.log_weight == pytest.approx(toy.target[one.result.tokens], abs=EXACT)
    total = math.fsum(math.exp(one.log_weight) for one in found.samples)
    assert total <= toy.z * (1 + EXACT)
    assert (total == pytest.approx(toy.z, rel=EXACT)) == (len(found.samples) == len(toy.target))


@pytest.mark.parametrize("sampler", [ASAp(2), BestOf(2), Beam(2), ExactBest()], ids=["asap", "best", "beam", "exact"])
def test_what_is_not_lossless_claims_no_evidence(sampler: Any) -> None:
    found = SMALL["letters"].samples(sampler)
    assert not found.lossless
    assert found.log_evidence is None
    assert found.standard_error is None


# canonical tokens: the target is that of the tokens that the library `tokenizers` writes


@cache
def letters_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    made: Any = Tokenizer(models.BPE(vocab={"<e>": 0, "a": 1, "b": 2, "ab": 3, "c": 4}, merges=[("a", "b")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<e>"])
    return made


@cache
def letters_vocabulary() -> Vocabulary:
    return Vocabulary.load(letters_tokenizer(), eos=["<e>"])


@dataclass
class CanonicalToy(Toy):
    def __post_init__(self) -> None:
        self.vocabulary = letters_vocabulary()

    @property
    def potentials(self) -> list[object]:  # type: ignore[override]
        return [Canonical(self.constraint, self.max_tokens)]

    def is_written(self, tokens: Output) -> bool:
        return tuple(letters_tokenizer().encode(self.text(tokens), add_special_tokens=False).ids) == tokens

    def admits(self, tokens: Output) -> bool:
        return any(word[: len(tokens)] == tokens and self.is_written(word) for word in self.words)

    def score_of(self, tokens: Output) -> float:
        return 0.0 if self.is_written(tokens) else -math.inf


CANONICAL = {
    "letters": CanonicalToy("ab?", 2, seed=1),
    "choice": CanonicalToy("a[bc]?|c", 2, seed=2),
    "budget": CanonicalToy("ab|a[bc]b?|c", 2, seed=2),
}


@pytest.mark.parametrize("name", CANONICAL)
@pytest.mark.parametrize(
    "sampler",
    [
        AWRS(most_rejects=2),
        pytest.param(AWRS(most_rejects=2, mask_after=1), marks=pytest.mark.nightly),
        Multinomial(),
        pytest.param(SMC(2, proposal=AWRS(most_rejects=2)), marks=pytest.mark.nightly),
        SMC(2, ess_threshold=1, proposal=Multinomial()),
    ],
    ids=repr,
)
def test_canonical_weights_are_unbiased(name: str, sampler: Any) -> None:
    toy = CANONICAL[name]
    assert len(toy.target) < len(toy.log_p), "the option would change nothing"
    assert_unbiased(toy, Averages(runs_of_particles(toy, weighted_sampler(sampler))))


def test_rejection_of_what_is_not_canonical() -> None:
    toy = CANONICAL["letters"]
    averages = Averages(runs_of(toy, RejectionTrie(2, batch=1)))
    assert_unbiased(toy, averages)
    assert dict(averages.share) == pytest.approx(toy.normalised, abs=EXACT)


@pytest.mark.parametrize("sampler", [Beam(8), ExactBest(n=100)], ids=repr)
@pytest.mark.parametrize("name", CANONICAL)
def test_the_option_is_the_potential(name: str, sampler: Any) -> None:
    toy = CANONICAL[name]
    found = sample(toy.model, "ab", toy.constraint, sampler=sampler, max_tokens=toy.max_tokens, canonical=True)
    scores = {one.result.tokens: one.log_weight for one in found.samples}
    assert scores == pytest.approx(toy.target, abs=EXACT)


def test_canvases_have_no_canonical_tokens() -> None:
    model = HashDiffusion(Vocabulary([b"a", b"b", b"", b""], eos=[2], special={3: "<mask>"}))
    with pytest.raises(ValueError, match="canonical=True is not for model"):
        sample(model, "a", CANONICAL["letters"].constraint.grammar, canonical=True)
