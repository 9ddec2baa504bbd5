"""Errors that stop a job: a few classes, by the reaction of a caller, and one table of their kinds.

A problem in *data* is a `udfs.problem.Problem` and stops one partition. An error of this module ends the job.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Final, Generic, TypeVar

from lastkey.jobs.installation import SETTINGS

# The exit codes of every job. Others script against them.
DONE = 0  # done, or no partition due
UNEXPECTED = 1  # a defect of ours, outside of any partition: a traceback follows
USAGE = 2  # a wrong option, setting or path
PROBLEMS = 3  # uncleanable partitions, or problems found by verify or restore
CONFLICT = 4  # another run was there first
ENVIRONMENT = 5  # Java, jars, disk
PARTIAL = 6  # --max-runtime is over: what is finished is committed


class JobError(Exception):
    """Root of all errors that a job raises on purpose. Its class has the exit code, its `kind` the words.

    `fields` fill the template and the hint of the kind; path, position, expected and found are also given to programs
    (`to_json`). A class that is called itself has the kind of its own name: `UsageError(message=...)`.
    """

    exit_code: ClassVar[int] = UNEXPECTED

    def __init__(self, kind: Kind[JobError] | None = None, /, **fields: object) -> None:
        self.kind = kind or KINDS[type(self).__name__]
        self.fields = fields
        super().__init__(self.kind.template.format(**fields))

    def __reduce__(self) -> tuple[object, ...]:  # crosses process borders with every field
        return _rebuild, (self.kind.name, self.fields)

    @property
    def advice(self) -> str:
        """Advice on what to do; empty if there is none."""
        return self.kind.hint.format(**self.fields)

    def line(self) -> str:
        """Return the one line that is shown to a person."""
        return "; ".join(filter(None, (self.args[0], *getattr(self, "__notes__", ()), self.advice)))

    def to_json(self) -> dict[str, object]:
        """Return the error for programs."""
        return {
            "kind": self.kind.name,
            "exit_code": self.exit_code,
            "message": "; ".join((self.args[0], *getattr(self, "__notes__", ()))),
            "hint": self.advice,
            **{key: self.fields.get(key) for key in ("path", "position", "expected", "found")},
        }


def _rebuild(name: str, fields: dict[str, object]) -> JobError:
    return KINDS[name](**fields)


class UsageError(JobError):
    """Impossible request: an option, a setting, a path."""

    exit_code = USAGE

    def __str__(self) -> str:  # callers of a data source, or of a notebook's function, see no more than this
        return "; ".join(filter(None, (self.args[0], self.advice)))


class UnknownNameError(UsageError):
    """A name that is not known here."""


class MissingPathError(UsageError):
    """An archive, store, file or bucket that does not exist."""


class DataError(JobError):
    """A store or archive that does not hold what a job needs of it."""

    exit_code = PROBLEMS


class GenerationError(DataError):
    """A generation whose manifest is damaged or lost."""


class ConflictError(JobError):
    """Another run committed first, or still works."""

    exit_code = CONFLICT


class RunningError(ConflictError):
    """Another run has a valid lease on the same partitions."""


class MachineError(JobError):
    """Something that the machine, or a server, lacks."""

    exit_code = ENVIRONMENT


class StorageError(MachineError):
    """A bucket that cannot be used as things are."""


class FileSystemError(MachineError):
    """A file or folder of this machine that could not be read or written, through no fault of its contents."""


E_co = TypeVar("E_co", bound=JobError, covariant=True)
_FOUND: Final = "{path}: expected {expected}, found {found}"
_AT: Final = "{path} at byte {position}: expected {expected}, found {found}"


@dataclass(frozen=True)
class Kind(Generic[E_co]):
    """Kind of an error: a row of the table below and of the reference page, and JSON's `error.kind`, which is `name`.

    template, hint: the message, and what to do, each with an error's fields in braces; cause: for the page.
    """

    name: str
    error_class: type[E_co]
    template: str = _FOUND
    _: KW_ONLY
    cause: str
    hint: str = ""

    def __call__(self, **fields: object) -> E_co:
        """Return an error of this kind, to be raised; `fields` are those in the braces."""
        return self.error_class(self, **fields)


# fmt: off
USAGE_ERROR: Final = Kind("UsageError", UsageError,
    "{message}",
    cause="An invalid option, or options that contradict each other.")
UNKNOWN_NAME: Final = Kind("UnknownNameError", UnknownNameError,
    "{message}",
    cause="A name or value that is not known here.",
    hint="{near}")
UNKNOWN_SETTING: Final = Kind("UnknownSettingError", UnknownNameError,
    "{path}: {table}: unknown setting {found!r}",
    cause="A key that is no setting.",
    hint=f"{{near}}; {SETTINGS} lists every setting")
BAD_SETTING: Final = Kind("BadSettingError", UsageError,
    "{path}: {table}: {setting}: expected {expected}, found {found}",
    cause="A value outside what its setting allows.")
CONFIG_FILE: Final = Kind("ConfigFileError", UsageError,
    cause="A settings file that cannot be read or parsed.")
BAD_NOW: Final = Kind("NowError", UsageError,
    "--now: expected {expected}, found {found}",
    cause="A `--now` that is no epoch time in milliseconds.",
    hint="{advice}")
POLICY_CONTRADICTED: Final = Kind("PolicyError", UsageError,
    "topic {topic}: --cleanup-policy {found}, but its own table says cleanup.policy = {expected}",
    cause="`--cleanup-policy` contradicts a topic's own table in the settings file.",
    hint="change that table, or leave the topic out with --exclude")
MISSING_PATH: Final = Kind("MissingPathError", MissingPathError,
    cause="An archive, store or file that does not exist.")
OUTPUT_EXISTS: Final = Kind("OutputExistsError", UsageError,
    "{path}: expected no such file yet",
    cause="A file where a new one should be written.",
    hint="remove it, name another one, or give --replace")
MISSING_BUCKET: Final = Kind("MissingBucketError", MissingPathError,
    "{path}: {reason}",
    cause="A bucket that does not exist.",
    hint="check the name and the endpoint (AWS_ENDPOINT_URL, AWS_PROFILE)")
NOT_EMPTY: Final = Kind("NotEmptyError", UsageError,
    "{path}: expected an empty or absent folder, found {found}",
    cause="An output folder that holds something.",
    hint="nothing was written; choose another --output")
NO_GENERATION: Final = Kind("NoGenerationError", UsageError,
    "{partition}: generation {found}: {reason}; expected {expected}",
    cause="A generation that the store does not hold, or whose files are gone.",
    hint="vacuum deletes a generation's files after its grace period")
UNDECIDED: Final = Kind("UndecidedError", UsageError,
    cause="The folders do not show which generation is current. `perhaps never committed`: its run died before its "
          "commit, or between the commit and the file `committed`. If you know that it died before, choose the "
          "generation below it; else look at the report of that run.",
    hint="nothing was written; for each of them give --choose TOPIC-N=RUN_ID, or TOPIC-N=none to leave it out")
DATA_LOSS: Final = Kind("DataLossError", DataError,
    "{path}: expected {expected}, where the stream continues, found {found}",
    cause="Records that a stream has still to read, and that are gone.",
    hint="to continue with what is left, set failOnDataLoss=false")
MISSING_FILE: Final = Kind("MissingFileError", DataError,
    cause="A `.log` that a generation names, or files with one among them, missing or changed.",
    hint="if the archive has moved, give --archive URI; else bring these files back from a copy, restore an older "
         "--generation, or remove what was cut short, and compact --force --reset TOPIC, with --set gaps=accept if "
         "need be")
MISSING_SIDE_FILE: Final = Kind("MissingSideFileError", DataError,
    cause="An index, or another file beside a log, that a generation names, missing or changed.",
    hint="bring these files back from a copy, or make new ones: compact --force, for a .txnindex with --reset TOPIC")
OTHER_FORMAT: Final = Kind("OtherFormatError", DataError,
    _AT,
    cause="A segment of magic 3 that cannot be written in magic 2, which brokers read.",
    hint="nothing was restored; with --config give the settings that compact ran with")
BAD_MANIFEST: Final = Kind("ManifestError", GenerationError,
    cause="A manifest in a generation's folder that differs from the one that was written.",
    hint="restore this file from a copy")
DAMAGED_TABLE: Final = Kind("DamagedTableError", DataError,
    cause="A file of the folder `state` is damaged or missing.",
    hint="restore this file from a copy, or move the folder state away and run rebuild-state")
DAMAGED_AUDIT: Final = Kind("DamagedAuditError", DataError,
    cause="A file of the tables of audits that is damaged.",
    hint="delete this file: what it held is read again from the logs")
BAD_LOG_START: Final = Kind("LogStartError", DataError,
    "{path}: expected a log start of at most {expected}, where the generation ends, found {found}",
    cause="A generation whose log start lies above its end, made by a version that believed any checkpoint.",
    hint="a broker would delete it all: give another --generation, or start over with compact --reset")
NOT_CLEANED: Final = Kind("NotCleanedError", DataError,
    cause="A partition that --full-clean could not clean.",
    hint="nothing was restored; without --full-clean restore copies the generation that is there")
COMMITTED_BEFORE: Final = Kind("ConflictError", ConflictError,
    cause="Another run committed first; or a `vacuum` or `lookup --at` works on this store, whose lock ends with its "
          "process.",
    hint="what the other run committed stays; run again")
RUNNING: Final = Kind("RunningError", RunningError,
    cause="Another run works on one of these partitions; the message names its host, process id and start.",
    hint="nothing was done; --wait waits for that run, and other --topics may run beside it. If that run was killed, "
         "its lease expires {expiry} after the last renewal: run again then")
RUNNING_MEANWHILE: Final = Kind("RunningMeanwhileError", RunningError,
    cause="Another run works on partitions that a job wants to compact first, and that job has no `--wait`.",
    hint="nothing was done; run again when that run has ended. If that run was killed, its lease expires {expiry} "
         "after the last renewal")
LOG_DIRECTORY_IN_USE: Final = Kind("LogDirectoryInUseError", ConflictError,
    "{path}: expected an unused log directory, found {found}",
    cause="A broker, or another run, holds the log directory whose files are to be replaced.",
    hint="nothing was written; stop the broker, or work on a copy, or give --output DIR")
NO_JAVA: Final = Kind("JavaError", MachineError,
    "Spark needs Java 17 or newer, found {found}",
    cause="No Java, or a version that is too old.",
    hint="install a JDK or JRE (Debian: apt install openjdk-17-jre-headless) and set JAVA_HOME or PATH")
NO_JARS: Final = Kind("JarsError", MachineError,
    "{what} could not be fetched: {found}",
    cause="Jars are missing, and could not be fetched.",
    hint="{advice}")
SPARK_NOT_STARTED: Final = Kind("SparkStartError", MachineError,
    "Spark did not start: {found}",
    cause="Spark's JVM ended before it answered, or it made no session: this line, or those of the JVM above it, say "
          "what Spark rejected.",
    hint="check the options before the job's name, the settings that SPARK_CONF_DIR and the environment bring, and "
         "the limits of this shell (ulimit -n, -u, -v)")
NO_PACKAGE: Final = Kind("PackageError", MachineError,
    "{what}: expected it in this environment, found {found}",
    cause="A package that a pack needs, and that this environment does not have as pip installs it.",
    hint="pack from an environment that pip filled, such as the one that ./spark-submit.sh makes")
NO_DRIVER_PACKAGE: Final = Kind("DriverPackageError", MachineError,
    "this driver lacks the package {what}",
    cause="A package that drivers need and executors do without.",
    hint="a driver that runs by a pack needs one that `pack --driver` made")
BAD_MASTER: Final = Kind("MasterError", MachineError,
    "{what}: expected {expected}, found {found}",
    cause="An impossible master; or no address in it took a connection within 5 s, for which the line gives the "
          "reason: check name, port and firewall, and that the master runs.",
    hint="--master local[N] runs on N cores of this machine and needs no cluster")
NO_CONNECTOR: Final = Kind("ConnectorError", MachineError,
    "{path}: Spark itself keeps a table there, and needs {expected}: {found}",
    cause="`lookup --at` and `--queries`, `audit delivery --deliveries` and `export --latest` read or write through "
          "Spark, which needs a connector for the bucket.",
    hint="before the job's name give {give}, and, but for S3 and Azure, how to reach it: --conf spark.hadoop.fs...=")
WORKER_SETUP: Final = Kind("WorkerSetupError", MachineError,
    "Spark's Python workers cannot run Lastkey: {found}",
    cause="A node of the cluster lacks the Python, the packages or the checkout that its tasks need; on one machine "
          "`PYSPARK_PYTHON` names a Python without them.",
    hint="every node needs this version of Lastkey with its packages, and the same Python: send a pack (--archives "
         "lastkey.tar.gz#lastkey before the job's name; the job pack makes it), or name theirs with PYSPARK_PYTHON")
JVM_ENDED: Final = Kind("JvmEndedError", MachineError,
    "Spark's JVM ended in the middle of the job: {found}",
    cause="Usually memory. `unable to create native thread` or `Failed to create local dir` in the lines above say "
          "another reason.",
    hint="what was committed stays; run again. If the kernel killed it for memory (see dmesg), use fewer cores "
         "(--master local[2]); if its heap was full, give it more (--driver-memory); if it could start no thread, "
         "allow more (ulimit -u, a container's limit of pids); if it could not make a folder, free space there or "
         "name another one (--conf spark.local.dir=DIR)")
PROCESS_LIMIT: Final = Kind("ProcessLimitError", MachineError,
    "no more threads or processes can be started here: {found}",
    cause="The machine refused a thread or a process.",
    hint="allow more (ulimit -u, a container's limit of pids) and run again; what was committed stays")
SPARK_ENDED: Final = Kind("SparkEndedError", MachineError,
    "Spark ended in the middle of the job: {found}",
    cause="Somebody other than the job ended Spark: a cluster its application, a program its session.",
    hint="what was committed stays; run again. Spark's lines above, or the cluster's logs (yarn logs -applicationId "
         "ID), say who ended it: a person, a limit of the queue, too many executors that failed")
WORKER_ENDED: Final = Kind("WorkerEndedError", MachineError,
    "a worker of Spark ended in the middle of the job: {found}",
    cause="A Python worker, or an executor, died so often that Spark gave up; usually memory. Python's memory is not "
          "in the JVM's heap (`spark.executor.memoryOverhead`).",
    hint="what was committed stays; run again. If the kernel killed it for memory (see dmesg), use fewer cores "
         "(--master local[2]) or give executors more memory; if it crashes again, please report it")
SPARK_LIMIT: Final = Kind("SparkLimitError", MachineError,
    "Spark ended the job: {found}",
    cause="A limit of Spark's that the results of a job exceed.",
    hint="raise that setting (--conf spark.driver.maxResultSize=2g before the job's name) and run again")
UNSURE_COMMIT: Final = Kind("UnsureCommitError", MachineError,
    "{path}: the commit was sent, but the store did not confirm it: {found}",
    cause="The store went away during a commit.",
    hint="nothing is half done: once the store can be reached, run again; what was committed stays")
NOT_EXCLUSIVE: Final = Kind("NotExclusiveError", MachineError,
    "{path}: a store cannot be kept there: expected {expected}, found {found}",
    cause="Two runs at once could both believe that they committed. A store needs a disk with hard links (not exFAT, "
          "FUSE or some network shares), or a server that honours `If-None-Match`.",
    hint="nothing was written; choose another --store")
UNAVAILABLE: Final = Kind("UnavailableError", StorageError,
    "{path}: {reason}: {found}",
    cause="The server of a bucket cannot be reached, does not answer in time, or refuses for a while (503, 429).",
    hint="check the endpoint (AWS_ENDPOINT_URL, AZURE_STORAGE_ENDPOINT, STORAGE_EMULATOR_HOST, or the profile's "
         "endpoint_url), the network and certificates (SSL_CERT_FILE); what was committed stays: run again")
DENIED: Final = Kind("DeniedError", StorageError,
    "{path}: {reason}: {found}",
    cause="Credentials that are missing, unknown, or not allowed.",
    hint="the credentials (AWS_ACCESS_KEY_ID, AWS_PROFILE; AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN, az "
         "login; GOOGLE_APPLICATION_CREDENTIALS, gcloud auth application-default login; the machine's role) must be "
         "the right ones for this endpoint and region (AWS_REGION), and allow to list and read, and for a store to "
         "write and delete")
EXPIRED: Final = Kind("ExpiredCredentialsError", StorageError,
    "{path}: {reason}: {found}",
    cause="A session that has expired.",
    hint="log in again, or renew AWS_SESSION_TOKEN or AZURE_STORAGE_SAS_TOKEN; what was committed stays: run again")
DISK_FULL: Final = Kind("DiskFullError", MachineError,
    "{path}: no space left: {found}",
    cause="The disk of the store, or of the temporary folder (`TMPDIR`; `spark.local.dir`), is full.",
    hint="free space on this disk and run again; what was committed stays. If the store has a generation, vacuum "
         "deletes what no generation needs and, after the next commit, what this run left")
FILE_SYSTEM: Final = Kind("FileSystemError", FileSystemError,
    "{path}: {found}",
    cause="The machine refused a file of the store, of an output or of the archive, with an errno such as EACCES, "
          "EIO or EMFILE.",
    hint="check the disk, the permissions and ulimit -n (open files), and run again; what was committed stays")
LOG_DIRECTORY_FULL: Final = Kind("LogDirectoryFullError", MachineError,
    "{path}: no space left: {found}",
    cause="No space left for a restored or merged log directory.",
    hint="free space and run again; this run removed what it had written, and what it read is unchanged")
CONVERT_FULL: Final = Kind("ConvertFullError", MachineError,
    "{path}: no space left: {found}",
    cause="No space left for converted logs.",
    hint="free space and run again with the same --output: it continues with the existing files")
OUTPUT_FULL: Final = Kind("OutputFullError", MachineError,
    "{path}: no space left: {found}",
    cause="No space left for rebuilt index files.",
    hint="free space and run again; files replaced so far are complete, and --output needs an empty folder")
POLICY_SOURCES: Final = Kind("SourcesError", UsageError,
    cause="Sources of policies that contradict each other.",
    hint="give sources of one cluster, taken at one time")
BROKERS_DISAGREE: Final = Kind("DisagreeError", UsageError,
    "{setting}: expected one value of all brokers, because topic {topic} has none of its own, found {found}",
    cause="A setting that a topic takes from the brokers, of which the brokers have several values.",
    hint="set it for the topic, or make the brokers agree")
BAD_DESCRIPTION: Final = Kind("DescribedError", UsageError,
    "{path}, line {position}: expected {expected}, found {found}",
    cause="Text that is not what kafka-configs prints.",
    hint="give the output of `kafka-configs --describe` as it is, errors and warnings apart")
BAD_TOPIC_IDS: Final = Kind("TopicIdsError", UsageError,
    "{path}, line {position}: expected {expected}, found {found}",
    cause="A file of topic ids that is neither the text of kafka-topics --describe nor lines topic=id.",
    hint="give the output of `kafka-topics --describe` as it is, or a line topic=id for each topic")
DAMAGED_METADATA: Final = Kind("DamagedMetadataError", UsageError,
    "{message}",
    cause="A snapshot or log of __cluster_metadata that cannot be trusted as a whole.",
    hint="nothing was written; take another copy of the folder, or another source")
NO_CLIENT: Final = Kind("NoClientError", MachineError,
    "--bootstrap-server needs the package confluent-kafka: {found}",
    cause="The optional client of live clusters, which is not installed.",
    hint="install it beside Lastkey: pip install 'lastkey[cluster]'")
NO_CLUSTER: Final = Kind("ClusterError", MachineError,
    cause="A cluster that cannot be asked.",
    hint="check --bootstrap-server, the settings of the connection, and what this user may do there")
BAD_COMMAND_CONFIG: Final = Kind("CommandConfigError", UsageError,
    "{path}: {setting}: expected {expected}, found {found}",
    cause="A setting of --command-config that the client cannot obey.")
ERASED_RECORDS: Final = Kind("ErasedError", UsageError,
    "{partition}: generation {found} may hold records that erasure {erasure} removed",
    cause="A generation from before an erasure, which holds records that were erased.",
    hint="it cannot be restored; vacuum --erased deletes it, with --give-up TOPIC if it alone holds other offsets")
LINKED_FOLDER: Final = Kind("LinkedFolderError", UsageError,
    "{path}: expected a folder or file of the store, found a symbolic link",
    cause="A symbolic link in place of a folder or file of a store, which a copy of the store would share.",
    hint="nothing is written through it; move it back, or mount its disk there")
# fmt: on

KINDS: Final[dict[str, Kind[JobError]]] = {
    kind.name: kind for kind in tuple(globals().values()) if isinstance(kind, Kind)
}
