"""A server from its socket to its end."""

import socket

import uvicorn

from minitrans.errors import UserError
from minitrans.server.app import Api


def listen(host: str, port: int) -> socket.socket:
    """A socket on a host's port, 0 for any that is free.

    Raises:
        UserError: There is no such address here, or it is in use.
    """
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, UnicodeError) as error:
        why = (isinstance(error, OSError) and error.strerror) or "it is no host's name"
        raise UserError(f"cannot listen on {host}, port {port}: {why}; give another --host or --port") from error
    # Connections inherit it. asyncio sets it on none whose protocol number is 0; a body would wait 40 ms for an ACK.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def serve(api: Api, listening: socket.socket) -> None:
    """Serve until SIGTERM or Ctrl-C, and then, for up to half a minute, until all that was taken is answered.

    Raises:
        KeyboardInterrupt: At that end, where one of these signals raises it.
    """
    config = uvicorn.Config(
        api, log_level="warning", access_log=False, server_header=False, ws="none", timeout_graceful_shutdown=30
    )
    config.limit_concurrency = 500  # connections; one more is answered 503
    server = uvicorn.Server(config)
    api.is_stopping = lambda: server.should_exit
    server.run([listening])
