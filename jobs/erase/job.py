"""`erase --store STORE`: new generations without the records of some keys, and a search of every file for them.

  keys -> their digests, in a file of the store -> a run of `compact` that only erases (`jobs.compact.plan_inputs`)
  -> a search of archive and store -> a row of `cleaner_runs`, with what the search found
docs/reference/erasure.md has the rules. A run that is killed has erased in the partitions that it committed; the same
command again does the rest.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from lastkey.jobs import vacuum
from lastkey.jobs.archive.places import Place, check_apart
from lastkey.jobs.command.option_groups import KeyFormat
from lastkey.jobs.command.options import CompactOptions
from lastkey.jobs.command.progress import Progress, Silent
from lastkey.jobs.command.store_options import EraseOptions, VacuumOptions
from lastkey.jobs.compact import job as compact
from lastkey.jobs.compact.plan_inputs import Erasures
from lastkey.jobs.erase.report import EraseReport, Remains
from lastkey.jobs.erase.search_store import SearchReport, fill_report, list_places, search_places
from lastkey.jobs.erase.write_proof import checked_proof, key_names, write_proof
from lastkey.jobs.errors import JobError, MissingPathError, UsageError
from lastkey.jobs.recorded import recorded
from lastkey.jobs.spark.engine import chosen_engine, workers
from lastkey.jobs.store.erasures import derive_secret, key_id, read_key
from lastkey.jobs.store.generations import open_store
from lastkey.jobs.store.tables import State
from lastkey.jobs.topics import TopicFilter, without_kafkas_own
from lastkey.jobs.vacuum import VacuumReport
from lastkey.udfs.erased_keys import content_id
from lastkey.udfs.key_search.key_set import KeySet
from lastkey.udfs.steps import step
from lastkey.udfs.storage import normal_uri

_MOST_BYTES: Final = 4 << 30  # limit for a file: hex takes two bytes a byte
_MARKS: Final = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_LEAST_IN_TEXT: Final = 4  # bytes of a key: shorter ones stand in any text


def run(options: EraseOptions, progress: Progress) -> EraseReport:
    """Erase, or with `check` only search."""
    job = "erase --check" if options.check else "erase"
    return recorded(job, options.store, lambda: _run(options, progress), dry_run=options.dry_run)


def _run(options: EraseOptions, progress: Progress) -> EraseReport:
    began, at_ms = time.perf_counter(), time.time_ns() // 1_000_000
    if options.check and options.dry_run:
        raise UsageError(message="--check contradicts --dry-run: it writes nothing but a row of cleaner_runs")
    key = read_key(options.hmac_key)  # once: it may be a pipe
    state = open_store(options.store)
    # the key beside the digests would reveal the erased keys
    check_apart(Place("--hmac-key", normal_uri(options.hmac_key)), Place("the store", state.root.uri))
    keys = key_set(options.keys, options.key, options.key_format)
    archives = {row.archive_uri for row in state.checkpoints().values()}
    proof = None if options.proof is None else checked_proof(options.proof, archives, [options.store])
    report = EraseReport(state.root.uri, options.dry_run, options.check, options.by, without_kafkas_own(options.topics))
    said = options.by.encode()
    if any(one in said for one in keys.keys.to_pylist() if len(one) >= _LEAST_IN_TEXT):
        raise UsageError(
            message="--by: expected the requester, found one of the keys; the store would keep it in cleaner_runs"
        )
    digests = keys.hashes_by(derive_secret(key))
    data = key_id(key) + np.ascontiguousarray(digests[np.lexsort(digests.T)]).tobytes()  # see `udfs.erased_keys`
    names = key_names(keys, key)
    report.erasure, report.n_keys = content_id(data), len(keys)
    if not options.check:
        try:
            erasures = Erasures(key, data, no_archive=options.no_archive)
            report.erased = compact.run_in_turn(_as_compaction(options, state, at_ms), erasures, progress)
        except MissingPathError as error:
            error.add_note("--no-archive erases from the store alone")
            raise
        report.seconds["erase"] = time.perf_counter() - began
    if options.dry_run or report.conflict:
        return report
    state = open_store(options.store)
    found = SearchReport(sources=[state.root.uri])
    at = time.perf_counter()
    places, roots = list_places(options, found)
    report.seconds["list"] = time.perf_counter() - at
    n_bytes = sum(file.size for file in places.files)
    with workers(chosen_engine(options, writes=True), n_bytes, options.config, found, progress) as made:
        step("keys erased")
        sought = search_places(keys, state, places, roots, made, found, progress, digests=proof is not None)
    fill_report(found, sought, names)
    if proof is not None:
        write_proof(proof, sought, names, found, roots, options, at_ms)
    checkpoints = state.checkpoints()
    current = {key: row.generation for key, row in checkpoints.items()}
    report.searched, report.remains = found, Remains.of(sought, state.root.uri, current)
    report.seconds["search"] = found.seconds["search"]
    step("places searched")
    if any(row.erased for row in checkpoints.values()):
        report.vacuum = _vacuum(state, report.remains)
    return report


def _vacuum(state: State, remains: Remains) -> VacuumReport | None:
    """Return the report of a dry run of `vacuum --erased` over older generations with keys; None without such
    generations, or vacuum fails.
    """
    older = sorted({where.topic for where in remains.generations if not where.is_current})
    if not older:
        return None
    options = VacuumOptions(state.root.uri, topics=TopicFilter(tuple(older)), erased=True, dry_run=True)
    with contextlib.suppress(JobError):  # the erasure is made, and its report is worth more
        return vacuum.run(options, Silent())
    return None


def _as_compaction(options: EraseOptions, state: State, now_ms: int) -> CompactOptions:
    archives = sorted({normal_uri(row.archive_uri) for row in state.checkpoints().values()})
    if not archives:
        raise MissingPathError(path=state.root.uri, expected="a generation to erase from", found="none")
    if len(archives) > 1:
        raise UsageError(message=f"{state.root.uri}: expected a store of one archive, found {', '.join(archives)}")
    return CompactOptions(
        archive=archives[0], store=options.store, now_ms=now_ms, config=options.config,
        topics=without_kafkas_own(options.topics), engine=options.engine, dry_run=options.dry_run, wait=options.wait,
    )  # fmt: skip


def key_set(path: str | None, given: Sequence[str], form: KeyFormat) -> KeySet:
    """Return the keys of a file and of options. Raises UsageError, never with a key in it."""
    parse = _PARSERS[form]
    keys = [*_option_keys(given, parse, form), *(() if path is None else _file_keys(path, parse, form))]
    if not keys:
        raise UsageError(message="expected keys to look for, found none: give --keys FILE or --key KEY")
    try:
        return KeySet.of(keys)
    except ValueError as error:
        raise UsageError(message=f"{path or '--key'}: {error}") from None


def _option_keys(given: Iterable[str], parse: Callable[[bytes], bytes], form: KeyFormat) -> Iterator[bytes]:
    for number, key in enumerate(given, 1):
        try:
            yield parse(key.encode())
        except ValueError:
            raise UsageError(message=f"--key, the {number}th one: expected {form}, found other characters") from None


def _file_keys(path: str, parse: Callable[[bytes], bytes], form: KeyFormat) -> Iterator[bytes]:
    """Yield the key of each line. An empty line is an error: it may be a mistake, and the empty key is a valid key."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise MissingPathError(path=path, expected="a file of keys", found=error.strerror or str(error)) from None
    if len(data) > _MOST_BYTES:
        raise UsageError(message=f"{path}: expected at most {_MOST_BYTES:,} bytes of keys, found more")
    if data.startswith(_MARKS):  # else the first key would contain the mark, match no record, and be reported as absent
        raise UsageError(
            message=f"{path}, line 1: expected a key, found a byte order mark: save the file as UTF-8 without one, or"
            " give its keys as hex if it is part of the first"
        )
    for number, line in enumerate(data.removesuffix(b"\n").split(b"\n") if data else (), 1):
        text = line.removesuffix(b"\r")
        if not text:
            raise UsageError(
                message=f"{path}, line {number}: expected a key, found an empty line; --key '' names the empty key"
            )
        try:
            yield parse(text)
        except ValueError:
            raise UsageError(message=f"{path}, line {number}: expected {form}, found other characters") from None


_PARSERS: Final[dict[KeyFormat, Callable[[bytes], bytes]]] = {
    "text": bytes,
    "hex": binascii.unhexlify,
    "base64": partial(base64.b64decode, validate=True),
}
