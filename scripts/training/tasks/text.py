"""Text for models of characters: a file, the help texts of Python, or the King James Bible."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
from torch import Tensor

from gradcomp.errors import ConfigError
from training.tasks.data import Batch

__all__ = ["PIECE", "Text", "TextPieces", "load_kjv", "load_python_topics", "load_text"]

PIECE = 64
"""Characters of a sample."""

_TEST_SHARE = 10
_TEST_PIECES = 400


@dataclass(frozen=True)
class Text:
    """A text as a row of character numbers.

    Attributes:
        characters: the number of each character, its place in ``vocabulary``: [length].
        vocabulary: every character that occurs, in order.
    """

    characters: Tensor
    vocabulary: str

    @classmethod
    def of(cls, text: str) -> Text:
        """Number the characters of ``text``."""
        vocabulary = "".join(sorted(set(text)))
        number = {character: place for place, character in enumerate(vocabulary)}
        return cls(torch.tensor([number[character] for character in text]), vocabulary)

    def pieces(self, starts: Tensor, length: int) -> Batch:
        """The pieces of ``length`` characters at ``starts``, and the character after each of them.

        Inputs and classes: [starts, length].
        """
        pieces = self.characters[starts.unsqueeze(1) + torch.arange(length + 1)]
        return Batch(pieces[:, :-1], pieces[:, 1:])

    def batch(self, rng: np.random.Generator, size: int, length: int) -> Batch:
        """``size`` random pieces: inputs and classes [size, length]."""
        starts = rng.integers(len(self.characters) - length, size=size)
        return self.pieces(torch.from_numpy(starts), length)


class TextPieces:
    """A text cut into samples of PIECE characters each; the last samples are for the test.

    Without ``test_characters`` the test has a tenth of the samples, at most 400.
    """

    def __init__(self, text: Text, test_characters: int | None = None) -> None:
        """Cut ``text``, which must have at least two samples.

        ``test_characters``: how many characters at the end no training sample has, from PIECE to
        the text's length - PIECE - 1. The test begins with the piece that the first one is in.
        """
        self._text = text
        samples = (len(text.characters) - 1) // PIECE
        if test_characters is None:
            self._test_samples = min(_TEST_PIECES, max(1, samples // _TEST_SHARE))
        else:
            # The class of a sample's last place is the character after it.
            self._test_samples = samples - (len(text.characters) - test_characters - 1) // PIECE
        self.train_samples = samples - self._test_samples
        self.classes = len(text.vocabulary)

    def train_batch(self, indices: np.ndarray, rng: np.random.Generator) -> Batch:
        """The training samples at ``indices``."""
        return self._text.pieces(PIECE * torch.from_numpy(indices), PIECE)

    def test_batches(self, rank: int, workers: int, size: int = 100) -> Iterator[Batch]:
        """This rank's share of the test samples."""
        starts = PIECE * (self.train_samples + torch.arange(self._test_samples))
        for some in torch.split(starts[rank::workers], size):
            if len(some):
                yield self._text.pieces(some, PIECE)


def load_python_topics() -> Text:
    """The topics of Python's own ``help()``: about half a million characters.

    They come with every Python, and change a little with its version.
    """
    return Text.of("\n".join(topics[name] for name in sorted(topics)))


def load_kjv() -> TextPieces:
    """The King James Bible of Debian's package bible-kjv: 4.1 million characters, a verse a line.

    Characters are those that the package's command ``bible`` prints, without the references before
    verses. Revelation, the last of the 66 books, is for the test. Raises ConfigError if the command
    is missing or fails.
    """
    remedy = "apt-get install bible-kjv"
    if shutil.which("bible") is None:
        raise ConfigError(
            f"King James Bible: no command bible in {os.environ.get('PATH', '')}; run {remedy}, "
            "which puts it into /usr/bin and its data into /usr/lib"
        )
    # -f: a verse a line, after its reference.
    done = subprocess.run(
        ["bible", "-f", "Gen1:1-Rev22:21"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="ascii",
        errors="replace",
        check=False,
    )
    verses = re.findall(r"^(\w+?)\d+:\d+ (.+)$", done.stdout, re.MULTILINE)
    before = "".join(f"{verse}\n" for book, verse in verses if book != "Rev")
    last = "".join(f"{verse}\n" for book, verse in verses if book == "Rev")
    if done.returncode or min(len(before), len(last)) <= 2 * PIECE:
        raise ConfigError(
            f"King James Bible: the command bible printed {len(verses)} verses and ended with "
            f"{done.returncode}: {done.stderr.strip() or 'no error'}; expected Genesis to "
            f"Revelation: run {remedy} --reinstall"
        )
    return TextPieces(Text.of(before + last), len(last))


def load_text(path: Path) -> Text:
    """The text of a file in UTF-8.

    Raises ConfigError naming the file that cannot be read, is no text or is too short.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"train.text_file: {path} cannot be read ({error.strerror}); expected a text file in "
            "UTF-8"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"train.text_file: {path} is not UTF-8 (at byte {error.start}); convert it, such as "
            "with iconv -t UTF-8"
        ) from None
    if len(text) <= 2 * PIECE:
        raise ConfigError(
            f"train.text_file: {path} has {len(text)} characters; expected more than {2 * PIECE}, "
            "for a sample to train on and one for the test"
        )
    return Text.of(text)
