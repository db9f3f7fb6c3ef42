"""The work of all charts of one canvas is counted together, against ``Limits.canvas_steps``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import structgen as sg
from structgen import diffusion, samplers
from structgen.decode.diffusion.canvas import canvas_language
from structgen.decode.diffusion.context_free import ContextFreeLanguage
from structgen.decode.diffusion.context_free.token_network import DEAD_CLASS
from structgen.decode.diffusion.mean_field import FREE
from structgen.engine import Vocabulary
from structgen.errors import LimitExceeded
from structgen.grammar.limits import counted, steps_left
from structgen.models.diffusion import HashDiffusion

VOCABULARY = Vocabulary(
    [b"", *(bytes([byte]) for byte in range(256)), b'{"', b'":', b"],", b"true", b""], eos=[0], special={261: "<mask>"}
)
JSON = sg.json_schema({}, whitespace="compact")
LISTS = sg.lark('start: "(" (start ("," start)*)? ")" | "x"')
MANY = 1 << 50


def fill(constraint: sg.Constraint, sampler: Any = None, **settings: Any) -> str:
    model = HashDiffusion(VOCABULARY, seed=3)
    settings = {"canvas": 32, "seed": 1, "sampler": sampler or diffusion.Dingo(), **settings}
    return sg.generate(model, "", constraint, **settings).text


def used(grammar: sg.Grammar, sampler: Any = None, **settings: Any) -> int:
    """The steps of a canvas, with the tables of its charts made before."""
    limits = sg.Limits(canvas_steps=MANY)
    constraint = sg.compile(grammar, VOCABULARY, limits=limits)
    for ambiguity in ("refused", "counted"):
        canvas_language(constraint, ambiguity=ambiguity)
    with counted(limits, limit="canvas_steps"):
        before = steps_left()
        fill(constraint, sampler, **settings)
        return before - steps_left()


def tables(grammar: sg.Grammar) -> int:
    """The steps of these tables, and of the look for an automaton."""
    limits = sg.Limits(canvas_steps=MANY)
    constraint = sg.compile(grammar, VOCABULARY, limits=limits)
    with counted(limits, limit="canvas_steps"):
        before = steps_left()
        canvas_language(constraint)
        return before - steps_left()


@pytest.mark.parametrize("sampler", [diffusion.Dingo(), diffusion.Posterior(), samplers.SMC(3)], ids=str)
def test_a_canvas_ends_at_its_limit_which_has_a_name_and_a_place(sampler: Any) -> None:
    """The least limit of a canvas is what it takes; just below it the error names the limit, the place and a remedy."""
    unbounded = sg.compile(LISTS, VOCABULARY, limits=sg.Limits(canvas_steps=MANY))
    enough = used(LISTS, sampler)
    held = sg.compile(LISTS, VOCABULARY, limits=sg.Limits(canvas_steps=max(enough, tables(LISTS))))
    for ambiguity in ("refused", "counted"):
        canvas_language(held, ambiguity=ambiguity)
    text = fill(unbounded, sampler)
    with counted(sg.Limits(canvas_steps=enough), limit="canvas_steps"):
        assert fill(held, sampler) == text
    with counted(sg.Limits(canvas_steps=enough - 1), limit="canvas_steps"), pytest.raises(LimitExceeded) as caught:
        fill(held, sampler)
    assert (caught.value.limit, caught.value.maximum) == ("canvas_steps", enough - 1)
    assert caught.value.subject == "diffusion decoding: charts of a canvas of 32 slots"
    assert "fewer slots" in str(caught.value)
    assert "raise Limits(canvas_steps=...)" in str(caught.value)


def test_steps_and_particles_count_together() -> None:
    """One slot a step takes several times what eight slots a step take, and six particles more than one."""
    whole = [*VOCABULARY.tokenize("("), *[FREE] * 22, *VOCABULARY.tokenize(")")]  # no slot holds EOS
    one, eight = (used(LISTS, canvas=whole, policy=sg.policies.Static(per_step=count)) for count in (1, 8))
    assert one > 2 * eight
    assert used(LISTS, samplers.SMC(6)) > 2 * used(LISTS, samplers.SMC(1))


def test_ordinary_canvases_are_far_below_the_limits() -> None:
    """A canvas of any JSON takes less than a tenth of the default, and less than a third of the strict limits."""
    steps = used(JSON)
    assert 10 * steps < sg.Limits().canvas_steps
    assert 3 * steps < sg.Limits.strict().canvas_steps
    assert 10 * tables(JSON) < sg.Limits().canvas_steps
    assert tables(JSON) < sg.Limits.strict().canvas_steps


def test_infilling_counts_the_choice_of_lengths() -> None:
    """A text with two holes, whose lengths are chosen by the masses of many canvases, ends at the limit too."""
    model = HashDiffusion(VOCABULARY, seed=2)
    parts = ["(", sg.grammars.hole(12), ",(", sg.grammars.hole(12), "))"]
    unbounded = sg.Limits(canvas_steps=MANY)
    constraint = sg.compile(LISTS, VOCABULARY, limits=unbounded)
    assert sg.infill(model, parts, constraint).text.startswith("(")  # makes the tables, too
    with counted(unbounded, limit="canvas_steps"):
        before = steps_left()
        sg.infill(model, parts, constraint)
        half = (before - steps_left()) // 2
    with (
        counted(sg.Limits(canvas_steps=half), limit="canvas_steps"),
        pytest.raises(LimitExceeded, match=r"charts of a canvas of .* more than canvas_steps=") as caught,
    ):
        sg.infill(model, parts, constraint)
    assert caught.value.limit == "canvas_steps"


def counting(*, properties: int, length: int, pattern: str = "^[a-z.-]+$") -> sg.Grammar:
    counted_text = {"type": "string", "pattern": pattern, "maxLength": length}
    named = {f"p{at}": counted_text for at in range(properties)}
    return sg.json_schema({"type": "object", "properties": {**named, "any": {}}}, whitespace="compact")


def test_large_networks_end_at_the_limit() -> None:
    """Counts beside a recursive value make thousands of states; to make their tables is counted."""
    grammar = counting(properties=4, length=60)
    limits = sg.Limits(canvas_steps=300_000)
    with pytest.raises(LimitExceeded, match=r"^(network|tokens) of a grammar: more than canvas_steps=300000"):
        canvas_language(sg.compile(grammar, VOCABULARY, limits=limits))


def test_charts_take_less_the_more_slots_are_fixed() -> None:
    """Only what a parse from the start may need is computed: with half of the slots fixed, less than a quarter."""
    language = ContextFreeLanguage(sg.compile(JSON, VOCABULARY))
    canvas = np.full(32, FREE, dtype=np.int32)
    open_chart = language.chart(_weights(language, canvas), is_max=True)
    canvas[:16] = VOCABULARY.tokenize("[[[[1,2,3,4,5,[6"[:16])
    half = language.chart(_weights(language, canvas), is_max=True)
    assert 4 * half.steps < open_chart.steps
    assert np.isfinite(half.ends).any()


def _weights(language: ContextFreeLanguage, canvas: np.ndarray) -> np.ndarray:
    weights = language.fixed_weights(canvas, is_max=True)
    weights[canvas == FREE] = np.where(language.counts.any(axis=1), 0.0, -np.inf)
    weights[:, 0] = 0.0
    return weights


def test_a_token_below_a_dead_prefix_is_dead() -> None:
    """No text holds z, so zq has the class of no token, although q may follow the other prefix of one byte."""
    vocabulary = Vocabulary([b"", b"(", b")", b"q", b"zq", b"(q", b"x"], eos=[0])
    constraint = sg.compile(sg.lark('start: "(" start ")" | "(q"'), vocabulary)
    language = ContextFreeLanguage(constraint)
    assert language.class_of[4] == language.class_of[6] == DEAD_CLASS
    assert DEAD_CLASS not in {int(language.class_of[token]) for token in (1, 2, 3, 5)}


@pytest.mark.exhaustive
def test_hostile_canvases_end_under_the_default() -> None:
    """Thousands of states beside a recursive value, on a canvas of a hundred slots."""
    grammar = counting(properties=8, length=60, pattern=r"^([\w\/-]|[\w-][\w\/-]*[\w-])$")
    with pytest.raises(LimitExceeded, match="charts of a canvas of 100 slots: more than canvas_steps="):
        sg.generate(HashDiffusion(VOCABULARY, seed=1), "", grammar, canvas=100)
