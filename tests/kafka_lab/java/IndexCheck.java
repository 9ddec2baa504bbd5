import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.Delayed;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.FileLogInputStream;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.OffsetIndex;
import org.apache.kafka.storage.internals.log.OffsetPosition;
import org.apache.kafka.storage.internals.log.ProducerStateManager;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.TimeIndex;
import org.apache.kafka.storage.internals.log.TimestampOffset;
import org.apache.kafka.storage.internals.log.TransactionIndex;
import org.apache.kafka.storage.internals.log.UnifiedLog;

/**
 * Every .index, .timeindex, .txnindex and .snapshot of a partition directory against the .log, with Kafka's own index classes,
 * in one linear scan a segment (kafka-dump-log's check of time indexes is quadratic).
 * args: {directory, early, rebuild, interval}. Answers {failures: [...], rebuild_differs: [...], counts}.
 *
 * A failure is: a missing index; Kafka's sanityCheck; an offset index entry that is not (last offset of a batch, its position);
 * a time index entry whose offset is no batch's last offset or whose timestamp is not the greatest so far; entries out of order;
 * a time index that does not end with the segment's greatest timestamp; an empty offset index of a long segment; a transaction
 * index entry out of order or upside down; aborted records without an entry; an unreadable snapshot; batches that overlap or lie
 * outside the segment.
 *
 * early: an offset index entry may point to a batch before the one that ends at its offset. Brokers before 4.0 wrote one entry an
 * append: (last offset of the append, position of its first batch).
 * rebuild: let Kafka rebuild the indexes of a copy (LogSegment.recover), and name the files that differ.
 */
final class IndexCheck {
    static final int MAX_FAILURES = 50;

    /** A batch as the indexes see it: greatest timestamp of its own and of the segment so far. */
    record Entry(long position, long maxTimestamp, long maxTimestampSoFar) { }

    final File directory;
    final boolean early, rebuild;
    final int interval;
    final ObjectNode result = Lab.JSON.createObjectNode();
    final Set<Long> openWithData = new HashSet<>(); // producers whose open transaction has records in the log
    long previousEnd = -1, previousAborted = -1;
    long offsetEntries, earlyEntries, timeEntries, abortedTransactions, snapshots;

    IndexCheck(JsonNode args) {
        directory = new File(args.get("directory").asText());
        early = args.get("early").asBoolean();
        rebuild = args.get("rebuild").asBoolean();
        interval = args.get("interval").asInt();
        result.putArray("failures");
        result.putArray("rebuild_differs");
    }

    static JsonNode check(JsonNode args) throws Exception {
        IndexCheck check = new IndexCheck(args);
        List<File> logs = Dump.logs(check.directory);
        for (File log : logs) check.new Segment(log, log == logs.get(logs.size() - 1)).check();
        check.snapshots();
        return check.result.put("segments", logs.size()).put("offset_entries", check.offsetEntries)
            .put("early_entries", check.earlyEntries).put("time_entries", check.timeEntries)
            .put("aborted_transactions", check.abortedTransactions).put("snapshots", check.snapshots);
    }

    void fail(Object where, String what) {
        if (result.withArray("failures").size() < MAX_FAILURES) result.withArray("failures").add(where + ": " + what);
    }

    void snapshots() {
        for (File file : directory.listFiles((d, name) -> name.matches("\\d{20}\\.snapshot"))) {
            snapshots++;
            try {
                ProducerStateManager.readSnapshot(file);
            } catch (Exception e) {
                fail(file, e.toString());
            }
        }
    }

    interface Check {
        void run() throws Exception;
    }

    /** Kafka's own sanity check of an index. */
    void sane(File file, Check check) {
        try {
            check.run();
        } catch (Exception e) {
            fail(file, String.valueOf(e.getMessage()));
        }
    }

    /** One segment with its indexes. */
    final class Segment {
        final File log, offsetIndex, timeIndex, transactionIndex;
        final String stem;
        final long base;
        final boolean active;
        final Map<Long, Entry> byLastOffset = new HashMap<>();
        final Map<Long, Long> baseOffsetAt = new HashMap<>(); // position -> base offset of the batch there
        final List<Long> abortsWithData = new ArrayList<>(); // offsets of abort markers whose transaction has records in the log
        long maxTimestamp = -1, offsetOfMaxTimestamp = -1, end, size;

