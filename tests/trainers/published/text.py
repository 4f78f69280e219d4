"""A text in the place of WikiText-2, which Lightning's demos would download."""

import random
from pathlib import Path


def write_text(words=200, lines=60):
    """Write it to where the demos look for it, below the working directory; returns the number of different words."""
    draw = random.Random(3)
    vocabulary = [f"word{number}" for number in range(words)]
    text = [" ".join(vocabulary), *(" ".join(draw.choices(vocabulary, k=12)) for _ in range(lines))]
    Path("data").mkdir(exist_ok=True)
    Path("data/wikitext-2.txt").write_text("\n".join(text) + "\n")
    return words + 1  # the end of a line is a word
