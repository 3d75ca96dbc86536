"""Commands of the tuner: `llmd-oke tune` and `llmd-oke experiment`, which measure deployments and choose topologies."""
