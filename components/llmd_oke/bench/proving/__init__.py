"""How good the load generator is: a server with exact latencies, and what generators say of it.

`scripts/bench-load` runs it. The server notes when each request arrived and how late it sent each first token itself,
so that every tool is judged by the same clock, and by its own mistakes only.
"""
