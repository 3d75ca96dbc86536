"""Benchmarks of a served model: load, measurements, proof of remote prefill, verdict and report.

Pure Python: nothing here knows Pulumi, a cluster or the stack file. Callers describe what to measure in a `SmokePlan`
(addresses, lengths, topology, thresholds) and get a `SmokeResult`, which `store` writes and `tables` shows. Loads of
any other shape are `stages`; what sends them (`generator`) needs the standard library only.

`deployment` (what is benchmarked) and `workload` (what is asked of it) know no other room → `records` (what is known
of each request) → `generator` → `load` → `smoke`, `evals` (accuracy), `proving` (the generator held against an exact
server) and `kv_path` (transfers of KV cache alone) → `reporting` → `in_cluster` (the programs of pods).

Times are seconds of *model time*: the wall clock divided by the plan's time scale, which is 1 for a real deployment
and smaller for a simulated one that runs faster than its model.
"""
