"""Stand-in for Pulumi's OCI provider plug-in, to which the real Pulumi engine attaches.

The engine finds the stand-in through `PULUMI_DEBUG_PROVIDERS=oci:PORT`. The stand-in answers as pulumi-oci 4.20.0 does,
for a closed list of resources and functions (`values/rehearsal/oci_plugin/`). Behind it is a simulated OCI region,
which refuses the requests that OCI refuses and takes a fraction of OCI's time.

`server.start()` serves in this process; `python -m llmd_rehearsal.oci_plugin --port PORT` in a process of its own.
"""
