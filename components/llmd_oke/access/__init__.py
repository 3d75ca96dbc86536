"""Sign-in to OCI (API key, session token, instance principal, workload identity), and clients of OCI and registries.

No module stores or prints a secret. Only `principals` needs OCI's SDK; none needs OCI's command line.
"""
