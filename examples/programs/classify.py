"""Classification: a label for each text, with the probability that the model gives it among the labels."""

from typing import Literal

import structgen as sg

REVIEWS = [
    "I love this kettle, it boils in no time.",
    "The handle broke on the first day.",
    "It arrived on Tuesday.",
]


@sg.program(system="You label reviews.")
def mood(review: str) -> Literal["positive", "negative", "neutral"]:
    """Is this review positive, negative or neutral?

    {review}"""


if __name__ == "__main__":
    for review, item in zip(REVIEWS, mood.map(REVIEWS, batch_size=4), strict=True):
        if item.run is None:
            raise SystemExit(f"{review}: {item.error}")
        sure = item.run.fields[""].probability
        print(f"{item.value:9} {sure:5.0%}  {review}")
