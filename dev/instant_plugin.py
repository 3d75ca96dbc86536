"""Pulumi resource plug-in that accepts every request immediately: `python dev/instant_plugin.py --port PORT`."""
# The generated interface gives the methods their names, arguments and meaning.
# ruff: noqa: N802, ARG002, D102

import argparse

import grpc
from llmd_rehearsal.plugin_protocol import (
    Empty,
    Message,
    PluginServer,
    Servicer,
    plugin,
    provider,
    serve,
    serve_until_signal,
)


class InstantPlugin(Servicer):
    """gRPC methods of a Pulumi resource plug-in that accepts every resource unchanged and immediately."""

    def Handshake(self, request: Message, context: Message) -> None:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "method Handshake not implemented")

    def GetPluginInfo(self, request: Message, context: Message) -> Message:
        return plugin.PluginInfo(version="1.0.0")

    def Attach(self, request: Message, context: Message) -> Message:
        return Empty()

    def Cancel(self, request: Message, context: Message) -> Message:
        return Empty()

    def CheckConfig(self, request: Message, context: Message) -> Message:
        return provider.CheckResponse(inputs=request.news)

    def Configure(self, request: Message, context: Message) -> Message:
        return provider.ConfigureResponse(acceptSecrets=True, acceptResources=True, supportsPreview=True)

    def Check(self, request: Message, context: Message) -> Message:
        return provider.CheckResponse(inputs=request.news)

    def Create(self, request: Message, context: Message) -> Message:
        return provider.CreateResponse(id=request.name, properties=request.properties)


def start(port: int) -> PluginServer:
    """Start the gRPC server of the plug-in that accepts every request on a port of 127.0.0.1, and return it."""
    return serve(InstantPlugin(), port, lambda: None)


def main() -> None:
    """Serve the plug-in that accepts every request immediately, on the port that the command line names, until SIGINT
    or SIGTERM.
    """
    parser = argparse.ArgumentParser(prog="instant_plugin", description=__doc__)
    parser.add_argument("--port", type=int, required=True, help="the port on 127.0.0.1")
    arguments = parser.parse_args()
    serve_until_signal(lambda: start(arguments.port))


if __name__ == "__main__":
    main()
