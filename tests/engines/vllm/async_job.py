"""Answers of an engine whose async scheduling stays on: vLLM turns it off on CPUs, which can do it.

Prints the name of the scheduler, and the texts and reasons of the answers, as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def main(folder: str, small: dict[str, Any], schemas: list[Any]) -> None:
    """Ask for two answers of each schema."""
    from vllm.platforms.cpu import CpuPlatform

    adapted = CpuPlatform.check_and_update_config.__func__

    def adapted_but_async(cls: Any, config: Any) -> None:
        adapted(cls, config)
        config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = classmethod(adapted_but_async)
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    llm = LLM(
        model=folder,
        max_model_len=256,
        enforce_eager=True,
        dtype="float32",
        load_format="dummy",
        hf_overrides=small,
    )
    asked = [
        SamplingParams(n=2, max_tokens=30, structured_outputs=StructuredOutputsParams(json=schema))
        for schema in schemas
    ]
    answers = llm.generate(["a"] * len(schemas), asked)
    scheduler = type(llm.llm_engine.engine_core.engine_core.scheduler).__name__
    found = [[(each.text, each.finish_reason) for each in answer.outputs] for answer in answers]
    sys.stdout.write(json.dumps({"scheduler": scheduler, "answers": found}) + "\n")


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