        Segment(File log, boolean active) {
            this.log = log;
            this.active = active;
            stem = log.getName().substring(0, 20);
            base = Long.parseLong(stem);
            end = base - 1;
            offsetIndex = new File(directory, stem + ".index");
            timeIndex = new File(directory, stem + ".timeindex");
            transactionIndex = new File(directory, stem + ".txnindex");
        }

        void check() throws Exception {
            readLog();
            if (previousEnd >= base) fail(log, "the segment before ends with " + previousEnd + ", which is not below base offset " + base);
            if (end >= base) previousEnd = end;
            if (offsetIndex.exists()) checkOffsetIndex(); else fail(offsetIndex, "is missing");
            if (timeIndex.exists()) checkTimeIndex(); else fail(timeIndex, "is missing");
            checkTransactionIndex();
            if (rebuild && log.length() > 0) compareWithRebuilt();
        }

        void readLog() throws Exception {
            FileRecords file = FileRecords.open(log, false);
            for (FileLogInputStream.FileChannelRecordBatch batch : file.batches()) {
                if (batch.baseOffset() < base) fail(log, "batch " + batch.baseOffset() + " below the segment's base");
                if (batch.lastOffset() <= end || batch.baseOffset() <= end && end >= base)
                    fail(log, "batch " + batch.baseOffset() + " after offset " + end);
                if (batch.lastOffset() - base > Integer.MAX_VALUE)
                    fail(log, "relative offset of " + batch.lastOffset() + " is no int32");
                end = batch.lastOffset();
                if (batch.maxTimestamp() > maxTimestamp) {
                    maxTimestamp = batch.maxTimestamp();
                    offsetOfMaxTimestamp = end;
                }
                byLastOffset.put(end, new Entry(batch.position(), batch.maxTimestamp(), maxTimestamp));
                baseOffsetAt.put((long) batch.position(), batch.baseOffset());
                size = batch.position() + batch.sizeInBytes();
                if (batch.magic() >= 2 && batch.isTransactional()) readTransactional(batch);
            }
            file.channel().close();
            if (size != log.length()) fail(log, (log.length() - size) + " trailing bytes");
        }

        void readTransactional(FileLogInputStream.FileChannelRecordBatch batch) {
            if (!batch.isControlBatch()) {
                if (batch.iterator().hasNext()) openWithData.add(batch.producerId());
                return;
            }
            for (Record record : batch) {
                boolean hasData = openWithData.remove(batch.producerId());
                boolean isAbort = ControlRecordType.parse(record.key()) == ControlRecordType.ABORT;
                if (hasData && isAbort) abortsWithData.add(record.offset());
            }
        }

        void checkOffsetIndex() throws Exception {
            OffsetIndex index = new OffsetIndex(offsetIndex, base, -1, false);
            sane(offsetIndex, index::sanityCheck);
            long lastOffset = -1, lastPosition = -1;
            for (int i = 0; i < index.entries(); i++, offsetEntries++) {
                OffsetPosition entry = index.entry(i);
                Entry batch = byLastOffset.get(entry.offset());
                if (batch == null) {
                    fail(offsetIndex, "entry " + i + ": offset " + entry.offset() + " is no batch's last offset");
                } else if (batch.position != entry.position()) {
                    long there = baseOffsetAt.getOrDefault((long) entry.position(), Long.MAX_VALUE);
                    if (early && there <= entry.offset()) earlyEntries++;
                    else fail(offsetIndex, "entry " + i + ": " + entry + ", but the batch is at " + batch.position);
                }
                if (entry.offset() <= lastOffset || entry.position() <= lastPosition) fail(offsetIndex, "entry " + i + " out of order");
                lastOffset = entry.offset();
                lastPosition = entry.position();
            }
            if (index.entries() == 0 && size > 64L * interval) fail(offsetIndex, "no entries for " + size + " bytes of log");
            ByVersion.close(index);
        }

        void checkTimeIndex() throws Exception {
            TimeIndex index = new TimeIndex(timeIndex, base, -1, false);
            sane(timeIndex, index::sanityCheck);
            TimestampOffset last = null;
            for (int i = 0; i < index.entries(); i++, timeEntries++) {
                TimestampOffset entry = index.entry(i);
                checkTimeEntry(i, entry);
                if (last != null && (entry.timestamp() <= last.timestamp() || entry.offset() < last.offset()))
                    fail(timeIndex, "entry " + i + " out of order");
                last = entry;
            }
            if (maxTimestamp >= 0 && (last == null || last.timestamp() != maxTimestamp || last.offset() != offsetOfMaxTimestamp))
                fail(timeIndex, "ends with " + last + ", but the greatest timestamp is " + maxTimestamp + " at " + offsetOfMaxTimestamp);
            ByVersion.close(index);
        }

