"""Identity of this machine in OCI: requests signed by API key, instance principal or workload identity.

Nothing here keeps or prints a secret. It needs neither OCI's command line nor its SDK.
"""
