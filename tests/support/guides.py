"""Pages that tests follow: their blocks of code are files, and edits of files, in the order of the page.

The line above a block names its file; see `EDIT`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from support.files import ROOT

__all__ = ["EDIT", "Block", "blocks_of", "follow"]

EDIT = re.compile(
    r"New file `(?P<new>[^`]+)`:|In `(?P<old>[^`]+)`, (?P<where>before|after) `(?P<anchor>[^`]+)`:"
)


class Block(NamedTuple):
    above: str
    language: str
    text: str


def blocks_of(guide: str) -> list[Block]:
    """The code blocks of a guide, each with the last line of text above it."""
    blocks, above, language, text = [], "", None, ""
    for line in (ROOT / "docs" / f"{guide}.md").read_text().splitlines(keepends=True):
        if language is None:
            if line.startswith("```"):
                language, text = line.strip("`\n"), ""
            elif line.strip():
                above = line.strip()
        elif line == "```\n":
            blocks.append(Block(above, language, text))
            language = None
        else:
            text += line
    assert language is None, "a block that does not end"
    return blocks


def follow(block: Block, folder: Path) -> None:
    """Make the edit of a block."""
    edit = EDIT.fullmatch(block.above)
    assert edit, f"this line does not say where the block below it goes: {block.above}"
    if edit["new"]:
        path = folder / edit["new"]
        assert not path.exists(), f"{edit['new']} is there already"
        assert path.parent.is_dir(), f"the folder of {edit['new']} does not exist"
        path.write_text(block.text)
        return
    path = folder / edit["old"]
    lines = path.read_text().splitlines(keepends=True)
    at = [i for i, line in enumerate(lines) if line.strip() == edit["anchor"]]
    assert len(at) == 1, f"{edit['old']} has the line {edit['anchor']} {len(at)} times"
    lines.insert(at[0] + (edit["where"] == "after"), block.text)
    path.write_text("".join(lines))
