#!/usr/bin/env bash
# Tests on a real control plane of Kubernetes: builds it once, then runs pytest where it can do no harm.
#
#   usage: run.sh PYTHON [pytest arguments]
#
# All of it happens in network, mount and process namespaces of its own: etcd, the API server and everything
# else listen there and nowhere else, and end with the first process. What stays behind is the build.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${1:?usage: run.sh PYTHON [pytest arguments]}
shift
[[ $python == /* ]] || python=$PWD/$python
environment=$(dirname "$(dirname "$python")")

if [[ $(id -u) != 0 ]]; then
    echo 'tests on Kubernetes need root: each pod gets a network of its own' >&2
    exit 1
fi
missing=()
for package in iproute2 util-linux openssl dpkg-dev make gcc patch; do
    [[ $(dpkg-query -W -f '${Status}' "$package" 2>/dev/null) == 'install ok installed' ]] || missing+=("$package")
done
if [[ ${#missing[@]} != 0 ]]; then
    apt-get -o DPkg::Lock::Timeout=600 update -qq
    DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 install -y -qq --no-install-recommends "${missing[@]}"
fi
built=$("$here/built.sh")
mkdir -p "$(dirname "$built")"
exec 9>"$built.lock" # another checkout may be building it
flock 9
[[ -e $built/bin/complete ]] || echo "building Kubernetes in $built: about eight minutes, once"
"$here/build.sh" "$built" >"$environment/kubernetes.log" 2>&1 || { tail -n 20 "$environment/kubernetes.log" >&2; exit 1; }
exec 9>&-
# the corpus of the speech test comes from the package mirror, which cannot be reached from inside
corpus=$environment/asterisk
(cd "$here/../../.." && "$python" egs3/asterisk/asr/run.py --stages create_dataset "data_dir=$corpus")
export ESPNET3_CORPUS=$corpus

state=$(mktemp -d -t espnet3-kube.XXXXXX)
trap 'rm -rf "$state"' EXIT
unshare --net --mount --pid --fork --kill-child --mount-proc "$here/inside.sh" "$state" "$built/bin" "$python" "$@"
