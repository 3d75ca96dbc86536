"""List prices of what a stack rents beside its GPU nodes, whose price is with their shape."""

from functools import cache

from llmd_oke.catalogue.files import Entry, required_entry


class FlexiblePrice(Entry):
    """What a flexible shape costs by the hour, for each OCPU and each GB of memory."""

    usd_per_ocpu_hour: float
    usd_per_gb_hour: float


class BlockVolumePrice(Entry):
    """What a block or boot volume costs by the month, for each GB, and for each performance unit (VPU) of each GB."""

    usd_per_gb_month: float
    usd_per_vpu_gb_month: float
    default_vpus_per_gb: int

    def usd_per_gb_month_at(self, vpus_per_gb: int | None) -> float:
        """The price of one GB with that many VPUs; OCI's default if None."""
        vpus = self.default_vpus_per_gb if vpus_per_gb is None else vpus_per_gb
        return self.usd_per_gb_month + vpus * self.usd_per_vpu_gb_month


class Prices(Entry):
    """OCI's list prices in US dollars. `as_of` is their date, `not_included` what costs besides."""

    as_of: str
    flexible_shapes: dict[str, FlexiblePrice]
    enhanced_cluster_usd_per_hour: float
    block_volume: BlockVolumePrice
    hours_per_month: int
    not_included: tuple[str, ...]


@cache
def prices() -> Prices:
    """The list prices of the catalogue."""
    return required_entry("prices", "oci", Prices)
