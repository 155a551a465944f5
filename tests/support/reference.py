"""Cases recorded from reference implementations, in tests/golden/reference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

REFERENCE = Path(__file__).resolve().parents[1] / "golden" / "reference"


def reference(case: str) -> tuple[dict[str, Any], dict[str, Array]]:
    """The description and the arrays of a case."""
    folder = REFERENCE / case
    with np.load(folder / "arrays.npz") as arrays:
        return json.loads((folder / "case.json").read_text()), dict(arrays)
