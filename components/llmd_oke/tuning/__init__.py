"""Latency model and, above it, the choice of topology. Pure Python: no Pulumi, no cluster."""
