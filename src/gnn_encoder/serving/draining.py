"""uvicorn's server, which at its end tells clients that their connections close."""

import asyncio
import socket

import uvicorn

LAST_REQUESTS = 1.0
"""Seconds in which an open connection may bring one more request after SIGTERM."""


class DrainingServer(uvicorn.Server):
    """A server whose last answer on a connection says that the connection closes.

    uvicorn closes idle connections at once, without a word, and a request that is on its way over one of them is lost.
    Here a connection closes after its next answer, which says so, or after `LAST_REQUESTS` seconds without a request.
    """

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Takes no new connections, answers the last requests of the open ones, and then ends as uvicorn does."""
        for server in self.servers:
            server.close()
        state = self.server_state
        state.default_headers = [*state.default_headers, (b"connection", b"close")]
        for connection in state.connections:
            # A request in work keeps the headers that were the default when it arrived.
            if (cycle := getattr(connection, "cycle", None)) and not cycle.response_started:
                cycle.default_headers = state.default_headers
        clock = asyncio.get_running_loop()
        end = clock.time() + LAST_REQUESTS
        while state.connections and not self.force_exit and clock.time() < end:
            await asyncio.sleep(0.05)
        await super().shutdown(sockets)
