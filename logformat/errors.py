"""What can be wrong with a log file. One root, so that a caller can set a partition aside on any of them."""

from __future__ import annotations


class LogFormatError(Exception):
    """A file that is not what Kafka would have written.

    `kind` is one of KINDS; `position` is the byte in the file, `base_offset` the batch's base offset (-1: not known).
    """

    def __init__(
        self, kind: str, path: str, position: int, expected: str, found: str, *, base_offset: int = -1, hint: str = ""
    ) -> None:
        if kind not in KINDS:
            raise ValueError(f"no such kind of problem: {kind}")
        self.kind, self.path, self.position, self.base_offset = kind, path, position, base_offset
        self.expected, self.found, self.hint = expected, found, hint
        super().__init__(kind, path, position, expected, found)

    def __str__(self) -> str:
        at = f"{self.path} at byte {self.position}"
        if self.base_offset >= 0:
            at = f"{at} (batch at offset {self.base_offset})"
        hint = f"; {self.hint}" if self.hint else ""
        return f"{at}: {self.kind}: expected {self.expected}, found {self.found}{hint}"

    def __reduce__(self) -> tuple[object, ...]:  # crosses process borders with every field
        return _rebuild, (
            self.kind, self.path, self.position, self.expected, self.found, self.base_offset, self.hint,
        )  # fmt: skip


def _rebuild(
    kind: str, path: str, position: int, expected: str, found: str, base_offset: int, hint: str
) -> LogFormatError:
    return LogFormatError(kind, path, position, expected, found, base_offset=base_offset, hint=hint)


# kind -> what it says of the file
KINDS = {
    "length": "a size field that cannot be, or runs past the end of the file",
    "torn_tail": "the file ends inside a batch",
    "magic": "a magic byte outside 0..2",
    "crc": "the checksum does not fit the bytes",
    "codec": "a compression codec that is unknown, or illegal in this format",
    "compressed": "a compressed body that cannot be decompressed",
    "bomb": "a compressed body that grows past the limit",
    "varint": "a varint that is longer than its type",
    "record": "a record whose fields do not fill its length",
    "count": "a batch that holds more or fewer records than its header says",
    "offsets": "offsets that do not rise, or lie outside the batch or the segment",
    "relative_offset": "an offset too far from the segment's base for an index entry",
    "name": "a file name that contradicts the content",
    "overlap": "two segments that hold the same offsets",
    "duplicate": "the same partition in two places",
    "gap": "offsets that are missing between two files",
    "index": "an index file that is torn or contradicts its log",
    "side_file": "a snapshot, checkpoint or metadata file that cannot be parsed",
    "unreadable": "a file that cannot be opened or read",
    "changed": "a file that shrank or changed while it was read",
    "huge": "records that are too large to be shown",
    "keys": "more keys than a task may hold",
    "null_key": "records without a key in a partition that is to be compacted",
    "transaction": "control records that cannot be",
    "readback": "a written file that is not what was meant to be written",
}
