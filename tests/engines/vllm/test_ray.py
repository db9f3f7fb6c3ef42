"""vLLM inside Ray: its processes find the plug-in, and a program has its rows."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ENVIRONMENT, SMALL

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="Ray is not installed beside vLLM: make engines"
    ),
]


@pytest.fixture
def cluster() -> Iterator[None]:
    """A cluster of this machine, whose processes find what this one finds."""
    import ray

    paths = os.pathsep.join(each for each in sys.path if each and Path(each).is_dir())
    ray.init(
        num_cpus=8,  # each stage of the engine has an actor, and tasks run beside them
        object_store_memory=200 << 20,
        include_dashboard=False,
        runtime_env={"env_vars": {"PYTHONPATH": paths, "RAY_USAGE_STATS_ENABLED": "0"}},
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()


@pytest.mark.usefixtures("cluster")
def test_programs_run_on_vllm_inside_ray(folder: str) -> None:
    """Every answer is complete and as its type says, though the model writes noise; what vLLM refuses is a row."""
    import jobs
    import ray
    from ray.data.llm import vLLMEngineProcessorConfig

    from structgen.integrations.ray import processor
    from structgen.program.batch_row import COLUMNS

    engine = vLLMEngineProcessorConfig(
        model_source=folder,
        engine_kwargs={
            "max_model_len": 512,
            "enforce_eager": True,
            "dtype": "float32",
            "load_format": "dummy",
            "hf_overrides": SMALL,
        },
        placement_group_config={"bundle_per_worker": {"CPU": 1}},
        runtime_env={"env_vars": ENVIRONMENT},
        batch_size=4,
        concurrency=1,
        log_engine_metrics=False,
        should_continue_on_error=True,
    )
    items = [{"id": at, "text": "Some. " * (1000 if at == 3 else 1)} for at in range(6)]
    rows = {row["id"]: row for row in processor(jobs.crate, engine)(ray.data.from_items(items)).take_all()}
    assert sorted(rows) == list(range(6))
    assert all(tuple(row) == COLUMNS for row in rows.values())
    refused = rows.pop(3)
    assert refused["value"] is None
    assert "512" in refused["error"]
    for row in rows.values():
        assert row["error"] is None
        assert row["losses"] == []
        assert 0 < row["tokens"] <= 80
        value = json.loads(row["value"])
        assert value["apples"] in range(105, 1000, 7)
        assert len(value["label"]) <= 12
    assert len({row["value"] for row in rows.values()}) > 1
