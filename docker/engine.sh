# shellcheck shell=bash
# Functions of docker/byteps/cluster and docker/hosts: containers and a network of one job, with Docker
# or podman. Sourced by bash with "set -euo pipefail"; the caller sets program, its name in messages.

die() {
  printf '%s: %s\n' "${program:?}" "$*" >&2
  exit 2
}

# Set engine to the first one that runs. A program "docker" may be a client without an engine.
find_engine() {
  for engine in ${GRADCOMP_CONTAINERS:-podman docker}; do
    if "$engine" info >/dev/null 2>&1; then return; fi
  done
  die "neither podman nor Docker runs here (tried: ${GRADCOMP_CONTAINERS:-podman docker}):" \
    "install one, start its service, or name yours in GRADCOMP_CONTAINERS"
}

need_image() { # IMAGE ENGINES
  "$engine" image inspect "$1" >/dev/null 2>&1 ||
    die "there is no image $1: build it with" \
      "$engine build -f docker/Dockerfile --build-arg ENGINES=$2 -t $1 ."
}

# Make the job's network. All that the job has carries its name, and goes when this shell ends.
begin_job() {
  job=gradcomp-$(od -An -N4 -tx1 /dev/urandom | tr -d ' ')
  trap end_job EXIT
  trap 'stopped_by INT 130' INT
  trap 'stopped_by TERM 143' TERM
  trap 'stopped_by HUP 129' HUP
  "$engine" network create "$job" >/dev/null
  echo "$program: containers are called $job-NAME" >&2
}

stopped_by() { # SIGNAL STATUS
  echo "$program: ended by SIG$1" >&2
  exit "$2"
}

end_job() {
  local status=$? containers
  trap '' INT TERM HUP # a second signal must not interrupt this
  mapfile -t containers < <("$engine" ps --all --quiet --filter "label=$job")
  if [ ${#containers[@]} -gt 0 ]; then
    "$engine" kill "${containers[@]}" >/dev/null 2>&1 || true # some have ended
    "$engine" rm --force --volumes "${containers[@]}" >/dev/null
  fi
  wait # for those who write logs
  "$engine" network rm "$job" >/dev/null
  exit "$status"
}

start_container() { # NAME ARGUMENT...
  "$engine" run --detach --label "$job" --network "$job" --name "$job-$1" --hostname "$1" \
    --network-alias "$1" "${@:2}" >/dev/null
}

# Print "STATE CODE NAME" of each container, those that ended first at the top.
states() {
  "$engine" ps --all --quiet --filter "label=$job" |
    xargs --no-run-if-empty "$engine" inspect --format '{{.State.FinishedAt}} {{.State.Status}} {{.State.ExitCode}} {{.Name}}' |
    sort | sed -E "s/.* ([a-z]+ [0-9]+) .*$job-(.*)/\1 \2/"
}

# Print "CODE NAME" of the first container that failed.
first_failed() {
  states | awk '$1 == "exited" && $2 != 0 && !seen++ {print $2, $3}'
}

how_it_ended() { # CODE
  if [ "$1" -gt 128 ]; then
    echo "was killed by signal $(($1 - 128)) (SIG$(kill -l $(($1 - 128))))"
  else
    echo "ended with exit code $1"
  fi
}

copy_results() { # NAME FOLDER
  mkdir -p "$2"
  "$engine" cp "$job-$1:/gradcomp/runs/." "$2"
}
