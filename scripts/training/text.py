"""Text that is at hand wherever Python is, for models of characters."""

from __future__ import annotations

from dataclasses import dataclass
from pydoc_data.topics import topics

import numpy as np
import torch
from torch import Tensor

from training.data import Batch

__all__ = ["Text", "load_python_topics"]


@dataclass(frozen=True)
class Text:
    """A text as a row of character numbers.

    Attributes:
        characters: the number of each character, its place in ``vocabulary``: [length].
        vocabulary: every character that occurs, in order.
    """

    characters: Tensor
    vocabulary: str

    def batch(self, rng: np.random.Generator, size: int, length: int) -> Batch:
        """``size`` random pieces of ``length`` characters, and the character after each of them.

        Inputs and classes: [size, length].
        """
        starts = torch.from_numpy(rng.integers(len(self.characters) - length, size=size))
        pieces = self.characters[starts.unsqueeze(1) + torch.arange(length + 1)]
        return Batch(pieces[:, :-1], pieces[:, 1:])


def load_python_topics() -> Text:
    """The topics of Python's own ``help()``: about half a million characters.

    They come with every Python, and change a little with its version.
    """
    text = "\n".join(topics[name] for name in sorted(topics))
    vocabulary = "".join(sorted(set(text)))
    number = {character: place for place, character in enumerate(vocabulary)}
    return Text(torch.tensor([number[character] for character in text]), vocabulary)
