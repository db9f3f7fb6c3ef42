"""Structural tags: what is refused and where, budgets and nesting, files, and the way back."""

from __future__ import annotations

import copy
import functools
import json
import operator
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import structgen as sg
from structgen.cli.main import main
from structgen.errors import ArgumentError, GrammarError, GrammarSyntaxError, LimitExceeded, UnsupportedFeature
from structgen.frontends.convert import write
from structgen.frontends.grammar_source import holds_structural_tag
from structgen.frontends.loading import load
from structgen.frontends.structural_tag import structural_tag
from structgen.grammar import nodes as ir

FIXTURES = Path(__file__).parents[2] / "fixtures" / "structural_tags.jsonl"
ANY = {"type": "any_text"}
X = {"type": "const_string", "value": "x"}
CALL = {"type": "tag", "begin": "<f>", "content": X, "end": "</f>"}
TOKEN = {"type": "tag", "begin": {"token": 3}, "content": X, "end": {"type": "token", "token": "<e>"}}


def tag(form: Any) -> dict[str, Any]:
    return {"type": "structural_tag", "format": form}


def triggered(**fields: Any) -> dict[str, Any]:
    return {"type": "triggered_tags", "triggers": ["<f"], "tags": [CALL], **fields}


def by_token(**fields: Any) -> dict[str, Any]:
    return {"type": "token_triggered_tags", "trigger_tokens": [3], "tags": [TOKEN], **fields}


def rules(*given: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "dispatch", "rules": list(given), **fields}


