"""What stops a job. One root; the message's template, the exit code and the hint belong to the class.

What is wrong with *data* is a row in PROBLEMS and sets one partition aside. An error of this module ends the job.
"""

from __future__ import annotations

from typing import ClassVar

from jobs.installation import SETTINGS

# The exit codes of every job. Others script against them.
DONE = 0  # done, or nothing due
UNEXPECTED = 1  # a defect of ours, outside of any partition: a traceback follows
USAGE = 2  # a wrong option, setting or path
PROBLEMS = 3  # partitions set aside, or verify or restore found problems
CONFLICT = 4  # another run was there first
ENVIRONMENT = 5  # Java, jars, disk


class JobError(Exception):
    """Root of all that a job raises on purpose.

    `fields` fill the class's `template`; path, position, expected and found are also given to programs (`to_json`).
    """

    template: ClassVar[str] = "{message}"
    exit_code: ClassVar[int] = UNEXPECTED
    hint: ClassVar[str] = ""

    def __init__(self, **fields: object) -> None:
        self.fields = fields
        super().__init__(self.template.format(**fields))

    def __reduce__(self) -> tuple[object, ...]:  # crosses process borders with every field
        return _rebuild, (type(self), self.fields)

    @property
    def advice(self) -> str:
        """What to do about it; empty where nothing can be said."""
        return self.hint.format(**self.fields)

    def line(self) -> str:
        """The one line that is shown to a person."""
        return "; ".join(filter(None, (str(self), *getattr(self, "__notes__", ()), self.advice)))

    def to_json(self) -> dict[str, object]:
        """The same for a program."""
        return {
            "kind": type(self).__name__,
            "exit_code": self.exit_code,
            "message": "; ".join((str(self), *getattr(self, "__notes__", ()))),
            "hint": self.advice,
            **{key: self.fields.get(key) for key in ("path", "position", "expected", "found")},
        }


def _rebuild(kind: type[JobError], fields: dict[str, object]) -> JobError:
    return kind(**fields)


class UsageError(JobError):
    """An option that cannot be, alone or beside another."""

    exit_code = USAGE


class UnknownSettingError(UsageError):
    """A key that no setting has."""

    template = "{path}: {table}: unknown setting {found!r}{expected}"
    hint = f"{SETTINGS} lists every setting"


class BadSettingError(UsageError):
    """A value outside what its setting allows."""

    template = "{path}: {table}: {setting}: expected {expected}, found {found}"


class ConfigFileError(UsageError):
    """A settings file that cannot be read or parsed."""

    template = "{path}: expected {expected}, found {found}"


class NowError(UsageError):
    """A --now that is no epoch time in milliseconds."""

    template = "--now: expected {expected}, found {found}"
    hint = "without this option the clock is the current time"


class PolicyError(UsageError):
    """--cleanup-policy against a topic's own table."""

    template = "topic {topic}: --cleanup-policy {found}, but its own table says cleanup.policy = {expected}"
    hint = "change that table, or narrow --topics"


class MissingPathError(UsageError):
    """An archive or store that is not there."""

    template = "{path}: expected {expected}, found {found}"


class MissingBucketError(MissingPathError):
    """A bucket that is not there."""

    template = "{path}: {expected}"
    hint = "check the name and the endpoint (AWS_ENDPOINT_URL, AWS_PROFILE)"


class NotEmptyError(UsageError):
    """An output folder that holds something."""

    template = "{path}: expected an empty or absent folder, found {found}"
    hint = "nothing was written; choose another --output"


class NoGenerationError(UsageError):
    """A generation that the store does not hold, or whose files are gone."""

    template = "{partition}: generation {found}: {reason}; expected {expected}"
    hint = "vacuum deletes a generation's files after its grace period"


class UndecidedError(UsageError):
    """Folders of generations that do not say which one counts."""

    template = "{path}: expected {expected}, found {found}"
    hint = "nothing was written; for each of them give --choose TOPIC-N=RUN_ID, or TOPIC-N=none to leave it out"


class DataLossError(JobError):
    """What a stream has still to read, and is not there any more."""

    template = "{path}: expected {expected}, where the stream continues, found {found}"
    exit_code = PROBLEMS
    hint = "to continue with what is left, set failOnDataLoss=false"


class LostRunError(JobError):
    """A partition whose newest run the table of runs lacks: which runs made its generations is not known."""

    template = "{partition}: the run that made its generation is not in the table cleaner_runs"
    exit_code = PROBLEMS
    hint = "rebuild-state brings it back"


class MissingFileError(JobError):
    """A file that a generation names and that is not there, or not what it was."""

    template = "{path}: expected {expected}, found {found}"
    exit_code = PROBLEMS
    hint = (
        "if the archive has moved, give --archive URI; else bring these files back from a copy; compact --force makes "
        "new ones of those beside the logs"
    )


class ManifestError(JobError):
    """The manifest in a generation's folder that is not what was written there."""

    template = "{path}: expected {expected}, found {found}"
    exit_code = PROBLEMS
    hint = "restore this file from a copy"


class DamagedTableError(JobError):
    """A file of the store's tables that is not what was written there, or is gone."""

    template = "{path}: expected {expected}, found {found}"
    exit_code = PROBLEMS
    hint = "restore this file from a copy, or move the folder state away and run rebuild-state"


