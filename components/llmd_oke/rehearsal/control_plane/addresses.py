"""Where things are in a world's network."""

NODE_ADDRESS = "10.244.0.1"
"""The bridge that all pods are on: the API server and everything else that pods must reach listens here."""

SERVICE_NETWORK = "10.96.0.0/16"
KUBERNETES_SERVICE = "10.96.0.1"
"""The first address of the service network; the API server gives it to the Service `kubernetes`."""

DNS_SERVICE = "10.96.0.10"
CLUSTER_DOMAIN = "cluster.local"

API_SERVER_PORT = 6443
API_SERVER = f"https://{NODE_ADDRESS}:{API_SERVER_PORT}"
ETCD_PORT = 2379
CONTROLLER_MANAGER_PORT = 10257
SCHEDULER_PORT = 10259