REFUSED: list[tuple[Any, str, str]] = [
    ([], "#", "a format is an object"),
    ({}, "#", "needs the field 'format'"),
    ({"type": "tag", "format": X}, "#/type", "the type of the outermost object"),
    ({"type": "structural_tag", "format": X, "name": "a"}, "#", "has no field 'name'"),
    (tag("x"), "#/format", "expected a format"),
    (tag({}), "#/format", "the format has no type"),
    (tag({"value": "x"}), "#/format", "the format has no type"),
    (tag({"type": "const_strng"}), "#/format/type", "is 'const_string' meant?"),
    (tag({"type": "const_string"}), "#/format", "needs the field 'value'"),
    (tag({"type": "const_string", "value": 1}), "#/format/value", "expected a text"),
    (tag({"type": "const_string", "value": "\ud800"}), "#/format/value", "expected a text"),
    (tag({**ANY, "exclude": ["a"]}), "#/format", "is 'excludes' meant?"),
    (tag({**ANY, "excludes": [""]}), "#/format/excludes", "texts that are not empty"),
    (tag({**ANY, "max_chars": -1}), "#/format/max_chars", "from 0 on"),
    (tag({**ANY, "max_tokens": True}), "#/format/max_tokens", "from 0 on"),
    (tag({**ANY, "max_tokens": 1.5}), "#/format/max_tokens", "from 0 on"),
    (tag({**ANY, "max_tokens": float("inf")}), "#/format/max_tokens", "from 0 on"),
    (tag({"type": "or", "elements": []}), "#/format/elements", "one or more formats"),
    (tag({"type": "sequence", "elements": [X, 1]}), "#/format/elements", "one or more formats"),
    (tag({"type": "sequence", "elements": [X, {"type": "star"}]}), "#/format/elements/1", "needs the field 'content'"),
    (tag({"type": "repeat", "min": 3, "max": 2, "content": X}), "#/format", "no number of times"),
    (tag({"type": "repeat", "min": 0, "max": -2, "content": X}), "#/format", "no number of times"),
    (tag({"type": "repeat", "min": 0, "max": 1 << 31, "content": X}), "#/format/max", "up to 31 bits"),
    (tag({**CALL, "end": []}), "#/format/end", "one or more texts"),
    (tag({**CALL, "begin": {"type": "tag", "token": 1}}), "#/format/begin/type", "only a token may stand here"),
    (tag({**CALL, "begin": {"token": -1}}), "#/format/begin/token", "the id of a token"),
    (tag({"type": "token", "token": ""}), "#/format/token", "the id of a token"),
    (tag(triggered(triggers=[])), "#/format/triggers", "one or more texts"),
    (tag(triggered(triggers=[""])), "#/format/triggers", "not empty"),
    (tag(triggered(triggers=["<f", "<g"])), "#/format/triggers/1", "no tag begins with the trigger"),
    (tag(triggered(triggers=["<f", "<f>"])), "#/format/triggers/1", "'<f' is in '<f>'"),
    (tag(triggered(triggers=["<f", "<f"])), "#/format/triggers", "given twice"),
    (tag(triggered(tags=[CALL, {**CALL, "begin": "<g>"}])), "#/format/tags/1/begin", "no trigger is a prefix"),
    (tag(triggered(tags=[{**CALL, "begin": ""}])), "#/format/tags/0/begin", "no trigger is a prefix"),
    (tag(triggered(tags=[TOKEN])), "#/format/tags/0/begin", "a token begins it"),
    (tag(triggered(tags=[X])), "#/format/tags/0/type", "only a tag may stand here"),
    (tag(triggered(tags=[])), "#/format/tags", "one or more tags"),
    (tag(triggered(excludes=["f"])), "#/format/triggers/0", "the text before it may not hold"),
    (tag({**CALL, "content": triggered(), "end": "<"}), "#/format/content/triggers/0", "'<' is in '<f'"),
    (tag(triggered(at_least_one="yes")), "#/format/at_least_one", "true or false"),
    (tag(rules()), "#/format/rules", "one or more pairs"),
    (tag(rules(["a"])), "#/format/rules", "one or more pairs"),
    (tag(rules(["", X])), "#/format/rules", "one or more pairs"),
    (tag(rules(["a", 1])), "#/format/rules/0/1", "a format is an object"),
    (tag(rules(["a", X], ["bac", X])), "#/format/rules/1/0", "'a' is in 'bac'"),
    (tag(rules(["a", X], excludes=["a"])), "#/format/rules/0/0", "may not hold"),
    (tag(by_token(tags=[CALL])), "#/format/tags/0/begin", "a text begins it"),
    (tag(by_token(trigger_tokens=[3, 4])), "#/format/trigger_tokens/1", "no tag begins with the token"),
    (tag(by_token(trigger_tokens=[4])), "#/format/tags/0/begin", "is no trigger"),
    (tag(by_token(exclude_tokens=[3])), "#/format/trigger_tokens", "a token is excluded"),
    (tag({"type": "token_dispatch", "rules": [["", X]]}), "#/format/rules", "pairs [token, format]"),
    (tag({"type": "regex", "pattern": "("}), "#/format/pattern", "the regular expression is refused"),
    (tag({"type": "grammar", "grammar": "root ::= x"}), "#/format/grammar", "the grammar is refused"),
    (tag({"type": "json_schema", "json_schema": 1}), "#/format/json_schema", "expected a JSON Schema"),
    (tag({"type": "json_schema", "json_schema": {"type": "i"}}), "#/format/json_schema", "the JSON Schema is refused"),
    (tag({"type": "json_schema", "json_schema": {}, "style": "yaml"}), "#/format/style", "there is no style 'yaml'"),
    ({"structures": [], "triggers": ["<f"]}, "#/structures", "one or more objects"),
    ({"structures": [{"begin": "<f>", "end": ""}], "triggers": ["<f"]}, "#/structures/0", "needs the field 'schema'"),
    ({"structures": [{"begin": "<f>", "schema": {}, "end": "", "type": "x"}], "triggers": ["<f"]}, "#/structures/0",
     "has no field 'type'"),
    ({"structures": [{"begin": "<g>", "schema": {}, "end": ""}], "triggers": ["<f"]}, "#/structures/0/begin",
     "no trigger is a prefix"),
    ({"structures": [{"begin": "<f>", "schema": {}, "end": ""}]}, "#", "needs the field 'triggers'"),
    ({"structures": [{"begin": "<f>", "schema": "{", "end": ""}], "triggers": ["<f"]}, "#/structures/0/schema",
     "the JSON Schema is refused"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "where", "said"), REFUSED)
def test_what_is_refused(given: Any, where: str, said: str) -> None:
    """The error names the place by its JSON Pointer, and says what is wrong there or what to do."""
    with pytest.raises(GrammarError) as caught:
        structural_tag(given if isinstance(given, dict) else json.dumps(given))
    assert caught.value.subject == f"structural tag {where}"
    assert said in str(caught.value)


def test_styles_and_excludes_that_are_refused_by_name() -> None:
    form = {"type": "json_schema", "json_schema": {"type": "string", "format": "idn-hostname"}, "excludes": ["a"]}
    with pytest.raises(UnsupportedFeature) as caught:
        structural_tag(tag(form))
    assert (caught.value.feature, caught.value.where) == ("excludes", "#/format/excludes")


