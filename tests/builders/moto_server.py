"""moto's S3 server, whose conditional puts are as atomic as S3's: `python moto_server.py`.

moto checks whether the key exists, and puts it later. Two threads between these steps are both told that they were
first. S3 promises to refuse one of them, and every commit relies on it.

The server takes a free port of the loopback itself, and prints it once it listens: a port that was found before may
belong to another process by then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

_MOTO: Final = DomainDispatcherApplication(create_backend_app)
_ONE_AT_A_TIME: Final = threading.Lock()


def serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Serve a request as the WSGI application; only requests with a condition wait for each other."""
    if "HTTP_IF_NONE_MATCH" not in environ:
        return _MOTO(environ, start_response)
    with _ONE_AT_A_TIME:
        return _MOTO(environ, start_response)


if __name__ == "__main__":
    server = make_server("127.0.0.1", 0, serve, threaded=True, request_handler=MotoRequestHandler)
    print(server.port, flush=True)
    server.serve_forever()
