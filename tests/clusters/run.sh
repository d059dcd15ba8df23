#!/usr/bin/env bash
# Tests on real schedulers: installs what is missing, then runs pytest where it can do no harm.
#
#   usage: run.sh PYTHON [pytest arguments | -m MODULE arguments]
#
# All of it happens in namespaces of its own: a network that has nothing but loopback (some of these
# daemons know no address but 0.0.0.0), processes that end with the first one, and mounts that show a
# test user and edited configuration files to nobody else. What stays behind is the installed packages.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${1:?usage: run.sh PYTHON [pytest arguments]}
shift
[[ $python == /* ]] || python=$PWD/$python

if [[ $(id -u) != 0 ]]; then
    echo 'tests on real schedulers need root: their daemons start jobs for users' >&2
    exit 1
fi
"$here/install.sh" "$(dirname "$(dirname "$python")")/htcondor"
# the corpus of the speech test comes from the package mirror, which cannot be reached from inside
corpus=$(dirname "$(dirname "$python")")/asterisk
(cd "$here/../.." && "$python" egs3/asterisk/asr/run.py --stages create_dataset "data_dir=$corpus")
export ESPNET3_CORPUS=$corpus

first=$(mktemp -d -t espnet3-clusters.XXXXXX) second=$(mktemp -d -t espnet3-clusters.XXXXXX)
trap 'jobs -p | xargs -r kill; rm -rf "$first" "$second"' EXIT
chmod 755 "$first" "$second"

inside() { # inside STATE ARGUMENTS...: run pytest in namespaces of its own
    unshare --net --mount --pid --fork --kill-child --mount-proc "$here/inside.sh" "$1" "$python" "${@:2}"
}

if [[ $# != 0 ]]; then
    inside "$first" "$@"
    exit
fi
# The tests wait for most of their time: two halves of them at once
files=("$here"/test_*.py)
inside "$second" "${files[@]:9}" >"$second/log" 2>&1 &
code=0
inside "$first" "${files[@]::9}" || code=1
wait $! || code=1
cat "$second/log"
exit "$code"
