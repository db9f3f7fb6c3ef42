"""Time of a token with a constraint in llama.cpp's own chain, beside llama.cpp's grammars and no constraint.

    python benchmarks/llama_cpp_sampler.py [--tokens 64] [--rounds 5]

One program runs the embedded model in llama.cpp on one thread, and picks each token with a chain of a constraint and
greedy choice: structgen's sampler, llama.cpp's GBNF sampler with the same grammar, and llguidance, which the wheel
contains, with the same schema.  Every way writes as many tokens after the same prompt, so that passes cost the same.
Times are processor time of this process; ways are interleaved, and ratios are those of the same round.  Other work on
the machine changes the time of a pass by some per cent, so the time in the chain says more than the whole.  The output
of structgen's sampler must be the greedy one under the masks of ``Matcher.fill_mask``.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import numpy as np

import structgen as sg
from structgen.engine.mask import allowed_ids, empty_masks
from structgen.frontends.convert import write
from structgen.integrations.llama_cpp import sampler
from structgen.models import load_model
from structgen.models.llama.embedded import embedded_gguf

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support" / "models"))
from llama_chain import ChainHost

LLGUIDANCE = "_Z22llama_sampler_init_llgPK11llama_vocabPKcS3_"
PROMPT = "Write a list of people with name, age, city and hobbies as JSON."
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 3, "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "city": {"type": "string", "maxLength": 30},
        "hobbies": {"type": "array", "items": {"type": "string", "maxLength": 20}, "minItems": 2, "maxItems": 5},
        "role": {"enum": ["engineer", "teacher", "artist", "other"]},
    },
    "required": ["name", "age", "city", "hobbies", "role"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, Any] = {
    "records": {"type": "array", "items": PERSON, "minItems": 8, "maxItems": 20},
    "free text": {
        "type": "object",
        "properties": {"text": {"type": "string", "minLength": 2000}},
        "required": ["text"],
    },
}


def ways(host: ChainHost, model: Any, schema: Any) -> dict[str, Callable[[], int]]:
    """What makes a chain of each kind."""
    grammar, library = sg.json_schema(schema), host.library
    constraint = sg.compile(grammar, model.vocabulary)
    gbnf = write(grammar, "gbnf").text.encode()
    llguidance = getattr(library._functions, LLGUIDANCE, None)

    def greedy(*parts: Any) -> int:
        return host.chain(*parts, library.llama_sampler_init_greedy())

    found = {
        "no constraint": greedy,
        "structgen": lambda: greedy(sampler(constraint)),
        "GBNF": lambda: greedy(library.llama_sampler_init_grammar(host.vocabulary, gbnf, b"root")),
    }
    if llguidance is not None:
        llguidance.restype, llguidance.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
        text = json.dumps(schema).encode()
        found["llguidance"] = lambda: greedy(llguidance(host.vocabulary, b"json", text))
    return found


def greedy_output(model: Any, prompt: list[int], schema: Any, tokens: int) -> list[int]:
    """The most probable token at each step of those that the mask allows, by numpy."""
    matcher = sg.compile(sg.json_schema(schema), model.vocabulary).matcher()
    masks = empty_masks(model.vocabulary)
    output: list[int] = []
    session, fresh = model.start(), prompt
    for _ in range(tokens):
        logits = session.extend(fresh)
        matcher.fill_mask(masks)
        ids = allowed_ids(masks[0])
        token = int(ids[np.argmax(logits[ids])])
        assert matcher.accept(token)
        output.append(token)
        fresh = [token]
    return output


def run(host: ChainHost, chain: int, prompt: list[int], tokens: int) -> tuple[float, float, list[int]]:
    """Milliseconds of a token, of these in the chain, and the output."""
    host.read(prompt, anew=True)
    output, sampled, began = [], 0.0, process_time()
    for _ in range(tokens):
        start = process_time()
        token = host.library.llama_sampler_sample(chain, host.context, -1)
        sampled += process_time() - start
        output.append(token)
        host.read([token])
    whole = process_time() - began
    host.library.llama_sampler_free(chain)
    return 1000 * whole / tokens, 1000 * sampled / tokens, output


def main() -> None:
    """Print a table for each schema."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    path = embedded_gguf()
    model: Any = load_model(path, runtime="llama.cpp", threads=1)
    host = ChainHost(path, cells=1024)
    prompt = model.encode_prompt(PROMPT)
    for name, schema in SCHEMAS.items():
        made = ways(host, model, schema)
        expected = greedy_output(model, prompt, schema, options.tokens)
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in made}
        for _ in range(options.rounds):
            for way, make in made.items():
                whole, chain, output = run(host, make(), prompt, options.tokens)
                found[way].append((whole, chain))
                if way == "structgen":
                    assert output == expected, "another output than with masks in Python"
        print(f"\n{name}, {options.tokens} tokens, {options.rounds} rounds\n")
        print("| chain | ms a token | of these in the chain | more than no constraint | in the chain |")
        print("| --- | ---: | ---: | ---: | ---: |")
        pairs = {way: list(zip(times, found["no constraint"], strict=True)) for way, times in found.items()}
        for way, times in found.items():
            more = median(100 * (mine[0] / none[0] - 1) for mine, none in pairs[way])
            in_chain = median(100 * (mine[1] - none[1]) / none[0] for mine, none in pairs[way])
            whole, chain = (median(column) for column in zip(*times, strict=True))
            print(f"| {way} | {whole:.2f} | {chain:.3f} | {more:.1f} % | {in_chain:.2f} % |")
    host.close()


if __name__ == "__main__":
    main()