class LogStartError(JobError):
    """A generation whose log start lies above its end: one of a version that believed any checkpoint."""

    template = "{path}: expected a log start of at most {expected}, where the generation ends, found {found}"
    exit_code = PROBLEMS
    hint = "a broker would delete it all: give another --generation, or start over with compact --reset"


class ConflictError(JobError):
    """Another run committed first, or still writes."""

    template = "{path}: expected {expected}, found {found}"
    exit_code = CONFLICT
    hint = "what the other run committed stays; run again"


class LogDirectoryInUseError(ConflictError):
    """A log directory in which files are to be replaced, and that somebody else holds."""

    template = "{path}: expected a log directory that nobody uses, found {found}"
    hint = "nothing was written; stop the broker, or work on a copy, or give --output DIR"


class MachineError(JobError):
    """Something that the machine lacks."""

    exit_code = ENVIRONMENT


class JavaError(MachineError):
    """No Java, or one that is too old."""

    template = "Spark needs Java 17 or newer, found {found}"
    hint = "install a JDK or JRE (Debian: apt install openjdk-17-jre-headless) and set JAVA_HOME or PATH"


class MissingExtraError(MachineError):
    """A package that is installed only on request."""

    template = "{what} needs the package {package}, which is not installed"
    hint = "{install}"


class JarsError(MachineError):
    """Delta's jars cannot be had."""

    template = "Delta's jars ({expected}) could not be fetched: {found}"
    hint = "{advice}"


class ForeignJarError(MachineError):
    """A jar of Delta's that is not the one that is published."""

    template = "{path}: expected {expected}, found {found}"
    hint = (
        "this is not the jar that Maven Central has: find out who put it there, then delete the folders jars and cache "
        "there; Spark fetches it again"
    )


class SparkStartError(MachineError):
    """Spark's JVM ended before it answered."""

    template = "Spark did not start: {found}"
    hint = "check --driver-memory and the options before the job's name"


class JvmEndedError(MachineError):
    """Spark's JVM ended while a job worked."""

    template = "Spark's JVM ended in the middle of the job: {found}"
    hint = (
        "what was committed stays; run again. If the kernel killed it for memory (see dmesg), use fewer cores "
        "(--master local[2]); if its heap was full, give it more (--driver-memory); if it could not make a folder, "
        "free space there or name another one (--conf spark.local.dir=DIR)"
    )


class WorkerEndedError(MachineError):
    """A Python worker of Spark's was killed, or crashed, while a job worked."""

    template = "a Python worker of Spark ended in the middle of the job: {found}"
    hint = (
        "what was committed stays; run again. If the kernel killed it for memory (see dmesg), use fewer cores "
        "(--master local[2]) or give executors more memory; if it crashes again, please report it"
    )


class UnsureCommitError(MachineError):
    """A commit that was sent, and a store that does not say whether it was made."""

    template = "{path}: the commit was sent, and the store does not answer whether it was made: {found}"
    hint = "nothing is half done: once the store can be reached, run again; what was committed stays"


class NotExclusiveError(MachineError):
    """A place where nothing decides which of two commits was first."""

    template = "{path}: a store cannot be kept there: expected {expected}, found {found}"
    hint = "nothing was written; choose another --store"


class StorageError(MachineError):
    """A bucket that cannot be used as things are; `expected` says how, `found` what the server or library said."""

    template = "{path}: {expected}: {found}"
    hint = "what was committed stays: run again"


class UnreachableError(StorageError):
    """An endpoint that does not answer."""

    hint = (
        "check the endpoint (AWS_ENDPOINT_URL, or the profile's endpoint_url), the network, proxies and certificates "
        "(AWS_CA_BUNDLE); what was committed stays: run again"
    )


class BusyError(StorageError):
    """A server that refuses for a while."""


class DeniedError(StorageError):
    """Credentials that are not known, or not allowed."""

    hint = (
        "the credentials (AWS_ACCESS_KEY_ID, AWS_PROFILE, or the machine's role) must be the right ones for this "
        "endpoint, and allow ListBucket and GetObject, and for a store PutObject and DeleteObject"
    )


class WrongRegionError(StorageError):
    """Requests signed for another region than the bucket's."""

    hint = "set AWS_REGION to the bucket's region, and AWS_ENDPOINT_URL to that region's endpoint, or to none"


class NoCredentialsError(StorageError):
    """Nothing to sign requests with."""

    hint = (
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; for a profile that assumes a role, export "
        "its credentials (aws configure export-credentials --format env)"
    )


class ExpiredCredentialsError(StorageError):
    """A session that is over."""

    hint = "log in again, or renew AWS_SESSION_TOKEN with its keys; what was committed stays: run again"


class DiskFullError(MachineError):
    """No space left."""

    template = "{path}: no space left: {found}"
    hint = (
        "free space on this disk and run again; what was committed stays. If the store has a generation, vacuum "
        "deletes what none needs; what this run left goes with a vacuum after the next commit"
    )


class FileSystemError(MachineError):
    """A file or folder of this machine that could not be read or written, for no fault of its contents."""

    template = "{path}: {found}"
    hint = (
        "see to the disk, the permissions or the limit of open files (ulimit -n), and run again; what was committed "
        "stays"
    )


class RestoreFullError(DiskFullError):
    """No space left for a restored log directory."""

    hint = "free space and run again; this run removed what it had written, and the store is unchanged"


class OutputFullError(DiskFullError):
    """No space left for rebuilt index files."""

    hint = "free space and run again; files replaced so far are complete, and --output needs an empty folder"
