"""The extension module and its C header; everything else is declared in pyproject.toml."""

from glob import glob
from pathlib import Path

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension
from setuptools import setup
from setuptools.command.build_py import build_py

# No -march and no -ffast-math: SIMD is chosen at run time (csrc/kernels), and the same input must
# give the same bytes on every machine. A contracted multiply-add would round differently.
# Functions begin with a cache line, so that their speed does not depend on the order of linking: int8
# decoded 10 % slower after files had moved.
FLAGS = [
    "-O3",
    "-falign-functions=64",
    "-ffp-contract=off",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
]


class BuildWithHeader(build_py):
    """Puts gradcomp.h into the package, for plug-ins that are compiled where no checkout is."""

    def run(self):
        """Build the packages; an editable install has the header in csrc."""
        super().run()
        if not self.editable_mode:
            folder = Path(self.build_lib, "gradcomp", "include", "gradcomp")
            folder.mkdir(parents=True, exist_ok=True)
            self.copy_file("csrc/include/gradcomp/gradcomp.h", str(folder))


ParallelCompile("GRADCOMP_BUILD_JOBS", default=0).install()
setup(
    cmdclass={"build_py": BuildWithHeader},
    ext_modules=[
        Pybind11Extension(
            "gradcomp._core",
            sorted(glob("csrc/**/*.cpp", recursive=True)),
            include_dirs=["csrc", "csrc/include"],
            depends=sorted(glob("csrc/**/*.h*", recursive=True)),
            extra_compile_args=FLAGS,
            cxx_std=17,
        )
    ],
)
