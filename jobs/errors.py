"""Errors that stop a job. They have one root; message template, exit code and hint belong to the class.

A fault in *data* is a row in PROBLEMS and sets one partition aside. An error of this module ends the job.
"""

from __future__ import annotations

from typing import ClassVar

from lastkey.jobs.installation import SETTINGS

# The exit codes of every job. Others script against them.
DONE = 0  # done, or nothing due
UNEXPECTED = 1  # a defect of ours, outside of any partition: a traceback follows
USAGE = 2  # a wrong option, setting or path
PROBLEMS = 3  # partitions set aside, or verify or restore found problems
CONFLICT = 4  # another run was there first
ENVIRONMENT = 5  # Java, jars, disk
PARTIAL = 6  # --max-runtime is over: what is finished is committed

_FOUND = "{path}: expected {expected}, found {found}"


class JobError(Exception):
    """Root of all errors that a job raises on purpose.

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
        """Advice on what to do; empty if there is none."""
        return self.hint.format(**self.fields)

    def line(self) -> str:
        """Return the one line that is shown to a person."""
        return "; ".join(filter(None, (self.args[0], *getattr(self, "__notes__", ()), self.advice)))

    def to_json(self) -> dict[str, object]:
        """Return the error for programs."""
        return {
            "kind": type(self).__name__,
            "exit_code": self.exit_code,
            "message": "; ".join((self.args[0], *getattr(self, "__notes__", ()))),
            "hint": self.advice,
            **{key: self.fields.get(key) for key in ("path", "position", "expected", "found")},
        }


def _rebuild(kind: type[JobError], fields: dict[str, object]) -> JobError:
    return kind(**fields)


class UsageError(JobError):
    """An invalid option, or options that contradict each other."""

    exit_code = USAGE

    def __str__(self) -> str:  # callers of a data source, or of a notebook's function, see no more than this
        return "; ".join(filter(None, (self.args[0], self.advice)))


class UnknownNameError(UsageError):
    """An unknown name or value; `near`: known ones."""

    hint = "{near}"


class UnknownSettingError(UnknownNameError):
    """A key that is no setting."""

    template = "{path}: {table}: unknown setting {found!r}"
    hint = f"{{near}}; {SETTINGS} lists every setting"


class BadSettingError(UsageError):
    """A value outside what its setting allows."""

    template = "{path}: {table}: {setting}: expected {expected}, found {found}"


class ConfigFileError(UsageError):
    """A settings file that cannot be read or parsed."""

    template = _FOUND


class NowError(UsageError):
    """A --now that is no epoch time in milliseconds."""

    template = "--now: expected {expected}, found {found}"
    hint = "{advice}"


class PolicyError(UsageError):
    """--cleanup-policy against a topic's own table."""

    template = "topic {topic}: --cleanup-policy {found}, but its own table says cleanup.policy = {expected}"
    hint = "change that table, or leave the topic out with --exclude"


class MissingPathError(UsageError):
    """An archive or store that does not exist."""

    template = _FOUND


class OutputExistsError(UsageError):
    """A file where a new one should be written."""

    template = "{path}: expected no such file yet"
    hint = "remove it, name another one, or give --replace"


class MissingBucketError(MissingPathError):
    """A bucket that does not exist."""

    template = "{path}: {reason}"
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
    """Folders of generations that do not tell which one counts."""

    template = _FOUND
    hint = "nothing was written; for each of them give --choose TOPIC-N=RUN_ID, or TOPIC-N=none to leave it out"


class DataLossError(JobError):
    """Records that a stream has still to read, and that are gone."""

    template = "{path}: expected {expected}, where the stream continues, found {found}"
    exit_code = PROBLEMS
    hint = "to continue with what is left, set failOnDataLoss=false"


class LostRunError(JobError):
    """A partition whose newest run the table of runs lacks, so that nobody knows which runs made its generations."""

    template = "{partition}: the run that made its generation is not in the table cleaner_runs"
    exit_code = PROBLEMS
    hint = "rebuild-state brings it back"


class MissingFileError(JobError):
    """A `.log` that a generation names, or files with one among them, missing or changed."""

    template = _FOUND
    exit_code = PROBLEMS
    hint = (
        "if the archive has moved, give --archive URI; else bring these files back from a copy, restore an older "
        "--generation, or remove what was cut short, and compact --force --reset TOPIC, with --gaps accept if need be"
    )


class MissingSideFileError(MissingFileError):
    """An index, or another file beside a log, that a generation names, missing or changed."""

    hint = "bring these files back from a copy, or make new ones: compact --force, for a .txnindex with --reset TOPIC"


