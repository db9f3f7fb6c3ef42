"""Make the tokenizer of the embedded diffusion model from the texts of its tasks.

Run from the root of a checkout: ``python training/embedded_diffusion/build_tokenizer.py``.
"""

from __future__ import annotations

import argparse
import itertools
import re
from collections import Counter
from pathlib import Path
from typing import Any

from structgen.models.diffusion import embedded
from structgen.models.diffusion.embedded.model import Tokenizer
from training.embedded_diffusion.examples import examples
from training.embedded_diffusion.tasks import TASKS

FOLDER = Path(embedded.__file__).parent

# What joins words in text, and in compact JSON; most of the latter reach over what a grammar keeps apart.
PUNCTUATION = (
    ", ", ": ", "; ", ". ", " (", ") ", "), ",
    '{"', '":"', '","', '":', ',"', '"}', '":{"', '"},"', '":["', '"],"', '":[', '],"', '":[{"', '},{"',
    '"}],"', '}],"', '}}', '"}}', '}]}', '"]}', '"}]}', '},"', ']}', '"]',
)  # fmt: skip


def whole_words() -> list[str]:
    """Return the words that are one token: names of tasks and fields, values of enumerations, and wordings."""
    words: dict[str, None] = dict.fromkeys(["true", "false", "null"])

    def read(schema: Any) -> None:
        for name, part in schema.get("properties", {}).items():
            words[name] = None
            read(part)
        if isinstance(schema.get("items"), dict):
            read(schema["items"])
        words.update(dict.fromkeys(schema.get("enum", ())))

    for task in TASKS.values():
        words[task.name] = None
        read(task.schema)
        texts = [*task.texts, *itertools.chain(*(texts for each in task.wordings.values() for texts in each.values()))]
        for text in texts:
            words.update(dict.fromkeys(re.findall(r"[A-Za-z]+", re.sub(r"\{[a-z_.]+\}", " ", text))))
    return [word for word in words if len(word) > 1]  # bytes are tokens anyway


def learn_merges(words: Counter[str], count: int) -> list[tuple[bytes, bytes]]:
    """Return the ``count`` best merges of byte pairs; ties go to the pair that is first in order."""
    spelled = {word: [bytes([byte]) for byte in word.encode()] for word in words}
    merges: list[tuple[bytes, bytes]] = []
    while len(merges) < count:
        pairs: Counter[tuple[bytes, bytes]] = Counter()
        for word, pieces in spelled.items():
            for pair in itertools.pairwise(pieces):
                pairs[pair] += words[word]
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        for pieces in spelled.values():
            at = 0
            while at + 1 < len(pieces):
                if (pieces[at], pieces[at + 1]) == best:
                    pieces[at : at + 2] = [best[0] + best[1]]
                at += 1
    return merges


def main() -> None:
    """Read the command line and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=20_000, help="from whose words merges are learnt")
    parser.add_argument("--merges", type=int, default=320)
    parser.add_argument("--out", type=Path, default=FOLDER / "tokenizer.json")
    arguments = parser.parse_args()
    whole = whole_words()
    words: Counter[str] = Counter()
    for example in examples("train", 0, arguments.examples):
        words.update(re.findall(r"[^\W\d]+", example.document))
    for word in whole:
        words.pop(word, None)
    tokenizer = Tokenizer(punctuation=PUNCTUATION, words=whole, merges=learn_merges(words, arguments.merges))
    tokenizer.save(arguments.out)
    print(f"{len(tokenizer.tokens)} tokens, {len(whole)} of them whole words, written to {arguments.out}")


if __name__ == "__main__":
    main()
