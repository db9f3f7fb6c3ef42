"""``structgen bench masks``: its counts, on engines with known answers, and a small run of the real engines."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from structgen.cli.bench import comparison
from structgen.cli.bench.comparison import BatchSchema, choose_batch_schemas, run_batch
from structgen.cli.bench.engines import ENGINES, Bits, Sequence, allows
from structgen.cli.bench.measurement import (
    Case,
    Instance,
    InstanceResult,
    Tally,
    check_instance,
    find_data,
    ratios_of,
    read_cases,
    run_case,
    spread_of,
)
from structgen.cli.main import main
from structgen.cli.terminal import Failure


class Words:
    """An engine whose schemas are ``a|b``: the texts between the bars, one token a character, end token 0."""

    name, version = "words", "1"

    def __init__(self) -> None:
        self.words: Bits = np.zeros((1, 4), dtype=np.int32)

    def compile(self, schema: str) -> Any:
        if schema == "refused":
            raise ValueError("no\nfurther line")
        return schema.split("|")

    def forget(self) -> None:
        """Forget nothing: the engine keeps no state."""

    def start(self, compiled: Any) -> Sequence:
        text: list[str] = []

        def may_end() -> bool:
            return "".join(text) in compiled

        def fill() -> None:
            self.words[:] = 0
            self._write(self.words[0], compiled, text)

        def accept(token: int) -> bool:
            text.append(chr(token))
            return True

        return Sequence((compiled, text), fill, self.words, accept, may_end)

    def batch(self, sequences: list[Sequence], rows: Bits) -> Callable[[], object]:
        def fill() -> None:
            rows[:] = 0
            for row, sequence in enumerate(sequences):
                self._write(rows[row], *sequence.matcher)

        return fill

    def _write(self, row: Any, members: list[str], text: list[str]) -> None:
        begun = "".join(text)
        for member in members:
            if member.startswith(begun) and member != begun:
                token = ord(member[len(begun)])
                row[token >> 5] |= np.int32(1 << (token & 31))


def tokenize(text: str) -> list[int]:
    """One token a character."""
    return [ord(character) for character in text]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two schemas with instances, one of them against the declared order."""
    properties = {"a": {"type": "integer"}, "b": {"type": "integer"}}
    cases = [
        {
            "name": "ordered",
            "schema": {"type": "object", "properties": properties, "additionalProperties": False},
            "tests": [
                {"valid": True, "data": {"a": 1, "b": 2}},
                {"valid": True, "data": {"b": 2, "a": 1}},
                {"valid": False, "data": {"a": "1"}},
            ],
        },
        {
            "name": "long",
            "schema": {"type": "array", "items": {"enum": ["red", "green"]}},
            "tests": [{"valid": True, "data": ["red", "green"] * 6}],
        },
    ]
    path = tmp_path / "cases.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(case)}\n" for case in cases)
    return path


def test_verifications() -> None:
    """A text is accepted with all its tokens and its end, rejected at the first refusal, undecided when it is cut."""
    engine = Words()
    samples: list[float] = []
    for text, most, verification in (
        ("ab", 9, InstanceResult.ACCEPTED),
        ("a", 9, InstanceResult.REJECTED),
        ("ax", 9, InstanceResult.REJECTED),
        ("abc", 2, InstanceResult.UNDECIDED),
    ):
        assert check_instance(engine.start(["ab"]), tokenize(text), most, samples) is verification, text
    assert len(samples) == 2 + 1 + 2 + 2  # the refusing mask is a sample too


def test_counts_of_a_case() -> None:
    """Instances as given and in declared order are counted apart."""
    instances = (
        Instance("ab", is_valid=True, ordered=None),
        Instance("ba", is_valid=True, ordered="ab"),
        Instance("xy", is_valid=True, ordered="yx"),
        Instance("zz", is_valid=True, ordered=None),
        Instance("ab", is_valid=False, ordered=None),
        Instance("no", is_valid=False, ordered=None),
    )
    tally = Tally()
    run_case(Words(), tally, Case("one", "ab|xy", instances), tokenize, 9)
    run_case(Words(), tally, Case("two", "refused", instances), tokenize, 9)
    assert (tally.valid, tally.reordered, tally.invalid, tally.undecided) == (4, 1, 2, 0)
    assert tally.valid_rejected == ["one#1", "one#3"]
    assert tally.ordered_rejected == ["one#3"]
    assert tally.invalid_accepted == ["one#4"]
    assert tally.refused == {"two": "no"}
    assert list(tally.first_mask) == ["one"]
    assert len(tally.between["one"]) == 2 + 1 + 2 + 1 + 2 + 1


