#!/usr/bin/env bash
# HTCondor of Debian 13 on Debian 12, which has none, without touching the system: its packages and
# the libraries they need are unpacked into a folder; patchelf makes its programs use the dynamic
# linker and the libraries there. Jobs run with those of the machine.
#
#   usage: install.sh FOLDER
set -euo pipefail
folder=${1:?usage: install.sh FOLDER}
work=$folder.apt
trap 'rm -rf "$work"' EXIT
rm -rf "$folder" "$work"
mkdir -p "$folder" "$work"/state/lists/partial "$work"/cache/archives/partial

# the mirror this machine gets Debian's main archive from
mirror=$(apt-get indextargets --format '$(LABEL) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' \
    | awk '$1 == "Debian" && $2 == "main" { print $3; exit }')
[[ -n $mirror ]] || { echo 'HTCondor comes from the Debian archive, and apt knows none' >&2; exit 1; }
echo "installing HTCondor from $mirror into $folder"
echo "deb $mirror trixie main" >"$work/sources.list"
options=(
    -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State=$work/state"
    -o Dir::State::status=/dev/null -o "Dir::Cache=$work/cache" -o Debug::NoLocking=1 -o APT::Sandbox::User=root
)
apt-get "${options[@]}" update -qq
apt-get "${options[@]}" install -y -qq --no-install-recommends --download-only condor
for package in "$work"/cache/archives/*.deb; do
    case $(basename "$package") in condor_* | lib*) dpkg -x "$package" "$folder" ;; esac
done

lib=$folder/usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || echo x86_64-linux-gnu)
linker=$(find "$lib" "$folder/usr/lib64" -maxdepth 1 -name 'ld-linux*' 2>/dev/null | head -1)
path=$lib:$folder/usr/lib/condor:$folder/usr/lib
for file in "$folder"/usr/bin/condor_* "$folder"/usr/sbin/* "$folder"/usr/libexec/condor/* \
    "$lib"/libcondor* "$lib"/libclassad* "$folder"/usr/lib/condor/*.so* "$folder"/usr/lib/libcondor*; do
    [[ -f $file && ! -L $file ]] && head -c4 "$file" | grep -q ELF || continue
    if patchelf --print-interpreter "$file" >/dev/null 2>&1; then
        patchelf --set-interpreter "$linker" "$file"
    fi
    patchelf --force-rpath --set-rpath "$path" "$file"
done
CONDOR_CONFIG=/dev/null "$folder/usr/bin/condor_version"
touch "$folder/complete"
