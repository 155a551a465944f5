"""Paths of the C interface of the codecs, for code in other languages; see gradcomp.h."""

from __future__ import annotations

from pathlib import Path

from gradcomp import _core
from gradcomp.errors import GradcompError

__all__ = ["core_library", "include_folder"]


def core_library() -> Path:
    """The library that exports the functions of gradcomp.h.

    It is Python's extension module, so only processes of Python can load it.
    """
    return Path(_core.__file__)


def include_folder() -> Path:
    """The include folder of gradcomp/gradcomp.h, for a compiler's ``-I``.

    Raises:
        GradcompError: gradcomp is not installed from a source checkout.
    """
    folder = Path(__file__).parents[1] / "csrc" / "include"
    if not folder.is_dir():
        raise GradcompError(
            f"there is no {folder}, which has gradcomp.h: install gradcomp from a source checkout "
            "(pip install --editable .)"
        )
    return folder
