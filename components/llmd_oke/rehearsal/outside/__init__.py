"""What pods reach outside the cluster: stand-ins for Hugging Face and Object Storage, with tiny weights."""
