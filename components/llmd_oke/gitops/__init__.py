"""Rendering of a stack's Kubernetes objects as plain YAML, for Argo CD, Flux or kubectl.

The objects are those of the Pulumi program itself, run without engine, cluster or cloud (`llmd_oke.program.declare`).
"""
