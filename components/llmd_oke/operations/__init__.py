"""Operations on a stack besides the declaration of its resources: the Pulumi CLI, checks of previews, nodes, recovery,
status, benchmarks and reports.

Checks of updates read the engine's previews, not the program that declares the resources.
"""
