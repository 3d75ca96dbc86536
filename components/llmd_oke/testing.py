"""Functions for tests of what a Pulumi program declares, without engine, cluster or cloud.

    from llmd_oke.testing import render

    def test_decode_servers_have_two_gpus() -> None:
        rendered = render("rehearsal")
        decode = rendered.kubernetes("Deployment", "gpt-oss-120b-decode")
        assert decode["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["amd.com/gpu"] == "2"

`render` runs the kit's program for one stack, `declared` any Pulumi program (your own components around the kit's).
Both answer with every resource and its options, outputs resolved and secrets readable but marked.
"""

from llmd_oke.program.declare import KUBECONFIG, ClusterMocks, Declared, Rendered, declared, render, without_hash

__all__ = ["KUBECONFIG", "ClusterMocks", "Declared", "Rendered", "declared", "render", "without_hash"]
