"""Values of another kind, such as the name of a model, are refused where they come in, with what to pass instead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import structgen as sg
from structgen.decode import Context, start_generation
from structgen.errors import ArgumentError, StructgenError
from structgen.models import HashModel
from structgen.models.diffusion import HashDiffusion

GRAMMAR = sg.regex("[ab]{2,4}")
VOCABULARY = sg.Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0])
MODEL = HashModel(VOCABULARY)


@sg.program
def shout(text: str) -> str:
    """Say {text} aloud."""


class LlamaForCausalLM:
    """What can be seen of a model of transformers without importing it."""

    __module__ = "transformers.models.llama.modeling_llama"


CALLS: dict[str, Callable[[Any], object]] = {
    "generate": lambda model: sg.generate(model, "x", GRAMMAR),
    "sample": lambda model: sg.sample(model, "x", GRAMMAR),
    "infill": lambda model: sg.infill(model, ["a", sg.grammars.hole(2)], GRAMMAR),
    "context": lambda model: Context(model, [1]),
    "program": lambda model: shout("x", model=model),
    "stream": lambda model: shout.stream("x", model=model),
    "map": lambda model: shout.map(["x"], model=model),
    "extract": lambda model: sg.extract(int, "I am 36", model=model),
}
MODELS: dict[str, tuple[Any, str]] = {
    "name": ("gpt2", r"found the text 'gpt2'; .*sg\.load_model\('gpt2'\)"),
    "path": (Path("models/gpt2"), r"sg\.load_model\('models/gpt2'\)"),
    "network": (LlamaForCausalLM(), r"found a LlamaForCausalLM; .*sg\.load_model\(\(model, tokenizer\)\)"),
    "pair": ((LlamaForCausalLM(), object()), r"sg\.load_model\(\(model, tokenizer\)\)"),
    "class": (HashModel, r"found the type HashModel; pass an object"),
    "number": (3, r"found 3; .*sg\.load_model"),
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("call", CALLS)
def test_what_is_no_model_is_refused_with_the_way_to_one(call: str, model: str) -> None:
    """The error is a TypeError, names what was found, and says how to make a model of it."""
    value, text = MODELS[model]
    with pytest.raises(ArgumentError, match=text) as caught:
        CALLS[call](value)
    assert isinstance(caught.value, TypeError)
    assert caught.value.evidence
    assert caught.value.remedy


@pytest.mark.parametrize("call", ["generate", "sample", "infill"])
def test_a_model_on_a_server_only_answers_programs(call: str) -> None:
    """It has no logits; the error says where it can be passed."""
    with pytest.raises(ArgumentError, match="answers programs"):
        CALLS[call](sg.remote("http://localhost:1/v1", "m"))


@pytest.mark.parametrize(
    ("grammar", "remedy"),
    [
        ({"type": "string"}, r"sg\.json_schema\(schema\)"),
        ("[a-z]+", r"sg\.regex"),
        (b"a", r"sg\.regex"),
        (Path("a.lark"), r"sg\.load\(path\)"),
        (int, r"sg\.json_schema\(T\)"),
        (list[int], r"sg\.json_schema\(T\)"),
        (None, r"any_text\(\)"),
    ],
)
def test_what_is_no_grammar_is_refused_with_the_way_to_one(grammar: Any, remedy: str) -> None:
    """``generate``, ``sample``, ``infill`` and ``compile`` say the same."""
    calls: list[Callable[[], object]] = [
        lambda: sg.generate(MODEL, "x", grammar),
        lambda: sg.sample(MODEL, "x", grammar),
        lambda: sg.infill(MODEL, ["a", sg.grammars.hole(2)], grammar),
        lambda: sg.compile(grammar, VOCABULARY),
    ]
    for call in calls:
        with pytest.raises(ArgumentError, match=remedy):
            call()


@pytest.mark.parametrize(
    ("vocabulary", "remedy"),
    [
        (None, r"model\.vocabulary, or sg\.Vocabulary\.load\(tokenizer\)"),
        (object(), r"sg\.Vocabulary\.load\(tokenizer\)"),
        ("tokenizer.json", r"sg\.Vocabulary\.load\('tokenizer\.json'\)"),
        (MODEL, r"pass its vocabulary: model\.vocabulary"),
    ],
)
def test_what_is_no_vocabulary_is_refused_with_the_way_to_one(vocabulary: Any, remedy: str) -> None:
    """A tokenizer, its path, and a model."""
    with pytest.raises(ArgumentError, match=remedy):
        sg.compile(GRAMMAR, vocabulary)


def test_a_constraint_is_not_compiled_again() -> None:
    """The error says what it has."""
    with pytest.raises(ArgumentError, match=r"constraint\.grammar"):
        sg.compile(sg.compile(GRAMMAR, VOCABULARY), VOCABULARY)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"limits": 3}, "expected Limits; found 3"),
        ({"sampler": "greedy"}, r"found the text 'greedy'; .*sg\.Greedy\(\)"),
        ({"sampler": sg.Greedy}, r"found the type Greedy; pass an object: Greedy\(\)"),
        ({"drafter": "prompt-lookup"}, r"found the text 'prompt-lookup'; .*sg\.drafters\.PromptLookup\(\)"),
        ({"drafter": sg.drafters.PromptLookup}, r"pass an object: PromptLookup\(\.\.\.\)"),
        ({"drafter": MODEL}, r"sg\.drafters\.DraftModel\(model\)"),
        ({"seed": "x"}, "expected a whole number; found the text 'x'"),
        ({"seed": 0.5}, r"expected a whole number; found 0\.5"),
        ({"stream": 3}, "expected a function; found 3"),
        ({"potentials": 3}, r"expected a list; found 3; .*potentials=\[\.\.\.\]"),
        ({"potentials": lambda text: True}, "expected a list; found a function"),
    ],
)
def test_settings_of_another_kind(settings: dict[str, Any], text: str) -> None:
    """Names of the command line, classes, numbers: each is refused before the model runs."""

    class Never(HashModel):
        def logits(self, state: int, matched: int) -> Any:
            raise AssertionError("the model ran")

    with pytest.raises(ArgumentError, match=text):
        sg.generate(Never(VOCABULARY), "x", GRAMMAR, **settings)


def test_the_loop_for_callers_who_iterate_checks_its_sampler() -> None:
    """``start_generation`` gives the same error."""
    constraint = sg.compile(GRAMMAR, VOCABULARY)
    with Context(MODEL, [1]) as context, pytest.raises(ArgumentError, match="expected a sampler"):
        start_generation(context, constraint, max_tokens=4, sampler="greedy")  # type: ignore[arg-type]


@pytest.mark.parametrize("sampler", ["smc", sg.samplers.SMC, 3])
def test_sample_takes_samplers_of_whole_outputs(sampler: Any) -> None:
    """A name and a class are refused, and a sampler whose outputs have no weights."""
    with pytest.raises(ArgumentError, match="expected a sampler"):
        sg.sample(MODEL, "x", GRAMMAR, sampler=sampler)
    with pytest.raises(ValueError, match="without weights"):
        sg.sample(MODEL, "x", GRAMMAR, sampler=sg.Greedy())


@pytest.mark.parametrize(
    "settings", [{"max_tokens": -1}, {"max_tokens": "10"}, {"seed": -1}, {"temperature": 0.5}, {"canvas": 0}]
)
def test_numbers_out_of_range(settings: dict[str, Any]) -> None:
    """They are values, not kinds."""
    with pytest.raises(ValueError, match=f"{next(iter(settings))}.*"):
        sg.generate(MODEL, "x", GRAMMAR, **settings)


def test_a_canvas_needs_a_slot() -> None:
    """Also for a model that fills canvases."""
    masked = sg.Vocabulary([*VOCABULARY.tokens, b""], eos=VOCABULARY.eos, special={VOCABULARY.size: "<mask>"})
    with pytest.raises(ValueError, match="canvas must be a number of slots, at least 1; found 0"):
        sg.generate(HashDiffusion(masked), "x", GRAMMAR, canvas=0)


@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p"])
def test_a_temperature_is_a_number(name: str) -> None:
    """A text is refused by name."""
    with pytest.raises(ArgumentError, match=f"Multinomial: {name} must be a number; found the text 'hot'"):
        sg.Multinomial(**{name: "hot"})  # type: ignore[arg-type]


def test_a_misspelt_keyword_names_the_one_that_is_meant() -> None:
    """``max_token`` is ``max_tokens``."""
    with pytest.raises(TypeError, match=r"'max_token'; is 'max_tokens' meant\?"):
        sg.generate(MODEL, "x", GRAMMAR, max_token=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("text", ["ab ca", "ab éa", "aé"])
def test_a_prompt_that_cannot_be_spelled_names_the_character(text: str) -> None:
    """Also where only a later byte of the character has no token."""
    letters = sg.Vocabulary([b"", b"a", b"b", b" ", b"\xc3"], eos=[0])
    wrong = next(at for at, character in enumerate(text) if character not in "ab ")
    with pytest.raises(StructgenError, match=rf"no tokens spell '{text[wrong]}' \(character {wrong + 1} of the text\)"):
        sg.generate(HashModel(letters), text, sg.regex("a"))
