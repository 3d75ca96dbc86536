"""An image of nodes that is imported from Object Storage."""

from typing import TypedDict

import pulumi
import pulumi_oci as oci

from llmd_oke.cluster.tags import stack_tags
from llmd_oke.cluster.timeouts import IMAGE


class NodeImageArgs(TypedDict):
    """What an imported image needs."""

    compartment_id: pulumi.Input[str]
    """Compartment of the image."""
    display_name: str
    """Name of the image."""
    uri: pulumi.Input[str]
    """Where the file lies in Object Storage. It may be a pre-authenticated request, and is always kept as a secret."""
    checksum: str
    """What the file is: `md5:…` or `sha256:…`. It is part of the resource's name: another checksum, another image."""


class NodeImage(pulumi.ComponentResource):
    """An image, imported once for each checksum.

    Links to files in Object Storage expire, so that a changed link alone imports nothing. OCI checks no checksum at
    import and tells none of an image afterwards: what is asked for is written on the image as a tag. Before the import
    `llmd-oke preflight` compares it with the checksum that Object Storage states for the file behind the link.
    """

    image_id: pulumi.Output[str]
    """OCID of the image."""

    def __init__(self, name: str, args: NodeImageArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:NodeImage", name, None, opts)
        digest = args["checksum"].partition(":")[2][:8]
        image = oci.core.Image(
            f"{name}-image-{digest}",
            compartment_id=args["compartment_id"],
            display_name=f"{args['display_name']}-{digest}",
            image_source_details={"source_type": "objectStorageUri", "source_uri": pulumi.Output.secret(args["uri"])},
            freeform_tags=stack_tags({"llmd-oke-checksum": args["checksum"]}),
            opts=pulumi.ResourceOptions(
                parent=self,
                custom_timeouts=IMAGE,
                ignore_changes=["imageSourceDetails", "definedTags"],
                additional_secret_outputs=["imageSourceDetails"],
            ),
        )
        self.image_id = image.id
        self.register_outputs({"image_id": self.image_id})
