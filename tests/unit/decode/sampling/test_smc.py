"""Sequential Monte Carlo against enumeration of all outputs of small models.

A z-score beyond 6 has probability 2e-9, so each statistical test below fails by chance with a probability of less than
1e-6; each states its number of runs.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from exact_target import exact_target, log_total, normalised, total_variation, z_score

from structgen.decode import Multinomial, generate
from structgen.decode.potentials import Hypothesis, Potential, potential
from structgen.decode.sampling import AWRS, SMC, Resampling, Samples, resample, sample
from structgen.engine import Vocabulary, compile
from structgen.errors import GenerationError
from structgen.frontends.regex import regex
from structgen.grammar.nodes import Grammar
from structgen.models import HashModel
from structgen.samplers import Lookahead, NGram

TOKENS = [b"", b"a", b"b", b"ab", b"c", b"ca"]
VOCABULARY = Vocabulary(TOKENS, eos=[0])
TWO_STOPS = Vocabulary([*TOKENS, b""], eos=[0, 6])
MYOPIC = "a{4}|(b|c)(a|b|c){2,3}"  # the model does not know that an a at first must be followed by three more
NIGHTLY = pytest.mark.nightly
LIMIT = 6.0


@potential
def palindrome(text: str) -> bool:
    return text == text[::-1]


@potential
def even(text: str) -> bool:
    return text.count("a") % 2 == 0


@potential(always=True)
def few_c(text: str) -> bool:
    return text.count("c") < 2


@potential
def likes_b(text: str) -> float:
    return 0.7 * text.count("b")


@likes_b.early
def likes_b(text: str) -> float:
    return 0.5 * text.count("b")


class Tilted(Potential):
    """A potential with a score for every token."""

    def prefix(self, hypothesis: Hypothesis, /) -> float:
        return -math.inf if b"bb" in hypothesis.data else -0.4 * len(hypothesis.tokens)

    def complete(self, hypothesis: Hypothesis, /) -> float:
        return self.prefix(hypothesis)

    def logw_next(self, hypothesis: Hypothesis, /) -> Any:
        before = self.prefix(hypothesis)
        after = [self.prefix(hypothesis.extended(token)) for token in range(hypothesis.vocabulary.size)]
        return np.array(
            [0.0 if token in hypothesis.vocabulary.eos else score - before for token, score in enumerate(after)]
        )


def tilted_score(text: str) -> float:
    """It is defined only where the number of tokens does not matter."""
    return -math.inf if "bb" in text else 0.0


CASES: dict[str, tuple[list[Any], Any]] = {
    "none": ([], lambda text: 0.0),
    "palindromes": ([palindrome], lambda text: 0.0 if text == text[::-1] else -math.inf),
    "both": (
        [few_c, even],
        lambda text: 0.0 if text.count("a") % 2 == 0 and text.count("c") < 2 else -math.inf,
    ),
    "soft": ([likes_b], lambda text: 0.7 * text.count("b")),
}
SAMPLERS = {
    "awrs": SMC(6),
    "every-step": SMC(6, ess_threshold=1),
    "importance": SMC(6, ess_threshold=0),
    "scan": SMC(6, proposal=Multinomial()),
    "few-rejects": SMC(6, proposal=AWRS(most_rejects=1)),
    "no-mask": SMC(6, proposal=AWRS(mask_after=None)),
    "late-mask": SMC(6, proposal=AWRS(mask_after=1)),
    "lookahead": SMC(6, lookahead=Lookahead(horizon=3, strength=0.25)),
    "wrong-guess": SMC(6, lookahead=Lookahead(NGram.of_texts(["aaaa", "cc"]), horizon=2, strength=0.3, width=2)),
    **{scheme: SMC(6, ess_threshold=1, resampling=scheme) for scheme in ("multinomial", "systematic", "residual")},
}


def runs(sampler: SMC, case: str, count: int, **options: Any) -> list[Samples]:
    model = HashModel(options.pop("vocabulary", VOCABULARY), seed=options.pop("model", 3))
    constraint = compile(regex(options.pop("pattern", MYOPIC)), model.vocabulary)
    return [
        sample(model, "ab", constraint, sampler=sampler, potentials=CASES[case][0], max_tokens=4, seed=seed)
        for seed in range(count)
    ]


def estimates(found: list[Samples], log_z: float, *, weighted: bool = True) -> dict[str, list[float]]:
    """Estimates under the unnormalised target, divided by its sum: of 1, and of some events."""
    values: dict[str, list[float]] = {"all": [], "a": [], "long": [], "split": []}
    for each in found:
        sums = Counter[str]()
        for one in each.samples:
            weight = math.exp(one.log_weight - log_z) / each.particles if weighted else one.particles / each.particles
            result = one.result
            sums["all"] += weight
            sums["a"] += weight * result.text.startswith("a")
            sums["long"] += weight * (len(result.text) == 4)
            sums["split"] += weight * (3 in result.tokens)
        for key, kept in values.items():
            kept.append(sums[key])
    return values


def expected(target: dict[tuple[int, ...], float]) -> dict[str, float]:
    distribution = normalised(target)
    texts = {output: VOCABULARY.decode(output).decode() for output in distribution}
    return {
        "all": 1.0,
        "a": sum(p for output, p in distribution.items() if texts[output].startswith("a")),
        "long": sum(p for output, p in distribution.items() if len(texts[output]) == 4),
        "split": sum(p for output, p in distribution.items() if 3 in output),
    }


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "case"),
    [
        *(pytest.param(name, "both", marks=NIGHTLY if at % 2 else ()) for at, name in enumerate(SAMPLERS)),
        *(pytest.param(name, case, marks=NIGHTLY) for name in ("awrs", "lookahead") for case in ("none", "soft")),
        ("awrs", "palindromes"),
    ],
)
def test_estimates_are_unbiased(name: str, case: str) -> None:
    """Over 300 runs four z-scores are small."""
    target = exact_target(HashModel(VOCABULARY, seed=3), "ab", MYOPIC, 4, CASES[case][1])
    found = runs(SAMPLERS[name], case, 300)
    values = estimates(found, log_total(target))
    for key, right in expected(target).items():
        assert abs(z_score(values[key], right)) < LIMIT, key
    assert {one.result.tokens for each in found for one in each.samples} <= set(target)


@pytest.mark.nightly
def test_the_test_of_bias_sees_what_is_wrong() -> None:
    """Without their weights the same samples fail it, and so does locally constrained decoding."""
    target = exact_target(HashModel(VOCABULARY, seed=3), "ab", MYOPIC, 4)
    right = expected(target)
    unweighted = estimates(runs(SMC(6, ess_threshold=0), "none", 600), log_total(target), weighted=False)
    assert max(abs(z_score(unweighted[key], right[key])) for key in ("a", "long", "split")) > LIMIT


@pytest.mark.nightly
def test_potentials_that_tell_of_all_tokens_are_unbiased_too() -> None:
    """Over 200 runs one z-score is small; outputs cost 0.4 a token here."""
    model = HashModel(VOCABULARY, seed=5)
    plain = exact_target(model, "ab", MYOPIC, 4, tilted_score)
    target = {output: log_p - 0.4 * len(output) for output, log_p in plain.items()}
    for proposal in (AWRS(), Multinomial()):
        found = [
            sample(
                model,
                "ab",
                regex(MYOPIC),
                sampler=SMC(4, proposal=proposal),
                potentials=[Tilted()],
                max_tokens=4,
                seed=i,
            )
            for i in range(1500)
        ]
        z = z_score([math.exp((each.log_evidence or 0.0) - log_total(target)) for each in found], 1.0)
        assert abs(z) < LIMIT


@pytest.mark.exhaustive
def test_several_eos_ids_are_one_stop() -> None:
    """Over 600 runs four z-scores are small."""
    target = exact_target(HashModel(TWO_STOPS, seed=10), "ab", MYOPIC, 4)
    found = runs(SMC(6), "none", 600, vocabulary=TWO_STOPS, model=10)
    for key, right in expected(target).items():
        assert abs(z_score(estimates(found, log_total(target))[key], right)) < LIMIT


@pytest.mark.nightly
@pytest.mark.parametrize("model", [0, 1, pytest.param(2, marks=NIGHTLY), pytest.param(3, marks=NIGHTLY)])
def test_many_particles_come_near_the_target_where_masking_does_not(model: int) -> None:
    distribution = normalised(exact_target(HashModel(VOCABULARY, seed=model), "ab", MYOPIC, 4))

    def distance(sampler: SMC, count: int) -> float:
        found = runs(sampler, "none", count, model=model)
        sampled = Counter[tuple[int, ...]]()
        for each in found:
            for weight, one in zip(each.weights, each.samples, strict=True):
                sampled[one.result.tokens] += float(weight) / count
        return total_variation(sampled, distribution)

    masking = distance(SMC(1), 600)
    assert distance(SMC(256), 20) < 0.25 * masking + 0.02


@pytest.mark.nightly
def test_the_evidence_of_one_run_comes_with_an_error_that_is_not_too_small() -> None:
    log_z = log_total(exact_target(HashModel(VOCABULARY, seed=3), "ab", MYOPIC, 4))
    for resampling in ("multinomial", "stratified"):
        found = runs(SMC(32, ess_threshold=1, resampling=resampling), "none", 200)
        errors = [(each.log_evidence or 0.0) - log_z for each in found]
        claimed = math.sqrt(np.mean([(each.standard_error or 0.0) ** 2 for each in found]))
        assert 0.8 * np.std(errors) < claimed < 4 * np.std(errors)


@pytest.mark.nightly
def test_particles_that_hardly_count_are_not_written_to_their_end() -> None:
    """Remaining particles that weigh less than one survive at random; importance sampling writes all of them.

    200 runs each, one z-score: the evidence is unbiased.
    """
    model, pattern = HashModel(VOCABULARY, seed=5), "a?|(ca){2}(a|b|c)"
    constraint = compile(regex(pattern), VOCABULARY)
    log_z = log_total(exact_target(model, "ab", pattern, 5))
    spent = {}
    for name, sampler in (("thinned", SMC(32, ess_threshold=0.01)), ("all", SMC(32, ess_threshold=0))):
        found = [sample(model, "ab", constraint, sampler=sampler, max_tokens=5, seed=seed) for seed in range(200)]
        spent[name] = sum(each.forwards for each in found)
        values = [math.exp((each.log_evidence or 0.0) - log_z) for each in found]
        assert abs(z_score(values, 1.0)) < LIMIT
    assert spent["thinned"] < 0.75 * spent["all"]


def test_particles_with_the_same_tokens_are_run_once() -> None:
    found = runs(SMC(64), "none", 1)[0]
    distinct = {one.result.tokens[:length] for one in found.samples for length in range(5)}
    # Every prefix that survives, and those that died; a model that packs runs all of a length in one pass.
    assert found.forwards <= 1 + 4
    assert found.tokens <= 4 * len(distinct)
    assert sum(one.particles for one in found.samples) <= 64


def test_queries_are_counted() -> None:
    """Masks are filled once per state, or never; then the matcher is queried about single tokens."""
    masked, rejecting = runs(SMC(16), "none", 1)[0], runs(SMC(16, proposal=AWRS(mask_after=None)), "none", 1)[0]
    assert 0 < masked.masks <= masked.tokens
    assert masked.queries == 0
    assert rejecting.masks == 0
    assert rejecting.queries > 0
    late = runs(SMC(16, proposal=AWRS(mask_after=1)), "none", 1)[0]
    assert 0 < late.masks <= masked.tokens


def test_runs_are_the_same_with_the_same_seed() -> None:
    first, second = (runs(SAMPLERS["awrs"], "none", 3) for _ in range(2))
    assert [each.samples[0].result.tokens for each in first] == [each.samples[0].result.tokens for each in second]
    assert [each.log_evidence for each in first] == [each.log_evidence for each in second]
    others = [sample_with_seed(seed).log_evidence for seed in range(8)]
    assert len(set(others)) > 1


def sample_with_seed(seed: int) -> Samples:
    model = HashModel(VOCABULARY, seed=3)
    return sample(model, "ab", regex(MYOPIC), sampler=SMC(3), potentials=[palindrome], max_tokens=4, seed=seed)


def test_the_history_tells_how_the_run_went() -> None:
    found = runs(SMC(16, ess_threshold=1), "both", 1)[0]
    assert found.history[-1].live == 0 or found.history[-1].resampled
    assert found.history[-1].log_evidence == pytest.approx(found.log_evidence)
    assert any(each.resampled for each in found.history)
    assert all(each.live + each.finished <= 16 and each.ess <= 16 + 1e-9 for each in found.history)
    assert found.weights.sum() == pytest.approx(1.0)
    assert found.mean(lambda result: 1.0) == pytest.approx(1.0)
    assert found.mean(lambda result: result.text.count("a") % 2) == 0


def test_steps_add_up_to_the_probability_of_the_model() -> None:
    target = exact_target(HashModel(VOCABULARY, seed=3), "ab", MYOPIC, 4)
    for one in runs(SMC(16), "none", 1)[0].samples:
        assert one.result.logprob + one.result.log_z == pytest.approx(target[one.result.tokens], abs=1e-5)


@potential
def never(text: str) -> bool:
    return False


def test_zero_weights_are_said_plainly() -> None:
    model = HashModel(VOCABULARY, seed=1)
    found = sample(model, "ab", regex(MYOPIC), sampler=SMC(4), potentials=[never], max_tokens=4)
    assert found.samples == ()
    assert found.log_evidence == -math.inf
    assert found.ess == 0
    for use in (found.best, lambda: found.draw(np.random.default_rng(0)), lambda: found.mean(lambda result: 1.0)):
        with pytest.raises(GenerationError, match=r"all 4 weights are zero; never forbade \d+ of \d+; take more"):
            use()
    with pytest.raises(GenerationError, match="never forbade"):
        generate(model, "ab", regex(MYOPIC), sampler=SMC(4), potentials=[never], max_tokens=4)


def test_what_forbids_everything_at_once_is_named() -> None:
    empty = potential(always=True)(lambda text: False)
    with pytest.raises(GenerationError, match=r"forbid every output.*<lambda>.* forbade 1 of 1"):
        sample(HashModel(VOCABULARY), "ab", regex(MYOPIC), potentials=[empty], max_tokens=4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"particles": 0}, "particles"),
        ({"particles": 2.5}, "particles"),
        ({"ess_threshold": 1.5}, "ess_threshold"),
        ({"ess_threshold": math.nan}, "ess_threshold"),
        ({"resampling": "bootstrap"}, "resampling"),
        ({"proposal": Multinomial(temperature=0.5)}, "changes the model's distribution"),
        ({"proposal": Multinomial(top_k=3)}, "changes the model's distribution"),
    ],
)
def test_what_would_be_wrong_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SMC(**arguments)
    with pytest.raises(TypeError, match="expected AWRS"):
        SMC(proposal="awrs")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="most_rejects"):
        AWRS(most_rejects=0)
    with pytest.raises(ValueError, match="mask_after"):
        AWRS(mask_after=-1)


@pytest.mark.parametrize("grammar", [regex("(ab|c){1,3}"), regex("a*"), regex("(a|b|c){0,2}")])
def test_vocabularies_without_eos_end_where_nothing_may_follow(grammar: Grammar) -> None:
    model = HashModel(Vocabulary([b"a", b"b", b"c", b"ab"], eos=[]), seed=2)
    found = sample(model, "ab", grammar, sampler=SMC(8), max_tokens=5)
    assert found.samples
    for one in found.samples:
        assert one.result.finish_reason in ("stop", "length")
        assert generate(model, "ab", grammar, sampler=SMC(8), max_tokens=5).text


@pytest.mark.nightly
def test_one_output_has_nearly_the_distribution_of_the_target() -> None:
    """``generate`` draws by weight: 400 outputs of 32 particles each; masking alone is far off."""
    model = HashModel(VOCABULARY, seed=1)
    constraint = compile(regex(MYOPIC), VOCABULARY)
    distribution = normalised(exact_target(model, "ab", MYOPIC, 4))
    sampled: dict[str, Counter[tuple[int, ...]]] = {"smc": Counter(), "lcd": Counter()}
    for seed in range(400):
        for name, sampler in (("smc", SMC(32)), ("lcd", Multinomial())):
            result = generate(model, "ab", constraint, sampler=sampler, max_tokens=4, seed=seed)
            sampled[name][result.tokens] += 1
    first = sum(p for output, p in distribution.items() if VOCABULARY.decode(output).startswith(b"a"))
    shares = {
        name: sum(n for output, n in counts.items() if VOCABULARY.decode(output).startswith(b"a")) / 400
        for name, counts in sampled.items()
    }
    assert abs(shares["smc"] - first) < abs(shares["lcd"] - first)
    assert abs(shares["lcd"] - first) > 0.2


@pytest.mark.exhaustive
@pytest.mark.parametrize("scheme", ["multinomial", "stratified", "systematic", "residual"])
def test_resampling_keeps_expectations(scheme: Resampling) -> None:
    """Over 20,000 draws of 7 from 5 weights five z-scores are small."""
    generator = np.random.default_rng(5)
    weights = np.array([0.5, 0.0, 1.25, 0.01, 3.0])
    counts = np.array([np.bincount(resample(weights, 7, scheme, generator), minlength=5) for _ in range(20_000)])
    shares = 7 * weights / weights.sum()
    assert (counts.sum(axis=1) == 7).all()
    assert (counts[:, 1] == 0).all()
    for index, right in enumerate(shares):
        assert abs(z_score(counts[:, index], right)) < LIMIT
    if scheme in ("residual", "systematic"):
        assert (counts >= np.floor(shares)).all()
    if scheme == "systematic":
        assert (counts <= np.ceil(shares)).all()
