"""A report in several steps: an outline, a sentence for each of its points, and a rating, in one conversation."""

from collections.abc import Generator
from typing import Annotated, Any

from pydantic import Field

import structgen as sg

Outline = Annotated[list[Annotated[str, Field(min_length=3, max_length=25)]], Field(min_length=2, max_length=3)]
SENTENCE = sg.regex(r"[A-Z][A-Za-z ,']{20,90}\.")


@sg.program(system="You write short reports.", max_tokens=60)
def report(topic: str) -> Generator[Any, Any, str]:
    yield f"Which points should a report on {topic} make?"
    points = yield Outline
    lines = [f"# {topic}"]
    for point in points:
        yield sg.program.user(f"Write one sentence about: {point}.")
        lines.append(f"* {point}: {(yield SENTENCE)}")
    yield sg.program.user("How certain are you of this report, from 1 to 5?")
    certainty = yield Annotated[int, Field(ge=1, le=5)]
    return "\n".join([*lines, f"(certainty {certainty} of 5)"])


if __name__ == "__main__":
    print(report("honey bees"))
