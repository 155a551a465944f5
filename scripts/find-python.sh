# shellcheck shell=bash
# Read by scripts that need other Pythons than the one on PATH.

# The program of a Python's version, such as 3.13: on PATH, where pyenv has programs that only say that they are not
# chosen, or in pyenv's folders.
program_of() { # VERSION
  local program=python$1 found
  if ! "$program" -c '' 2>/dev/null && command -v pyenv >/dev/null; then
    found=$(pyenv prefix "$1" 2>/dev/null) && program=$found/bin/python
  fi
  echo "$program"
}
