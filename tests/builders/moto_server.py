"""moto's S3 server, whose conditional puts are as atomic as S3's: `python moto_server.py`.

moto looks whether the key is there, and puts it later; of two threads between the two, both are told that they were
first. S3 promises that one is refused, and every commit relies on it.

It takes a free port of the loopback itself, and says which once it listens: one that was looked for before may be
somebody else's by then.
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
    """The WSGI application: only what has a condition waits."""
    if "HTTP_IF_NONE_MATCH" not in environ:
        return _MOTO(environ, start_response)
    with _ONE_AT_A_TIME:
        return _MOTO(environ, start_response)


if __name__ == "__main__":
    server = make_server("127.0.0.1", 0, serve, threaded=True, request_handler=MotoRequestHandler)
    print(server.port, flush=True)
    server.serve_forever()