        void checkTimeEntry(int i, TimestampOffset entry) {
            Entry batch = byLastOffset.get(entry.offset());
            if (batch == null) {
                if (entry.timestamp() > 0) fail(timeIndex, "entry " + i + ": offset " + entry.offset() + " is no batch's last offset");
            } else if (batch.maxTimestamp != entry.timestamp()) {
                fail(timeIndex, "entry " + i + ": timestamp " + entry.timestamp() + ", but the batch's greatest is " + batch.maxTimestamp);
            } else if (batch.maxTimestampSoFar != entry.timestamp()) {
                fail(timeIndex, "entry " + i + ": timestamp " + entry.timestamp() + ", but an earlier batch has " + batch.maxTimestampSoFar);
            }
        }

        void checkTransactionIndex() throws Exception {
            Set<Long> indexed = new HashSet<>();
            if (transactionIndex.exists()) {
                TransactionIndex index = new TransactionIndex(base, transactionIndex);
                sane(transactionIndex, index::sanityCheck);
                for (var aborted : index.allAbortedTxns()) {
                    abortedTransactions++;
                    indexed.add(aborted.lastOffset());
                    if (aborted.firstOffset() > aborted.lastOffset()) fail(transactionIndex, aborted.toString());
                    if (aborted.lastOffset() <= previousAborted) fail(transactionIndex, "out of order: " + aborted);
                    previousAborted = aborted.lastOffset();
                }
                index.close();
            }
            for (long marker : abortsWithData)
                if (!indexed.contains(marker)) fail(transactionIndex, "no entry for the aborted records before the marker at " + marker);
        }

        void compareWithRebuilt() throws Exception {
            Path copy = Files.createTempDirectory("rebuild");
            try {
                rebuild(Files.createDirectory(copy.resolve(directory.getName())));
                for (File file : List.of(offsetIndex, timeIndex)) {
                    Path rebuilt = copy.resolve(directory.getName()).resolve(file.getName());
                    if (file.exists() && Files.mismatch(file.toPath(), rebuilt) != -1)
                        result.withArray("rebuild_differs").add(file.toString());
                }
            } finally {
                try (var files = Files.walk(copy)) {
                    for (Path file : files.sorted((a, b) -> b.compareTo(a)).toList()) Files.delete(file);
                }
            }
        }

        /** What a broker does with a segment whose indexes are lost. */
        void rebuild(Path copy) throws Exception {
            Files.copy(log.toPath(), copy.resolve(log.getName()));
            Map<String, Object> settings = new HashMap<>();
            settings.put("index.interval.bytes", interval);
            TopicPartition partition = UnifiedLog.parseTopicPartitionName(copy.toFile());
            LogSegment segment = LogSegment.open(copy.toFile(), base, new LogConfig(settings), Time.SYSTEM, true, 0, false, "");
            segment.recover(
                new ProducerStateManager(partition, copy.toFile(), KafkaCleaner.MAX_TRANSACTION_TIMEOUT_MS,
                    new ProducerStateManagerConfig(86_400_000, false), Time.SYSTEM),
                UnifiedLog.createLeaderEpochCache(copy.toFile(), partition, new LogDirFailureChannel(1), Optional.empty(),
                    new IdleScheduler()));
            if (!active) segment.onBecomeInactiveSegment();
            segment.close();
        }
    }

    /** The leader epoch cache writes its checkpoint by a scheduler; these checks do not read it. */
    static final class IdleScheduler extends KafkaScheduler {
        IdleScheduler() {
            super(1);
        }

        @Override
        public ScheduledFuture<?> schedule(String name, Runnable task, long delayMs, long periodMs) {
            return NEVER;
        }
    }

    /** What never runs. */
    static final ScheduledFuture<Object> NEVER = new ScheduledFuture<>() {
        public long getDelay(TimeUnit unit) {
            return Long.MAX_VALUE;
        }

        public int compareTo(Delayed other) {
            return 0;
        }

        public boolean cancel(boolean mayInterrupt) {
            return true;
        }

        public boolean isCancelled() {
            return true;
        }

        public boolean isDone() {
            return true;
        }

        public Object get() {
            return null;
        }

        public Object get(long timeout, TimeUnit unit) {
            return null;
        }
    };
}
