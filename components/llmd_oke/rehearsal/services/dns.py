"""Answers DNS questions about the cluster's names, over UDP and TCP; nothing is asked of any other server."""

import asyncio
import logging
import struct
from collections.abc import Callable, Mapping
from typing import cast

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rrset

from llmd_oke.rehearsal.services.names import Name, lookup, service_port

_log = logging.getLogger(__name__)
_TTL_S = 5  # CoreDNS's own default for cluster names
Zone = Callable[[], Mapping[str, Name]]


def answer(query: bytes, zone: Mapping[str, Name], domain: str) -> bytes | None:
    """Give the answer to one message; None for what isn't a DNS query."""
    try:
        message = dns.message.from_wire(query)
        response = dns.message.make_response(message, recursion_available=True)
    except dns.exception.DNSException:
        return None
    if message.question:
        question = message.question[0]
        response.flags |= dns.flags.AA
        records = _records(question.name, question.rdtype, zone, domain)
        if records is None:
            response.set_rcode(dns.rcode.NXDOMAIN)
        else:
            response.answer.extend(records)
    return response.to_wire()


def _records(
    asked: dns.name.Name, kind: dns.rdatatype.RdataType, zone: Mapping[str, Name], domain: str
) -> list[dns.rrset.RRset] | None:
    """Give the records for a question, empty when the name has none of this kind, None when there's no such name."""
    text = asked.to_text(omit_final_dot=True)
    port = service_port(zone, text)
    if port is not None:
        value = f"0 100 {port[1].number} {port[0]}."
        return [_record(asked, "SRV", value)] if kind == dns.rdatatype.SRV else []
    found = lookup(zone, text, domain)
    if found is None:
        return None
    if found.alias is not None:
        return [_record(asked, "CNAME", f"{found.alias.rstrip('.')}.")]
    return [_record(asked, "A", *found.addresses)] if kind == dns.rdatatype.A and found.addresses else []


def _record(name: dns.name.Name, kind: str, *values: str) -> dns.rrset.RRset:
    return dns.rrset.from_text_list(name, _TTL_S, "IN", kind, list(values))


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, reply: Callable[[bytes], bytes | None]) -> None:
        self._reply = reply
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        reply = self._reply(data)
        if reply is not None and self._transport is not None:
            self._transport.sendto(reply, addr)


class DnsServer:
    """Serves the names that `zone()` gives at the moment of asking."""

    def __init__(self, zone: Zone, domain: str) -> None:
        self._zone = zone
        self._domain = domain
        self._datagrams: asyncio.DatagramTransport | None = None
        self._streams: asyncio.Server | None = None

    async def start(self, address: str, port: int) -> None:
        """Listen on UDP and TCP; OSError when the address can't be bound."""
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(self._reply), local_addr=(address, port))
        self._datagrams = transport
        self._streams = await asyncio.start_server(self._stream, address, port)

    def close(self) -> None:
        """Stop listening."""
        if self._datagrams is not None:
            self._datagrams.close()
        if self._streams is not None:
            self._streams.close()

    def _reply(self, query: bytes) -> bytes | None:
        return answer(query, self._zone(), self._domain)

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (length,) = struct.unpack("!H", await reader.readexactly(2))
                reply = self._reply(await reader.readexactly(length))
                if reply is None:
                    break
                writer.write(struct.pack("!H", len(reply)) + reply)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()
