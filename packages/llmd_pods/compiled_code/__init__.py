"""Programs that keep the code that vLLM compiles at its start in a directory of the node, for the next start.

Each file runs in pods by itself and uses the standard library only. `folders` creates a directory for servers of one
kind and removes unused ones of other kinds; `start` starts a server with the directory.
"""
