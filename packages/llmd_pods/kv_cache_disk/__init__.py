"""Programs for KV cache that vLLM keeps in files on a node's disks.

Each file runs in pods by itself and uses the standard library only. `files` creates directories and limits what is in
them; `serve` starts a server whose predecessor in the pod may have left its memory behind.
"""
