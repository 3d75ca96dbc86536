"""Discrete-event simulation of deployments: requests, routers, vLLM servers and KV transfers. Times are in seconds."""
