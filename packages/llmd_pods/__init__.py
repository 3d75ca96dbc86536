"""Programs that run inside pods: load generator, smoke benchmark, evaluations, acceptance of nodes.

They import the standard library, what vLLM's image has, and nothing of the kit above them: no Pulumi, no stack file.
Callers describe what to measure in a `SmokePlan` (addresses, lengths, topology, thresholds) and get a `SmokeResult`.
Loads of any other shape are `stages`; the generator itself (`completions`, `connections`, `sending`, `processes`,
`stages`, `load`) needs the standard library only, so that it runs from a ConfigMap in any image with Python.

`deployment` (what is benchmarked) and `workload` (the requests) know no other module -> `records` (what is known of
each request) -> `connections` (HTTP/1.1) -> `sending` (requests, and when they are sent) -> `processes` (several of
these) -> `stages`, `load` -> `evals` (accuracy), `evidence` (remote prefill), `kv_path` (reads from GPU to GPU),
`acceptance` (tests of nodes),
`smoke` -> `report` -> the programs of pods (`*_job`).

Times are seconds of *model time*: the wall clock divided by the plan's time scale, which is 1 for a real deployment
and smaller for a simulated one that runs faster than its model.
"""
