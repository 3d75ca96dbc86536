"""Names in the certificates of access tests."""

TENANCY = "ocid1.tenancy.oc1..tenancy"
