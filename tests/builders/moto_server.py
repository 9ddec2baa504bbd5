"""moto's S3 server, whose conditional puts are as atomic as S3's: `python -m tests.builders.moto_server`.

moto checks whether the key exists, and puts it later. Two threads between these steps both receive the answer that they
were first. S3 promises to refuse one of them, and every commit relies on it.

Connections stay, as those of S3 do: werkzeug's own server closes each after one request, and the next one costs both
sides a new one, and a new thread here.

The server takes a free port of the loopback itself, and prints it once it listens: a port that was found before may
belong to another process by then.
"""

from __future__ import annotations

import io
import threading
import traceback
from collections.abc import Callable, Iterable
from typing import Any, Final

from moto import backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

from tests.builders.http_bodies import KeptAlive, read_body

_MODULES: Final = tuple(backends.list_of_moto_modules())
backends.list_of_moto_modules = lambda: _MODULES  # it lists moto's folder, for each request
_MOTO: Final = DomainDispatcherApplication(create_backend_app)
_ONE_AT_A_TIME: Final = threading.Lock()


def serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Serve a request as the WSGI application; only requests with a condition wait for each other."""
    if "HTTP_IF_NONE_MATCH" not in environ:
        return _MOTO(environ, start_response)
    with _ONE_AT_A_TIME:
        return _MOTO(environ, start_response)


class Handler(KeptAlive, MotoRequestHandler):
    """Requests of a connection that stays, each of which is read whole before it is served."""

    def run_wsgi(self) -> None:
        """Serve one request, whatever its method."""
        body = read_body(self.headers, self.rfile)
        environ = self.make_environ() | {"wsgi.input": io.BytesIO(body)}
        if environ.pop("HTTP_TRANSFER_ENCODING", None):
            environ["CONTENT_LENGTH"] = str(len(body))
        response: list[Any] = ["500 Internal Server Error", []]

        def start_response(status: str, headers: list[tuple[str, str]], _: object = None) -> None:
            response[:] = status, headers

        try:
            answer = b"".join(serve(environ, start_response))
        except Exception:
            traceback.print_exc()
            answer, response[1] = b"", []
        code, _, reason = response[0].partition(" ")
        self.send_response(int(code), reason)
        for name, value in response[1]:
            self.send_header(name, value)
        has_body = self.command != "HEAD" and int(code) not in (204, 304)
        if has_body and "content-length" not in {name.lower() for name, _ in response[1]}:
            self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        if has_body:
            self.wfile.write(answer)

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Log nothing."""


if __name__ == "__main__":
    server = make_server("127.0.0.1", 0, serve, threaded=True, request_handler=Handler)
    print(server.port, flush=True)
    server.serve_forever()
