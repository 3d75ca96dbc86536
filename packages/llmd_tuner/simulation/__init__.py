"""Event simulation of deployments: requests, routers, vLLM servers and KV transfers, one by one, in seconds."""
