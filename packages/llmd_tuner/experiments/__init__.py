"""What needs a running stack: benchmarks after an update, and whole lists of topologies.

`deployed` (a stack that is up) and `recipes` (what is measured) know no other part. `deployer` has models up,
`preparation` plans a run of a recipe, `runner` carries it out, `measurement` measures one deployment, and
`comparison` tells what came out. `grid`, `records`, `counters` and `verification` are of the tuner.
"""
