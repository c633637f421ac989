"""uvicorn's server, which at its end tells clients that their connections close."""

import asyncio
import socket

import uvicorn

LAST_REQUESTS = 1.0
"""Seconds in which an open connection may bring one more request after SIGTERM."""


class DrainingServer(uvicorn.Server):
    """A server that loses no request that was sent before its connection closed.

    uvicorn closes idle connections at once, and a request that is on its way over one of them is lost. Here each open
    connection gets one more answer first, which says that the connection closes.
    """

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Takes no new connections, answers the last requests of the open ones, and then ends as uvicorn does."""
        for server in self.servers:
            server.close()
        state = self.server_state
        state.default_headers = [*state.default_headers, (b"connection", b"close")]
        clock = asyncio.get_running_loop()
        end = clock.time() + LAST_REQUESTS
        while state.connections and not self.force_exit and clock.time() < end:
            await asyncio.sleep(0.05)
        await super().shutdown(sockets)
