"""Experiments on running stacks: benchmarks after an update, and whole lists of topologies.

`recipes` (what is measured) knows no other part. `deployer` has models up, `preparation` plans a run of a recipe,
`runner` carries it out, `measurement` measures one deployment, and `comparison` tells what came out. `grid`, `records`,
`watching` and `verification` are of the tuner.
"""
