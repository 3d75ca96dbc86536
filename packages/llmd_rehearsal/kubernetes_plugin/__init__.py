"""Stand-in for the Kubernetes provider plug-in, to which the real Pulumi engine attaches.

The engine finds it through `PULUMI_DEBUG_PROVIDERS=kubernetes:PORT`. It answers as pulumi-kubernetes 4.30.0 does, for
a closed list of kinds (`values/rehearsal/kubernetes_plugin/kinds.yaml`), against a real API server.

`server.start()` serves in this process; `python -m llmd_rehearsal.kubernetes_plugin --port PORT` in its own.
"""
