#!/usr/bin/env bash
# mpirun in a temporary folder of its own: two that start and end together may fail over the session folder that
# they would share, so that tests may only run side by side like this. MPIRUN names another MPI's.
# Usage: mpirun.sh RANKS PROGRAM ARGUMENT...
set -uo pipefail
TMPDIR=$(mktemp -d)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
# shellcheck source=tools/mpi.sh
source "${BASH_SOURCE%/*}/../tools/mpi.sh"
"${MPIRUN:-mpirun}" -n "$@"
