"""Latency figures fitted to measurements, and how far they are off where they have not looked."""
