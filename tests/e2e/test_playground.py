"""The playground's module in Node: masks equal to the native engine's, what it refuses, hostile texts.

Built by ``make playground``; ``make playground-test`` builds it and runs these and ``test_playground_page.py``.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner
from data_folder import REAL_SCHEMAS, data_folder, real_schemas
from playground_cases import FEWEST, JUDGE, PAGE, cases, hostile, vocabulary, walk

import structgen as sg
from structgen.cli.main import cli
from structgen.errors import LimitExceeded
from structgen.models import embedded_folder

_ROOT: Final = Path(__file__).resolve().parents[2]
_NODE: Final = shutil.which("node")

pytestmark = [
    pytest.mark.playground,
    pytest.mark.exhaustive,
    pytest.mark.model,
    pytest.mark.skipif(not PAGE.exists(), reason=f"{PAGE} is not there; build it: make playground"),
]
in_node = pytest.mark.skipif(_NODE is None, reason="there is no node")


@pytest.fixture(scope="module")
def judged() -> list[dict[str, Any]]:
    return cases()


def _node(what: str, given: Any) -> Any:
    assert _NODE is not None
    command = [_NODE, str(JUDGE), str(PAGE.parent / "parts"), str(_ROOT / "playground" / "page"), what]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@in_node
def test_masks_are_those_of_the_native_engine_in_node(judged: list[dict[str, Any]]) -> None:
    answer = _node("judge", judged)
    assert answer["faults"] == []
    assert answer["count"] >= FEWEST


_ONLY_IN_LINKS: Final = {
    "names": {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}, "additionalProperties": {"type": "integer"}},
    "arrays to exclude": {"type": "array", "not": {"items": {"type": "string"}}},
    "arrays that overlap": {"oneOf": [{"type": "array", "items": {"type": "null"}}, {"type": "array", "maxItems": 2}]},
    "fractions": {"type": "number", "not": {"type": "integer"}},
    "items that differ": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "minItems": 2},
}


@in_node
def test_links_hold_what_the_page_does_not_read(tmp_path: Path) -> None:
    tokens, given, fragments = vocabulary(), [], []
    sources = {f"{name}.json": json.dumps(schema) for name, schema in _ONLY_IN_LINKS.items()}
    sources |= {
        "lazy.lark": 'start: /<.*?>/ "," start | "."',
        "left.gbnf": 'root ::= root "a" | root "b" | "c"',
    }
    for number, (name, text) in enumerate(sources.items()):
        path = tmp_path / name
        path.write_text(text, "utf-8")
        done = CliRunner().invoke(cli, ["playground", str(path)])
        assert done.exit_code == 0, done.output
        fragments.append(done.output.strip())
        assert f"&name={name.replace(' ', '+')}&" in fragments[-1]  # without the folder
        given.append({"notation": "program", "source": _program(fragments[-1]), **walk(sg.load(path), tokens, number)})
    assert _node("judge", given)["faults"] == []


def _program(fragment: str) -> list[int]:
    from base64 import urlsafe_b64decode
    from urllib.parse import parse_qs

    packed = parse_qs(fragment.lstrip("#"))["program"][0]
    return list(urlsafe_b64decode(packed + "=" * (-len(packed) % 4)))


_REFUSED: Final = [
    (
        "schema",
        '{"type": "object",\n "properties": {"a": {"type": "integer", "multipleOf": 100003}}}',
        '"multipleOf": 100003',
        "multiples need too many states",
    ),
    ("schema", '{"type": "string",}', "}", "no JSON"),
    ("schema", '{"type": "string", "x": tru}', "t", "no JSON: a value has to come"),
    ("schema", '{"a": 1, "a": 2}', '"a"', "occurs twice"),
    ("schema", '{"not": {"minItems": 2}}', '"not": {"minItems": 2}', "'not' is likely why"),
    (
        "schema",
        '{"properties": {"not": {}, "é": {"not": {"items": {}}}}}',
        '"not": {"items": {}}',
        "arrays that it excludes",
    ),
    (
        "schema",
        '{"properties": {"contains": {}, "é": {"contains": false}}}',
        '"contains": false',
        "'contains' is not read",
    ),
    ("schema", '{"items": {"uniqueItems": true, "minItems": 2}}', '"uniqueItems": true', "two required items"),
    ("schema", '{"items": [{"type": "null"}]}', '"items": [{"type": "null"}]', "array of schemas"),
    ("schema", '{"allOf": [{"enum": [[1]]}, {"minItems": 1}]}', '"enum": [[1]]', "beside other schemas"),
    ("schema", '{"type": "string", "pattern": "(?!a)b"}', '"pattern": "(?!a)b"', "look-around"),
    ("schema", '{"patternProperties": {"^b": {}, "(?!a)b": {}}}', '"(?!a)b": {}', "'patternProperties': look-around"),
    (
        "schema",
        '{"items": {"enum": ["x"]}, "not_an": {"enum": []}, "additionalProperties": {"enum": ["y"], "format": "date"}}',
        '"format": "date"',
        "beside constants",
    ),
    ("schema", '{"type": "string", "minLength": 3, "maxLength": 2}', '"minLength": 3', "no value is left"),
    ("schema", '{"type": "number", "minimum": 3, "exclusiveMaximum": 3}', '"minimum": 3', "no value is left"),
    ("regex", "é(?=x)", "(?=", "look-around"),
    ("regex", "a\\bb", "\\b", "word boundary"),
    ("regex", "(a)\\1", "\\1", "back-reference"),
    ("regex", "a++", "++", "possessive"),
    ("regex", "a**", "*", "quantifier follows"),
    ("regex", "(a", "(", "unclosed group"),
    ("regex", "[b-a]", "b-a", "backwards"),
    ("lark", 'start: "a" x\nx: /a.*?b/\n', "/a.*?b/", "lazy"),
    ("lark", 'start: "a"\n!!bad\n', "!!bad", "statement"),
    ("gbnf", 'root ::= "a" <think>', "<", "token"),
    ("gbnf", 'root ::= "é" other', "other", "no rule is called"),
    ("gbnf", "root ::= [z-a]", "z-a", "reversed"),
    ("gbnf", 'root ::= ("a"', "(", "not closed"),
]


@in_node
def test_what_is_not_read_is_refused_with_its_place() -> None:
    answers = _node("compile", [[notation, text] for notation, text, _, _ in _REFUSED])
    for (notation, text, place, word), answer in zip(_REFUSED, answers, strict=True):
        assert word in answer["error"], (notation, text, answer)
        assert text[answer["begin"] : answer["end"]] == place, (notation, text, answer)


@in_node
def test_texts_are_cut_as_the_tokenizer_of_the_model_cuts_them() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    texts = [
        "Hello, world! It's 2024-11-05 and we'll see.",
        "  two  spaces\n\n\tand tabs ",
        '{"name": "Ada", "age": 36}',
        "日本語 text é ñ, x = 12345.678e-9; 🙂",
        "    indented\n        code()\n\r\n\r\n",
        "CamelCaseWords andSNAKE_case 1  2   3",
        "a" * 300,
    ]
    model = tokenizers.Tokenizer.from_file(str(Path(embedded_folder()) / "tokenizer.json"))
    assert _node("tokenize", texts) == [model.encode(text, add_special_tokens=False).ids for text in texts]


@in_node
def test_hostile_texts_end_in_masks_or_an_error_in_each_notation() -> None:
    answer = _node("survive", hostile())
    assert answer["faults"] == []
    assert answer["kinds"]["limit"] > 0
    assert answer["kinds"]["read"] > 0


@in_node
def test_places_in_json_are_found_where_a_text_is_none() -> None:
    pieces = [
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        '"a"',
        '"b"',
        "1",
        "-",
        "0",
        ".5",
        "e3",
        "true",
        "nul",
        " ",
        "\n",
        '"',
        "\\",
        "\\n",
    ]
    pieces += ["x", "\\u12", "\\u1234", "\x01", "é", "\ufeff"]
    generator = random.Random(7)
    texts = ["".join(generator.choices(pieces, k=generator.randrange(10))) for _ in range(50_000)]
    assert _node("json", [*texts, "[" * 150 + "]" * 150, '"' + "x" * 1_000_000]) == []


@in_node
def test_a_mask_that_was_made_ahead_takes_little_work() -> None:
    tokens = vocabulary()
    given = [
        ["schema", json.dumps({"type": "string", "format": name}), '"', tokens.tokens.index(token)]
        for name in ("idn-email", "hostname")
        for token in (b"a", b"x", b"hello")
    ]
    for without, ahead in _node("ahead", given):
        assert without["allowed"] == ahead["allowed"] > 0
        assert without["before"] == ahead["before"]
        assert without["steps"] > 1_000
        assert ahead["steps"] * 10 < without["steps"]


@in_node
@pytest.mark.skipif(not (data_folder() / REAL_SCHEMAS).exists(), reason="the real schemas are not there")
def test_masks_of_real_schemas_are_those_of_the_native_engine() -> None:
    schemas = [one["schema"] for one in real_schemas(data_folder(), 100)]
    given = [["schema", json.dumps(schema, ensure_ascii=False)] for schema in schemas]
    answers = _node("compile", given)
    tokens, cases = vocabulary(), []
    for number, (schema, (_, text), answer) in enumerate(zip(schemas, given, answers, strict=True)):
        if "error" in answer:
            assert answer["kind"] in ("unread", "limit"), (text[:200], answer)
        else:
            with suppress(LimitExceeded):  # the page decides less at once, so its limits are met elsewhere
                cases.append({"notation": "schema", "source": text, **walk(sg.json_schema(schema), tokens, number)})
    assert _node("judge", cases)["faults"] == []
    assert len(cases) > 0.9 * len(schemas)
