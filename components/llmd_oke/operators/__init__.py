"""What is installed into a cluster before models are: definitions, operators, monitoring.

Here belongs what all models of a cluster share and what usually outlives them. It knows nothing of `serving`.
"""
