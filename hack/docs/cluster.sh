# An empty Kubernetes API with an edge node, a node with an agent, and a server, in a sandbox of hack/test-docs.sh. Source it
# in the sandbox, whose variables it needs: BIN, BOX, KUBECONFIG and ADDRESS.
# shellcheck shell=bash

"$BIN/devcluster" run --listen 127.0.0.1:0 --kubeconfig "$KUBECONFIG" >"$BOX/devcluster.log" 2>&1 &
for _ in $(seq 100); do [ ! -s "$KUBECONFIG" ] || break; sleep 0.05; done
node() { printf "%s\n" --- "apiVersion: v1" "kind: Node" "metadata: {name: $1, labels: {$2}}"; }
{ node edge0 'node-role.kubernetes.io/edge: ""'; node cloud0 "neptune.io/runtime: agent"; node server-1 ""; } |
    kubectl apply -f - >/dev/null
kubectl patch node server-1 --subresource=status --type=merge \
    -p "{\"status\": {\"addresses\": [{\"type\": \"InternalIP\", \"address\": \"$ADDRESS\"}]}}" >/dev/null
