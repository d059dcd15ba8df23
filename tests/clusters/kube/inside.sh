#!/usr/bin/env bash
# The control plane, a node and the operator, and pytest among them, in the namespaces that run.sh has made.
#
#   usage: inside.sh STATE BINARIES PYTHON [pytest arguments]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repository=$(cd "$here/../../.." && pwd)
state=$1 bin=$2 python=$3
shift 3
export PATH=$(dirname "$python"):$bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin PYTHONDONTWRITEBYTECODE=1
cd "$state"
mkdir -p log etcd certs pods home temporary tmp
export HOME=$state/home TMPDIR=$state/temporary

# --- a network without a way out: a bridge for the pods, and names for services
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir -p /run/netns
ip link set lo up
ip link add kube0 type bridge
ip address add 10.88.0.1/16 dev kube0
ip link set kube0 up
ip route add default via 10.88.0.1
sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.route_localnet=1
printf 'nameserver 10.88.0.1\nsearch svc.cluster.local cluster.local\noptions ndots:2 timeout:2\n' >resolv.conf
mount --bind resolv.conf /etc/resolv.conf
mount --make-rshared /

# --- certificates: an authority, the server's, and the key of service accounts
(
    cd certs
    openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.crt \
        -addext keyUsage=critical,keyCertSign,cRLSign -addext basicConstraints=critical,CA:TRUE
    openssl req -newkey rsa:2048 -nodes -subj /CN=kube-apiserver -keyout api.key -out api.csr
    names=DNS:localhost,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local
    printf 'subjectAltName=%s,IP:127.0.0.1,IP:10.96.0.1,IP:10.88.0.1\nextendedKeyUsage=serverAuth,clientAuth\n' \
        "$names" >extensions
    openssl x509 -req -in api.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile extensions -out api.crt
    openssl genrsa -traditional -out accounts.key 2048
    openssl rsa -in accounts.key -pubout -out accounts.pub
) 2>log/openssl.log
token=$(openssl rand -hex 16)
nobody=$(openssl rand -hex 16)
printf '%s,admin,admin,"system:masters"\n%s,nobody,nobody\n' "$token" "$nobody" >tokens.csv
for name in admin nobody; do
    [[ $name == admin ]] && secret=$token || secret=$nobody
    cat >"$name.conf" <<CONF
apiVersion: v1
kind: Config
clusters: [{name: lab, cluster: {server: "https://127.0.0.1:6443", certificate-authority: $state/certs/ca.crt}}]
users: [{name: $name, user: {token: $secret}}]
contexts: [{name: lab, context: {cluster: lab, user: $name, namespace: default}}]
current-context: lab
CONF
done
export KUBECONFIG=$state/admin.conf

# --- the control plane, as it comes from Debian's source
start() { # NAME COMMAND...
    local name=$1
    shift
    "$@" >"log/$name.log" 2>&1 &
}
wait_for() { # WHAT COMMAND...: until it succeeds; a minute at most
    local what=$1
    shift
    for _ in $(seq 240); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.25
    done
    echo "$what did not come up; the ends of all logs:" >&2
    tail -n 5 log/*.log >&2
    exit 1
}
start etcd etcd --data-dir etcd --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
    --listen-peer-urls http://127.0.0.1:2380 --unsafe-no-fsync
start apiserver kube-apiserver --etcd-servers=http://127.0.0.1:2379 --service-cluster-ip-range=10.96.0.0/16 \
    --bind-address=0.0.0.0 --advertise-address=10.88.0.1 --secure-port=6443 --client-ca-file=certs/ca.crt \
    --tls-cert-file=certs/api.crt --tls-private-key-file=certs/api.key --token-auth-file=tokens.csv \
    --authorization-mode=RBAC --kubelet-preferred-address-types=InternalIP \
    --service-account-issuer=https://kubernetes.default.svc --service-account-signing-key-file=certs/accounts.key \
    --service-account-key-file=certs/accounts.pub
wait_for 'the API server' kubectl --cache-dir cache get --raw /readyz
start controllers kube-controller-manager --kubeconfig=admin.conf --leader-elect=false --bind-address=127.0.0.1 --port=0 \
    --service-account-private-key-file=certs/accounts.key --root-ca-file=certs/ca.crt
start scheduler kube-scheduler --kubeconfig=admin.conf --leader-elect=false --bind-address=127.0.0.1 --port=0

# --- the node and the names of services, by stand-ins; the operator of dask-kubernetes
cd "$repository"
export KUBE_LAB=$state ESPNET3_CLUSTERS=$state
start() { # NAME COMMAND...
    local name=$1
    shift
    "$@" >"$state/log/$name.log" 2>&1 &
}
start dns "$python" -m tests.clusters.kube.box.dns
start proxy "$python" -m tests.clusters.kube.box.proxy
start kubelet "$python" -m tests.clusters.kube.box.kubelet
crds=$("$python" -c 'import dask_kubernetes, pathlib; print(pathlib.Path(dask_kubernetes.__file__).parent)')
crds=$crds/operator/deployment/helm/dask-kubernetes-operator/crds
kubectl --cache-dir "$state/cache" create -f "$crds" >/dev/null
kubectl --cache-dir "$state/cache" wait --for=condition=Established crd --all --timeout=60s >/dev/null
start operator kopf run -m dask_kubernetes.operator.controller --all-namespaces --liveness=http://127.0.0.1:8080/healthz
cd "$state"
wait_for 'the node' sh -c 'kubectl --cache-dir cache get nodes | grep -q " Ready"'
wait_for 'the account of pods' kubectl --cache-dir cache get serviceaccount default
wait_for 'the operator' curl -sf http://127.0.0.1:8080/healthz

cd "$repository"
code=0
if [[ ${1:-} == -c ]]; then # a command of its own choice
    shift
    "$@" || code=$?
else
    "$python" -m pytest -m kube -p no:cacheprovider tests/clusters/kube "$@" || code=$?
fi
[[ $code == 0 || -z ${KUBE_LOGS:-} ]] || cp -r "$state/log" "$KUBE_LOGS"
exit "$code"
