"""A text in the place of WikiText-2, which Lightning's demos would download."""

import random
from pathlib import Path

from mltcp.core.atomic_files import write_atomically


def write_text(words=200, lines=60):
    """Write it to where the demos look for it, below the working directory; returns the number of different words."""
    draw = random.Random(3)
    vocabulary = [f"word{number}" for number in range(words)]
    text = [" ".join(vocabulary), *(" ".join(draw.choices(vocabulary, k=12)) for _ in range(lines))]
    Path("data").mkdir(exist_ok=True)
    # Every rank writes it, and another one may read it by now.
    write_atomically(Path("data/wikitext-2.txt"), ("\n".join(text) + "\n").encode())
    return words + 1  # the end of a line is a word
