"""What a stack deploys into a cluster as plain YAML, for Argo CD, Flux or kubectl.

The objects are those of the Pulumi program itself, run without engine, cluster or cloud (`llmd_oke.program.declare`):
there is no second description of them.
"""
