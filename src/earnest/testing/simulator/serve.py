"""Serving the simulator on a TCP port until the process is told to stop."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable

import uvicorn

from earnest.domain.errors import SettingInvalid
from earnest.testing.simulator.app import Forgetful
from earnest.testing.simulator.connections import Connections


def serve(host: str, port: int, *, ready: Callable[[str], None] | None = None) -> None:
    """Serve a simulator with an empty memory until SIGTERM or SIGINT, then let that signal end us.

    Port 0 takes a free one. `ready` is called with the address, such as `http://127.0.0.1:8400`,
    once requests are answered. Raises `SettingInvalid` if it cannot listen there.
    """
    listener = _listen(host, port)
    connections = Connections()
    config = uvicorn.Config(
        Forgetful(connections),
        http=connections.protocol_class(),
        ws="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # a forged caller's address would drop somebody else's connection
        timeout_keep_alive=120,  # longer than a caller keeps one: nobody meets a closing connection
        timeout_graceful_shutdown=1,
    )
    server = _Server(config, _address(host, listener), ready)
    with listener:
        server.run(sockets=[listener])


class _Server(uvicorn.Server):
    """A server that says when it answers."""

    def __init__(
        self, config: uvicorn.Config, url: str, ready: Callable[[str], None] | None
    ) -> None:
        super().__init__(config)
        self._url = url
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self._ready is not None:
            self._ready(self._url)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise SettingInvalid(_why_not(error, host, port)) from error
    except OverflowError as error:
        raise SettingInvalid(f"port {port} does not exist: use 0 to 65535") from error


def _why_not(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use: choose another port, or stop what holds it"
    return f"cannot listen on {host}, port {port}: {error}"


def _address(host: str, listener: socket.socket) -> str:
    port = listener.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
