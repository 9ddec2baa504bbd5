"""`--key-hash`: keys that whoever asks knows by their HMAC alone, found by a pass over all logs of store and archive.

A hash that no key has is a problem: it may be of another HMAC key, and nothing can be searched for it beyond logs.
"""

from __future__ import annotations

import binascii
import hmac
from functools import partial

from lastkey.jobs.audit.erasure import list_places
from lastkey.jobs.audit.report import AuditReport
from lastkey.jobs.command.erase_options import EraseOptions
from lastkey.jobs.command.options import AuditErasureOptions
from lastkey.jobs.command.parse import some_of
from lastkey.jobs.command.progress import BYTES, CountedBytes, Progress
from lastkey.jobs.erase.report import EraseReport
from lastkey.jobs.errors import UsageError
from lastkey.jobs.spark.engine import chosen_engine, workers
from lastkey.jobs.store.tables import State
from lastkey.udfs.audit.hashed_keys import HASH_BYTES, keys_of

_SHOWN = 16  # digits of a hash, as reports name hidden keys


def hashes_of(options: EraseOptions) -> list[bytes]:
    """Return the hashes that were given. Raise UsageError for what is none."""
    found = []
    for number, text in enumerate(options.key_hash, 1):
        try:
            found.append(binascii.unhexlify(text.strip()))
        except ValueError:
            found.append(b"")
        if len(found[-1]) != HASH_BYTES:
            raise UsageError(
                message=f"--key-hash, number {number}: expected the {2 * HASH_BYTES} hex digits of an HMAC-SHA256, "
                f"found {len(text)} characters"
            )
    return list(dict.fromkeys(found))


def keys_with(
    hashes: list[bytes], secret: bytes, searched: AuditErasureOptions, state: State, report: EraseReport,
    progress: Progress,
) -> list[bytes]:  # fmt: skip
    """Return the keys with these hashes, in the order of the hashes, and report those that no key has. Raise UsageError
    if no key has any.
    """
    listed = AuditReport(kind="erasure", sources=[state.root.uri])
    places, _ = list_places(searched, state, listed)
    places.files = [file for file in places.files if file.kind == "log"]
    tasks = places.tasks()
    sizes = [sum(file.size for file in task) for task in tasks]
    progress.start("find the keys", sum(sizes), BYTES)
    with workers(chosen_engine(searched, writes=True), sum(sizes), searched.config, listed, progress) as made:
        found = made.run(partial(keys_of, hashes, secret), tasks, "erase: keys by hash", CountedBytes(progress, sizes))
    progress.close()
    by_hash = {hmac.digest(secret, key, "sha256"): key for key in set().union(*found)}
    missing = [f"#{one.hex()[:_SHOWN]}" for one in hashes if one not in by_hash]
    if len(missing) == len(hashes):
        raise UsageError(
            message=f"--key-hash: expected hashes of keys in the logs of {state.root.uri} and its archive, by the key "
            f"of --hmac-key; found no key with {some_of(missing)}; beyond logs only whole keys are found"
        )
    if missing:
        report.other_problems.append(
            f"--key-hash: expected keys in the logs of {state.root.uri} and its archive, by the key of --hmac-key; "
            f"found no key with {some_of(missing)}"
        )
    return [by_hash[one] for one in hashes if one in by_hash]
