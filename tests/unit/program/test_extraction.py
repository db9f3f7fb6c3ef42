"""Extraction, with and without evidence, on a model without weights."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, strategies as st
from pydantic import AfterValidator, BaseModel, Field

import structgen
from structgen.cli.main import main
from structgen.engine import Vocabulary, compile
from structgen.errors import GrammarError, LimitExceeded, ProgramError, UnsatisfiableGrammar
from structgen.models.toy.hash import HashModel
from structgen.program import Done, Evidence, Written, extract, quoted
from structgen.program.answer import QuotationSource

DOCUMENT = 'Ada Lovelace, born in London, knew "Charles" Babbage.\nLondon was large; Ada was 36.'


class Person(BaseModel):
    name: str
    born: str | None = None
    age: int = Field(ge=0, le=130)


class Fact(BaseModel):
    subject: str
    kind: Literal["place", "person"]
    quotes: list[str] = Field(max_length=3)
    notes: dict[str, str]
    code: str = Field(pattern="^x[0-9]$")


ADA = '{"name": "Ada Lovelace", "born": "London", "age": 36}'


def model(vocabulary: Vocabulary, writes: str | None = None, **settings: Any) -> HashModel:
    return HashModel(vocabulary, writes=writes, **settings)


def test_values_of_any_type(json_vocabulary: Vocabulary) -> None:
    person: Person = extract(Person, DOCUMENT, model=model(json_vocabulary, ADA))
    assert person == Person(name="Ada Lovelace", born="London", age=36)
    people = extract(list[Person], DOCUMENT, model=model(json_vocabulary, f"[{ADA}, {ADA}]"))
    assert people == [person, person]
    assert extract(int, DOCUMENT, model=model(json_vocabulary, "36")) == 36
    assert structgen.extract is extract


def test_without_evidence_texts_are_free(json_vocabulary: Vocabulary) -> None:
    lm = model(json_vocabulary, ADA.replace("London", "Paris"))
    run = extract.run(Person, DOCUMENT, model=lm, evidence=False)
    assert run.value.born == "Paris"
    assert run.evidence == ()


def test_texts_are_quoted(json_vocabulary: Vocabulary) -> None:
    run = extract.run(Person, DOCUMENT, model=model(json_vocabulary, ADA), evidence=True)
    assert run.value == Person(name="Ada Lovelace", born="London", age=36)
    name, born = run.evidence
    assert (name.path, name.name, name.text, name.spans) == (("name",), "name", "Ada Lovelace", ((0, 12),))
    first, second = DOCUMENT.index("London"), DOCUMENT.rindex("London")
    assert born == Evidence(("born",), "London", first, first + 6, ((first, first + 6), (second, second + 6)))
    assert run.outcomes[0].evidence == run.evidence


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("whole_words", [True, False])
def test_whatever_the_model_wants_is_in_the_document(json_vocabulary: Vocabulary, seed: int, whole_words: bool) -> None:
    """The values are substrings of the document, and each has its evidence."""
    wish = '{"subject": "Nobody at all", "kind": "person", "quotes": ["was it", "Charles"'
    run = extract.run(
        Fact,
        DOCUMENT,
        model=model(json_vocabulary, wish if seed % 2 else None, seed=seed),
        evidence=True,
        whole_words=whole_words,
        sampler=structgen.Multinomial(),
        seed=seed,
    )
    fact = run.value
    texts = [fact.subject, *fact.quotes, *fact.notes.values()]
    assert [held.text for held in run.evidence] == texts
    for held in run.evidence:
        assert held.text
        assert held.text in DOCUMENT
        assert held.spans[0] == (held.start, held.end)
        assert all(DOCUMENT[start:end] == held.text for start, end in held.spans)
        if whole_words:
            assert held.text == held.text.strip()


class Anywhere(BaseModel):
    text: Annotated[str, Field(json_schema_extra={"allOf": [{"type": "string"}, {"pattern": "a"}]})]


def test_restrictions_from_elsewhere_are_refused(json_vocabulary: Vocabulary) -> None:
    with pytest.raises(ProgramError, match="restricted in another place of its schema"):
        extract(Anywhere, DOCUMENT, model=model(json_vocabulary), evidence=True)


def test_every_character_can_be_quoted(json_vocabulary: Vocabulary) -> None:
    """JSON escapes are used where they are needed, and lengths count characters of the document."""
    document = "".join(map(chr, range(1, 0x20))) + '"\\/\x7fé\u2028😀'
    kind = Annotated[str, Field(min_length=len(document), max_length=len(document))]
    run = extract.run(kind, document, model=model(json_vocabulary), evidence=True, whole_words=False)
    assert run.value == document
    assert run.evidence[0].spans == ((0, len(document)),)
    assert run.outcomes[0].text == json.dumps(document, ensure_ascii=False)


@given(st.text(alphabet='ab "\\\né', min_size=1, max_size=10), st.text(alphabet='ab "\\\né', max_size=4))
def test_what_may_be_written_is_what_occurs(document: str, other: str) -> None:
    """Every substring is accepted in one spelling, no other text, and no needless escape."""
    vocabulary = Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0])
    kind = Annotated[str, Field(min_length=1)]
    matcher = compile(quoted(kind, document, whole_words=False).grammar, vocabulary).matcher()

    def is_member(written: str) -> bool:
        matcher.reset()
        data = written.encode()
        return matcher.accept_bytes(data) == len(data) and matcher.is_accepting

    parts = {document[i:j] for i in range(len(document)) for j in range(i + 1, len(document) + 1)}
    for text in parts | {other, other + document, document + "a"}:
        assert is_member(json.dumps(text, ensure_ascii=False)) == (text in parts)
        assert not is_member('"' + "".join(f"\\u{ord(each):04x}" for each in text) + '"')


def test_text_and_escapes(json_vocabulary: Vocabulary) -> None:
    wish = json.dumps({"name": 'knew "Charles" Babbage.\nLondon', "age": 1})
    run = extract.run(Person, DOCUMENT, model=model(json_vocabulary, wish), evidence=True)
    assert DOCUMENT[run.evidence[0].start : run.evidence[0].end] == 'knew "Charles" Babbage.\nLondon'
    plain = extract.run(str, DOCUMENT, model=model(json_vocabulary, "Babbage"), evidence=True)
    assert plain.value == plain.text[-7:] == "Babbage"
    assert plain.evidence[0].path == ()
    choice = extract.run(Literal["Paris", "Rome"], DOCUMENT, model=model(json_vocabulary, "Rome"), evidence=True)
    assert (choice.value, choice.evidence) == ("Rome", ())


def test_an_empty_quotation_is_for_fields_that_may_be_empty(json_vocabulary: Vocabulary) -> None:
    @dataclass
    class Held:
        full: str
        short: Annotated[str, Field(min_length=0, max_length=3)]

    run = extract.run(Held, DOCUMENT, model=model(json_vocabulary, '{"full": "Ada", "short": ""}'), evidence=True)
    assert run.value == Held("Ada", "")
    assert [held.name for held in run.evidence] == ["full"]
    run = extract.run(Held, DOCUMENT, model=model(json_vocabulary, '{"full": ""'), evidence=True)
    assert run.value.full
    assert run.value.full in DOCUMENT


def test_lengths_hold_too(json_vocabulary: Vocabulary) -> None:
    kind = Annotated[str, Field(min_length=7, max_length=8)]
    for seed in range(4):
        made = model(json_vocabulary, seed=seed)
        run = extract.run(list[kind], DOCUMENT, model=made, evidence=True)  # type: ignore[valid-type]
        assert all(7 <= len(text) <= 8 and text in DOCUMENT for text in run.value)
    with pytest.raises(UnsatisfiableGrammar):
        extract(Annotated[str, Field(min_length=99)], DOCUMENT, model=model(json_vocabulary), evidence=True)


def test_nothing_can_be_quoted_from_an_empty_document(json_vocabulary: Vocabulary) -> None:
    assert extract(list[str], " ", model=model(json_vocabulary, '["a"]'), evidence=True) == []
    assert extract(str | None, "", model=model(json_vocabulary), evidence=True) is None
    with pytest.raises(GrammarError):
        extract(Person, "", model=model(json_vocabulary), evidence=True)


class Note(BaseModel):
    name: str
    summary: Written = Field(max_length=20)
    others: list[Written] = Field(max_length=1)


def test_by_default_free_texts_are_the_most_probable_quotations(json_vocabulary: Vocabulary) -> None:
    for seed in range(5):
        lm = model(json_vocabulary, seed=seed)
        run = extract.run(Person, DOCUMENT, model=lm, max_tokens=80)
        exact = extract.run(Person, DOCUMENT, model=lm, max_tokens=80, evidence="exact")
        assert (run.text, run.evidence) == (exact.text, exact.evidence)
        assert run.evidence[0].text in DOCUMENT
        assert run.evidence[0].probability is not None


def test_what_is_written_is_not_quoted(json_vocabulary: Vocabulary) -> None:
    lm = model(json_vocabulary, '{"name": "Ada", "summary": "zzz", "others": ["yyy"]}')
    run = extract.run(Note, DOCUMENT, model=lm)
    assert (run.value.summary, run.value.others) == ("zzz", ["yyy"])
    assert [each.name for each in run.evidence] == ["name"]
    plain = extract.run(Written, DOCUMENT, model=model(json_vocabulary, '"zzz"'))
    assert (plain.value, plain.evidence) == ("zzz", ())


@pytest.mark.parametrize(
    ("document", "settings"),
    [
        ("", {}),
        (" \n", {}),
        (DOCUMENT, {"max_tokens": 4}),
        (DOCUMENT, {"sampler": structgen.Multinomial()}),
        (DOCUMENT, {"sampler": structgen.SMC(2)}),
    ],
    ids=["empty", "white space", "no room", "samples", "samples of whole outputs"],
)
def test_where_nothing_can_be_searched_for_texts_are_written(
    json_vocabulary: Vocabulary, document: str, settings: dict[str, Any]
) -> None:
    lm = model(json_vocabulary, '{"name": "zz"}')
    run = extract.run(Name, document, model=lm, **settings)
    plain = extract.run(Name, document, model=lm, evidence=False, **settings)
    assert run.outcomes[0].answer.source is None
    assert run.value.name == "" or run.value.name not in document
    assert (plain.outcomes[0].answer.grammar, plain.value.name == "") == (
        run.outcomes[0].answer.grammar,
        run.value.name == "",
    )


def test_a_quotation_whose_search_is_too_long_is_written_token_by_token(json_vocabulary: Vocabulary) -> None:
    lm = model(json_vocabulary, seed=3)
    with pytest.raises(LimitExceeded, match="search_limit=2 would be needed"):
        extract(Name, DOCUMENT, model=lm, max_tokens=60, evidence="exact", search_limit=2)
    run = extract.run(Name, DOCUMENT, model=lm, max_tokens=60, search_limit=2)
    sampled = extract.run(Name, DOCUMENT, model=lm, max_tokens=60, evidence=True)
    assert run.text == sampled.text
    assert [(each.text, each.probability) for each in run.evidence] == [(sampled.value.name, None)]
    assert run.stats.forwards > sampled.stats.forwards


class Name(BaseModel):
    name: str


def elsewhere(value: str) -> str:
    if value == "London":
        raise ValueError("must be elsewhere")
    return value


class Place(BaseModel):
    place: Annotated[str, AfterValidator(elsewhere)]


def test_what_a_validator_refuses_is_quoted_anew(json_vocabulary: Vocabulary) -> None:
    lm = model(json_vocabulary, '{"place": "London"}')
    run = extract.run(Place, DOCUMENT, model=lm, evidence=True)
    assert run.outcomes[0].violations[0].problem.endswith("must be elsewhere")
    assert run.evidence[0].text == run.value.place
    assert run.value.place in DOCUMENT


class Node(BaseModel):
    text: str
    children: list[Node] = Field(max_length=1)


def test_recursive_types_and_tuples(json_vocabulary: Vocabulary) -> None:
    wish = '{"text": "Ada", "children": [{"text": "London", "children": []}]}'
    run = extract.run(Node, DOCUMENT, model=model(json_vocabulary, wish), evidence=True)
    assert [held.name for held in run.evidence] == ["text", "children[0].text"]
    pair = extract.run(tuple[int, str], DOCUMENT, model=model(json_vocabulary, '[3, "Ada"]'), evidence=True)
    assert [held.path for held in pair.evidence] == [(1,)]


def test_events_and_waiting(json_vocabulary: Vocabulary) -> None:
    events = list(extract.stream(Person, DOCUMENT, model=model(json_vocabulary, ADA), evidence=True))
    assert isinstance(events[-1], Done)
    assert len(events[-1].run.evidence) == 2
    person = asyncio.run(extract.aio(Person, DOCUMENT, model=model(json_vocabulary, ADA)))
    assert person.name == "Ada Lovelace"


@pytest.mark.parametrize("kind", [True, "exact"])
def test_the_trace_tells_where_quotations_stand(
    json_vocabulary: Vocabulary, kind: bool | str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = extract.run(Person, DOCUMENT, model=model(json_vocabulary, ADA), evidence=kind)
    held = json.loads(json.dumps(run.trace))["answers"][0]["evidence"]
    assert [(tuple(each["path"]), each["text"], each["logprob"]) for each in held] == [
        (each.path, each.text, each.logprob) for each in run.evidence
    ]
    assert [[DOCUMENT[start:end] for start, end in each["spans"]] for each in held] == [
        ["Ada Lovelace"],
        ["London"] * 2,
    ]
    assert all((each["logprob"] is None) == (kind is True) for each in held)
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(run.trace))
    assert main(["trace", str(path)]) == 0
    page = capsys.readouterr().out
    first, second = DOCUMENT.index("London"), DOCUMENT.rindex("London")
    assert '  name is quoted: "Ada Lovelace" at 0-12' in page
    assert f'  born is quoted: "London" at {first}-{first + 6} (also {second}-{second + 6})' in page
    assert page.count(", the most probable one with ") == (0 if kind is True else 2)
    del run.trace["answers"][0]["evidence"]  # as earlier ones were written
    path.write_text(json.dumps(run.trace))
    assert main(["trace", str(path)]) == 0
    assert "is quoted" not in capsys.readouterr().out


def test_many_documents(json_vocabulary: Vocabulary) -> None:
    lm = model(json_vocabulary, ADA)
    found = extract.map([(Person, DOCUMENT), (Person, "Ada Lovelace lived.")], model=lm, evidence=True)
    assert [held.value.name for held in found] == ["Ada Lovelace", "Ada Lovelace"]
    assert found[1].value.born != "London"


def test_the_prompt(json_vocabulary: Vocabulary) -> None:
    run = extract.run(Person, DOCUMENT, model=model(json_vocabulary, ADA), evidence=True)
    assert run.text.startswith("Extract")
    assert DOCUMENT in run.text
    assert "\n- name\n- born\n- age: integer" in run.text
    own = extract.run(Person, DOCUMENT, model=model(json_vocabulary, ADA), instruction="Whom?")
    assert own.text.startswith("Whom? Answer with JSON")
    assert own.text.index("- name") < own.text.index(DOCUMENT)


def test_wrong_calls(json_vocabulary: Vocabulary) -> None:
    with pytest.raises(ProgramError, match="must be a text; found bytes; give its text, decoded"):
        extract(Person, b"Ada", model=model(json_vocabulary))  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match=r"found the type Person; the type comes first: extract\(Person, text\)"):
        extract(DOCUMENT, Person)
    with pytest.raises(ProgramError, match=r"found a list; for several documents, write extract\.map\("):
        extract(Person, [DOCUMENT])
    with pytest.raises(ProgramError, match="lone surrogate"):
        extract(Person, "\ud800", model=model(json_vocabulary), evidence=True)
    with pytest.raises(ProgramError, match=r"'document'; call it as extract\(kind, document, /, \*, evidence='auto',"):
        extract(Person, model=model(json_vocabulary))  # type: ignore[call-arg]


def test_answers_may_be_yielded(json_vocabulary: Vocabulary) -> None:
    """A program asks for quotations among its other steps."""

    @structgen.program
    def quote(document: str) -> Any:
        yield document
        found = yield quoted(str, document)
        return found

    run = quote.run(DOCUMENT, model=model(json_vocabulary, "London"))
    assert run.value == "London"
    assert len(run.evidence[0].spans) == 2


def test_a_value_that_is_not_in_the_document_has_no_evidence() -> None:
    answer = quoted(Person, DOCUMENT)
    assert isinstance(answer.source, QuotationSource)
    second = DOCUMENT.rindex("Ada")
    found = answer.source.evidence({"name": "Ada", "born": "Eve", "age": 36, "other": "Ada"})
    assert found == (Evidence(("name",), "Ada", 0, 3, ((0, 3), (second, second + 3))),)
