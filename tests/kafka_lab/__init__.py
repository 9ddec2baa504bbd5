"""A real Kafka for tests: brokers, their cleaner without a broker, their reader, and files loaded under a broker.

Needs Java 17 (a JDK) and, the first time, Maven Central; nothing else. Fetched and compiled files lie in `.kafka/`
(jars.py). A missing Java or a failed fetch raises LabError: tests fail, they do not skip. Tests that use the lab are
marked `kafka`.

The reference version is 4.3.0; LASTKEY_KAFKA_VERSION=4.4.0 runs the same tests against 4.4.0.

| module | holds |
|---|---|
| jars.py | Kafka's jars, by the Ivy that pyspark ships |
| jvm.py | the Java programs in java/: compiled once, one process that answers commands |
| broker.py | `with Broker(folder) as b:` the reference version; OldBroker: 2.8.2, which writes magic 0 and 1 |
| oracle.py | clean, recover, locate, list_offsets, seek, dump, digest, index_check, make_logs, consume, and others |
| mirror.py | MirrorMaker 2: topics from one broker to another |
| loading.py | load_under_broker, start_restored, recovered_by_broker, served_by_broker |

The oracle is exact: the in-process cleaner at the broker's clock gives the bytes of the broker's own cleaning
(tests/golden).
"""

from .broker import Broker, OldBroker
from .errors import LabError
from .jars import lab_jars
from .loading import (
    LoadError,
    LoadReport,
    check_served,
    load_under_broker,
    recovered_by_broker,
    served_by_broker,
    start_restored,
)
from .oracle import (
    CleanRound,
    CleanSpec,
    Consumed,
    Digest,
    DrawnLog,
    DrawSpec,
    IndexReport,
    Located,
    RecoverSpec,
    clean,
    consume,
    create_topics,
    delete_old_segments,
    digest,
    digest_lines,
    draw_logs,
    dump,
    dump_log_findings,
    dump_log_segments,
    index_check,
    list_offsets,
    locate,
    make_logs,
    read_group,
    recover,
    recover_segments,
    seek,
    visible_lines,
    without_segments,
)

__all__ = [
    "Broker", "CleanRound", "CleanSpec", "Consumed", "Digest", "DrawSpec", "DrawnLog", "IndexReport", "LabError",
    "LoadError", "LoadReport", "Located", "OldBroker", "RecoverSpec", "check_served", "clean", "consume",
    "create_topics", "delete_old_segments", "digest", "digest_lines", "draw_logs", "dump", "dump_log_findings",
    "dump_log_segments", "index_check", "lab_jars", "list_offsets", "load_under_broker", "locate", "make_logs",
    "read_group", "recover", "recover_segments", "recovered_by_broker", "seek", "served_by_broker", "start_restored",
    "visible_lines", "without_segments",
]  # fmt: skip
