"""Programs that keep the code that vLLM compiles as it starts in a folder of its node, for the next start.

These files run in pods as they are, each by itself, so they use the standard library only. `folders` makes a folder for
servers of one kind and removes those of others that nobody uses any more; `start` starts a server with it.
"""
