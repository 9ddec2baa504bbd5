"""Report of several archives: text and page show one, whose topics are `<archive>/<topic>`; JSON keeps them apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations, takewhile
from typing import Any, ClassVar

from lastkey.jobs.archive.places import is_same, lies_in
from lastkey.jobs.errors import UsageError
from lastkey.jobs.report.archive_report import ArchiveReport
from lastkey.jobs.store.generations import open_store


@dataclass(frozen=True)
class NamedArchive:
    """Report of one archive, with its short name."""

    facts: ClassVar[str] = "name *=report"
    name: str
    report: ArchiveReport


@dataclass
class SeveralArchives(ArchiveReport):
    """Report of several archives."""

    facts = "archives=_archives output now_ms savings=_savings"

    parts: dict[str, ArchiveReport] = field(default_factory=dict)  # by short name

    @property
    def places(self) -> list[tuple[str, str, str | None]]:
        """Short name, URI and store of each archive."""
        return [(name, part.archive, part.store) for name, part in self.parts.items()]

    @property
    def problems(self) -> list[Any]:
        """Problems of all archives."""
        return [f"{name}: {problem}" for name, part in self.parts.items() for problem in part.problems]

    def _lines(self) -> Iterable[str]:
        yield from (f"{name}: {uri}" + (f", with {store}" if store else "") for name, uri, store in self.places)
        yield from super()._lines()

    @property
    def _archives(self) -> list[NamedArchive]:
        return [NamedArchive(name, part) for name, part in self.parts.items()]

    def join(self) -> None:
        """Add the reports of the archives to this one."""
        for name, part in self.parts.items():
            part.profiles = [replace(p, archive=name) for p in part.profiles]
            self.profiles += part.profiles
            self.archived_bytes |= {(f"{name}/{key[0]}", key[1]): n for key, n in part.archived_bytes.items()}
            self.history |= {(f"{name}/{key[0]}", key[1]): rows for key, rows in part.history.items()}
            self.notes += [f"{name}: {note}" for note in part.notes]
            for phase, seconds in part.seconds.items():
                self.seconds[phase] = self.seconds.get(phase, 0) + seconds


def check_distinct(archives: Sequence[str]) -> None:
    """Raise UsageError if an archive is, or lies in, another one: its partitions would count twice."""
    for inner, outer in permutations(archives, 2):
        if lies_in(inner, outer):
            raise UsageError(message=f"report: {inner} is or lies in {outer}, and would count twice; leave one out")


def short_names(uris: Sequence[str]) -> list[str]:
    """Return the distinguishing parts of URIs: "one" and "two" for /b/one/data and /b/two/data."""
    parts = [uri.split("/") for uri in uris]
    backwards = [of[_n_shared(parts) :][::-1] for of in parts]
    names = ["/".join(of[_n_shared(backwards) :][::-1]) for of in backwards]
    return names if all(names) else list(uris)


def _n_shared(parts: Sequence[Sequence[str]]) -> int:
    """Return with how many equal names all begin."""
    return len(list(takewhile(lambda same: len(set(same)) == 1, zip(*parts, strict=False))))


def match_stores(archives: Sequence[str], stores: Sequence[str]) -> dict[str, str]:
    """Return the store of each archive, as far as given. UsageError: a store without archive, or two stores for one."""
    store_by_archive: dict[str, str] = {}
    for store in stores:
        served = sorted({c.archive_uri for c in open_store(store).checkpoints().values()})
        mine = [archive for archive in archives if any(is_same(uri, archive) for uri in served)]
        if not mine:
            serves = f"serves the archive {served[0]}" if served else "holds no generation"
            raise UsageError(message=f"{store}: this store {serves}; expected one of {', '.join(archives)}")
        if mine[0] in store_by_archive:
            raise UsageError(
                message=f"--store: {store_by_archive[mine[0]]} and {store} both serve {mine[0]}; leave one out"
            )
        store_by_archive[mine[0]] = store
    return store_by_archive
