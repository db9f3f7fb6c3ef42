"""Programs over many items, together."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator
from scripted_drafters import ScriptedDrafter

from structgen.decode import AnyDrafter, Context, Multinomial
from structgen.decode.speculative.drafter import Drafting, DraftTask
from structgen.drafters import DraftModel
from structgen.engine import Vocabulary
from structgen.errors import GenerationError, ProgramError, ValidationFailed
from structgen.frontends.regex import regex
from structgen.models.protocol import Extension, Logits
from structgen.models.toy.hash import HashModel
from structgen.program import program
from structgen.program.batch_map import run_batched


def no_x(value: str) -> str:
    if "x" in value:
        raise ValueError("has an x")
    return value


@program
def word(text: str, count: int = 1) -> Annotated[str, regex("[a-z]{3,6}")]:
    """{text} {count}"""


@program
def steps(text: str) -> Generator[Any, Any, list[str]]:
    yield text
    found = []
    for _ in range(len(text) % 4):
        found.append((yield regex("[a-z]{2}")))
        yield " "
    if text == "fails":
        raise RuntimeError("on purpose")
    return found


@pytest.mark.parametrize("batch_size", [1, 3, 8, 50])
@pytest.mark.parametrize("settings", [{}, {"sampler": Multinomial(), "seed": 3}])
def test_the_results_are_those_of_one_by_one(
    json_vocabulary: Vocabulary, batch_size: int, settings: dict[str, Any]
) -> None:
    model = HashModel(json_vocabulary, seed=2)
    items = [f"item {number} " + "ab" * number for number in range(20)]
    together = word.map(items, batch_size=batch_size, model=model, **settings)
    assert [item.index for item in together] == list(range(20))
    assert [item.value for item in together] == [word(item, model=model, **settings) for item in items]


def test_items_are_arguments_by_name_by_position_or_the_only_one(json_vocabulary: Vocabulary) -> None:
    model = HashModel(json_vocabulary)
    items: list[Any] = ["a", ("a", 2), {"text": "a", "count": 3}]
    prompts = [item.run.arguments for item in word.map(items, model=model) if item.run is not None]
    assert prompts == [{"text": "a", "count": count} for count in (1, 2, 3)]


def test_an_item_that_fails_does_not_stop_the_others(json_vocabulary: Vocabulary) -> None:
    model = HashModel(json_vocabulary)
    found = steps.map(["one", "fails", "three", "longer"], batch_size=2, model=model)
    assert [item.error is None for item in found] == [True, False, True, True]
    with pytest.raises(RuntimeError, match="on purpose") as failure:
        _ = found[1].value
    assert "in item 1 of steps.map" in failure.value.__notes__
    assert [len(item.value) for item in found if item.error is None] == [3, 1, 2]
    wrong = word.map(["a", {"txt": "b"}], model=model)
    assert isinstance(wrong[1].error, ProgramError)
    assert wrong[0].error is None


def test_checks_fail_by_item(json_vocabulary: Vocabulary) -> None:
    @program(tries=1)
    def letter(text: str) -> Annotated[Literal["x", "y"], AfterValidator(no_x)]:
        """{text}"""

    found = letter.map([f"{number}" for number in range(12)], model=HashModel(json_vocabulary, seed=1))
    assert {type(item.error) for item in found} == {type(None), ValidationFailed}


def test_progress_counts_the_items(json_vocabulary: Vocabulary, capsys: pytest.CaptureFixture[str]) -> None:
    told: list[tuple[int, int | None]] = []
    word.map(
        list("abcde"), model=HashModel(json_vocabulary), progress=lambda _, done, total: told.append((done, total))
    )
    assert told[-1] == (5, 5)
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    word.map(list("abc"), model=HashModel(json_vocabulary), progress=True)
    assert capsys.readouterr().out == ""


def test_no_items_and_no_batch(json_vocabulary: Vocabulary) -> None:
    assert word.map([], model=HashModel(json_vocabulary)) == []
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        word.map(["a"], batch_size=0, model=HashModel(json_vocabulary))


def test_an_interruption_waits_for_no_server() -> None:
    """A request that a server has not answered holds up neither the interruption nor the process."""
    answered, asked = threading.Event(), threading.Event()
    waiting: list[threading.Thread] = []

    class Remote:
        name, tries = "remote", 1

        def serve(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

    def run(index: int, _model: object, _stopped: threading.Event) -> int:
        if index:
            waiting.append(threading.current_thread())
            asked.set()
            answered.wait()
        else:
            asked.wait()
        return index

    def finished(_index: int, _value: int) -> None:
        raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt):
            run_batched(range(2), run, finished, model=Remote(), batch_size=2)
        assert waiting[0].is_alive()
    finally:
        answered.set()
        waiting[0].join()


def test_an_interruption_stops_all(json_vocabulary: Vocabulary) -> None:
    threads = threading.active_count()

    def interrupt(_stage: str, done: int, _total: int | None) -> None:
        if done >= 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        word.map([str(number) for number in range(500)], model=HashModel(json_vocabulary), progress=interrupt)
    assert threading.active_count() == threads


def test_a_model_that_fails_fails_its_items(json_vocabulary: Vocabulary) -> None:
    found = word.map(["a" * 400, "b"], model=HashModel(json_vocabulary, max_context=300), max_tokens=10)
    assert isinstance(found[0].error, GenerationError)
    assert found[1].error is None


@dataclass(frozen=True, eq=False)
class Present(ScriptedDrafter):
    """Drafts nothing, and records the prompts of its outputs."""

    prompts: list[tuple[int, ...]] = field(default_factory=list)

    def start(self, context: Context, task: DraftTask) -> Drafting:
        self.prompts.append(context.tokens)
        return self


def test_a_drafter_reaches_every_item(json_vocabulary: Vocabulary) -> None:
    model = HashModel(json_vocabulary, seed=2)
    present = Present()
    items = [f"item {number}" for number in range(7)]
    together = word.map(items, batch_size=3, model=model, drafter=present)
    assert sorted(present.prompts) == sorted(tuple(model.encode_prompt(f"{item} 1")) for item in items)
    for drafter, drafts in (("auto", True), (None, False), (present, True)):
        runs = [item.run for item in word.map(items, batch_size=3, model=model, drafter=drafter)]
        assert [run.stats.drafts is not None for run in runs if run and run.stats] == [drafts] * len(items)
        assert [run.value for run in runs if run] == [item.value for item in together]


class Passes(HashModel):
    """Counts passes over several sequences with the sizes of their trees, and all passes of sessions."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary, seed=2)
        self.shared: list[list[int]] = []

    def extend_many(self, extensions: Sequence[Extension], /) -> list[Logits]:
        trees = [each.tree for each in extensions]
        self.shared.append([0 if tree is None else len(tree.token_ids) for tree in trees])
        return super().extend_many(extensions)


