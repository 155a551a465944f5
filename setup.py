"""The extension module; everything else is declared in pyproject.toml."""

from glob import glob

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension
from setuptools import setup

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

ParallelCompile("GRADCOMP_BUILD_JOBS", default=0).install()
setup(
    ext_modules=[
        Pybind11Extension(
            "gradcomp._core",
            sorted(glob("csrc/**/*.cpp", recursive=True)),
            include_dirs=["csrc", "csrc/include"],
            depends=sorted(glob("csrc/**/*.h*", recursive=True)),
            extra_compile_args=FLAGS,
            cxx_std=17,
        )
    ]
)
