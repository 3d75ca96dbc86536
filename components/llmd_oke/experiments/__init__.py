"""What needs a running stack: benchmarks after an update, and whole lists of topologies.

`deployed` (a stack that is up) and `recipes` (what is measured) know no other room → `runs` (deploys a recipe's
deployments) → `measurements` (measures one of them) and `reporting` (tells what was found) → `tuner` (a recipe and a
run of its own).
"""
