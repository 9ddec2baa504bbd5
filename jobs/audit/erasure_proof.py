"""The proof of `audit erasure`: what was looked for, what was listed, what was found, and what was not read."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from lastkey.jobs import installation
from lastkey.jobs.audit.erasure_search import Sought
from lastkey.jobs.audit.proof import FORMAT, new_proof
from lastkey.jobs.audit.report import AuditReport
from lastkey.jobs.command.options import AuditErasureOptions
from lastkey.jobs.command.whole_file import NEW, check_file
from lastkey.jobs.errors import UsageError
from lastkey.jobs.store.erasures import read_key
from lastkey.udfs.audit.findings import findings_of
from lastkey.udfs.audit.key_set import KeySet
from lastkey.udfs.storage import Root, normal_uri

_ROWS: Final = 10_000  # findings that are Python objects at a time
_UNREACHED: Final = "consumers, mirrors, replicas, backups of the archive, and reports and proofs made earlier"


@dataclass(frozen=True)
class KeyNames:
    """The keys as proofs name them."""

    names: Any  # pa.StringArray: the key in hex, or its HMAC-SHA256 in hex
    hidden: bool


def hiding_key(options: AuditErasureOptions) -> bytes | None:
    """Return the key by which proofs name keys; None: they show them. Raise UsageError unless the options about hidden
    keys go together.
    """
    if options.hide_keys != (options.hmac_key is not None):
        raise UsageError(
            message="--hide-keys and --hmac-key FILE need each other: proofs name keys by HMACs with your key"
        )
    return None if options.hmac_key is None else read_key(options.hmac_key)


def shown_keys(keys: KeySet, hiding: bytes | None) -> KeyNames:
    """Return the names of keys: HMACs by the key `hiding`, or the keys themselves."""
    if hiding is None:
        return KeyNames(pa.array((key.hex() for key in keys.keys.to_pylist()), pa.string()), False)
    # hashlib takes one value a call: this is the one loop over keys
    names = (hmac.digest(hiding, k, "sha256").hex() for k in keys.keys.to_pylist())
    return KeyNames(pa.array(names, pa.string()), True)


def checked_proof(asked: str, archives: Iterable[str | None], stores: Iterable[str | None]) -> Path:
    """Return the path of the proof. Raise UsageError if it cannot be written there, or may not (`check_file`)."""
    path = Path(normal_uri(asked))
    check_file("--proof", str(path), NEW, archives, stores)
    if not path.parent.is_dir():
        raise UsageError(message=f"--proof: expected a folder {path.parent}, found none")
    return path


def write_proof(
    path: Path,
    sought: Sought,
    shown: KeyNames,
    report: AuditReport,
    roots: Sequence[tuple[Root, str]],
    options: AuditErasureOptions,
    at_ms: int,
) -> None:
    """Write the proof, and put it into the report."""
    places = sought.places
    kinds = {(file.root, file.path): file.kind for file in places.files}
    with new_proof(path) as proof:
        proof.write(
            "header", format=FORMAT, audit="erasure", lastkey=installation.version(), time_ms=at_ms,
            places=[{"place": name, "uri": root.uri} for root, name in roots], topics=asdict(options.topics),
            keys=len(sought.keys), keys_are="HMAC-SHA256" if shown.hidden else "hex",
            not_reached=_UNREACHED,
        )  # fmt: skip
        for name in shown.names.to_pylist():
            proof.write("key", key=name)
        for root, _ in roots:
            for entry in places.listed.get(root.uri, ()):
                proof.write("file", root=root.uri, **asdict(entry), searched_as=kinds.get((root.uri, entry.path)))
        for table, files in sought.tables():
            for part in table.to_batches(_ROWS):
                columns = {"key": shown.names.take(part["key"]), **findings_of(part, files)}
                for row in pa.table(columns).to_pylist():
                    proof.write("finding", **row)
        for problem in sought.problems:
            told = {name: getattr(problem, name) for name in ("path", "position", "expected", "found", "hint")}
            proof.write("not_read", problem=problem.kind, **told)
        summary = report.summary
        result = "found" if report.findings else "unknown" if sought.problems else "not found"
        proof.write("footer", rows=dict(proof.counts), summary=summary, result=result)
    report.notes.append(f"proof: {path}")
    report.details["proof"] = {
        "path": str(path), "sha256": proof.sha256, "rows": proof.counts.total(), "result": result,
    }  # fmt: skip