def test_text_that_is_no_tag() -> None:
    with pytest.raises(GrammarSyntaxError):
        structural_tag('{"format": {"type": "any_text", "type": "any_text"}}')
    with pytest.raises(ArgumentError, match="found 3"):
        structural_tag(3)  # type: ignore[arg-type]


BYTES = sg.Vocabulary([*(bytes([value]) for value in range(256)), b""], eos=[256])


def accepts(grammar: ir.Grammar, text: str) -> bool:
    matcher = sg.compile(grammar, BYTES).matcher()
    return matcher.accept_bytes(text.encode()) == len(text.encode()) and matcher.is_accepting


def test_the_older_form() -> None:
    """It means triggered tags; the schema may be text, and each part is reported at its own place."""
    given = {
        "type": "structural_tag",
        "structures": [
            {"begin": "<f=a>", "schema": {"const": 1}, "end": "</f>"},
            {"begin": "<f=b>", "schema": '{"const": 2}', "end": "</f>"},
        ],
        "triggers": ["<f="],
    }
    grammar = structural_tag(given)
    for text, is_valid in [("", True), ("x<f=a>1</f>y<f=b>2</f>", True), ("<f=a>2</f>", False), ("<f=c>", False)]:
        assert accepts(grammar, text) is is_valid
    assert [entry.where for entry in grammar.description.entries] == [  # type: ignore[attr-defined]
        "#/structures", "#/structures/0/schema", "#/structures/1/schema",
    ]  # fmt: skip


def test_depth_takes_no_stack() -> None:
    """Nesting is bounded by the limits, not by Python's recursion."""
    form: Any = X
    for _ in range(1_900):
        form = {"type": "optional", "content": form}
    assert accepts(structural_tag(tag(form)), "x")
    for _ in range(200):
        form = {"type": "star", "content": form}
    with pytest.raises(LimitExceeded, match="nesting=2000"):
        structural_tag(tag(form))
    deep = '{"items": ' * 2_100 + "{}" + "}" * 2_100
    text = json.dumps(tag({"type": "json_schema", "json_schema": {}}))
    with pytest.raises(LimitExceeded, match=r"#/format/json_schema: more than nesting=2000"):
        structural_tag(text.replace("{}", deep))


def test_the_policy_and_what_a_format_says() -> None:
    form = {"type": "json_schema", "json_schema": {"properties": {"a": {"const": 1}, "b": {"const": 2}}}}
    reversed_order = '{"b": 2, "a": 1}'
    assert not accepts(structural_tag(tag(form)), reversed_order)
    assert accepts(structural_tag(tag({**form, "any_order": True})), reversed_order)
    assert accepts(structural_tag(tag({**form, "max_whitespace_cnt": 0})), '{"a":1,"b":2}')
    compact = sg.JsonPolicy(whitespace="compact")
    assert accepts(structural_tag(tag({**form, "max_whitespace_cnt": 9}), policy=compact), '{"a":1,"b":2}')


def test_the_report_names_every_format() -> None:
    grammar = structural_tag(tag({"type": "sequence", "elements": [ANY, CALL]}))
    assert [(entry.keyword, entry.where) for entry in grammar.description.entries] == [  # type: ignore[attr-defined]
        ("sequence", "#/format"),
        ("any_text", "#/format/elements/0"),
        ("tag", "#/format/elements/1"),
        ("const_string", "#/format/elements/1/content"),
    ]


def test_the_way_back() -> None:
    """A grammar from a tag is written as that tag, one from a schema as a schema, any other one as EBNF."""
    given = tag(triggered())
    grammar = pickle.loads(pickle.dumps(structural_tag(given)))
    written = write(grammar, "structural_tag")
    assert json.loads(written.text) == given
    assert written.losses == ()
    text = json.dumps(given)
    assert write(structural_tag(text), "structural_tag").text == text + "\n"
    schema = {"type": "object", "properties": {"a": {"const": 1}}}
    written = write(sg.json_schema(schema), "structural_tag")
    assert json.loads(written.text) == tag({"type": "json_schema", "json_schema": schema})
    assert [loss.what for loss in written.losses] == ["policy"]
    written = write(structural_tag(given).named("x") + sg.regex("a+"), "structural_tag")
    again = structural_tag(written.text)
    assert [loss.what for loss in written.losses] == ["Capture 'x'"]
    for text, is_valid in [("a", True), ("<f>x</f>ya", True), ("<f>x</f>y", False), ("<fa", False)]:
        assert accepts(again, text) is is_valid


