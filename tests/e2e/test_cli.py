"""The command line as a user meets it: results, messages and exit statuses."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from machine_load import at_most

from structgen.cli import run as run_module
from structgen.cli.main import main
from structgen.engine import Vocabulary
from structgen.models import HashModel

CHECKOUT = Path(__file__).resolve().parents[2]
EXAMPLES = CHECKOUT / "examples"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "maximum": 120, "minimum": 0},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}

Outcome = tuple[int, str, str]
Command = Callable[..., Outcome]


@pytest.fixture
def structgen(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run a command in this process: (exit status, standard output, standard error)."""

    def call(*arguments: str, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        status = main(arguments)
        out, err = capsys.readouterr()
        return status, out, err

    return call


@pytest.fixture
def person(tmp_path: Path) -> str:
    """The path of a schema file."""
    path = tmp_path / "person.json"
    path.write_text(json.dumps(PERSON))
    return str(path)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let ``run`` use a model without weights that prefers a given text."""
    pieces = [b'{"', b'": ', b'", "', b"name", b"age", b"Ada", b"yes", b"no"]
    vocabulary = Vocabulary([b"", *(bytes([byte]) for byte in range(256)), *pieces], eos=[0])

    def use(writes: str, cls: type[HashModel] = HashModel) -> None:
        monkeypatch.setattr(run_module, "model_of", lambda name, progress, **_: cls(vocabulary, writes=writes))

    return use


def _fails(outcome: Outcome, status: int, *words: str) -> None:
    """Check that the command fails with a clear message on standard error and nothing on standard output."""
    found, out, err = outcome
    assert found == status, err
    assert out == ""
    assert err.startswith(("error: ", "Usage: "))
    assert "Traceback" not in err
    for word in words:
        assert word in err


# run


def test_run_writes_the_output_and_nothing_else(structgen: Command, model: Callable[..., None], person: str) -> None:
    """Standard output holds only the output; progress goes to standard error."""
    model('{"name": "Ada", "age": 36}')
    status, out, err = structgen("run", person, "--prompt", "Who?")
    assert (status, out) == (0, '{"name": "Ada", "age": 36}\n')
    assert "forced" in err


def test_run_as_json(structgen: Command, model: Callable[..., None], person: str) -> None:
    """One line holds the text, its value, scores and counts."""
    model('{"name": "Ada", "age": 36}')
    status, out, _ = structgen("run", person, "--json", "--seed", "5")
    answer = json.loads(out)
    assert status == 0
    assert answer["value"] == {"name": "Ada", "age": 36}
    assert json.loads(answer["text"]) == answer["value"]
    assert answer["seed"] == 5
    assert answer["stats"]["tokens"] == len(answer["tokens"]) == answer["stats"]["forced"] + answer["stats"]["sampled"]
    assert answer["log_z"] <= 0


def test_run_streams_the_same_text(structgen: Command, model: Callable[..., None], person: str) -> None:
    """Streaming changes when the text is written, not the text."""
    model('{"name": "Ädä", "age": 36}')
    assert structgen("run", person, "--stream")[:2] == structgen("run", person)[:2]


def test_run_samples_several_outputs(structgen: Command, model: Callable[..., None], person: str) -> None:
    """Each of K outputs is valid, and output i is that of seed S + i."""
    model("")
    status, out, _ = structgen("run", person, "-n", "3", "--seed", "7", "--json")
    answers = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    assert [answer["seed"] for answer in answers] == [7, 8, 9]
    assert len({answer["text"] for answer in answers}) > 1
    for answer in answers:
        jsonschema.validate(json.loads(answer["text"]), PERSON)
    _, second, _ = structgen("run", person, "--temperature", "1", "--seed", "8")
    assert second == answers[1]["text"] + "\n"


def test_run_whitespace(structgen: Command, model: Callable[..., None], person: str) -> None:
    """``--whitespace compact`` leaves out all white space between JSON tokens."""
    model('{"name":"Ada","age":36}')
    assert structgen("run", person, "--whitespace", "compact")[1] == '{"name":"Ada","age":36}\n'


def test_order(structgen: Command, model: Callable[..., None], person: str, tmp_path: Path) -> None:
    """``--order any`` lets the members of an object come in any order, in all commands."""
    model('{"age":36,"name":"Ada"}')
    compact = ("--whitespace", "compact")
    assert structgen("run", person, *compact, "--order", "any")[1] == '{"age":36,"name":"Ada"}\n'
    document = tmp_path / "document.json"
    document.write_text('{"age": 36, "name": "Ada"}')
    status, _, err = structgen("match", person, str(document))
    assert status == 1
    assert "see --order any" in err
    assert structgen("match", person, str(document), "--order", "any")[0] == 0
    document.write_text('{"age": 360, "name": "Ada"}')
    assert "--order" not in structgen("match", person, str(document))[2]
    assert "any" in structgen("check", person, "--order", "any")[1]


def test_undeclared_members_are_chosen(structgen: Command, tmp_path: Path) -> None:
    """``--additional forbidden`` excludes members that the schema does not name, in all commands."""
    schema, document = tmp_path / "open.json", tmp_path / "document.json"
    schema.write_text(json.dumps({"type": "object", "properties": {"a": {"type": "object"}}}))
    document.write_text('{"b":1}')
    for option, code in (([], 0), (["--additional", "written"], 0), (["--additional", "forbidden"], 1)):
        assert structgen("match", str(schema), str(document), *option)[0] == code
    told = structgen("check", str(schema), "--additional", "forbidden")[1]
    assert "#/properties/a" in told
    assert "no member is named here" in told


def test_bounds(structgen: Command, person: str, tmp_path: Path) -> None:
    """Bounds on what a schema leaves open hold in all commands, and the report lists them."""
    document = tmp_path / "document.json"
    document.write_text('{"name": "Ada", "age": 36}')
    for bound, is_member in (("2", False), ("3", True)):
        assert (structgen("match", person, str(document), "--max-length", bound)[0] == 0) == is_member
    assert "at most 3 code points" in structgen("check", person, "--max-length", "3")[1]
    _fails(structgen("check", person, "--max-depth", "0"), 2, "max_depth=0")


def test_run_a_regex_and_a_lark_grammar(structgen: Command, model: Callable[..., None], tmp_path: Path) -> None:
    """All three kinds of description work."""
    model("yes")
    assert structgen("run", "--regex", "yes|no")[:2] == (0, "yes\n")
    model("12+3")
    grammar = tmp_path / "sum.lark"
    grammar.write_text('start: N ("+" N)*\nN: /[0-9]{1,3}/\n')
    assert structgen("run", str(grammar))[:2] == (0, "12+3\n")
    assert structgen("run", "-", "--lark", stdin=grammar.read_bytes())[:2] == (0, "12+3\n")


def test_run_reads_schema_and_prompt_from_standard_input(
    structgen: Command, model: Callable[..., None], tmp_path: Path
) -> None:
    """``-`` is standard input, for one of the two."""
    model("true")
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Is it so?")
    schema = b'{"type": "boolean"}'
    assert structgen("run", "-", "--prompt-file", str(prompt), stdin=schema)[1] == "true\n"
    assert structgen("run", "--regex", "yes|no", "--prompt-file", "-", stdin=b"Really?")[0] == 0
    _fails(structgen("run", "-", "--prompt-file", "-", stdin=schema), 2, "both")


def test_run_says_when_no_output_fits_the_budget(structgen: Command, model: Callable[..., None], person: str) -> None:
    """Too few tokens are an unusable argument; the message names the minimum, and the minimum works."""
    model("")
    outcome = structgen("run", person, "--max-tokens", "3")
    _fails(outcome, 2, "max_tokens=3", "takes ")
    needed = outcome[2].split("takes ")[1].split()[0]
    status, out, _ = structgen("run", person, "--max-tokens", needed)
    assert status == 0
    jsonschema.validate(json.loads(out), PERSON)


class _InterruptedModel(HashModel):
    """A model that receives Ctrl-C while it computes."""

    def logits(self, state: int, matched: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        if matched > len('{"name": "A'):
            raise KeyboardInterrupt
        return super().logits(state, matched)


def test_interrupted_run_tells_what_there_is(structgen: Command, model: Callable[..., None], person: str) -> None:
    """Ctrl-C gives status 130 and the text so far on standard error, without a traceback."""
    model('{"name": "Ada", "age": 36}', _InterruptedModel)
    # Looking ahead would meet the key press earlier, and how far it looks depends on earlier outputs.
    status, out, err = structgen("run", person, "--drafter", "none")
    assert (status, out) == (130, "")
    assert "interrupted" in err
    assert '{"name": "A' in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--temperature", "-1"], ["temperature"]),
        (["--top-p", "2"], ["top_p"]),
        (["--top-k", "0"], ["top_k"]),
        (["--temperature", "0", "--top-k", "3"], ["--temperature 0"]),
        (["--max-tokens", "x"], ["--max-tokens"]),
        (["-n", "0"], ["-n"]),
        (["--stream", "--json"], ["--stream"]),
        (["--prompt", "a", "--prompt-file", "b"], ["exclude"]),
        (["--prompt-file", "no-such-file"], ["no-such-file"]),
        (["--whitespace", "none"], ["compact"]),
        (["--order", "sorted"], ["declared"]),
        (["--model", "./no-such-model"], ["no-such-model"]),
        (["--frobnicate"], ["--frobnicate"]),
    ],
)
def test_run_refuses_unusable_options(structgen: Command, arguments: list[str], words: list[str]) -> None:
    """What cannot be done is reported before anything is loaded, with status 2."""
    _fails(structgen("run", "--regex", "a", *arguments), 2, *words)


@pytest.mark.model
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=name, marks=pytest.mark.nightly if name in ("comments", "event", "invoice") else ())
        for path in sorted(EXAMPLES.glob("*.schema.json"))
        for name in [path.name.split(".")[0]]
    ],
)
def test_examples_on_the_embedded_model(structgen: Command, path: Path) -> None:
    """The embedded model's output for an example satisfies its schema, with formats asserted."""
    status, out, err = structgen("run", str(path), "--max-tokens", "150", "--prompt", "Write an example.")
    assert status == 0, err
    validator = jsonschema.Draft202012Validator(
        json.loads(path.read_text()), format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    validator.validate(json.loads(out))


# check


def test_check_reports_every_keyword(structgen: Command, person: str) -> None:
    """Each keyword is listed with its place."""
    status, out, err = structgen("check", person)
    assert (status, err) == (0, "")
    for keyword in ("#/required", "#/properties/name/maxLength", "#/properties/age/minimum", "#/additionalProperties"):
        assert keyword in out


def test_check_as_json(structgen: Command, person: str) -> None:
    """The report as JSON has one entry for each keyword of the schema."""
    status, out, _ = structgen("check", person, "--json")
    report = json.loads(out)
    assert status == 0
    assert report["accepted"] is True
    places = {entry["where"]: entry["status"] for entry in report["entries"]}
    assert places["#/properties/age/maximum"] == "enforced"
    assert len(places) == 9
    shortest = '{"name": "", "age": 0}'
    assert report["shortest_bytes"] == len(shortest)
    assert report["longest_bytes"]["status"] == "finite"
    assert report["grammar_nodes"] > 10
    assert "shortest_tokens" not in report  # single bytes stand in for tokens


def test_check_tells_lengths_and_sizes(structgen: Command) -> None:
    """The last lines of the report are the lengths in bytes, finite or not, and the sizes."""
    _, out, _ = structgen("check", "--regex", "ab{1,3}")
    assert "length in bytes: shortest 2; longest 4\n" in out
    assert re.search(r"^size: \d+ grammar nodes, \d+ terms, \d+ states so far$", out, re.MULTILINE)
    _, out, _ = structgen("check", "--regex", "ab*")
    assert "length in bytes: shortest 1; longest unbounded\n" in out
    assert "tokens" not in out


def test_check_counts_the_tokens_of_a_model(structgen: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a model the report has lengths in tokens too; a vocabulary without some byte gives only an upper bound."""
    from structgen.cli import model_option

    complete = Vocabulary([b"", b"abbb", *(bytes([byte]) for byte in range(256))], eos=[0])
    monkeypatch.setattr(model_option, "vocabulary_of", lambda name: complete)
    _, out, _ = structgen("check", "--regex", "ab{3,4}", "--model", "any")
    assert "length in tokens: shortest 1; longest 5\n" in out
    _, out, _ = structgen("check", "--regex", "ab{3,4}", "--model", "any", "--json")
    report = json.loads(out)
    assert (report["shortest_tokens"], report["longest_tokens"]["at_most"]) == (1, 5)
    assert report["vocabulary_size"] == complete.size
    monkeypatch.setattr(model_option, "vocabulary_of", lambda name: Vocabulary([b"", b"a", b"b", b"bb"], eos=[0]))
    _, out, _ = structgen("check", "--regex", "ab{3,4}", "--model", "any")
    assert "length in tokens: shortest 3; longest at most 5\n" in out


def test_check_strict_fails_on_what_is_only_checked(
    structgen: Command, person: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A keyword that is left to a check at the end of a value is noted; with ``--strict`` it is a failure."""
    from structgen.cli import language_commands as check_module
    from structgen.grammar.nodes.description import Described, Description, Status

    real = check_module.read_source

    def with_a_check(*arguments: Any, **options: Any) -> Any:
        read = real(*arguments, **options)
        description = read.grammar.description
        first = dataclasses.replace(description.entries[0], status=Status.CHECKED)
        changed = Description(description.source, (first, *description.entries[1:]), value=description.value)
        return dataclasses.replace(read, grammar=Described(read.grammar.item, changed))

    assert structgen("check", person, "--strict")[0] == 0
    monkeypatch.setattr(check_module, "read_source", with_a_check)
    status, out, err = structgen("check", person)
    assert (status, err) == (0, "note: #/type: 'type' is checked at the end of a value, not by the automaton\n")
    assert "checked:\n  #/type  type\n" in out
    assert structgen("check", person, "--strict")[0] == 1


def test_check_refuses_by_name_and_place(structgen: Command) -> None:
    """A keyword that cannot be enforced is named with its JSON Pointer, in both forms of the answer."""
    schema = b'{"type": "array", "items": {"$ref": "https://example.com/other.json"}}'
    _fails(structgen("check", "-", stdin=schema), 2, "standard input", "#/items/$ref")
    status, out, err = structgen("check", "-", "--json", stdin=schema)
    answer = json.loads(out)
    assert status == 2
    assert answer["accepted"] is False
    assert "#/items/$ref" in answer["error"]["message"]
    assert err.startswith("error: ")


def test_check_notes_keywords_that_do_nothing(structgen: Command) -> None:
    """A misspelt keyword is noted with the keyword that may be meant; with ``--strict`` it is a failure."""
    schema = b'{"type": "object", "requierd": ["a"], "title": "t", "x-order": 1}'
    status, _, err = structgen("check", "-", stdin=schema)
    assert status == 0
    assert err == "note: #/requierd: 'requierd' is no keyword of any specification; is 'required' meant?\n"
    assert structgen("check", "-", "--strict", stdin=schema)[0] == 1
    assert structgen("check", "-", "--strict", stdin=b'{"type": "object", "title": "t"}')[0] == 0


# match


def test_match_tells_members_from_others(structgen: Command, person: str, tmp_path: Path) -> None:
    """A string of the language gives status 0; other documents give status 1, the place and what could be there."""
    document = tmp_path / "document.json"
    document.write_text('{\n  "name": "Zoë",\n  "age": 300\n}\n')
    status, out, _ = structgen("match", person, str(document))
    assert status == 1
    assert f"{document}:3:12: " in out
    assert "byte 31" in out
    assert '      "age": 300\n               ^' in out
    assert "found '0'" in out
    assert "/age" in out
    document.write_text('{\n  "name": "Zoë",\n  "age": 30\n}\n')
    assert structgen("match", person, str(document))[0] == 0


def test_match_as_json(structgen: Command, person: str) -> None:
    """The answer as JSON gives the place in numbers."""
    status, out, _ = structgen("match", person, "-", "--json", stdin=b'{"name": 3}')
    answer = json.loads(out)
    assert status == 1
    assert answer["match"] is False
    assert (answer["offset"], answer["line"], answer["column"], answer["pointer"]) == (9, 1, 10, "/name")
    assert '"' in answer["expected"]
    assert json.loads(structgen("match", "--regex", "a*", "-", "--json", stdin=b"aaa")[1]) == {"match": True}


def test_match_names_the_rules_of_a_grammar(structgen: Command) -> None:
    """The open rules of a Lark grammar are listed outermost first."""
    status, out, _ = structgen("match", str(EXAMPLES / "calculator.lark"), "-", stdin=b"1+(2*x)")
    assert status == 1
    assert "in rule " in out
    assert out.rstrip().endswith("> product")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.schema.json")), ids=lambda path: path.name.split(".")[0])
def test_match_accepts_the_shortest_member(structgen: Command, path: Path) -> None:
    """What ``explain`` gives as a completion of the empty text is accepted, and a validator agrees."""
    member = json.loads(structgen("explain", str(path), "--json")[1])["shortest_completion"]
    jsonschema.validate(json.loads(member), json.loads(path.read_text()))
    assert structgen("match", str(path), "-", stdin=member.encode())[0] == 0
    assert structgen("match", str(path), "-", stdin=member[:-1].encode())[0] == 1


# explain


def test_explain_says_what_may_come_next(structgen: Command, person: str) -> None:
    """The answer gives alternatives, forced text, the open value and a completion."""
    status, out, _ = structgen("explain", person, "--text", '{"name": "Ada"', "--whitespace", "single", "--json")
    answer = json.loads(out)
    assert status == 0
    assert answer["forced"] == ', "age": '
    assert answer["may_end"] is False
    assert answer["pointer"] == "/name"
    assert json.loads(answer["text"] + answer["shortest_completion"]) == {"name": "Ada", "age": 0}


def test_explain_a_token(structgen: Command) -> None:
    """For a text that may not come next, the answer says what may."""
    status, out, _ = structgen("explain", "--regex", "[0-9]{4}-[0-9]{2}", "--text", "20", "--token", "25/01")
    assert status == 0
    assert "'25/01' is not allowed: after '25' may come '-'" in out
    assert "is allowed" in structgen("explain", "--regex", "[0-9]+", "--token", "42")[1]


def test_explain_a_text_that_no_member_begins_with(structgen: Command, person: str) -> None:
    """The answer shows the place where the text becomes invalid, with status 1."""
    status, out, _ = structgen("explain", person, "--text", '{"nom')
    assert status == 1
    assert "--text:1:4: " in out
    assert """expected 'ame": "'""" in out


# unusable input


@pytest.mark.parametrize("command", ["run", "check", "explain"])
def test_unreadable_sources(structgen: Command, command: str, tmp_path: Path) -> None:
    """Files that cannot be read as text get one message with their name."""
    _fails(structgen(command, str(tmp_path / "none.json")), 2, "none.json", "No such file")
    _fails(structgen(command, str(tmp_path)), 2, str(tmp_path), "directory")
    latin = tmp_path / "latin.json"
    latin.write_bytes('{"title":\n"Zoë"}'.encode("latin-1"))
    _fails(structgen(command, str(latin)), 2, "latin.json:2", "UTF-8", "0xeb", "offset 13")
    empty = tmp_path / "empty.json"
    empty.write_bytes(b" \n")
    _fails(structgen(command, str(empty)), 2, "empty")
    _fails(structgen(command, "-"), 2, "standard input", "empty")
    _fails(structgen(command, "a\0b.json"), 2, "null byte")
    other = tmp_path / "grammar.txt"
    other.write_text("start: A")
    _fails(structgen(command, str(other)), 2, "grammar.txt", "--from json-schema|structural_tag|lark|gbnf|ebnf")


@pytest.mark.parametrize("command", ["run", "check", "explain"])
@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ('{"type": "object",', ["standard input:1:19", "expected"]),
        ("[1]", ["must be an object"]),
        ('{"type": "strin"}', ["#/type"]),
        ('{"$ref": "#/$defs/none"}', ["#/$ref"]),
        ('{"enum": []}', ["enum"]),
        ('{"type": "integer", "minimum": 5, "maximum": 4}', ["minimum"]),
        ("[" * 100_000, ["nesting"]),
        ('{"a": ' * 100_000, ["nesting"]),
    ],
)
def test_refused_schemas(structgen: Command, command: str, schema: str, words: list[str]) -> None:
    """A schema that cannot be used is refused in a message that names what is wrong, within two seconds."""
    with at_most(2):
        _fails(structgen(command, "-", stdin=schema.encode()), 2, *words)


@pytest.mark.parametrize("pattern", ["(a", r"(a)\1", "a{3,2}", "[b-a]", "*a"])
def test_refused_patterns_point_at_the_place(structgen: Command, pattern: str) -> None:
    """A pattern that cannot be used is shown with a caret under the place."""
    outcome = structgen("check", "--regex", pattern)
    _fails(outcome, 2, pattern)
    assert "^" in outcome[2].splitlines()[-1]


def test_arguments_that_do_not_fit(structgen: Command, person: str) -> None:
    """Too few or too many files are a usage error that says what is expected."""
    _fails(structgen("check"), 2, "expected FILE", "--regex")
    _fails(structgen("check", "a", "b"), 2, "expected FILE")
    _fails(structgen("run", "a.json", "Who?"), 2, "found a.json Who?; give a prompt with --prompt")
    _fails(structgen("run", "--regex", "a+", "Who?"), 2, "found Who?; give a prompt with --prompt")
    _fails(structgen("match", person), 2, "expected FILE DOCUMENT")
    _fails(structgen("diff", person), 2, "expected OLD NEW, found ", person)
    _fails(structgen("match", "--regex", "a", "b", "c"), 2, "expected DOCUMENT")
    _fails(structgen("match", "-", "-"), 2, "both")
    _fails(structgen("match", person, "no-such-document"), 2, "no-such-document")
    _fails(structgen("nonsense"), 2, "nonsense")


# the process


def _process(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen([sys.executable, "-m", "structgen.cli", *arguments], **pipes)


def test_help_loads_little() -> None:
    """``--help`` imports the names of the options, and none of the libraries that commands work with."""
    command = [sys.executable, "-X", "importtime", "-m", "structgen.cli", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "explain" in done.stdout
    assert "structgen.cli.main" in loaded
    heavy = {"numpy", "pydantic", "lark", "torch", "structgen_kernels._native", "structgen.engine", "structgen.grammar"}
    assert loaded.isdisjoint(heavy)
    assert len(loaded) < 400


@pytest.mark.parametrize("module", ["structgen", "structgen.cli"])
def test_the_command_is_a_module(module: str) -> None:
    """Where the script is not on the path, ``python -m structgen`` is the command."""
    command = [sys.executable, "-m", module, "match", "--regex", "a+", "-"]
    done = subprocess.run(command, input=b"aab", capture_output=True, check=False)
    assert done.returncode == 1
    assert b"found 'b', expected 'a'" in done.stdout + done.stderr


@pytest.mark.parametrize("command", ["run", "check", "match", "explain"])
def test_help_of_commands(structgen: Command, command: str) -> None:
    """Every command has a help text."""
    status, out, _ = structgen(command, "--help")
    assert status == 0
    assert "--regex" in out


def test_closed_pipe_is_quiet(person: str) -> None:
    """A reader that closes the pipe ends the command without a message."""
    with _process("check", person) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


def _until_it_waits(pid: int) -> None:
    """Wait until the process has used no CPU time for a second."""
    spent, still = "", 0
    while still < 10:
        time.sleep(0.1)
        now = " ".join(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13])
        still = still + 1 if now == spent and now != "0 0" else 0
        spent = now


def test_interrupt_while_waiting_for_input() -> None:
    """Ctrl-C before any work is one word and status 130."""

    def heed() -> None:  # background jobs of a shell ignore it at the start
        signal.signal(signal.SIGINT, signal.default_int_handler)

    with _process("check", "-", stdin=subprocess.PIPE, start_new_session=True, preexec_fn=heed) as process:
        _until_it_waits(process.pid)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
        assert process.returncode == 130
        assert err.decode().strip() == "interrupted"


# many prompts


def test_rows_survive_an_interruption(person: str, tmp_path: Path) -> None:
    """Ctrl-C while rows are written ends with status 130; ``--resume`` writes exactly those that are missing."""
    program = tmp_path / "slow.py"
    program.write_text(
        "import signal, sys, time\n"
        "from structgen.cli import main, run\n"
        "from structgen.engine import Vocabulary\n"
        "from structgen.models import HashModel\n\n"
        "class Slow(HashModel):\n"
        "    def extend_many(self, extensions):\n"
        "        time.sleep(float(sys.argv[1]))\n"
        "        return super().extend_many(extensions)\n\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # background jobs of a shell ignore it
        "model = Slow(Vocabulary([b'', *(bytes([byte]) for byte in range(256))], eos=[0]), writes='{\"name\"')\n"
        "run.model_of = lambda *_, **__: model\n"
        "sys.exit(main.main(sys.argv[2:]))\n"
    )
    prompts, out = tmp_path / "prompts.txt", tmp_path / "out.jsonl"
    prompts.write_text("".join(f"prompt {number}\n" for number in range(40)))
    arguments = ["run", person, "--prompts", str(prompts), "-o", str(out), "--batch-size", "4", "--drafter", "none"]

    command = [sys.executable, str(program), "0.05", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        while process.poll() is None and not (out.exists() and out.stat().st_size):
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
        assert process.returncode == 130, err
    before = out.read_bytes()
    assert before.endswith(b"\n")
    written = [json.loads(line)["index"] for line in before.splitlines()]
    assert 0 < len(written) < 40
    assert f"interrupted: 40 lines: {len(written)} done, 0 failed, {40 - len(written)} left".encode() in err
    command = [sys.executable, str(program), "0", *arguments, "--resume"]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
    after = out.read_bytes()
    assert after.startswith(before)
    assert sorted(json.loads(line)["index"] for line in after.splitlines()) == list(range(40))


@pytest.mark.model
def test_rows_of_the_embedded_model(structgen: Command, person: str, tmp_path: Path) -> None:
    """Prompts that share forward passes give the texts of single runs, and each is valid."""
    path = tmp_path / "in.jsonl"
    prompts = ["Ada Lovelace is 36.", "Grace Hopper, 85", "Who is 41? Alan Turing"]
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    status, out, _ = structgen("run", person, "--prompts", str(path), "--batch-size", "3")
    assert status == 0
    rows = {row["index"]: row for row in map(json.loads, out.splitlines())}
    for index, prompt in enumerate(prompts):
        jsonschema.validate(json.loads(rows[index]["text"]), PERSON)
        assert structgen("run", person, "--prompt", prompt)[1] == rows[index]["text"] + "\n"


@pytest.mark.model
def test_a_chat_template_for_the_embedded_model(structgen: Command, person: str, tmp_path: Path) -> None:
    """The prompt is rendered by the given template: its tokens are those of the text alone."""
    path = tmp_path / "plain.jinja"
    path.write_text("{{ messages[0].content }}")
    _, rendered, _ = structgen("run", person, "--prompt", "Ada is 36", "--chat-template", str(path), "--json")
    _, plain, _ = structgen("run", person, "--prompt", "Ada is 36", "--no-chat", "--json")
    assert json.loads(rendered)["text"] == json.loads(plain)["text"]
    assert json.loads(rendered)["stats"]["prompt_tokens"] == json.loads(plain)["stats"]["prompt_tokens"]
