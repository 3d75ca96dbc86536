"""Stand-in for the OCI provider plug-in, to which the real Pulumi engine attaches.

The engine finds it through `PULUMI_DEBUG_PROVIDERS=oci:PORT`. It answers as pulumi-oci 4.20.0 does, for a closed list
of resources and functions (`values/rehearsal/oci_plugin/`), in front of a simulated region of OCI that refuses what
OCI refuses and takes its time as OCI does, only less of it.

`server.start()` serves in this process; `python -m llmd_rehearsal.oci_plugin --port PORT` in its own.
"""
