#!/bin/bash
# Build a Kubernetes control plane from Debian 12's own source package, and what dask-kubernetes needs of it: build.sh WORK.
# About eight minutes on two cores, once: WORK/bin has etcd, kube-apiserver, kube-controller-manager and kube-scheduler,
# and is left as it is when it is there. Nothing is installed on the machine; WORK may be deleted at any time.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
work=$(cd "$1" && pwd)
[ -e "$work/bin/complete" ] && exit 0

parts="cmd/kube-apiserver cmd/kube-controller-manager cmd/kube-scheduler cmd/kubectl"
apt=$work/apt
mkdir -p "$apt"/{lists,cache/archives}/partial "$work"/{debs,root,src,bin,home}
# the mirror that this machine uses already, with its sources beside the packages
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Codename: bookworm' 'Component: main' | head -1)
[ -n "$mirror" ] || { echo "no Debian 12 (bookworm) among the sources of apt" >&2; exit 1; }
printf 'deb %s bookworm main\ndeb-src %s bookworm main\n' "$mirror" "$mirror" > "$apt/sources.list"
cat > "$apt/apt.conf" <<CONF
Dir::State::Lists "$apt/lists";
Dir::Cache "$apt/cache";
Dir::Etc::SourceList "$apt/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::State::status "/dev/null";
APT::Sandbox::User "root";
CONF
export APT_CONFIG=$apt/apt.conf
apt-get -qq update
(cd "$work/debs" && apt-get -qq download etcd-server golang-1.19-go golang-1.19-src \
    golang-github-modern-go-reflect2-dev rsync libpopt0 libxxhash0)
for package in "$work"/debs/*.deb; do dpkg -x "$package" "$work/root"; done
cd "$work/src"
rm -rf k8s
apt-get -qq source --download-only kubernetes
dpkg-source --no-check -x kubernetes_*.dsc k8s
unset APT_CONFIG

cd k8s
# reflect2 1.0.1, as vendored there, crashes in programs made with Go 1.18 or newer; Debian's 1.0.2 does not
vendored=vendor/github.com/modern-go/reflect2
rm -f $vendored/*.go $vendored/*.s
cp -L "$work/root/usr/share/gocode/src/github.com/modern-go/reflect2"/*.{go,s} $vendored/
rm -f $vendored/*_test.go
patch -p1 --batch < "$here/singular_name.patch"

export GOROOT=$work/root/usr/lib/go-1.19 HOME=$work/home GOPATH=$work/src/k8s/.go GOPROXY=off CGO_ENABLED=0
export KUBE_GIT_VERSION=v1.20.2 KUBE_GIT_COMMIT=debian KUBE_GIT_TREE_STATE=clean KUBE_GIT_MAJOR=1 KUBE_GIT_MINOR=20
export PATH=$GOROOT/bin:$work/root/usr/bin:$PATH LD_LIBRARY_PATH=$work/root/usr/lib/x86_64-linux-gnu
mkdir -p .go/src/k8s.io
ln -sfn ../../.. .go/src/k8s.io/kubernetes
make WHAT="$parts"
for part in $parts; do
    strip -o "$work/bin/$(basename "$part")" "_output/local/bin/linux/amd64/$(basename "$part")"
done
cp "$work/root/usr/bin/etcd" "$work/bin/"
rm -rf "$work/src" "$work/debs" "$work/apt" "$work/home"  # some gigabytes
touch "$work/bin/complete"
