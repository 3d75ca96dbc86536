"""Tuner of deployments: finds the best topology from benchmarks of single servers. Pure Python without Pulumi or a
cluster.

Its modules, from the lowest to the highest: `waits` (queueing theory), `servers` (what one server does), `measurements`
(rows of servers), `calibration` (latency figures fitted to rows), `search` (all deployments in closed form),
`simulation` (single deployments, event by event), `ranking` (the best deployments, and how sure that is), `assumptions`
(whether the assumptions behind a choice still hold), `published_claims` (the simulation against what others published)
and `fidelity` (the simulation against measurements, load by load).
"""
