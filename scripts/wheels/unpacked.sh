# shellcheck shell=bash
# Read by scripts that run Pythons of scripts/wheels/unpack-python, or compile for them.

# Links to the headers in FOLDER, the root of an unpacked Python, in the folder INCLUDE; prints setuptools' include_dirs.
# Debian's pyconfig.h names a file by its path next to Python's folder, where the C library's headers are, too. The file
# of the other processor does: it differs in what only Python's own files use.
link_headers() { # VERSION ARCH FOLDER INCLUDE
  local configuration=("$3/usr/include"/*-linux-gnu/"python$1")
  mkdir -p "$4/$2-linux-gnu"
  ln -sfn "$3/usr/include/python$1" "$4/python$1"
  ln -sfn "${configuration[0]}" "$4/$2-linux-gnu/python$1"
  echo "$4/python$1:$4"
}

# An environment of an unpacked Python. Its interpreter is a script, and Python is told so (-0, --argv0):
# programs that Python starts as sys.executable run in the same way.
unpacked_venv() { # VERSION ARCH FOLDER ENVIRONMENT
  local python=$3/usr/bin/python$1 run
  local libraries=$3/lib/$2-linux-gnu:$3/usr/lib/$2-linux-gnu:$3/usr/lib # where libgloo is
  case $2 in
    aarch64) run="qemu-aarch64 -0 '$4/bin/python' -L '$3'" ;;
    x86_64)
      run="'$3/lib64/ld-linux-x86-64.so.2' --argv0 '$4/bin/python' --library-path '$libraries'"
      ;;
  esac
  mkdir -p "$4/bin"
  printf 'home = %s\ninclude-system-site-packages = true\n' "$3/usr/bin" >"$4/pyvenv.cfg" # Debian's PyTorch
  printf '#!/bin/sh\nexec %s "%s" "$@"\n' "$run" "$python" >"$4/bin/python"
  chmod +x "$4/bin/python"
}
