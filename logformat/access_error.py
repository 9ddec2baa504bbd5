"""Error of a bucket that cannot be used at present: its kinds, and the decisive words of a library's message."""

from __future__ import annotations

import re
from typing import Final

# Kinds of failure, as messages word them.
UNREACHABLE = "cannot be reached"
NO_BUCKET = "there is no such bucket"
DENIED = "access is denied"
REGION = "the bucket lies in another region"
NO_CREDENTIALS = "there are no credentials"
EXPIRED = "the credentials have expired"
BUSY = "the server is too busy"
LOST = "an upload was lost"
UNUSABLE = "cannot be used from here"  # HDFS, whatever the reason
BAD_REQUEST: Final = "the request is refused"  # an answer without a body: the bucket is asked again

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")


class AccessError(Exception):
    """A bucket that cannot be used at present for any file. No file is at fault.

    kind: one of the words above; where: the bucket, and its endpoint; found: the words of the server or the library.
    """

    def __init__(self, kind: str, where: str, found: str) -> None:
        self.kind, self.where, self.found = kind, where, found
        super().__init__(kind, where, found)

    def __str__(self) -> str:
        return f"{self.where}: {self.kind}: {self.found}"


def in_one_line(said: str) -> str:
    """Return the decisive words of a library's message, which may have many lines and colours, in one line."""
    plain = re.split(r"\n +0: ", _COLOUR.sub("", said).strip())[0]  # Rust's backtrace begins there
    if code := re.search(r"<Code>([^<]*)</Code>(?:\s*<Message>([^<]*)</Message>)?", plain):
        words = re.split(r"\nRequestId:", code[2] or "")[0]
        return code[1] if words in ("", code[1]) else f"{code[1]}: {' '.join(words.split())}"
    if "AWS Error" in plain:
        line = plain[plain.index("AWS Error") :].splitlines()[0]
        name, _, words = line.removeprefix("AWS Error ").partition(" operation: ")
        words = words.partition("Details: ")[2] or words.partition("No response body. ")[2] or words
        if words.startswith("Unable to parse ExceptionName: "):
            error, _, words = words.removeprefix("Unable to parse ExceptionName: ").partition(" Message: ")
            words = error if words in ("", error) else f"{error}: {words}"
        return words.strip(" .") if words.strip(" .") not in ("", "No response body") else name.partition(" during")[0]
    if azure := re.search(r"Azure Error: \[(\w*)\] (?:(\d{3}) ?)?(.*)", plain):
        return ": ".join(filter(None, (azure[1] or azure[2], azure[3].strip(" .")))) or "no answer"
    if google := re.search(r"last message of (.*?)(?:\. | error_info=|$)", plain, re.MULTILINE):
        return google[1].rstrip(" .")
    if google := re.search(r"google::cloud::Status\(\w+: (.*?)(?:\.? error_info=|\)?$)", plain, re.MULTILINE):
        return google[1].rstrip(" .")
    parts = [part.strip(" .") for part in re.split(r"↳|\n", plain) if part.strip()]
    return ": ".join(dict.fromkeys(parts[-2:])) if parts else "no answer"
