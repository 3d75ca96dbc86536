"""How this machine proves who it is to OCI: request signatures by API key, instance principal or workload identity.

Nothing here keeps or prints a secret. It needs neither OCI's command line nor its SDK.
"""
