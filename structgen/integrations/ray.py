"""Programs over datasets of Ray Data: on models of our own in a pool of actors, and on the engines of ``ray.data.llm``.

Everywhere a row becomes the row of ``structgen batch``: see ``structgen.program.batch_row``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

from structgen.errors import ModelError, install
from structgen.integrations.openai_server.dialects import Kind
from structgen.integrations.ray_engines import Call, Packed, Reading, asking_of, row_table
from structgen.program.batch_map import run_batched
from structgen.program.batch_row import item_row, item_seed
from structgen.program.definition import Program

if TYPE_CHECKING:
    from structgen.program.execution import AnyModel

__all__ = ["processor"]

Source: TypeAlias = "str | Callable[[], AnyModel] | None"
"""A model: the embedded one, a hub id, folder or file, ``ADDRESS#NAME`` of a server, or a function that returns one."""

_BATCHES: Final = 4
"""Batches that an actor is given at a time: the last lines of each run alone."""


def processor(  # noqa: PLR0913  public: each is a keyword with a default
    program: Program[..., Any],
    engine: Any = None,
    *,
    model: Source = None,
    id_column: str = "id",
    seed: int = 0,
    attempts: int = 1,
    batch_size: int = 8,
    concurrency: int = 1,
    num_cpus: int = 1,
    num_gpus: float = 0,
    kind: Kind = "vllm",
    **settings: Any,
) -> Callable[[Any], Any]:
    """Return what makes of a dataset one with the members of ``structgen.program.batch_row.COLUMNS`` as columns.

    The arguments of the program are the columns with the names of its parameters.  ``value`` is JSON as text, since
    Arrow would give the values of all rows one type; null if the row failed.  No row is left out.

    Args:
        program: what is run for each row; on an engine it asks for one answer.
        engine: None: ``concurrency`` actors, each with a model of its own.  A ``vLLMEngineProcessorConfig``: its
            processes run our plug-in (``STRUCTGEN_VLLM=1``), unless its ``runtime_env`` says otherwise.  A
            ``HttpRequestProcessorConfig``, whose ``url`` is that of chat completions.
        model: without an engine, the model (see ``Source``); with requests, its name on the server.
        id_column: identifies the rows; for ``CheckpointConfig`` too.  The column keeps its name.
        seed: the seed of each row follows from it and the id.
        attempts: without an engine: run a row that fails up to this many times.
        batch_size: without an engine: rows in one forward pass.
        concurrency: without an engine: actors.
        num_cpus: without an engine: processors, and so threads, of an actor.
        num_gpus: without an engine: GPUs of an actor.
        kind: what the server of an HTTP engine is: see ``openai_server.remote``.
        **settings: as for a call of the program.

    Raises:
        ModelError: Ray is not installed.
        ArgumentError: ``engine`` is none of these, or the name of the model is missing.
        GrammarError, ProgramError: the engine has no notation for the answer, or for how it is sampled.
    """
    try:
        import ray.data
    except ImportError as error:
        raise ModelError("ray", "it cannot be imported", evidence=str(error), remedy=install("ray")) from error
    packed = Packed.of(program)
    if engine is None:
        worker: dict[str, Any] = {
            "packed": packed,
            "source": model,
            "id_column": id_column,
            "seed": seed,
            "attempts": attempts,
        }
        worker |= {"batch_size": batch_size, "threads": num_cpus, "settings": settings}

        def run(dataset: Any) -> Any:
            return dataset.map_batches(
                _Worker,
                fn_constructor_kwargs=worker,
                batch_format="pyarrow",
                batch_size=_BATCHES * batch_size,
                compute=ray.data.ActorPoolStrategy(size=concurrency),
                num_cpus=num_cpus,
                num_gpus=num_gpus or None,
            )

        return run
    engine, asking = asking_of(engine, packed, Call(id_column, seed, settings), model, kind)
    from ray.data.llm import build_processor

    made = build_processor(engine, preprocess=asking, postprocess=_as_it_is)
    reading = Reading(asking)
    return lambda dataset: made(dataset).map_batches(reading, batch_format="pyarrow")


@final
class _Worker:
    """An actor with a model, and the program whose constraint is compiled once."""

    def __init__(  # noqa: PLR0913, PLR0917  as of ``processor``
        self,
        packed: Packed,
        source: Source,
        id_column: str,
        seed: int,
        attempts: int,
        batch_size: int,
        threads: int,
        settings: Mapping[str, Any],
    ) -> None:
        self._program = packed.unpacked()
        self._call = Call(id_column, seed, settings)
        self._attempts = attempts
        self._batch_size = batch_size
        self._model = _model_of(source, threads)

    def __call__(self, table: Any) -> Any:
        """Return the rows of a table."""
        rows = table.to_pylist()
        found: dict[int, dict[str, Any]] = {}
        run_batched(
            range(len(rows)),
            lambda index, model, stopped: self._row(rows[index], model, stopped.is_set),
            found.__setitem__,
            model=self._model,
            batch_size=self._batch_size,
        )
        return row_table([found[index] for index in range(len(rows))], table, self._call.id_column)

    def _row(self, row: dict[str, Any], model: AnyModel, is_stopped: Callable[[], bool]) -> dict[str, Any]:
        key = self._call.id_of(row)
        return item_row(
            self._program,
            key,
            self._call.arguments(self._program, row),
            model=model,
            seed=lambda attempt: item_seed(self._call.seed, key, attempt),
            attempts=self._attempts,
            is_stopped=is_stopped,
            settings=self._call.settings,
        )


def _model_of(source: Source, threads: int) -> AnyModel:
    from structgen.integrations.openai_server import remote
    from structgen.models import load_model

    if callable(source):
        return source()
    if isinstance(source, str) and source.startswith(("http://", "https://")):
        address, _, name = source.partition("#")
        return remote(address, name)
    return load_model(source, threads=threads)


def _as_it_is(row: dict[str, Any]) -> dict[str, Any]:
    return row
