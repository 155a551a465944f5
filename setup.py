"""The extension module, its C header and the text for an index; everything else is declared in pyproject.toml."""

import re
import sys
import sysconfig
from glob import glob
from pathlib import Path

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension
from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

if not sys.platform.startswith("linux"):
    sys.exit(
        f"gradcomp is for Linux on x86-64 or 64-bit ARM, and this is {sys.platform}: build it in a container or "
        "virtual machine of Linux, on Windows for example under WSL 2"
    )
if sysconfig.get_config_var("Py_GIL_DISABLED"):
    sys.exit(
        "gradcomp has not been run on Python without a global interpreter lock (free-threaded, such as python3.14t): "
        "use the Python with the lock, such as python3.14"
    )

# No -march and no -ffast-math: SIMD is chosen at run time (csrc/kernels), and the same input must
# give the same bytes on every machine. A contracted multiply-add would round differently.
# Functions begin with a cache line, so that their speed does not depend on the order of linking: int8
# decoded 10 % slower after files had moved.
FLAGS = [
    "-std=c++17",
    "-O3",
    "-falign-functions=64",
    "-ffp-contract=off",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
]

# The core knows nothing of Python: compiled once, it serves the bindings of any version (scripts/release).
BINDINGS = sorted(glob("csrc/bindings/*.cpp"))
CORE = sorted(set(glob("csrc/**/*.cpp", recursive=True)) - set(BINDINGS))
HEADERS = sorted(glob("csrc/**/*.h*", recursive=True))
FOLDERS = ["csrc", "csrc/include"]


class BuildWithCore(build_ext):
    """Compiles the core first, and links its objects."""

    def run(self):
        """Also the core, which `build_ext` alone would not compile; refuses a Python without headers before that."""
        if not any(Path(folder, "Python.h").is_file() for folder in self.include_dirs):
            sys.exit(
                "gradcomp compiles its core, which needs Python's headers, and there is no Python.h in "
                f"{', '.join(self.include_dirs)}: install them (Debian and Ubuntu: apt-get install python3-dev)"
            )
        self.run_command("build_clib")
        super().run()

    def build_extensions(self):
        """From the archive, the linker would leave out the functions of gradcomp.h: bindings do not call them."""
        folder = self.get_finalized_command("build_clib").build_temp
        for extension in self.extensions:
            extension.extra_objects = self.compiler.object_filenames(CORE, output_dir=folder)
        super().build_extensions()


class BuildWithHeader(build_py):
    """Puts gradcomp.h into the package, for plug-ins that are compiled where no checkout is."""

    def run(self):
        """Build the packages; an editable install has the header in csrc."""
        super().run()
        if not self.editable_mode:
            folder = Path(self.build_lib, "gradcomp", "include", "gradcomp")
            folder.mkdir(parents=True, exist_ok=True)
            self.copy_file("csrc/include/gradcomp/gradcomp.h", str(folder))


def readme_for_an_index() -> str:
    """README.md without links and pictures of the repository, which an index of packages does not have."""
    text = Path("README.md").read_text(encoding="utf-8")
    text = re.sub(r"!\[[^\]]*\]\((?!https:)[^)]*\)\n*", "", text)
    return re.sub(r"\[([^\]]+)\]\((?!https:)[^)]*\)", r"\1", text)


ParallelCompile("GRADCOMP_BUILD_JOBS", default=0).install()
setup(
    long_description=readme_for_an_index(),
    long_description_content_type="text/markdown",
    cmdclass={"build_ext": BuildWithCore, "build_py": BuildWithHeader},
    libraries=[
        (
            "gradcomp_core",
            {
                "sources": CORE,
                "include_dirs": FOLDERS,
                "obj_deps": {"": HEADERS},
                "cflags": [*FLAGS, "-g0"],
            },
        )
    ],
    ext_modules=[
        Pybind11Extension(
            "gradcomp._core",
            BINDINGS,
            include_dirs=FOLDERS,
            depends=[*CORE, *HEADERS],
            extra_compile_args=FLAGS,
        )
    ],
)
