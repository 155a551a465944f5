"""The examples of pages of the documentation, each on two ranks: ``python -m workers.pages PAGE...``.

Prints for each page its name and what its first rank prints; the other one prints nothing.
"""

from __future__ import annotations

import re
import sys
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path

from workers.forks import fork_ranks, import_once, wait

DOCS = Path(__file__).resolve().parents[3] / "docs"


def example(page: str) -> None:
    """Run the first example of a page."""
    (code, *_) = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    printed = StringIO()
    with redirect_stdout(printed):
        exec(compile(code, page, "exec"), {"__name__": "__main__"})
    if printed.getvalue():
        print(f"{page}: {printed.getvalue()}", flush=True)


def main(pages: list[str]) -> None:
    import_once()
    for page in pages:
        ends = wait(fork_ranks(partial(example, page), 2))
        if any(ends.values()):
            raise SystemExit(f"{page}: exit codes {ends}")


if __name__ == "__main__":
    main(sys.argv[1:])