def test_percentiles() -> None:
    """A hundred known times have the expected percentiles."""
    spread = spread_of([float(value) for value in range(101)])
    assert (spread["count"], spread["p50"], spread["p90"], spread["max"]) == (101, 50.0, 90.0, 100.0)
    assert spread["p99.9"] == pytest.approx(99.9)
    assert spread_of([3001.0, 3000.0, 1.0, 2.0])["over_3ms"] == 0.25
    assert spread_of([]) == {"count": 0}


def test_ratios_are_over_the_schemas_of_both() -> None:
    """A schema that one of the two engines refused does not count."""
    ours = Tally(first_mask={"a": 2.0, "b": 100.0}, between={"a": [1.0, 1.0], "b": [50.0]})
    peer = Tally(first_mask={"a": 6.0, "c": 1.0}, between={"a": [4.0, 4.0], "c": [1.0]})
    ratios = ratios_of(ours, peer)
    assert ratios["schemas"] == 1
    assert (ratios["ttfm"]["p50"], ratios["tbm"]["max"]) == (3.0, 4.0)


def test_a_batch_is_checked_before_it_is_timed() -> None:
    """A sequence that all engines accept is timed; a wrong token gives an error, not a time."""
    text = "abcdefghijklmnopqrst"
    cases = [Case("short", "ab", (Instance("ab", is_valid=True, ordered=None),))]
    cases.append(Case("fits", text, (Instance(text, is_valid=True, ordered=None),)))
    courses = choose_batch_schemas([Words()], cases, tokenize)
    assert [course.tokens for course in courses] == [tokenize(text)]
    samples = run_batch([Words()], courses)
    assert list(samples) == [1, 50]
    for times in samples.values():
        assert len(times["words"]) == 300
        assert min(times["words"]) > 0
    with pytest.raises(AssertionError, match="does not allow"):
        run_batch([Words()], [BatchSchema(tokenize(f"{text}!"), {"words": [text]})])


def test_cases_are_sampled_and_ordered(data: Path) -> None:
    """The sample depends only on the seed; an instance in declared order has no second text."""
    cases = list(read_cases(data, None, 0, order=True))
    assert [case.name for case in cases] == ["ordered", "long"]
    assert [instance.ordered for instance in cases[0].instances] == [None, '{"a": 1, "b": 2}', None]
    plain = list(read_cases(data, None, 0, order=False))
    assert all(instance.ordered is None for case in plain for instance in case.instances)
    sampled = [[case.name for case in read_cases(data, 1, seed, order=False)] for seed in range(10)]
    assert {name for (name,) in sampled} == {"ordered", "long"}
    assert sampled == [[case.name for case in read_cases(data, 1, seed, order=False)] for seed in range(10)]