class OtherFormatError(JobError):
    """A segment of magic 3 that cannot be written in magic 2, which brokers read."""

    template = "{path} at byte {position}: expected {expected}, found {found}"
    exit_code = PROBLEMS
    hint = "nothing was restored; with --config give the settings that compact ran with"


class ManifestError(JobError):
    """A manifest in a generation's folder that differs from the one that was written."""

    template = _FOUND
    exit_code = PROBLEMS
    hint = "restore this file from a copy"


class DamagedTableError(JobError):
    """A file of the store's tables that is missing or changed."""

    template = _FOUND
    exit_code = PROBLEMS
    hint = "restore this file from a copy, or move the folder state away and run rebuild-state"


class DamagedAuditError(JobError):
    """A file of the tables of audits that is damaged."""

    template = _FOUND
    exit_code = PROBLEMS
    hint = "delete this file: what it held is read again from the logs"


class LogStartError(JobError):
    """A generation whose log start lies above its end, made by a version that believed any checkpoint."""

    template = "{path}: expected a log start of at most {expected}, where the generation ends, found {found}"
    exit_code = PROBLEMS
    hint = "a broker would delete it all: give another --generation, or start over with compact --reset"


class NotCleanedError(JobError):
    """A partition that --full-clean could not clean."""

    template = _FOUND
    exit_code = PROBLEMS
    hint = "nothing was restored; without --full-clean restore copies the generation that is there"


class ConflictError(JobError):
    """Another run committed first, or still writes."""

    template = _FOUND
    exit_code = CONFLICT
    hint = "what the other run committed stays; run again"


class RunningError(ConflictError):
    """Another run has a valid lease on the same partitions."""

    hint = (
        "nothing was done; --wait waits for that run, and other --topics may run beside it. If that run was killed, "
        "its lease expires {reason} after the last renewal: run again then"
    )


class RunningMeanwhileError(RunningError):
    """Another run works on partitions that a job wants to compact first, and that job has no --wait."""

    hint = (
        "nothing was done; run again when that run has ended. If that run was killed, its lease expires {reason} after "
        "the last renewal"
    )


class LogDirectoryInUseError(ConflictError):
    """A log directory with files to replace that somebody else holds."""

    template = "{path}: expected a log directory that nobody uses, found {found}"
    hint = "nothing was written; stop the broker, or work on a copy, or give --output DIR"


class MachineError(JobError):
    """Something that the machine lacks."""

    exit_code = ENVIRONMENT


class JavaError(MachineError):
    """No Java, or a version that is too old."""

    template = "Spark needs Java 17 or newer, found {found}"
    hint = "install a JDK or JRE (Debian: apt install openjdk-17-jre-headless) and set JAVA_HOME or PATH"


class JarsError(MachineError):
    """Jars are missing, and could not be fetched."""

    template = "{what} could not be fetched: {found}"
    hint = "{advice}"


class SparkStartError(MachineError):
    """Spark's JVM ended before it answered, or it made no session."""

    template = "Spark did not start: {found}"
    hint = (
        "check the options before the job's name, the settings that SPARK_CONF_DIR and the environment bring, and the "
        "limits of this shell (ulimit -n, -u, -v)"
    )


class PackageError(MachineError):
    """A package that a pack needs, and that this environment does not have as pip installs it."""

    template = "{what}: expected it in this environment, found {found}"
    hint = "pack from an environment that pip filled, such as the one that ./spark-submit.sh makes"


class DriverPackageError(MachineError):
    """A package that drivers need and executors do without."""

    template = "this driver lacks the package {what}"
    hint = "a driver that runs by a pack needs one that `pack --driver` made"


class MasterError(MachineError):
    """An impossible master, or one that does not answer."""

    template = "{what}: expected {expected}, found {found}"
    hint = "--master local[N] runs on N cores of this machine and needs no cluster"


class ConnectorError(MachineError):
    """A file system that Spark's own code needs and has no jar for."""

    template = "{path}: Spark itself keeps a table there, and needs {expected}: {found}"
    hint = "before the job's name give {give}, and, but for S3 and Azure, how to reach it: --conf spark.hadoop.fs...="


class WorkerSetupError(MachineError):
    """A Python in which Spark's tasks cannot run."""

    template = "Spark's Python workers cannot run Lastkey: {found}"
    hint = (
        "every node needs this version of Lastkey with its packages, and the same Python: send a pack (--archives "
        "lastkey.tar.gz#lastkey before the job's name; the job pack makes it), or name theirs with PYSPARK_PYTHON"
    )


