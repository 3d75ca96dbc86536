"""What happens around an update: previews read and judged, what has to go first, summaries, the Pulumi CLI.

It knows nothing of how resources are declared; it reads what the engine says it would do.
"""
