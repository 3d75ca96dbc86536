"""Experiments on running stacks: benchmarks of one deployment after an update, and of whole lists of topologies.

`recipes` (which deployments are measured under which loads) imports no other module of this package. `deployer` deploys
models, `preparation` plans a run of a recipe, `runner` carries it out, `measurement` measures one deployment, and
`comparison` reports the results. `grid`, `records`, `watching` and `verification` serve the tuner.
"""
