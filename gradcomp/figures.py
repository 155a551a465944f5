"""Pictures: matplotlib is asked for only where one is drawn."""

from __future__ import annotations

from typing import Any

from gradcomp.errors import GradcompError

__all__ = ["new_figure"]


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib figure of so many inches, which needs no display.

    Raises:
        GradcompError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise GradcompError("a plot needs matplotlib: pip install matplotlib") from error
    return Figure(figsize=(width, height), layout="constrained")
