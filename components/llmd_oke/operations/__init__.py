"""Operations around an update: the Pulumi CLI, previews that are read and judged, what has to go first, summaries.

It knows nothing of how resources are declared; it reads what the engine says it would do.
"""
