#!/usr/bin/env bash
# Prints where the build of Kubernetes is, or will be: in the user's cache, a folder for each state of its recipe,
# so that a new checkout and a new environment find it.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
recipe=$(cat "$here/build.sh" "$here/singular_name.patch" | sha256sum | cut -c 1-12)
echo "${KUBERNETES:-${XDG_CACHE_HOME:-$HOME/.cache}/espnet3-parallel/kubernetes-$recipe}"
