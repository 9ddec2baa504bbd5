"""A proxy in front of Azurite and fake-gcs-server with the requests of delta-rs and Spark's connector that they lack.

    python -m tests.builders.cloud_front PORT

- A listing that begins at a name (`startFrom` of Azure, `start-after` of Google): both servers list all, and delta-rs
  takes old commits for new ones then. The front takes the names before it out of the answer.
- delta-rs puts an object by `PUT /bucket/key` (Google's XML API), with `x-goog-if-generation-match: 0` for one that
  must not exist yet. fake-gcs-server knows `POST /upload/storage/v1/b/bucket/o` (the JSON API) with
  `ifGenerationMatch=0` alone; it decides which of two puts is first.
- Spark's connector renames by `moveTo`, alone or several in a batch. fake-gcs-server does not know it, so the front
  copies and deletes, which is not one step as Google's is.
- An XML listing of a bucket that is not there is answered with 500 by fake-gcs-server, with 404 by Google.
- An upload in parts (`POST ?uploads` of the XML API), of which fake-gcs-server knows nothing: the front keeps them.

All else goes through as it is. It is a process of its own, for pyarrow waits for some answers without letting other
threads of its process run.
"""

from __future__ import annotations

import http.client
import re
import select
import shutil
import sys
import uuid
from http.server import ThreadingHTTPServer
from typing import Final
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.builders.http_bodies import KeptAlive, read_body

_HOP: Final = {"connection", "transfer-encoding", "keep-alive", "content-length", "host", "expect"}
_NO_BUCKET: Final = b"<Error><Code>NoSuchBucket</Code><Message>The specified bucket does not exist.</Message></Error>"
_PIECE: Final = 256 << 10
_LISTS_FROM_A_NAME: Final = re.compile(r"[?&](startFrom|start-after)=")
Answer = tuple[int, list[tuple[str, str]], bytes]  # status, headers, body
_MOVE: Final = re.compile(rb"^POST \S*?(/storage/v1/b/([^/\s]+)/o/[^/\s]+)/moveTo/", re.MULTILINE)


def _from_a_name_on(path: str, answer: bytes) -> bytes:
    """Return a listing without the names before the one at which it should begin."""
    query = parse_qs(urlsplit(path).query)
    if "startFrom" in query:
        first, entry = query["startFrom"][0], rb"<Blob><Name>([^<]*)</Name>.*?</Blob>"
    elif "start-after" in query:
        first, entry = f"{query['start-after'][0]}\0", rb"<Contents>\s*<Key>([^<]*)</Key>.*?</Contents>"
    else:
        return answer
    return re.sub(entry, lambda found: b"" if found[1].decode() < first else found[0], answer, flags=re.DOTALL)


def _copies_for_moves(path: str, body: bytes) -> tuple[list[str], str, bytes]:
    """Return the objects that a POST, or a batch in its body, moves; its path and its body that copy them."""
    request = _MOVE.sub(rb"POST \1/copyTo/b/\2/", line := f"POST {path}".encode())
    sources = [match[1].decode() for match in _MOVE.finditer(line + b"\n" + body)]
    return sources, request.decode().removeprefix("POST "), _MOVE.sub(rb"POST \1/copyTo/b/\2/", body)


def _result(name: str, **tags: str) -> bytes:
    inner = "".join(f"<{tag}>{text}</{tag}>" for tag, text in tags.items())
    return f"<{name}Result>{inner}</{name}Result>".encode()


