"""Programs over datasets of Ray Data, on one machine: a pool of actors, and requests to ``structgen serve``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

pytest.importorskip("ray", reason="Ray is not installed: make engines-ray")

import jobs
import ray

import structgen as sg
from structgen.integrations.ray import processor
from structgen.models import HashModel
from structgen.program.batch_row import COLUMNS, item_seed

pytestmark = pytest.mark.ray
HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cluster of this machine, and the file in which its processes note what they do."""
    path = tmp_path_factory.mktemp("ray") / "notes"
    path.touch()
    os.environ.update(RAY_TEST_NOTES=str(path), RAY_USAGE_STATS_ENABLED="0")
    paths = [str(HERE), *(each for each in sys.path if each and Path(each).is_dir())]
    ray.init(
        num_cpus=4,  # one for each actor, of checkpoints too, and some for tasks
        object_store_memory=200 << 20,
        include_dashboard=False,
        runtime_env={"env_vars": {"RAY_TEST_NOTES": str(path), "PYTHONPATH": os.pathsep.join(paths)}},
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield path
    ray.shutdown()


def dataset(count: int) -> Any:
    return ray.data.from_items([{"id": f"n{at}", "text": "fail" if at == 5 else f"text {at}"} for at in range(count)])


def test_actors_write_the_rows_of_single_runs(notes: Path) -> None:
    """In one format; a failure is a row, and each actor loads its model once."""
    rows = {row["id"]: row for row in processor(jobs.word, model=jobs.noise, seed=2)(dataset(12)).take_all()}
    assert len(rows) == 12
    assert all(tuple(row) == COLUMNS for row in rows.values())
    assert rows["n5"]["error"] == "RuntimeError: on purpose"
    assert rows["n5"]["value"] is None
    model = HashModel(jobs.VOCABULARY, max_context=4000)
    for at in (0, 11):
        alone = jobs.word.run(f"text {at}", model=model, seed=item_seed(2, f"n{at}"))
        assert json.loads(rows[f"n{at}"]["value"]) == alone.value
        assert rows[f"n{at}"]["tokens"] == len(alone.outcomes[0].result.tokens)
        assert rows[f"n{at}"]["losses"] == []
    assert notes.read_text().splitlines().count("model") == 1


def _of_main(text: str) -> Literal["yes", "no"]:
    """{text}"""


_of_main.__module__ = "__main__"


@pytest.mark.usefixtures("notes")
def test_programs_of_the_main_script_travel() -> None:
    """Their module is another one in the actors, so that a name would not do."""
    rows = processor(sg.program(system="Be brief.")(_of_main), model=jobs.noise)(dataset(3)).take_all()
    assert {row["error"] for row in rows} == {None}
    assert {json.loads(row["value"]) for row in rows} <= {"yes", "no"}


def test_finished_rows_are_not_run_again(notes: Path, tmp_path: Path) -> None:
    """A second run with Ray's checkpoints runs the new rows; the file has the same types, whatever the blocks hold."""
    from ray.data.checkpoint import CheckpointConfig

    context = ray.data.DataContext.get_current()
    context.checkpoint_config = CheckpointConfig("id", str(tmp_path / "checkpoint"), delete_checkpoint_on_success=False)
    notes.write_text("")
    try:
        for count in (8, 12):
            source = tmp_path / f"in{count}"
            _write(source, count)
            processor(jobs.word, model=jobs.noise)(ray.data.read_parquet(str(source))).write_parquet(
                str(tmp_path / "out")
            )
    finally:
        context.checkpoint_config = None
    rows = ray.data.read_parquet(str(tmp_path / "out")).take_all()
    assert Counter(row["id"] for row in rows) == Counter(f"n{at}" for at in range(12))
    asked = [line for line in notes.read_text().splitlines() if line != "model"]
    assert Counter(asked) == Counter("fail" if at == 5 else f"text {at}" for at in range(12))


def _write(folder: Path, count: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    ids = [f"n{at}" for at in range(count)]
    texts = ["fail" if at == 5 else f"text {at}" for at in range(count)]
    pq.write_table(pa.table({"id": ids, "text": texts}), folder / "rows.parquet")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of ``structgen serve`` with the embedded model."""
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("wb") as written:
        command = [sys.executable, "-m", "structgen.cli", "serve", "--port", "0"]
        server = subprocess.Popen(command, stdout=written, stderr=written)
    try:
        while not (found := re.search(r"interface +(http\S+)/v1", log.read_text())):
            assert server.poll() is None, log.read_text()
            time.sleep(0.1)
        yield found[1]
    finally:
        server.terminate()
        server.wait(60)


@pytest.mark.usefixtures("notes")
def test_a_server_is_asked_by_the_engine_for_requests(address: str) -> None:
    """Rows come as from the pool; what a check refuses, what a server refuses and what lacks arguments are errors."""
    from ray.data.llm import HttpRequestProcessorConfig

    from structgen.integrations.openai_server import remote

    engine = HttpRequestProcessorConfig(url=f"{address}/v1/chat/completions", concurrency=1, batch_size=4, qps=100)
    name = "smollm2-135m-instruct"
    items = [{"id": at, "text": f"I live in {city}."} for at, city in enumerate(("Paris", "London", "Rome"))]
    run = processor(jobs.city, engine, model=name)
    rows = {row["id"]: row for row in run(ray.data.from_items(items)).take_all()}
    assert rows.keys() == {0, 1, 2}
    with remote(f"{address}/v1", name, kind="vllm") as model:
        for row in rows.values():
            assert tuple(row) == COLUMNS
            assert row["error"] is None
            assert row["tokens"] > 0
            alone = jobs.city(items[row["id"]]["text"], model=model, seed=item_seed(0, row["id"]))
            assert json.loads(row["value"]) == alone
    (refused,) = processor(jobs.odd, engine, model=name)(ray.data.from_items(items[:1])).take_all()
    assert "it is odd" in refused["error"]
    (unknown,) = processor(jobs.city, engine, model="another")(ray.data.from_items(items[:1])).take_all()
    assert "there is no 'another'" in unknown["error"]
    (lacking,) = processor(jobs.city, engine, model=name)(ray.data.from_items([{"id": 1, "txt": "x"}])).take_all()
    assert "the arguments do not fit" in lacking["error"]