class JvmEndedError(MachineError):
    """Spark's JVM ended while a job worked."""

    template = "Spark's JVM ended in the middle of the job: {found}"
    hint = (
        "what was committed stays; run again. If the kernel killed it for memory (see dmesg), use fewer cores "
        "(--master local[2]); if its heap was full, give it more (--driver-memory); if it could start no thread, allow "
        "more (ulimit -u, a container's limit of pids); if it could not make a folder, free space there or name "
        "another one (--conf spark.local.dir=DIR)"
    )


class ProcessLimitError(MachineError):
    """The machine refused a thread or a process."""

    template = "no more threads or processes can be started here: {found}"
    hint = "allow more (ulimit -u, a container's limit of pids) and run again; what was committed stays"


class SparkEndedError(MachineError):
    """Somebody other than the job ended Spark while it worked: a cluster its application, a program its session."""

    template = "Spark ended in the middle of the job: {found}"
    hint = (
        "what was committed stays; run again. Spark's lines above, or the cluster's logs (yarn logs -applicationId "
        "ID), say who ended it: a person, a limit of the queue, too many executors that failed"
    )


class WorkerEndedError(MachineError):
    """Python workers, or executors with all of theirs, that were killed or crashed until Spark gave up."""

    template = "a worker of Spark ended in the middle of the job: {found}"
    hint = (
        "what was committed stays; run again. If the kernel killed it for memory (see dmesg), use fewer cores "
        "(--master local[2]) or give executors more memory; if it crashes again, please report it"
    )


class SparkLimitError(MachineError):
    """A limit of Spark's that the results of a job exceed."""

    template = "Spark ended the job: {found}"
    hint = "raise that setting (--conf spark.driver.maxResultSize=2g before the job's name) and run again"


class UnsureCommitError(MachineError):
    """A commit that was sent, to a store that does not say whether it was made."""

    template = "{path}: the commit was sent, but the store did not confirm it: {found}"
    hint = "nothing is half done: once the store can be reached, run again; what was committed stays"


class NotExclusiveError(MachineError):
    """A place where nothing decides which of two commits was first."""

    template = "{path}: a store cannot be kept there: expected {expected}, found {found}"
    hint = "nothing was written; choose another --store"


class StorageError(MachineError):
    """A bucket that cannot be used as things are; `reason` says why, `found` has the words of the server or library."""

    template = "{path}: {reason}: {found}"
    hint = "what was committed stays: run again"


class UnavailableError(StorageError):
    """A server of a bucket that cannot be reached, does not answer in time, or refuses for a while."""

    hint = (
        "check the endpoint (AWS_ENDPOINT_URL, AZURE_STORAGE_ENDPOINT, STORAGE_EMULATOR_HOST, or the profile's "
        "endpoint_url), the network and certificates (AWS_CA_BUNDLE); what was committed stays: run again"
    )


class DeniedError(StorageError):
    """Credentials that are missing, unknown, or not allowed."""

    hint = (
        "the credentials (AWS_ACCESS_KEY_ID, AWS_PROFILE; AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN, az "
        "login; GOOGLE_APPLICATION_CREDENTIALS, gcloud auth application-default login; the machine's role) must be the "
        "right ones for this endpoint and region (AWS_REGION), and allow to list and read, and for a store to write "
        "and delete"
    )


class ExpiredCredentialsError(StorageError):
    """A session that has expired."""

    hint = "log in again, or renew AWS_SESSION_TOKEN or AZURE_STORAGE_SAS_TOKEN; what was committed stays: run again"


class DiskFullError(MachineError):
    """No space left."""

    template = "{path}: no space left: {found}"
    hint = (
        "free space on this disk and run again; what was committed stays. If the store has a generation, vacuum "
        "deletes what no generation needs and, after the next commit, what this run left"
    )


class FileSystemError(MachineError):
    """A file or folder of this machine that could not be read or written, through no fault of its contents."""

    template = "{path}: {found}"
    hint = "check the disk, the permissions and ulimit -n (open files), and run again; what was committed stays"


class RestoreFullError(DiskFullError):
    """No space left for a restored log directory."""

    hint = "free space and run again; this run removed what it had written, and the store is unchanged"


class ConvertFullError(DiskFullError):
    """No space left for converted logs."""

    hint = "free space and run again with the same --output: it goes on with what is there"


class OutputFullError(DiskFullError):
    """No space left for rebuilt index files."""

    hint = "free space and run again; files replaced so far are complete, and --output needs an empty folder"
