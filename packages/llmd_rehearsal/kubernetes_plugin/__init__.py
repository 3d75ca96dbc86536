"""Stand-in for Pulumi's Kubernetes provider plug-in, to which the real Pulumi engine attaches.

The engine finds the stand-in through `PULUMI_DEBUG_PROVIDERS=kubernetes:PORT`. The stand-in answers as
pulumi-kubernetes 4.30.0 does, for a closed list of kinds (`values/rehearsal/kubernetes_plugin/kinds.yaml`), and works
on a real API server.

`server.start()` serves in this process; `python -m llmd_rehearsal.kubernetes_plugin --port PORT` in a process of its
own.
"""
