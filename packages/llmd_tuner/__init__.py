"""Tuner of deployments: from benchmarks of single servers to the best topology. Pure Python: no Pulumi, no cluster.

`waits` → `servers` (what one server does) → `measurements` (rows of servers) → `calibration` (figures fitted to them),
`search` (all deployments in closed form) and `simulation` (a few, event by event) → `ranking` (the best, how sure that
is) and `assumptions` (whether what was assumed still holds) → `published_claims` (the simulation held against what
others published) → `fidelity` (simulated against measured, load by load).
"""
