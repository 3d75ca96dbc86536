"""Simulated nodes: their Node objects and leases."""
