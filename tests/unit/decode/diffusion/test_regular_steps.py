"""The work on canvases of regular grammars is counted against ``Limits.canvas_steps``: tables, lengths, fills."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from structgen_kernels import _native

import structgen as sg
from structgen import diffusion, samplers
from structgen.decode.diffusion.canvas import canvas_language, canvas_length
from structgen.decode.diffusion.regular import RegularLanguage
from structgen.engine import Vocabulary
from structgen.errors import LimitExceeded
from structgen.grammar.limits import counted, steps_left
from structgen.models.diffusion import HashDiffusion

VOCABULARY = Vocabulary(
    [b"", *(bytes([byte]) for byte in range(256)), b'{"', b'":', b'",', b"true", b""], eos=[0], special={261: "<mask>"}
)
MANY = 1 << 50
DATE = sg.regex(r"[0-9]{4}-[01][0-9]-[0-3][0-9]")


def texts(count: int, length: int) -> sg.Grammar:
    """An object of some bounded texts, each optional: ``count * length`` states and more."""
    properties = {f"p{at}": {"type": "string", "maxLength": length} for at in range(count)}
    return sg.json_schema(
        {"type": "object", "properties": properties, "additionalProperties": False}, whitespace="compact"
    )


def taken(call: Callable[[], object]) -> int:
    """The steps of a call."""
    with counted(sg.Limits(canvas_steps=MANY), limit="canvas_steps"):
        before = steps_left()
        call()
        return before - steps_left()


def constraint_of(grammar: sg.Grammar, steps: int = MANY) -> sg.Constraint:
    return sg.compile(grammar, VOCABULARY, limits=sg.Limits(canvas_steps=steps))


def fill(constraint: sg.Constraint, sampler: Any) -> str:
    return sg.generate(HashDiffusion(VOCABULARY, seed=3), "", constraint, canvas=24, seed=1, sampler=sampler).text


@pytest.mark.parametrize("sampler", [diffusion.Dingo(), diffusion.Posterior(), samplers.SMC(3)], ids=str)
def test_a_canvas_ends_at_its_limit_which_has_a_name_and_a_place(sampler: Any) -> None:
    """The least limit of a canvas is what it takes; just below it the error names the limit, the place and a remedy."""
    grammar = sg.regex("[a-z]{0,40}")
    unbounded = constraint_of(grammar)
    made = taken(lambda: canvas_language(unbounded))
    enough = taken(lambda: fill(unbounded, sampler))
    held = constraint_of(grammar, max(made, enough))
    canvas_language(held)
    assert fill(held, sampler) == fill(unbounded, sampler)
    with counted(sg.Limits(canvas_steps=enough - 1), limit="canvas_steps"), pytest.raises(LimitExceeded) as caught:
        fill(held, sampler)
    assert (caught.value.limit, caught.value.maximum) == ("canvas_steps", enough - 1)
    assert caught.value.subject == "diffusion decoding: messages of a canvas of 24 slots"
    assert "raise Limits(canvas_steps=...)" in str(caught.value)


def test_tables_end_at_the_limit() -> None:
    """States over bytes, and the moves of tokens between them, are counted where they are made."""
    grammar = texts(8, 60)
    enough = taken(lambda: canvas_language(constraint_of(grammar)))
    assert isinstance(canvas_language(constraint_of(grammar, enough)), RegularLanguage)
    for steps, place in ((enough // 4, "automaton"), (enough - 1, "tokens")):
        with pytest.raises(LimitExceeded, match=f"^diffusion decoding: {place} of a grammar") as caught:
            canvas_language(constraint_of(grammar, steps))
        assert (caught.value.limit, caught.value.maximum) == ("canvas_steps", steps)


def test_each_part_of_an_intersection_counts() -> None:
    """Where bytes lead is derived from all parts, so states of an intersection of many count more than those of few."""
    grammars = [sg.regex("[a-z]{1,8}")]
    for pair in ("ab", "cd", "ef"):
        grammars.append(grammars[-1] & ~sg.regex(f".*{pair}.*"))
    of_state = []
    for grammar in grammars:
        steps, made = _native.byte_automaton(constraint_of(grammar).native, 1_000, MANY)
        assert made is not None
        of_state.append(steps / len(made[2]))
    assert of_state[1] > 4 * of_state[0]
    assert of_state[0] < of_state[1] < of_state[2] < of_state[3]


def test_tables_count_the_same_on_an_engine_that_has_made_them() -> None:
    grammar = texts(4, 20)
    first, second = (taken(lambda: canvas_language(constraint_of(grammar))) for _ in range(2))
    assert first == second


def test_the_choice_of_a_length_is_counted() -> None:
    language = canvas_language(constraint_of(texts(8, 60)))
    enough, slots = taken(lambda: canvas_length(language)), canvas_length(language)
    with counted(sg.Limits(canvas_steps=enough), limit="canvas_steps"):
        assert canvas_length(language) == slots
    with (
        counted(sg.Limits(canvas_steps=enough - 1), limit="canvas_steps"),
        pytest.raises(LimitExceeded, match=r"length of a canvas.* give the number of slots"),
    ):
        canvas_length(language)


def test_a_canvas_takes_what_is_reached_and_not_all_edges() -> None:
    """In 24 slots a text reaches its first states only: the whole fill takes less than one pass over all edges."""
    constraint = constraint_of(texts(8, 200))
    language = canvas_language(constraint)
    assert isinstance(language, RegularLanguage)
    one_pass = 24 * len(language.edges.source)
    assert taken(lambda: fill(constraint, diffusion.Dingo())) < one_pass


def test_dates_are_admitted_by_the_strict_limits() -> None:
    constraint = sg.compile(DATE, VOCABULARY, limits=sg.Limits.strict())
    assert len(fill(constraint, diffusion.Dingo())) == len("2024-01-01")
