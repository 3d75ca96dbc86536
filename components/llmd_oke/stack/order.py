"""What waits for what."""

import pulumi


def after(opts: pulumi.ResourceOptions, *needed: pulumi.Resource) -> pulumi.ResourceOptions:
    """The options with more to wait for."""
    return pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=list(needed)))
