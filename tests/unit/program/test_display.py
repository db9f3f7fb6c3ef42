"""What notebooks and terminals show of grammars, results, runs and reports."""

from __future__ import annotations

import json
import math
import pickle
import re
from html.parser import HTMLParser
from typing import Any, Literal

import pytest
from pydantic import BaseModel
from scripted_remote_model import Scripted

import structgen as sg
from structgen import markup
from structgen.decode import Result
from structgen.engine import Vocabulary
from structgen.models import HashModel

BYTES = [b"", *(bytes([byte]) for byte in range(256))]
HOSTILE_NAME = '"><script>alert(0)</script>'
VOCABULARY = Vocabulary([*BYTES, b""], eos=[0], special={257: HOSTILE_NAME})
HOSTILE = '</div><script>alert("1")</script>&amp;\x00\x1b[31m\u202e\u2066é'


class _Page(HTMLParser):
    """Reads HTML strictly: every element closes; collects elements, attributes and text."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.spans: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag == "span":
            self.spans.append(("", dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.open[-1:] == ["span"]:
            text, attrs = self.spans[-1]
            self.spans[-1] = text + data, attrs


def _page(shown: Any) -> _Page:
    source = shown._repr_html_()
    page = _Page(source)
    assert page.tags <= {"div", "b", "table", "tr", "th", "td", "span", "details", "summary"}
    assert page.attributes <= {"style", "title", "scope"}
    assert not re.search(r"url\(|https?:|src=|href=|@import|(?<![-a-z])color:(?!inherit)", source)
    assert all(character == "\n" or character.isprintable() for character in source)
    return page


class Person(BaseModel):
    name: str
    age: int


class Mood(BaseModel):
    mood: Literal["happy", "angry", "</td>"]
    stars: int


@sg.program
def who(text: str) -> Person:
    """Who is it? {text}"""


ADA = '{"name": "Ada", "age": 36}'


def _run(**settings: Any) -> Any:
    return who.run("Ada", model=HashModel(VOCABULARY, writes=ADA, name=HOSTILE_NAME), **settings)


def test_a_hostile_text_stays_text() -> None:
    """Scripts are escaped in elements and in attributes; what cannot be seen is spelled out."""
    result = sg.generate(HashModel(VOCABULARY), "x", sg.literal(HOSTILE) + sg.grammars.token(HOSTILE_NAME))
    spelled = HOSTILE.replace("\x00", r"\x00").replace("\x1b", r"\x1b").replace("\u202e", r"\u202e")
    assert spelled.replace("\u2066", r"\u2066") + HOSTILE_NAME in _page(result).text
    assert "<script>alert" in _page(sg.literal(HOSTILE)).text
    assert HOSTILE_NAME in _page(_run()).text
    assert _Page(markup.pieces([markup.Piece("x", note=HOSTILE_NAME)])).spans[0][1]["title"] == HOSTILE_NAME
    _page(sg.compile(sg.json_schema({"const": HOSTILE, "title": HOSTILE}), VOCABULARY).report)


def test_a_described_grammar_shows_what_was_read() -> None:
    """The entries of its report come before the term, which is folded away where it is long."""
    schema = {"type": "object", "properties": {"<a>": {"type": "integer", "multipleOf": 7}}, "required": ["<a>"]}
    page = _page(sg.json_schema(schema))
    assert page.text.startswith("Grammar (json schema)")
    for entry in sg.compile(sg.json_schema(schema), VOCABULARY).report.entries:
        assert entry.where + entry.keyword in page.text
    assert page.text.index("multipleOf") < page.text.index("the term")
    assert "details" not in _page(sg.regex("[ab]+") + "x").tags
    assert "[ab]+" in _page(sg.regex("[ab]+")).text.split("how it was read")[0]
    assert "200 more" in _page(sg.lark("start: r0\n" + "".join(f'r{at}: "a"\n' for at in range(399)))).text


def test_tokens_are_told_apart_without_colours() -> None:
    """Their styles differ even if all colours are taken away; the probability is that of the step."""
    result = sg.generate(HashModel(VOCABULARY, writes=ADA), "x", sg.json_schema(Person), max_tokens=60)
    page = _page(result)
    written = page.spans[: len(result.tokens)]
    styles: dict[str, set[str]] = {}
    for (text, attrs), step in zip(written, result.steps, strict=False):
        assert step.token is not None
        assert text.encode() == VOCABULARY.tokens[step.token]
        kind = attrs["title"].partition(":")[0].partition(",")[0]
        assert (kind == "forced") == step.forced
        assert (kind == "drafted") == step.drafted
        styles.setdefault(kind, set()).add(re.sub(r"rgba\([^)]*\)", "", attrs["style"]))
        if not step.forced:
            shown = re.search(r"probability ([0-9.e-]+)", attrs["title"])
            assert shown is not None
            assert float(shown[1]) == pytest.approx(math.exp(step.logprob), rel=0.01)
    assert len(styles) >= 2
    assert len(set().union(*styles.values())) == len(styles)


def test_draft_tokens_are_those_that_were_accepted() -> None:
    """Marked are the accepted draft tokens of the statistics, no more, and without drafts none."""
    grammar = sg.regex("[a-z ]{60}")
    lm = HashModel(VOCABULARY, writes="one two one two one two one two one two one two one two one")
    for drafter in (sg.drafters.PromptLookup(), None):
        result = sg.generate(lm, "one two one two", grammar, drafter=drafter, max_tokens=60)
        marked = sum(step.drafted for step in result.steps)
        assert marked == result.stats.accepted
        assert (marked > 10) == (drafter is not None)


def test_the_cut_part_is_marked() -> None:
    result = sg.generate(HashModel(VOCABULARY, writes="a" * 90), "x", sg.regex("a+b"), max_tokens=20)
    assert result.cut_at is not None
    page = _page(result)
    assert "\u2702" in page.text
    cut = [text for text, attrs in page.spans if "dashed" in attrs.get("style", "") and "\u2702" not in text]
    assert "".join(cut) == result.text[result.cut_at :]
    assert "\u2702" not in _page(sg.generate(HashModel(VOCABULARY), "x", sg.regex("a{3}"), max_tokens=20)).text


def test_characters_of_several_tokens_are_whole() -> None:
    result = sg.generate(HashModel(VOCABULARY), "x", sg.literal("aé€😀"))
    assert "aé€😀" in _page(result).text


def test_short_texts_are_short() -> None:
    """One line, about 200 characters at most, whatever is in it."""
    long = sg.json_schema({"enum": [f"value {n}" for n in range(2000)]})
    constraint = sg.compile(long, VOCABULARY)
    run = _run(max_tokens=400)
    mapped = who.map(["Ada", 3], model=HashModel(VOCABULARY, writes=ADA), max_tokens=1)
    samples = sg.sample(HashModel(VOCABULARY), "x", sg.regex("[ab]{9}"), sampler=sg.samplers.SMC(particles=40))
    result = sg.generate(HashModel(VOCABULARY), "x", long)
    for shown in (long, constraint.report, samples, result, run, run.outcomes[0], *mapped):
        text = repr(shown)
        assert "\n" not in text
        assert len(text) <= 260, text
    assert repr(mapped[0]).startswith("Mapped(0, BudgetError: ")


def test_a_run_prints_its_value_its_end_and_its_cost() -> None:
    run = _run(think=5)
    lines = str(run).split("\n")
    assert lines[0] == f"thought: {run.thought}"
    assert lines[1:3] == ["value: Person(name='Ada', age=36)", "finish reason: stop"]
    assert re.fullmatch(r"cost: \d+ tokens \(\d+ forced\) in \d+ forward passes.*", lines[3])
    assert repr(run).startswith("Run(Person(name='Ada', age=36), stop, ")
    one = sg.generate(HashModel(VOCABULARY), "x", sg.regex("[ab]"), drafter=None)
    assert re.fullmatch(r"Result\('[ab]', stop, 1 token \(0 forced\) in 1 forward pass\)", repr(one))
    served = who.run("Ada", model=Scripted("Hm.", ADA), think=5)
    assert str(served).endswith("cost: 2 requests")
    assert ADA in _page(served).text


def test_a_report_counts_and_lists() -> None:
    report = sg.compile(sg.json_schema(Person), VOCABULARY).report
    page = _page(report)
    for entry in report.entries:
        assert entry.where in page.text
    assert re.match(r"Report\(json schema: \d+ enforced", repr(report))


def test_results_are_shown_of_all_kinds_of_model() -> None:
    """Slots of a canvas say when they were filled."""
    from structgen.models.diffusion import HashDiffusion

    masked = Vocabulary([*BYTES, b""], eos=[0], special={257: "<mask>"})
    answer: Result = sg.generate(HashDiffusion(masked), "x", sg.regex("[ab]{4}c"), canvas=5)
    page = _page(answer)
    assert answer.text in page.text
    assert answer.canvas is not None
    assert f"5 slots ({len(answer.canvas.forced)} forced) in {len(answer.canvas.commits)} commits" in page.text
    found = [int(re.search(r"commit (\d+) of", attrs["title"])[1]) for _, attrs in page.spans[:5]]  # type: ignore[index]
    for slot, number in enumerate(found):
        assert slot in answer.canvas.commits[number - 1]

    @sg.program
    def pick() -> Literal["yes", "no"]:
        """Yes?"""

    assert pick.run(model=HashModel(VOCABULARY)).value in _page(pick.run(model=HashModel(VOCABULARY))).text


def test_fields_show_their_probability_and_all_values() -> None:
    """Beside the output are the fields, and for each with marginals all its values, with the same numbers."""

    @sg.program(marginals=True)
    def read() -> Mood:
        """How is it?"""

    run = read.run(model=HashModel(VOCABULARY))
    page = _page(run)
    (scores,) = (held for held in run.outcomes[0].fields if held.name == "mood")
    assert scores.marginals is not None
    assert scores.probability is not None
    for value, share in scores.marginals.items():
        assert f"{value}{share:.3g}" in page.text
    assert f"mood{scores.probability:.3g}  {scores.value}" in page.text
    assert page.text.count("all values of") == 1
    assert "Outcome" in _page(run.outcomes[0]).text


def test_samples_show_their_weights() -> None:
    samples = sg.sample(HashModel(VOCABULARY), "x", sg.regex("[ab]{2}|</b>"), sampler=sg.samplers.SMC(particles=20))
    page = _page(samples)
    for sample, weight in zip(samples.samples, samples.weights, strict=True):
        assert f"{sample.result.text}{weight:.3g}" in page.text
    assert f"{samples.log_evidence:.4g}" in page.text


def test_many_items_are_a_table() -> None:
    """Each item has its value, or its error, which is escaped as all else."""
    mapped = who.map(["Ada", "Bob", 3], model=HashModel(VOCABULARY, writes=ADA))
    assert isinstance(mapped, list)
    page = _page(mapped)
    assert page.text.startswith("3 items, 0 failed")
    assert page.text.count("Person(name='Ada', age=36)") == 3
    assert ADA in _page(mapped[0]).text
    failed = who.map(["Ada"], model=HashModel(VOCABULARY, writes=ADA), max_tokens=1)
    assert "1 item, 1 failed" in _page(failed).text
    assert "BudgetError" in _page(failed[0]).text
    assert pickle.loads(pickle.dumps(mapped)) == mapped


def test_a_trace_has_a_row_for_each_token() -> None:
    """With what was chosen, what the mask removed, and the others; it is still plain data."""
    run = _run(think=5, alternatives=2)
    trace = run.trace
    assert json.loads(json.dumps(trace)).keys() == trace.keys()
    page = _page(trace)
    assert HOSTILE_NAME in page.text
    steps = [step for outcome in run.outcomes for result in outcome.results() for step in result.steps]
    assert page.text.count("chosen") + page.text.count("forced") == len(steps)
    likeliest = min(math.exp(step.logprob) for step in steps if not step.forced)
    assert f"{likeliest:.3g}" in page.text
    served = who.run("Ada", model=Scripted(ADA))
    assert "by a server" in _page(served.trace).text


def test_why_a_token_is_refused_is_shown() -> None:
    explanation = sg.compile(sg.regex("<b>[0-9]"), VOCABULARY).matcher().explain(b"<b>x</b>")
    assert str(explanation) in _page(explanation).text


def test_long_tables_are_cut() -> None:
    """What a page shows is bounded, whatever a model writes."""
    rows = [markup.Row(("<x>", "y"), "chosen")] * 5000
    assert "... 4,000 more" in _Page(markup.grid(("a", "b"), rows, title="t")).text
    shares = [("<x>", 0.5, "y")] * 80
    assert "... 30 more" in _Page(markup.bars("t", shares)).text
    assert "width:100.0%" in markup.bars("t", [("x", 7.0, "")])


def test_a_filled_text_shows_its_holes() -> None:
    filled = sg.infill(
        HashModel(VOCABULARY), ["<b>", sg.grammars.hole(3), "</b>"], "<b>" + sg.regex("[ab]{3}") + "</b>"
    )
    page = _page(filled)
    assert filled.text in page.text
    assert f"hole 1{filled.fillings[0].text}" in page.text
