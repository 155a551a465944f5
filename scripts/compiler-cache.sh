# shellcheck shell=bash disable=SC2154 # root and cache are set by scripts/setup and scripts/test, which read this
# ccache keeps the results of compilers beside the built engines, so a fresh clone compiles what has changed.
export CCACHE_DIR=$cache/ccache CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1 CCACHE_MAXSIZE=2G
