"""From benchmarks of single servers to the best topology. Pure Python: no Pulumi, no cluster.

`queues` → `servers` (what one server does) → `measurements` (rows of servers) → `calibration` (figures fitted to them),
`search` (all deployments in closed form) and `simulation` (a few, event by event) → `answers` (the best, how sure
that is) and `watch` (whether what was assumed still holds) → `proving` (all of it held against published findings) →
`fidelity` (simulated against measured, load by load).
"""