def test_data_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing file and a file of something else each give one clear message."""
    monkeypatch.setenv("STRUCTGEN_DATA", str(tmp_path))
    with pytest.raises(Failure, match=r"--data FILE\.jsonl\.gz"):
        find_data(None)
    other = tmp_path / "other.jsonl.gz"
    other.write_bytes(b"no gzip")
    with pytest.raises(Failure, match="not a file of schemas"):
        list(read_cases(other, None, 0, order=False))


def test_a_run_from_the_command_line(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """structgen alone, with a missing peer, gives the figures as JSON and the tables in the record."""
    tokenizers = pytest.importorskip("tokenizers")
    tokens = [*sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()), '"a']  # 15 tokens of the instances in order
    ids = {each: token for token, each in enumerate(tokens)}
    small = tokenizers.Tokenizer(tokenizers.models.BPE(ids, [('"', "a")]))
    small.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    small.decoder = tokenizers.decoders.ByteLevel()
    small.save(str(tmp_path / "tokenizer.json"))
    arguments = ["--data", str(data), "--tokenizer", str(tmp_path / "tokenizer.json")]
    assert main(["bench", "masks", *arguments, "--engines", "structgen"]) == 2
    assert "it names no EOS" in capsys.readouterr().err
    small.add_special_tokens(["<eos>"])
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<eos>"}')
    small.save(str(tmp_path / "tokenizer.json"))
    monkeypatch.setattr(comparison, "missing", lambda name: () if name == "structgen" else ("peerlib",))
    record, details = tmp_path / "record.md", tmp_path / "details.json"
    arguments += ["--engines", "structgen,llguidance", "--schemas", "all", "--json"]
    assert main(["bench", "masks", *arguments, "--record", str(record), "--details", str(details)]) == 0
    out, err = capsys.readouterr()
    assert "note: llguidance is left out: peerlib not installed (pip install peerlib)" in err
    summary = json.loads(out)
    found = summary["engines"]["structgen"]
    assert (found["compiled"], found["refused"], found["valid"], found["invalid"]) == (2, 0, 3, 1)
    assert (found["valid_rejected"], found["reordered"], found["valid_rejected_in_declared_order"]) == (1, 1, 0)
    assert found["invalid_accepted"] == 0
    assert found["ttfm_us"]["count"] == 2
    assert summary["batch"]["schemas"] == 1
    assert [run["in_a_row"] for run in summary["batch"]["runs"]] == [1, 50]
    assert summary["ratios"] == {}
    if Path("/proc/self/clear_refs").exists():
        assert found["memory"]["loaded"] > 1
        assert found["memory"]["peak"] > 0
    assert "valid rejected in declared order" in record.read_text()
    found = json.loads(details.read_text())["structgen"]
    assert found["valid_rejected"] == ["ordered#1"]
    assert set(found["slowest_ttfm_us"]) == set(found["slowest_tbm_us"]) == {"ordered", "long"}


def test_arguments_that_do_not_fit(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong counts, engines and files are refused with exit status 2."""
    for arguments, words in (
        (["--schemas", "0"], "'all'"),
        (["--schemas", "some"], "'all'"),
        (["--engines", "other"], "'other' is not one of structgen"),
        (["--tokenizer", str(data.parent / "none.json")], "tokenizer.json"),
        (["--data", str(data.parent / "none.gz")], "--data"),
    ):
        chosen = arguments if "--data" in arguments else ["--data", str(data), *arguments]
        assert main(["bench", "masks", *chosen]) == 2
        assert words in capsys.readouterr().err


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["structgen", "llguidance", "xgrammar"])
def test_engines_agree_with_the_schema(name: str, deepseek_vocabulary: object) -> None:
    """Each engine that is installed accepts a valid text, rejects another, and fills the same mask in a batch."""
    if comparison.missing(name):
        pytest.skip(f"{name} is not installed")
    from structgen.cli.bench.measurement import find_tokenizer, tokenizer_of

    del deepseek_vocabulary  # skips where the tokenizer is not installed
    path = find_tokenizer(None)
    encode = tokenizer_of(path)
    engine = ENGINES[name](path)
    compiled = engine.compile('{"enum": ["red", "green"]}')
    assert check_instance(engine.start(compiled), encode('"green"'), 99, []) is InstanceResult.ACCEPTED
    assert check_instance(engine.start(compiled), encode('"blue"'), 99, []) is InstanceResult.REJECTED
    assert check_instance(engine.start(compiled), encode('"gree'), 99, []) is InstanceResult.REJECTED
    sequences = [engine.start(compiled) for _ in range(3)]
    rows: Bits = np.zeros((len(sequences), sequences[0].words.shape[1]), dtype=np.int32)
    fill = engine.batch(sequences, rows)
    fill()
    sequences[0].fill()
    assert (rows == sequences[0].words).all()
    assert allows(rows, encode('"green"')[0], 2)
