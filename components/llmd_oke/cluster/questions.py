"""Questions to OCI, answered as plain data.

Pulumi's own functions load the classes of all answers of their package with them, a tenth of a second in each preview.
"""

from collections.abc import Mapping
from typing import Any

import pulumi

from llmd_oke.sdk_modules import plugin_version

Answer = Mapping[str, Any]
"""Keys as the OCI provider spells them, such as `regionSubscriptions`."""


def ask(function: str, args: Mapping[str, Any], opts: pulumi.InvokeOutputOptions) -> pulumi.Output[Answer]:
    """What a function of the OCI provider answers.

    Args:
        function: its token, `oci:Core/getServices:getServices`.
        args: its arguments, by the provider's spelling.
        opts: who asks. The provider's version is that of `pulumi_oci`, as in Pulumi's own functions.
    """
    defaults = pulumi.InvokeOutputOptions(version=plugin_version("pulumi_oci"))
    return pulumi.runtime.invoke_output(function, dict(args), pulumi.InvokeOutputOptions.merge(defaults, opts))
