# shellcheck shell=bash
# Read by scripts/setup and scripts/test, in the root of the checkout. ccache keeps the results of compilers next to the
# built engines, so a fresh clone compiles what has changed.
export CCACHE_DIR=${GRADCOMP_CACHE:-$HOME/.cache/gradcomp}/ccache CCACHE_BASEDIR=$PWD
export CCACHE_NOHASHDIR=1 CCACHE_MAXSIZE=2G
