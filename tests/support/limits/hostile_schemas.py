"""Schemas that ask for too much, by name; run as a program, it compiles one of them under resource limits.

``python hostile_schemas.py NAME`` prints one JSON object: the result, the CPU seconds and the peak memory.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from machine_load import slowness

ADDRESS_SPACE: Final = 1 << 30
MASKS: Final = 20
CPU_SECONDS: Final = 20  # for the whole process; the test sets the bound on the work itself


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": sorted(properties)}


def _megabyte_of_properties() -> Any:
    return _object(**{f"property number {i}": {"type": "string", "maxLength": i % 50 + 1} for i in range(16_000)})


def _megabyte_of_constants() -> Any:
    return {"enum": [f"the value of number {i}" for i in range(40_000)]}


def _megabyte_of_pattern() -> Any:
    return {"type": "string", "pattern": "^(" + "|".join(f"[a-z]{{1,{i % 60 + 1}}}{i}" for i in range(70_000)) + ")$"}


def _nested_one_of(levels: int) -> Any:
    schema: Any = {"type": "string"}
    for level in range(levels):
        others = {"type": "array", "maxItems": level}, _object(**{f"p{level}": {"minimum": level}})
        schema = {"oneOf": [{"type": "object", "additionalProperties": schema}, *others]}
    return schema


def _nested_one_of_of_patterns(levels: int) -> Any:
    schema: Any = {"type": "string", "pattern": "a"}
    for level in range(levels):
        schema = {"oneOf": [schema, {"type": "string", "pattern": f"{level}.*x"}]}
    return schema


def _product_of_requirements() -> Any:
    return {"allOf": [{"anyOf": [{"required": [f"{i}.{j}"]} for j in range(4)]} for i in range(30)]}


def _product_of_objects() -> Any:
    return {
        "type": "object",
        "allOf": [
            {"oneOf": [{"properties": {f"p{i}": {"minimum": j}}, "required": [f"p{i}"]} for j in range(3)]}
            for i in range(25)
        ],
    }


def _product_of_patterns() -> Any:
    return {
        "type": "string",
        "allOf": [{"pattern": f"{letter}.{{{40 + i}}}{letter}"} for i, letter in enumerate("abcdefghij")],
    }


def _product_of_negations() -> Any:
    return {"type": "string", "allOf": [{"not": {"pattern": f"[{a}{b}].{{12}}[{a}{b}]"}} for a in "abc" for b in "xyz"]}


def _exploding_pattern() -> Any:
    return {"type": "string", "pattern": "^(?:(?:[ab]{1,63}c?){1,99}d?){1,99}$", "not": {"pattern": "a.{20}b"}}


def _remembering_pattern() -> Any:
    return {"type": "string", "pattern": "a.{200}$", "format": "uri", "maxLength": 5_000}


def _reference_loop() -> Any:
    return {"$defs": {f"d{i}": {"$ref": f"#/$defs/d{(i + 1) % 1_000}"} for i in range(1_000)}, "$ref": "#/$defs/d0"}


def _reference_loop_of_choices() -> Any:
    names = [f"d{i}" for i in range(60)]
    choices = {name: {"anyOf": [{"$ref": f"#/$defs/{other}"} for other in names]} for name in names}
    return {"$defs": choices, "$ref": "#/$defs/d0"}


def _recursive_product() -> Any:
    tree = {"allOf": [{"type": "object", "additionalProperties": {"$ref": f"#/$defs/t{i}"}} for i in range(12)]}
    return {"$defs": {f"t{i}": {**tree, "minProperties": i % 3} for i in range(12)}, "$ref": "#/$defs/t0"}


def _tools() -> Any:
    def tool(index: int) -> Any:
        arguments = {
            f"argument_{k}": [
                {"type": "string", "description": "a text"},
                {"type": "integer", "minimum": 0, "maximum": 100 + index},
                {"enum": [f"option {index}.{n}" for n in range(8)]},
                {"type": "array", "items": {"type": "number"}, "maxItems": 10},
            ][k % 4]
            for k in range(12)
        }
        return {
            **_object(name={"const": f"tool_{index}"}, arguments=_object(**arguments)),
            "additionalProperties": False,
        }

    return {"anyOf": [tool(index) for index in range(128)]}


def _tools_with_patterns() -> Any:
    names = [{"type": "string", "pattern": f"^t{index}_.*[a-f]{index % 9}$"} for index in range(128)]
    return {"anyOf": [_object(arguments={"type": "object"}, name=name) for name in names]}


def _conflicting_drafts() -> Any:
    old = {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "id": "urn:old",
        "exclusiveMinimum": True,
        "minimum": 1,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$defs": {"old": old},
        "prefixItems": [{"$ref": "#/$defs/old"}],
        "items": {"$schema": "http://json-schema.org/draft-03/schema#", "type": "any"},
    }


SCHEMAS: Final[dict[str, Callable[[], Any]]] = {
    "a megabyte of properties": _megabyte_of_properties,
    "a megabyte of constants": _megabyte_of_constants,
    "a megabyte of pattern": _megabyte_of_pattern,
    "nested oneOf": lambda: _nested_one_of(50),
    "nested oneOf of patterns": lambda: _nested_one_of_of_patterns(50),
    "product of requirements": _product_of_requirements,
    "product of objects": _product_of_objects,
    "product of patterns": _product_of_patterns,
    "product of negations": _product_of_negations,
    "exploding pattern": _exploding_pattern,
    "remembering pattern": _remembering_pattern,
    "reference loop": _reference_loop,
    "reference loop of choices": _reference_loop_of_choices,
    "recursive product": _recursive_product,
    "128 tools": _tools,
    "128 tools with patterns": _tools_with_patterns,
    "conflicting drafts": _conflicting_drafts,
}


class Outcome:
    """The results of the calls so far."""

    def __init__(self, size: int) -> None:
        self.found: dict[str, Any] = {"bytes": size, "seconds": 0.0}

    def of(self, name: str, action: Callable[..., Any], *arguments: Any) -> Any:
        """Call ``action`` and note its CPU time and its error; the result is None."""
        from structgen.errors import StructgenError

        begun = time.process_time()
        try:
            return action(*arguments)
        except StructgenError as error:
            self.found["error"] = type(error).__name__
            self.found["limit"] = getattr(error, "limit", None)
            self.found["message"] = str(error)
            return None
        finally:
            spent = time.process_time() - begun
            self.found[name] = max(self.found.get(name, 0.0), round(spent, 3))
            self.found["seconds"] = max(self.found["seconds"], spent)


def try_out(outcome: Outcome, text: str) -> None:
    """Compile a schema, and take the middle one of the tokens that each mask allows."""
    import numpy as np

    import structgen as sg

    words = sorted({f"{a}{b}{c}" for a in " abcdefghijk_" for b in "abcdeinorst.-0123" for c in "aeioulnrst:/{}[]"})
    vocabulary = sg.Vocabulary([bytes([i]) for i in range(256)] + [word.encode() for word in words], eos=[0])
    sg.compile(sg.regex("a"), vocabulary).matcher()  # the vocabulary's own time does not count
    mask = np.zeros((1, (vocabulary.size + 31) // 32), dtype=np.int32)

    grammar = outcome.of("read", sg.json_schema, text)
    constraint = None if grammar is None else outcome.of("compile", sg.compile, grammar, vocabulary)
    if constraint is None:
        return
    matcher = constraint.matcher()
    for _ in range(MASKS):
        before = matcher.is_accepting
        outcome.of("mask", matcher.fill_mask, mask)
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        if "error" not in outcome.found and len(allowed):
            outcome.of("accept", matcher.accept, int(allowed[len(allowed) // 2]))
        if "error" in outcome.found:
            outcome.found["usable"] = matcher.fork().is_accepting == before
            return


def peak_bytes() -> int:
    """The peak memory of this program; ``ru_maxrss`` would count the process that started it."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def main() -> None:
    """Try the schema of the given name, and print the result."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    text = json.dumps(SCHEMAS[sys.argv[1]]())
    outcome = Outcome(len(text))
    before = slowness()
    try_out(outcome, text)
    outcome.found["slowness"] = max(before, slowness())
    outcome.found["peak_bytes"] = peak_bytes()
    sys.stdout.write(json.dumps(outcome.found))


if __name__ == "__main__":
    main()
