"""Classification: a label for each text, with the probability that the model gives each of the labels."""

from typing import Literal

import structgen as sg

REVIEWS = [
    "I love this kettle, it boils in no time.",
    "The handle broke on the first day.",
    "It arrived on Tuesday.",
]


@sg.program(system="You label reviews.", marginals=True)
def mood(review: str) -> Literal["positive", "negative", "neutral"]:
    """Is this review positive, negative or neutral?

    {review}"""


if __name__ == "__main__":
    for review, item in zip(REVIEWS, mood.map(REVIEWS, batch_size=4), strict=True):
        if item.run is None:
            raise SystemExit(f"{review}: {item.error}")
        labels = item.run.fields[""].marginals  # exact: over all spellings of each label
        shown = ", ".join(f"{label} {probability:.1%}" for label, probability in sorted(labels.items()))
        print(f"{item.value:9} ({shown})  {review}")