def main(upstream: int) -> None:
    """Serve at a free port of the loopback, which is printed; the server listens on port `upstream` there."""
    uploads: dict[str, dict[int, bytes]] = {}  # id -> number -> part

    class Handler(KeptAlive):
        server_side: http.client.HTTPConnection | None = None

        def do(self) -> None:
            method, path = self.command, self.path
            body = read_body(self.headers, self.rfile)
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
            is_xml = not path.startswith(("/storage/", "/upload/", "/download/", "/batch/"))
            if len(body) != int(self.headers.get("Content-Length") or len(body)):
                raise ConnectionAbortedError("the request broke off")
            asked = parse_qs(urlsplit(path).query, keep_blank_values=True) if is_xml else {}
            completed = asked.get("uploadId", [""])[0] if method == "POST" else ""
            if completed:
                method, path, body = (
                    "PUT",
                    urlsplit(path).path,
                    b"".join(dict(sorted(uploads[completed].items())).values()),
                )
            elif "uploads" in asked or "uploadId" in asked:
                self._answer(*self._part(method, asked, body))
                return
            if method == "PUT" and is_xml and "x-ms-version" not in self.headers:
                bucket, _, key = path.partition("?")[0].lstrip("/").partition("/")
                method, path = (
                    "POST",
                    f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(unquote(key), '')}",
                )
                condition = headers.pop("x-goog-if-generation-match", None)
                path += f"&ifGenerationMatch={condition}" if condition is not None else ""
            sources: list[str] = []
            if method == "POST" and path.startswith(("/storage/", "/batch/")):
                sources, path, body = _copies_for_moves(path, body)
            if method == "GET" and not _LISTS_FROM_A_NAME.search(path):
                response = self._sent(method, path, body, headers)
                if response.status < 300 and (response.length or 0) > _PIECE:
                    self._pass_on(response)
                    return
                status, given, answer = response.status, response.getheaders(), response.read()
            else:
                status, given, answer = self._asked(method, path, body, headers)
            codes = re.findall(rb"^HTTP/1\.1 (\d+)", answer, re.MULTILINE) or [b"%d" % status]
            for source, code in zip(sources, codes, strict=False):
                if code == b"200":
                    self._asked("DELETE", source, b"", {})
            answer = _from_a_name_on(path, answer)
            if is_xml and status == 500 and b"no bucket named" in answer:
                status, given, answer = 404, [("Content-Type", "application/xml")], _NO_BUCKET
            if completed and status == 200:
                given, answer = [("x-goog-generation", "1")], _result("CompleteMultipartUpload", ETag='"1"')
            elif self.command == "PUT" and method == "POST" and status == 200:
                given, answer = [("ETag", '"1"'), ("x-goog-generation", "1")], b""
            self._answer(status, given, answer)

        def _answer(self, status: int, given: list[tuple[str, str]], answer: bytes) -> None:
            self.send_response_only(status)
            length = len(answer)
            for name, value in given:
                if name.lower() == "content-length" and self.command == "HEAD":
                    length = int(value)
                elif name.lower() == "location":
                    self.send_header(name, value.replace(f":{upstream}/", f":{self.server.server_address[1]}/"))
                elif name.lower() not in _HOP:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_PATCH = do  # noqa: N815

        def finish(self) -> None:
            if self.server_side is not None:
                self.server_side.close()
            super().finish()

        def _pass_on(self, answer: http.client.HTTPResponse) -> None:
            """Send an object's bytes as they come: of a large one the client may want no more than the first."""
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _HOP - {"content-length"}:
                    self.send_header(name, value)
            self.end_headers()
            try:
                shutil.copyfileobj(answer, self.wfile, _PIECE)
            except OSError:
                self.close_connection = True

        def _part(self, method: str, asked: dict[str, list[str]], body: bytes) -> Answer:
            """Begin an upload in parts, keep a part, or give the upload up."""
            if method == "POST":
                uploads[made := uuid.uuid4().hex] = {}
                return 200, [], _result("InitiateMultipartUpload", Bucket="-", Key="-", UploadId=made)
            upload = asked["uploadId"][0]
            if method == "DELETE":
                uploads.pop(upload, None)
                return 204, [], b""
            uploads[upload][int(asked["partNumber"][0])] = body
            return 200, [("ETag", '"1"')], b""

        def _asked(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
            answer = self._sent(method, path, body, headers)
            return answer.status, answer.getheaders(), answer.read()

        def _sent(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> http.client.HTTPResponse:
            if self.server_side is None:
                self.server_side = http.client.HTTPConnection("127.0.0.1", upstream, timeout=60)
            idle = self.server_side.sock
            if idle is not None and select.select([idle], [], [], 0)[0]:
                self.server_side.close()  # the server has ended it: Node does after 5 seconds
            self.server_side.request(method, path, body, {**headers, "Content-Length": str(len(body))})
            return self.server_side.getresponse()

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

    server = Server(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]))