def test_what_is_changed_later_is_not_written() -> None:
    given = tag(dict(ANY))
    grammar = structural_tag(given)
    given["format"]["excludes"] = ["a"]
    assert json.loads(write(grammar, "structural_tag").text) == tag(ANY)


def test_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A .json file that says so is a tag, for ``load`` and on the command line; any other one is a schema."""
    file, document = tmp_path / "tag.json", tmp_path / "reply.txt"
    file.write_text(json.dumps(tag(triggered())))
    document.write_text("I call <f>x</f>")
    assert accepts(load(file), "a<f>x</f>")
    assert main(["match", str(file), str(document)]) == 0
    document.write_text("I call <f>y</f>")
    assert main(["match", str(file), str(document)]) == 1
    assert main(["check", str(file)]) == 0
    assert "#/format/tags/0" in capsys.readouterr().out
    assert main(["convert", str(file), "--to", "structural_tag"]) == 0
    assert json.loads(capsys.readouterr().out) == tag(triggered())
    file.write_text(json.dumps(tag(triggered(triggers=["<g"]))))
    assert main(["check", str(file)]) == 2
    assert "#/format/tags/0/begin" in capsys.readouterr().err
    assert not holds_structural_tag('{"const": "structural_tag"}')
    assert not holds_structural_tag('{"structures": "structural_tag"')
    file.write_text('{"properties": {"structures": {"const": "structural_tag"}}}')
    assert load(file).description.source == "json schema"  # type: ignore[attr-defined]


JUNK: list[Any] = [
    None, True, -1, 1.5, float("nan"), float("inf"), 1 << 31, 10**30, "", "<f", "(", "\ud800", "\0", b"x", (1,), object,
    [], [1], [None], [["a", ANY]], {}, {1: 2}, {"token": 1}, X, {"type": "star", "content": {"type": "any_tokens"}},
]  # fmt: skip


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from paths(inner, (*path, key))


def test_whatever_is_given() -> None:
    """Tags with parts that are lost, added or something else are read, or refused by an error of the package."""
    dice = random.Random(27)
    rows = [json.loads(line)["format"] for line in FIXTURES.read_text("utf-8").splitlines()]
    subjects: list[str] = []
    for _ in range(600):
        given = tag(copy.deepcopy(dice.choice(rows)))
        for _ in range(dice.randint(1, 3)):
            *outer, last = dice.choice(list(paths(given)) or [("format",)])
            place = functools.reduce(operator.getitem, outer, given)
            if dice.random() < 0.2:
                place.pop(last, None) if isinstance(place, dict) else place.pop(last)
            else:
                place[last] = copy.deepcopy(dice.choice([*JUNK, *rows]))
        try:
            structural_tag(given)
        except GrammarError as error:
            subjects.append(error.subject)
    assert 200 < len(subjects) < 600
    assert all(subject.startswith("structural tag #") for subject in subjects)


DSML = '<｜DSML｜parameter name="{}" string="{}">{}</｜DSML｜parameter>'
KIMI = '<|open|>argument key="{}" type="{}"<|sep|>{}<|close|>argument<|sep|>'
COHERE = '<cofl:value name="{}" type="{}">{}</cofl:value>'
STYLED = {  # a string, and another value of a type, by name
    "qwen_xml": ("<parameter={0}>{1}</parameter>", "<parameter={0}>{1}</parameter>"),
    "minimax_xml": ('<parameter name="{0}">{1}</parameter>', '<parameter name="{0}">{1}</parameter>'),
    "minimax_m3_xml": ("]<]minimax[>[<{0}>{1}]<]minimax[>[</{0}>", "]<]minimax[>[<{0}>{1}]<]minimax[>[</{0}>"),
    "deepseek_xml": (DSML.format("{0}", "true", "{1}"), DSML.format("{0}", "false", "{1}")),
    "deepseek_v4_1_xml": (
        DSML.replace("｜p", "｜ p").format("{0}", "true", "{1}"),
        DSML.replace("｜p", "｜ p").format("{0}", "false", "{1}"),
    ),
    "glm_xml": ("<arg_key>{0}</arg_key><arg_value>{1}</arg_value>", "<arg_key>{0}</arg_key><arg_value>{1}</arg_value>"),
    "cohere_xml": (COHERE.format("{0}", "raw", "{1}"), COHERE.format("{0}", "json", "{1}")),
    "kimi_k3_xml": (KIMI.format("{0}", "string", "{1}"), KIMI.format("{0}", "{2}", "{1}")),
}


@pytest.mark.parametrize("style", STYLED)
def test_styles(style: str) -> None:
    """Arguments of each style in a tag; ``qwen_xml_parameter`` is the older name of one."""
    properties = {"a": {"type": "string"}, "n": {"type": "integer"}}
    form = {
        "type": "json_schema",
        "json_schema": {"type": "object", "properties": properties, "required": ["a", "n"]},
        "style": style,
    }
    string, other = STYLED[style]
    text = string.format("a", "x") + other.format("n", "1", "number")
    grammar = structural_tag(tag({**CALL, "content": form}))
    entries = sg.compile(grammar, BYTES).report.entries
    assert "#/format/content/json_schema/properties/a/type" in {entry.where for entry in entries}
    assert accepts(grammar, f"<f>{text}</f>")
    assert not accepts(grammar, f"<f>{text.replace('1', 'y')}</f>")
    if style == "qwen_xml":
        older = {"type": "qwen_xml_parameter", "json_schema": form["json_schema"]}
        assert accepts(structural_tag(tag(older)), text)


LISTS = {  # of one string
    "cohere_xml": COHERE.format("l", "list", '<cofl:value type="raw">{}</cofl:value>'),
    "minimax_m3_xml": "]<]minimax[>[<l>]<]minimax[>[<item>{}]<]minimax[>[</item>]<]minimax[>[</l>",
}
EXCLUDED = [["b"], ["ameter", "<", '"', "open|"], ["\n", "a"], ["&q", "quo"], [" x", "1", "x "], ["[", ","]]


@pytest.mark.parametrize("style", STYLED)
def test_styles_with_excludes(style: str) -> None:
    """A text of the style stays iff none of its names and strings, as they are spelled, holds an excluded text."""
    string, other = STYLED[style]
    nests = style in LISTS  # arrays are written with tags, not as JSON
    is_open = style != "minimax_m3_xml"
    array = {"type": "array", "items": {"type": "string"}}
    properties = {"a": {"type": "string"}, "ab": {"enum": ["x", "bx", " x "]}, "l": array, "n": {"enum": [1, 12]}}
    schema = {"type": "object", "properties": properties}
    schema["additionalProperties"] = {"type": "string", "pattern": "^[a-c&]*$"} if is_open else False
    cases: list[tuple[str, list[str]]] = []  # the text of a member, and its names and strings
    for name, values in [("a", ["", "b", "x y", "1\n", '"', "[,", "&quot;"]), ("ab", ["x", "bx", " x "])]:
        cases += [(string.format(name, value), [name, value]) for value in values]
    cases += [(other.format("n", value, "number"), ["n"]) for value in ("1", "12")]
    if is_open:
        cases += [(string.format(name, "c"), [name, "c"]) for name in ("b", "q1", "x ")]
    if style == "cohere_xml":
        cases.append((string.format("&quot;", "c"), ["&quot;", "c"]))
    if nests:
        cases += [(LISTS[style].format(text), ["l", text]) for text in ("b", "item", " x", "[", "")]
    else:
        lists = [[], ["b"], ["a", "x\n"], ['q"']]
        cases += [
            (other.format("l", json.dumps(texts), "array"), ["l", *(json.dumps(text)[1:-1] for text in texts)])
            for texts in lists
        ]
    form = {"type": "json_schema", "json_schema": schema, "style": style, "max_whitespace_cnt": 0}
    assert all(accepts(structural_tag(tag(form)), text) for text, _ in cases)
    for excludes in EXCLUDED:
        grammar = structural_tag(tag({**form, "excludes": excludes}))
        for text, parts in cases:
            is_clean = not any(excluded in part for excluded in excludes for part in parts)
            assert accepts(grammar, text) is is_clean, (excludes, text)


def test_excludes_that_no_style_can_take() -> None:
    """Strings that are written in parts are refused by name, also inside other arguments."""
    hosts = {"type": "array", "items": {"type": "string", "format": "idn-hostname"}}
    schema = {"type": "object", "properties": {"a": hosts}}
    with pytest.raises(UnsupportedFeature) as caught:
        structural_tag(tag({"type": "json_schema", "json_schema": schema, "style": "qwen_xml", "excludes": ["x"]}))
    assert caught.value.where == "#/format/excludes"
    with pytest.raises(ValueError, match="texts that are not empty"):
        sg.grammars.xml_arguments({}, "qwen_xml", excludes=[""])
