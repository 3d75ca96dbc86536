"""What OCI refuses, by service. Each function of a table raises ServiceError or lets the request pass."""
