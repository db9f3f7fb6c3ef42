"""The worker of ``benchmarks/sampling.py`` in the environment of genlm-control: it knows nothing of structgen.

It reads requests from standard input and writes answers to standard output, a JSON object a line; all else that
libraries print goes to standard error.  Nothing runs between an answer and the next request.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from importlib.metadata import version
from time import perf_counter, process_time
from typing import Any

PACKAGES = ("genlm-control", "genlm-backend", "transformers", "torch", "numpy")


class Worker:
    """Serves requests: ``load``, ``task`` and ``run``."""

    def __init__(self) -> None:
        self._llm: Any = None
        self._samplers: dict[str, Any] = {}

    async def serve(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer one request."""
        answer: dict[str, Any] = await getattr(self, "_" + request.pop("op"))(**request)
        return answer

    async def _load(self, folder: str, threads: int, eos: list[str], timeout: float) -> dict[str, Any]:
        """Load the model; ``timeout`` is how long a forward pass waits for more to join it."""
        import torch
        from genlm.control import PromptedLLM

        torch.set_num_threads(threads)
        began = perf_counter()
        llm = PromptedLLM.from_name(
            folder, backend="hf", eos_byte_strings=[each.encode() for each in eos], timeout=timeout, batch_size=64
        )
        self._llm = llm
        self._forwards = 0
        evaluate = llm.model._evaluate_queries

        def counted(queries: Any) -> None:
            self._forwards += 1
            evaluate(queries)

        llm.model._evaluate_queries = counted
        return {
            "versions": {name: version(name) for name in PACKAGES},
            "dtype": str(llm.model.model.dtype).removeprefix("torch."),
            "eos": list(llm.token_maps.eos_idxs),
            "seconds": perf_counter() - began,
        }

    async def _task(self, name: str, prompt: list[int], regex: str | None, schema: Any) -> dict[str, Any]:
        """Prepare a task: its condition is a regular expression or a JSON Schema."""
        from genlm.control import BoolFSA, JsonSchema

        began = perf_counter()
        llm = self._llm.spawn(prompt_ids=prompt)
        condition = BoolFSA.from_regex(regex) if regex is not None else JsonSchema(schema)
        self._samplers[name] = _counting(llm, condition.coerce(llm, f=b"".join))
        return {"seconds": perf_counter() - began}

    async def _run(  # noqa: PLR0913  the fields of a request
        self,
        *,
        name: str,
        particles: int,
        ess_threshold: float,
        resampling: str,
        max_tokens: int,
        seed: int,
        keep_logits: bool,
    ) -> dict[str, Any]:
        """Sample once; ``max_tokens`` does not count the stop."""
        import numpy as np
        import torch

        sampler = self._samplers[name]
        model = sampler.potential.potential.model
        prompt = sampler.potential.potential.prompt_ids
        np.random.seed(seed)
        torch.manual_seed(seed)
        sampler.rng = np.random.default_rng(seed)
        if not keep_logits:
            model.clear_cache()
            model.cache_kv(prompt)
        self._forwards = sampler.queries = 0
        began, worked = perf_counter(), process_time()
        found = await sampler.smc(
            n_particles=particles,
            ess_threshold=ess_threshold,
            max_tokens=max_tokens + 1,  # the peer counts the stop
            resampling_method=resampling,
        )
        seconds, processor = perf_counter() - began, process_time() - worked
        return {
            "seconds": seconds,
            "processor_seconds": processor,
            "log_evidence": float(found.log_ml),
            "forwards": self._forwards,
            "queries": sampler.queries,
            "tokens": sum(map(len, found.contexts)),
        }


def _counting(llm: Any, condition: Any) -> Any:
    """An ``AWRS`` that counts how often the condition is evaluated."""
    from genlm.control import AWRS

    class Counting(AWRS):  # type: ignore[misc]
        queries = 0

        async def _accept(self, *arguments: Any, **named: Any) -> bool:
            self.queries += 1
            return bool(await super()._accept(*arguments, **named))

    return Counting(llm, condition)


async def main() -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = Worker()
    for line in sys.stdin:
        try:
            answer = await worker.serve(json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    asyncio.run(main())
