"""Jobs as Python functions. The command line calls the same functions, so an option means the same in both.

    import lastkey

    report = lastkey.compact("archive", "store", topics="orders-*", cleanup_policy="compact")
    print(report.to_text(), report.exit_code)

Problems with data are in the report, and the other partitions go on. An error that stops a job is raised as a JobError
with the command line's words. API.md beside this file is for users.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from lastkey.jobs.command.config import (
    ENGINES,
    GAPS,
    NULL_KEYS,
    POLICIES,
    Config,
    Engine,
    check_now_ms,
    check_policy_has_topics,
    load_config,
    parse_config,
)
from lastkey.jobs.command.erase_options import EraseOptions
from lastkey.jobs.command.failures import raises_job_errors
from lastkey.jobs.command.job_modules import imported
from lastkey.jobs.command.options import (
    KEY_FORMATS,
    CompactOptions,
    ConvertOptions,
    KeyFormat,
    ReindexOptions,
    RestoreOptions,
    VerifyOptions,
)
from lastkey.jobs.command.parse import (
    check_location,
    parse_duration,
    parse_globs,
    parse_partitions,
    parse_time,
    parse_topics,
    wrong_type,
)
from lastkey.jobs.command.progress import Bar, Progress, Silent
from lastkey.jobs.errors import UsageError
from lastkey.jobs.topics import TopicFilter

if TYPE_CHECKING:
    from lastkey.jobs.compact.report import CompactReport
    from lastkey.jobs.convert.report import ConvertReport
    from lastkey.jobs.erase.report import EraseReport
    from lastkey.jobs.reindex.report import ReindexReport
    from lastkey.jobs.restore.report import RestoreReport
    from lastkey.jobs.verify.report import VerifyReport

Location = str | os.PathLike[str]  # a path, or a URI such as s3://bucket/archive
Globs = str | Iterable[str]  # globs of topics' names: one text with commas between them, or several
Settings = Location | Mapping[str, Any] | Config  # a TOML file, its tables as dictionaries, or checked settings
Gaps = Literal["fail", "accept"]


@raises_job_errors
def compact(
    archive: Location,
    store: Location,
    *,
    topics: Globs | None = None,
    exclude: Globs = (),
    topics_from: Location | Iterable[Location] | None = None,
    config: Settings | None = None,
    cleanup_policy: Literal["compact"] | None = None,
    now_ms: int | None = None,
    null_keys: Literal["fail", "keep", "drop"] | None = None,
    gaps: Gaps | None = None,
    sealed: bool = False,
    force: bool = False,
    reset: Globs = (),
    dry_run: bool = False,
    wait: bool = False,
    min_yield: float | None = None,
    io_budget: int | None = None,
    max_runtime: str | float | None = None,
    max_bytes_per_second: int | None = None,
    hmac_key: Location | None = None,
    engine: Engine | None = None,
    progress: Progress | bool = False,
) -> CompactReport:
    """Keep the last record of every key and drop the rest, and commit each partition as a new generation of the store.

    archive: a log directory, or a folder of them; it is only read. store: gets state and new segments. topics: which
    topics; topics_from: files with a glob a line; both None: all; a list without any is a UsageError. exclude: not
    these topics. config: settings; None: Kafka's defaults. cleanup_policy: the policy of the topics that `topics`
    matches. now_ms: clock for lags and horizons, milliseconds since 1970; None: now. engine: who does the work,
    "spark", "threads" or "auto"; None: as the settings say, by default Spark. null_keys, gaps: what to do with records
    without key, and about offsets that no segment holds; None: as the settings say, by default fail. sealed: nothing
    appends to the archive any more, so clean the last segment too. force: compact every partition from its log start,
    due or not. reset: start these topics over where a partition diverged or has a gap. dry_run: write nothing. wait:
    wait for a run that works on the same partitions. min_yield, io_budget: by yield, the dead share from which a
    segment is rewritten, and the bytes that rewrites may read and write; None: as the settings say, and no limit.
    max_runtime: seconds, or text such as "1h30m", after which the run stops and commits what is finished.
    max_bytes_per_second: what all tasks together may read and write; None: as the settings say, by default no limit.
    hmac_key: the file that erase was given, for partitions of which a reset reads again what was erased. progress: True
    shows a bar on stderr.

    Partitions that were set aside are in the report, with exit code 3; with exit code 4 another run committed first.
    Raises a JobError (UsageError, RunningError, StorageError, ...) if the job stops, and TypeError for an argument of
    another type.
    """
    options = CompactOptions(
        archive=check_location("archive", archive),
        store=check_location("store", store),
        **_shared(topics, exclude, topics_from, config, max_bytes_per_second),
        engine=_engine(engine),
        cleanup_policy=_one_of("cleanup_policy", cleanup_policy, POLICIES[:1]),
        now_ms=check_now_ms(_number("now_ms", now_ms)),
        null_keys=_one_of("null_keys", null_keys, NULL_KEYS),
        gaps=_one_of("gaps", gaps, GAPS),
        sealed=_flag("sealed", sealed),
        force=_flag("force", force),
        reset=TopicFilter(parse_globs("--reset", globs)) if (globs := _texts("reset", reset)) else None,
        dry_run=_flag("dry_run", dry_run),
        wait=_flag("wait", wait),
        min_yield=_share("min_yield", min_yield),
        io_budget=_number("io_budget", io_budget, 0),
        max_runtime=_duration("max_runtime", max_runtime),
        hmac_key=None if hmac_key is None else check_location("hmac_key", hmac_key),
    )
    check_policy_has_topics(options.cleanup_policy, *options.topics.include)
    return _run("compact", options, progress)  # type: ignore[no-any-return]


@raises_job_errors
def erase(
    store: Location,
    hmac_key: Location,
    *,
    keys: Location | None = None,
    key: str | Iterable[str] = (),
    key_format: KeyFormat = "text",
    by: str = "",
    no_archive: bool = False,
    gaps: Gaps | None = None,
    check: bool = False,
    dry_run: bool = False,
    wait: bool = False,
    proof: Location | None = None,
    topics: Globs | None = None,
    exclude: Globs = (),
    topics_from: Location | Iterable[Location] | None = None,
    config: Settings | None = None,
    engine: Engine | None = None,
    progress: Progress | bool = False,
) -> EraseReport:
    """Erase every record of some keys from a store, so that they stay out, and search all its files for what is left.

    hmac_key: a file of yours, by which the store names erased keys. keys: a file with a key a line; key: one or
    several; key_format: "text", "hex" or "base64". by: who asked.
    no_archive: there is none any more. check: search only. dry_run: write nothing. proof: a new file for a
    proof of the search.
    gaps, wait, topics, exclude, topics_from, config, engine, progress: as of `compact`.

    `result` of the report is gone, older (what `vacuum --erased` deletes), held or unknown. Partitions that were set
    aside are in it, with exit code 3. Raises a JobError if the job stops, and TypeError for an argument of another
    type.
    """
    options = EraseOptions(
        store=check_location("store", store),
        hmac_key=check_location("hmac_key", hmac_key),
        **_shared(topics, exclude, topics_from, config),
        keys=_location_or_none("keys", keys),
        key=_texts("key", key, "keys"),
        key_format=_one_of("key_format", key_format, KEY_FORMATS),  # type: ignore[arg-type]  # one of these
        by=_text("by", by),
        no_archive=_flag("no_archive", no_archive),
        gaps=_one_of("gaps", gaps, GAPS),
        check=_flag("check", check),
        dry_run=_flag("dry_run", dry_run),
        wait=_flag("wait", wait),
        proof=_location_or_none("proof", proof),
        engine=_engine(engine),
    )
    return _run("erase", options, progress)  # type: ignore[no-any-return]


@raises_job_errors
def verify(
    archive: Location | None = None,
    *,
    store: Location | None = None,
    generation: int | None = None,
    archive_moved: Location | None = None,
    topics: Globs | None = None,
    exclude: Globs = (),
    topics_from: Location | Iterable[Location] | None = None,
    config: Settings | None = None,
    gaps: Gaps | None = None,
    sealed: bool = False,
    engine: Engine | None = None,
    progress: Progress | bool = False,
) -> VerifyReport:
    """Check every byte of an archive, or of a generation of a store; give one of the two.

    generation: of the store; None: the current one of each partition. archive_moved: where the store's archive is now
    (`--archive`). topics, exclude, topics_from, config, gaps, engine, progress: as of `compact`, but for the engine's
    default, auto: Spark on a cluster, or for many bytes. sealed: check the last segment as one that nothing appends to.

    Problems are in the report, with exit code 3. Raises a JobError if the job stops, and TypeError for an argument of
    another type.
    """
    options = VerifyOptions(
        archive=_location_or_none("archive", archive), store=_location_or_none("store", store),
        generation=_number("generation", generation, 1),
        archive_moved=_location_or_none("archive_moved", archive_moved),
        **_shared(topics, exclude, topics_from, config),
        engine=_engine(engine), gaps=_one_of("gaps", gaps, GAPS), sealed=_flag("sealed", sealed),
    )  # fmt: skip
    if (options.archive is None) == (options.store is None):
        raise UsageError(message="verify needs either ARCHIVE or --store STORE")
    if options.store is None and (options.generation is not None or options.archive_moved is not None):
        raise UsageError(message="--generation and --archive work only with --store")
    return _run("verify", options, progress)  # type: ignore[no-any-return]


@raises_job_errors
def reindex(
    archive: Location,
    *,
    check: bool = False,
    output: Location | None = None,
    in_place: bool = False,
    partitions: str | Iterable[int] | None = None,
    skip_crc: bool = False,
    exact: bool = False,
    topics: Globs | None = None,
    exclude: Globs = (),
    topics_from: Location | Iterable[Location] | None = None,
    config: Settings | None = None,
    engine: Engine | None = None,
    progress: Progress | bool = False,
) -> ReindexReport:
    """Rebuild the index files of an archive from its logs; give one of check, output and in_place.

    check: show what is wrong, and write nothing. output: write the rebuilt files to this new or empty folder. in_place:
    replace wrong files in the archive, one by one, never a `.log`. partitions: numbers, or text such as "0,3-5"; None:
    all. skip_crc: read only batch headers. exact: in place, also replace right files that differ from Kafka's bytes.
    topics, exclude, topics_from, config, engine, progress: as of `compact`.

    Wrong files are in the report, with exit code 3 if any stays wrong. Raises a JobError if the job stops
    (kind LOG_DIRECTORY_IN_USE: a broker holds the archive), and TypeError for an argument of another type.
    """
    where = _location_or_none("output", output)
    asked = {"check": _flag("check", check), "output": where is not None, "in_place": _flag("in_place", in_place)}
    chosen = [mode for mode in ("check", "output", "in_place") if asked[mode]]
    if len(chosen) != 1:
        raise UsageError(message="reindex needs one of --check, --output DIR and --in-place")
    options = ReindexOptions(
        archive=check_location("archive", archive),
        mode=chosen[0],  # type: ignore[arg-type]  # one of the three above
        partitions=_partitions(partitions),
        output=where,
        skip_crc=_flag("skip_crc", skip_crc),
        exact=_flag("exact", exact),
        **_shared(topics, exclude, topics_from, config),
        engine=_engine(engine),
    )
    if options.exact and not in_place:
        raise UsageError(message="--exact works only with --in-place")
    return _run("reindex", options, progress)  # type: ignore[no-any-return]


@raises_job_errors
def restore(
    store: Location,
    output: Location,
    *,
    generation: int | None = None,
    as_of: int | str | None = None,
    archive: Location | None = None,
    full_clean: bool = False,
    max_bytes_per_second: int | None = None,
    topics: Globs | None = None,
    exclude: Globs = (),
    topics_from: Location | Iterable[Location] | None = None,
    config: Settings | None = None,
    progress: Progress | bool = False,
) -> RestoreReport:
    """Copy a generation of a store into a log directory that a broker starts on.

    output: a new or empty folder. generation: None: the current one of each partition. as_of: instead the one that was
    current then, in milliseconds since 1970 or as ISO 8601. archive: where the store's archive is now, if it has moved.
    full_clean: first clean what a broker would clean again, in a run of `compact`, with the settings of config or, for
    topics without any, of their last run. max_bytes_per_second, topics, exclude, topics_from, progress: of `compact`.

    Raises a JobError if the job stops (kinds MISSING_FILE: a file of the generation is gone; NOT_EMPTY;
    NOT_CLEANED: full_clean found a problem), and TypeError for an argument of another type.
    """
    options = RestoreOptions(
        store=check_location("store", store),
        output=check_location("output", output),
        generation=_number("generation", generation, 1),
        as_of_ms=parse_time(as_of) if isinstance(as_of, str) else _number("as_of", as_of),
        archive=_location_or_none("archive", archive),
        full_clean=_flag("full_clean", full_clean),
        **_shared(topics, exclude, topics_from, config, max_bytes_per_second),
    )
    if options.generation is not None and options.as_of_ms is not None:
        raise UsageError(message="--generation and --as-of both name a generation: give only one of them")
    if options.full_clean and (options.generation is not None or options.as_of_ms is not None):
        named = "--generation" if options.as_of_ms is None else "--as-of"
        raise UsageError(message=f"--full-clean makes a new generation of the current one: leave out {named}")
    return _run("restore", options, progress)  # type: ignore[no-any-return]


@raises_job_errors
def convert(
    archive: Location | None = None,
    *,
    to: Literal["v2", "v3"],
    output: Location,
    store: Location | None = None,
    topics: Globs | None = None,
    exclude: Globs = (),
    topics_from: Location | Iterable[Location] | None = None,
    config: Settings | None = None,
    engine: Engine | None = None,
    progress: Progress | bool = False,
) -> ConvertReport:
    """Write an archive, or the current generation of each partition of a store, in another message format.

    to: "v3", the format of ours, or "v2", Kafka's. output: a new or empty folder, or one in which the same call was cut
    off, which then goes on. archive or store: one of the two; it is only read. topics, exclude, topics_from, config,
    engine, progress: as of `compact`.

    Raises a JobError if the job stops (kinds NOT_EMPTY; CONVERT_FULL: the disk is full), and TypeError for
    an argument of another type.
    """
    options = ConvertOptions(
        archive=_location_or_none("archive", archive),
        output=check_location("output", output),
        to=_one_of("to", to, ("v3", "v2")),  # type: ignore[arg-type]  # one of these
        store=_location_or_none("store", store),
        engine=_engine(engine),
        **_shared(topics, exclude, topics_from, config),
    )
    return _run("convert", options, progress)  # type: ignore[no-any-return]


def _run(job: str, options: Any, progress: Progress | bool) -> Any:
    """Run a job, and return its report. Close the progress if this function opened it."""
    if not isinstance(progress, bool):
        return imported(job).run(options, progress)
    with closing(Bar() if progress else Silent()) as shown:
        return imported(job).run(options, shown)


# -- arguments: click has checked those of the command line; those of a Python program may be anything


def _location_or_none(name: str, value: object) -> str | None:
    return None if value is None else check_location(name, value)


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise wrong_type(name, "True or False", value)
    return value


def _number(name: str, value: object, least: int | None = None) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong_type(name, "a whole number", value)
    if least is not None and value < least:
        raise UsageError(message=f"{_option(name)}: expected at least {least}, found {value}")
    return value


def _duration(name: str, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, str):
        return parse_duration(_option(name), value)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise wrong_type(name, "seconds, or text such as '1h30m'", value)
    if not 0 < value < 10**12:
        raise UsageError(message=f"{_option(name)}: expected seconds above 0, found {value}")
    return float(value)


def _share(name: str, value: object) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise wrong_type(name, "a number", value)
    if not 0 <= value <= 1:
        raise UsageError(message=f"{_option(name)}: expected a number from 0 to 1, found {value}")
    return float(value)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise wrong_type(name, "text", value)
    return value


def _one_of(name: str, value: object, allowed: Iterable[str]) -> str | None:
    if value is None:
        return None
    text = _text(name, value)
    if text not in allowed:
        raise UsageError(message=f"{_option(name)}: expected {' or '.join(allowed)}, found {text!r}")
    return text


def _engine(value: object) -> Engine | None:
    return _one_of("engine", value, ENGINES)  # type: ignore[return-value]  # one of these


def _texts(name: str, value: object, what: str = "globs of topics") -> tuple[str, ...]:
    found = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else None
    if found is None or not all(isinstance(text, str) for text in found):
        raise wrong_type(name, f"{what} as text, or several of them", value)
    return found


def _some(name: str, what: str, value: object) -> tuple[Any, ...]:
    """Return the values of what narrows a run; (): it is not given. Raise UsageError if there is none."""
    if value is None:
        return ()
    found = (value,) if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
    if not found:  # what follows would take it for "all"
        raise UsageError(message=f"{_option(name)}: expected at least one {what}, found none; leave it out to take all")
    return found


def _topics(topics: object, exclude: object, topics_from: object) -> TopicFilter:
    globs = _some("topics", "glob", topics if topics is None else _texts("topics", topics))
    files = [check_location("topics_from", file) for file in _some("topics_from", "file", topics_from)]
    return parse_topics(globs, _texts("exclude", exclude), files)


def _partitions(value: object) -> tuple[range, ...] | None:
    if value is None or isinstance(value, str):
        return parse_partitions(value)
    numbers = tuple(value) if isinstance(value, Iterable) else None
    if not numbers or not all(isinstance(number, int) and not isinstance(number, bool) for number in numbers):
        raise wrong_type("partitions", "numbers of partitions, or text such as '0,3-5'", value)
    return tuple(range(number, number + 1) for number in numbers)


def _shared(topics: object, exclude: object, files: object, config: object, limit: object = None) -> dict[str, Any]:
    """Return the options that every job has."""
    settings = settings_of(config)
    if (n := _number("max_bytes_per_second", limit, 1)) is not None:
        settings = replace(settings, job=replace(settings.job, max_bytes_per_second=n))
    return {"topics": _topics(topics, exclude, files), "config": settings}


def settings_of(value: object) -> Config:
    """Return settings: checked ones as they are, tables as dictionaries, or a file's."""
    if isinstance(value, Config):
        return value
    if isinstance(value, Mapping):
        return parse_config(value)
    return load_config(None if value is None else check_location("config", value))


def _option(name: str) -> str:
    """Return an argument's name as the command line's messages write it."""
    return f"--{name.replace('_', '-')}"
