"""The inside of the load generator: connections, requests, schedules and the processes that run them.

Standard library only, so that it runs from a ConfigMap in any image with Python. Its users import from
`bench.load`.

`connections` (sockets) → `answers` (HTTP/1.1) → `exchanges` (one request) → `sending` (many of them) → `driving`
(when each is sent) → `workers` (a process of its own) → `crews` (several of these).
"""
