"""The Services as pods and the world's own processes see them: proxy and DNS, following the watches."""

import asyncio
from collections.abc import Mapping

from lightkube.resources.core_v1 import Service
from lightkube.resources.discovery_v1 import EndpointSlice

from llmd_oke.rehearsal.services.dns import DnsServer
from llmd_oke.rehearsal.services.names import Name, names
from llmd_oke.rehearsal.services.proxy import LetsIn, Proxy
from llmd_oke.rehearsal.services.table import Address, forwardings
from llmd_oke.rehearsal.watches import Store

_GATHER_S = 0.005
_DNS_PORT = 53


class ServiceNetwork:
    """Proxy and DNS; `fixed` are addresses that don't depend on the watches, such as the API server's.

    `outside` are names that aren't the cluster's; `lets_in` says whom policies let through to an endpoint.
    """

    def __init__(
        self,
        services: Store[Service],
        slices: Store[EndpointSlice],
        domain: str,
        fixed: Mapping[Address, Address],
        outside: Mapping[str, Name],
        lets_in: LetsIn,
    ) -> None:
        self._services = services
        self._slices = slices
        self._domain = domain
        self._fixed = {address: (target,) for address, target in fixed.items()}
        self._outside = outside
        self._zone: Mapping[str, Name] = {}
        self._dirty = asyncio.Event()
        self._proxy = Proxy(lets_in)
        self._dns = DnsServer(lambda: self._zone, domain)
        services.subscribe(self._changed)
        slices.subscribe(self._changed)

    async def serve_names(self, address: str) -> None:
        """Answer DNS questions; OSError when the address can't be bound."""
        await self._dns.start(address, _DNS_PORT)

    async def run(self) -> None:
        """Follow changes until cancelled."""
        while True:
            self._dirty.clear()
            self._proxy.apply(forwardings(self._services, self._slices) | self._fixed)
            self._zone = {**names(self._services, self._slices, self._domain), **self._outside}
            await self._dirty.wait()
            await asyncio.sleep(_GATHER_S)

    def close(self) -> None:
        """Close all sockets."""
        self._proxy.close()
        self._dns.close()

    def _changed(self, thing: object, exists: bool) -> None:  # noqa: ARG002  # a store's subscriber
        self._dirty.set()
