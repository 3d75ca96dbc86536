"""Plain YAML of what a stack deploys into a cluster, for Argo CD, Flux or kubectl.

The objects are those of the Pulumi program itself, run without engine, cluster or cloud (`llmd_oke.program.declare`):
there is no second description of them.
"""