@program
def letters(text: str) -> Annotated[str, regex("[a-f]{12}")]:
    """{text}"""


@pytest.mark.parametrize("settings", [{}, {"sampler": Multinomial(temperature=0.2), "seed": 3}])
def test_drafts_run_in_the_passes_that_items_share(json_vocabulary: Vocabulary, settings: dict[str, Any]) -> None:
    """Two programs use the target itself as their draft model.

    Together they take fewer passes, with the same outputs.
    """
    model = HashModel(json_vocabulary, seed=2)
    reference = DraftModel(model, draws=False)
    texts = ["one", "two"]

    def written(drafter: AnyDrafter) -> tuple[list[str], int, list[list[int]]]:
        model = Passes(json_vocabulary)
        runs = [item.run for item in letters.map(texts, batch_size=2, model=model, drafter=drafter, **settings)]
        stats = [run.stats for run in runs if run is not None and run.stats is not None]
        assert len(stats) == 2
        alone = sum(each.forwards for each in stats) - sum(map(len, model.shared))
        return [run.value for run in runs if run is not None], alone + len(model.shared), model.shared

    plain, plain_passes, plain_shared = written(None)
    drafted, drafted_passes, drafted_shared = written(reference)
    assert drafted == plain == [letters(text, model=model, **settings) for text in texts]
    assert drafted_passes < plain_passes
    assert not any(any(sizes) for sizes in plain_shared)
    assert any(len(sizes) == 2 and all(sizes) for sizes in drafted_shared)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_items_may_come_one_by_one(json_vocabulary: Vocabulary, batch_size: int) -> None:
    """None is taken before there is room for it; an error of the items is raised by the caller's thread."""
    taken: list[int] = []
    running: set[int] = set()
    most = 0

    def items(count: int, *, fails: bool) -> Iterator[int]:
        nonlocal most
        for item in range(count):
            taken.append(item)
            running.add(item)
            most = max(most, len(running))
            yield item
        if fails:
            raise OSError("no more")

    def run(item: int, _model: object, _stopped: threading.Event) -> int:
        running.discard(item)
        return item * item

    found: dict[int, int] = {}
    model = HashModel(json_vocabulary)
    run_batched(items(20, fails=False), run, found.__setitem__, model=model, batch_size=batch_size)
    assert found == {item: item * item for item in range(20)}
    assert taken == list(range(20))
    assert most <= batch_size
    with pytest.raises(OSError, match="no more"):
        run_batched(items(5, fails=True), run, found.__setitem__, model=model, batch_size=batch_size)
