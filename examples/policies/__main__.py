"""Policy pack of this project; what is allowed is in `policies.yaml`."""

from pathlib import Path

from llmd_oke.policies.pack import serve_policies

serve_policies(Path(__file__).resolve().parent.parent)
