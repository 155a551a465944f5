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
        GradcompError: the header is not where any kind of installation puts it.
    """
    package = Path(__file__).parent
    folders = (package / "include", package.parent / "csrc" / "include")
    for folder in folders:
        if (folder / "gradcomp" / "gradcomp.h").is_file():
            return folder
    raise GradcompError(
        f"gradcomp.h is in none of {', '.join(map(str, folders))}: install gradcomp again, from its "
        "wheel or from its repository (pip install .)"
    )
