import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.SplittableRandom;
import java.util.TreeMap;
import java.util.function.Supplier;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.message.DescribeProducersResponseData.ProducerState;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.CompressionType;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.DefaultRecordBatch;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.record.internal.RecordVersion;
import org.apache.kafka.common.utils.*; // ByteBufferOutputStream is here in 4.3, and in internals in 4.4
import org.apache.kafka.common.utils.internals.*;
import org.apache.kafka.server.common.RequestLocal;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogStartOffsetIncrementReason;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.log.VerificationGuard;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * A partition's log as Kafka's own UnifiedLog writes it, out of operations that are drawn from a seed: appends as leader and as
 * follower, of all magics and codecs, by producers of all kinds; rolls, restarts, crashes, truncation, DeleteRecords, time.
 * Operation i is drawn from (seed, i) and from the log as it is, so a log can be made of some of them only.
 */
final class DrawnLog {
    static final long T0 = 1_750_000_000_000L, HOUR = 3_600_000, SET_BY_US = T0 + 10_000 * HOUR;
    static final int DAY_MS = 86_400_000, CAPACITY = 1 << 16, FULL_SOON = 64, IDEMPOTENT = 100, TRANSACTIONAL = 200, PRODUCERS = 4;
    static final Header[] NO_HEADERS = {};

    /** A clock that operations move. */
    static final class Clock implements Time {
        long now = T0;

        public long milliseconds() {
            return now;
        }

        public long nanoseconds() {
            return now * 1_000_000;
        }

        public void sleep(long ms) { }

        public void waitObject(Object lock, Supplier<Boolean> condition, long deadlineMs) throws InterruptedException {
            Time.SYSTEM.waitObject(lock, condition, deadlineMs);
        }
    }

    final File dir;
    final long seed;
    final boolean isMore;
    final Clock clock = new Clock();
    final Map<String, Integer> counts = new TreeMap<>();
    final KafkaScheduler scheduler = new IndexCheck.IdleScheduler();
    final int segmentBytes, indexBytes, interval, keys;
    final long deleteRetentionMs;
    final boolean appendTime, nullKeys, oldMagic, hasGaps;
    final CompressionType codec; // null: any
    final LogConfig config;
    UnifiedLog log;
    int epoch;

    DrawnLog(JsonNode spec) {
        dir = new File(spec.get("directory").asText());
        seed = spec.get("seed").asLong();
        isMore = spec.get("more").asBoolean();
        SplittableRandom r = new SplittableRandom(seed);
        segmentBytes = 400 + r.nextInt(r.nextBoolean() ? 1200 : 6000);
        interval = r.nextBoolean() ? 4096 : r.nextInt(600);
        keys = 1 + r.nextInt(r.nextBoolean() ? 6 : 60);
        deleteRetentionMs = new long[] {0, HOUR, DAY_MS}[r.nextInt(3)];
        appendTime = r.nextInt(4) == 0;
        nullKeys = r.nextInt(6) == 0;
        oldMagic = r.nextInt(3) == 0;
        indexBytes = !oldMagic && r.nextInt(4) == 0 ? FULL_SOON : 1 << 16;
        hasGaps = r.nextInt(3) > 0;
        codec = r.nextInt(3) == 0 ? null : CompressionType.forId(r.nextInt(5));
        Map<String, Object> settings = new HashMap<>();
        settings.put("cleanup.policy", nullKeys ? "delete" : "compact");
        settings.put("internal.segment.bytes", segmentBytes);
        settings.put("segment.index.bytes", indexBytes);
        settings.put("index.interval.bytes", interval);
        settings.put("segment.ms", r.nextInt(3) == 0 ? HOUR : Long.MAX_VALUE);
        settings.put("retention.ms", -1L);
        settings.put("delete.retention.ms", deleteRetentionMs);
        settings.put("message.timestamp.type", appendTime ? "LogAppendTime" : "CreateTime");
        config = new LogConfig(settings);
    }

    /**
     * args: {logs: [{directory, seed, more, operations: [i...], log_start, now_ms, leader_epoch, clean, recovery_point}...]}: makes
     * a partition directory, or with `more` extends one.
     * Answers [{log_start, log_end, now_ms, leader_epoch, closed, counts, and the settings of a CleanSpec}...].
     */
    static JsonNode draw(JsonNode args) throws Exception {
        ArrayNode done = Lab.JSON.createArrayNode();
        for (JsonNode spec : args.get("logs")) done.add(new DrawnLog(spec).run(spec));
        return done;
    }

    ObjectNode run(JsonNode spec) throws Exception {
        if (isMore) clock.now = spec.get("now_ms").asLong();
        else Files.createDirectories(dir.toPath());
        open(spec.get("log_start").asLong(), spec.get("clean").asBoolean(), spec.get("recovery_point").asLong());
        epoch = spec.get("leader_epoch").asInt();
        for (JsonNode i : spec.get("operations")) {
            SplittableRandom r = new SplittableRandom(seed * 1_000_003 + i.asLong());
            r.nextInt();
            clock.now += r.nextInt(2000);
            try {
                operation(r);
            } catch (ApiException e) {
                count("refused by the log");
            }
        }
        SplittableRandom last = new SplittableRandom(seed + (isMore ? 2 : 1));
        if (last.nextBoolean() && !isMore) log.roll();
        long end = log.logEndOffset(), start = log.logStartOffset();
        boolean closed = isMore || last.nextInt(3) > 0 || indexBytes == FULL_SOON; // from which Kafka does not recover
        if (closed) ByVersion.close(log);
        else ByVersion.closeAsInACrash(log);
        settle(last);
        ObjectNode answer = Lab.JSON.createObjectNode().put("log_start", start).put("log_end", end).put("now_ms", clock.now)
            .put("leader_epoch", epoch).put("closed", closed)
            .put("segment_bytes", segmentBytes).put("segment_index_bytes", indexBytes).put("index_interval_bytes", interval)
            .put("delete_retention_ms", deleteRetentionMs);
        ObjectNode all = answer.putObject("counts");
        counts.forEach(all::put);
        return answer;
    }

    void open(long logStart, boolean clean, long recoveryPoint) throws IOException {
        log = UnifiedLog.create(dir, config, logStart, recoveryPoint, scheduler, new BrokerTopicStats(), clock,
            KafkaCleaner.MAX_TRANSACTION_TIMEOUT_MS, new ProducerStateManagerConfig(DAY_MS, false), KafkaCleaner.EXPIRY_CHECK_MS,
            new LogDirFailureChannel(1), clean, Optional.empty());
        log.updateHighWatermark(log.logEndOffset());
    }

    /** What is deleted is gone, and file times are the clock's: a cleaner looks at them. */
    void settle(SplittableRandom r) throws IOException {
        for (File file : Objects.requireNonNull(dir.listFiles())) {
            if (file.getName().endsWith(".deleted")) Files.delete(file.toPath());
            else if (file.lastModified() > SET_BY_US && !file.setLastModified(isMore ? clock.now : clock.now - r.nextInt(2 * DAY_MS)))
                throw new IOException("no time for " + file);
        }
    }

    void count(String what) {
        counts.merge(what, 1, Integer::sum);
    }

    void operation(SplittableRandom r) throws Exception {
        int n = r.nextInt(isMore ? 80 : 100);
        if (n < 34) leader(r);
        else if (n < 54) follower(r);
        else if (n < 68) marker(r);
        else if (n < 71) {
            count("rolls");
            log.roll();
        } else if (n < 74) {
            count("leader epochs");
            epoch += 1 + r.nextInt(2);
            log.assignEpochStartOffset(epoch, log.logEndOffset());
        } else if (n < 77) {
            count("restarts");
            long start = log.logStartOffset();
            ByVersion.close(log);
            open(start, true, log.logEndOffset());
        } else if (n < 80) clock.now += r.nextInt(4) == 0 ? DAY_MS : r.nextInt((int) HOUR);
        else if (n < 86) crash(r);
        else if (n < 93) truncate(r);
        else deleteRecords(r);
        log.updateHighWatermark(log.logEndOffset());
    }

    // -- appends

    void leader(SplittableRandom r) throws Exception {
        int kind = r.nextInt(3);
        if (kind == 0 && oldMagic && r.nextBoolean()) {
            count("leader appends of an old magic");
            byte magic = (byte) r.nextInt(2);
            MemoryRecords records = batch(r, magic, 0, plain(), false);
            log.appendAsLeaderWithRecordVersion(records, epoch, RecordVersion.lookup(magic));
            return;
        }
        count(kind == 0 ? "leader appends" : kind == 1 ? "idempotent appends" : "transactional appends");
        log.appendAsLeader(batch(r, (byte) 2, 0, kind == 0 ? plain() : producer(r, kind == 2), false), epoch);
    }

    void follower(SplittableRandom r) throws Exception {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        long next = log.logEndOffset(); // several batches at once may not fit an index that is nearly full: Kafka fails
        for (int i = r.nextInt(indexBytes == FULL_SOON ? 1 : 3); i >= 0; i--) {
            long base = next + (hasGaps && r.nextInt(3) == 0 ? r.nextInt(r.nextInt(10) == 0 ? 100_000 : 6) : 0);
            byte magic = (byte) (oldMagic ? r.nextInt(3) : 2);
            MemoryRecords records;
            if (magic == 2 && hasGaps && r.nextInt(12) == 0) records = empty(r, base);
            else records = batch(r, magic, base, magic == 2 && i == 0 && r.nextBoolean() ? producer(r, r.nextBoolean()) : plain(), true);
            for (RecordBatch one : records.batches()) next = one.nextOffset();
            ByteBuffer bytes = records.buffer().duplicate();
            byte[] data = new byte[bytes.remaining()];
            bytes.get(data);
            out.write(data);
            count("follower batches of magic " + magic);
        }
        log.appendAsFollower(MemoryRecords.readableRecords(ByteBuffer.wrap(out.toByteArray())), epoch);
    }

    /** Who writes: id, epoch, next sequence. */
    record Writer(long id, short epoch, int sequence, boolean transactional) { }

    static Writer plain() {
        return new Writer(-1, (short) -1, -1, false);
    }

    ProducerState state(long id) {
        for (ProducerState one : log.activeProducers()) if (one.producerId() == id) return one;
        return null;
    }

    Writer producer(SplittableRandom r, boolean transactional) {
        long id = (transactional ? TRANSACTIONAL : IDEMPOTENT) + r.nextInt(PRODUCERS);
        ProducerState state = state(id);
        boolean bumped = r.nextInt(12) == 0;
        if (state == null) return new Writer(id, (short) r.nextInt(3), 0, transactional);
        if (bumped) return new Writer(id, (short) (state.producerEpoch() + 1), 0, transactional);
        return new Writer(id, (short) state.producerEpoch(), state.lastSequence() + 1, transactional);
    }

    MemoryRecords batch(SplittableRandom r, byte magic, long base, Writer writer, boolean isFollower) {
        CompressionType type = codec == null ? CompressionType.forId(r.nextInt(5)) : codec;
        if (magic < 2 && type == CompressionType.ZSTD) type = CompressionType.GZIP;
        TimestampType stamp = magic == 0 ? TimestampType.NO_TIMESTAMP_TYPE
            : isFollower && appendTime ? TimestampType.LOG_APPEND_TIME : TimestampType.CREATE_TIME;
        MemoryRecordsBuilder builder = new MemoryRecordsBuilder(new ByteBufferOutputStream(CAPACITY), magic, Compression.of(type).build(),
            stamp, base, stamp == TimestampType.LOG_APPEND_TIME ? clock.now : RecordBatch.NO_TIMESTAMP, writer.id, writer.epoch,
            writer.sequence, writer.transactional, false, isFollower ? epoch : RecordBatch.NO_PARTITION_LEADER_EPOCH, CAPACITY);
        long offset = base;
        int n = 1 + r.nextInt(r.nextInt(8) == 0 ? 40 : 6);
        for (int i = 0; i < n; i++) {
            byte[] key = nullKeys && r.nextInt(4) == 0 ? null : ("k" + r.nextInt(keys)).getBytes(StandardCharsets.UTF_8);
            long timestamp = magic == 0 ? RecordBatch.NO_TIMESTAMP : clock.now - (r.nextInt(6) == 0 ? r.nextInt(3 * DAY_MS) : r.nextInt(5000));
            builder.appendWithOffset(offset, timestamp, key, value(r), magic == 2 ? headers(r) : NO_HEADERS);
            offset += 1 + (isFollower && hasGaps && writer.id < 0 && r.nextInt(5) == 0 ? r.nextInt(4) : 0);
        }
        if (isFollower && hasGaps && magic == 2 && writer.id < 0 && r.nextInt(5) == 0) builder.overrideLastOffset(offset + r.nextInt(3));
        return builder.build();
    }

    static byte[] value(SplittableRandom r) {
        int kind = r.nextInt(12);
        if (kind < 2) return null;
        byte[] value = new byte[kind == 2 ? 0 : kind == 3 ? r.nextInt(300) : r.nextInt(30)];
        for (int i = 0; i < value.length; i++) value[i] = (byte) ('a' + r.nextInt(3));
        return value;
    }

    static Header[] headers(SplittableRandom r) {
        if (r.nextInt(3) > 0) return NO_HEADERS;
        Header[] headers = new Header[1 + r.nextInt(3)];
        for (int i = 0; i < headers.length; i++)
            headers[i] = new RecordHeader(r.nextBoolean() ? "ä" : "", r.nextInt(4) == 0 ? null : new byte[r.nextInt(5)]);
        return headers;
    }

    /** What a cleaner leaves of a batch for its producer, or at the end of a round. */
    MemoryRecords empty(SplittableRandom r, long base) {
        ByteBuffer buffer = ByteBuffer.allocate(DefaultRecordBatch.RECORD_BATCH_OVERHEAD);
        DefaultRecordBatch.writeEmptyHeader(buffer, (byte) 2, -1, (short) -1, -1, base, base + r.nextInt(4), epoch,
            TimestampType.CREATE_TIME, clock.now, false, false);
        buffer.flip();
        return MemoryRecords.readableRecords(buffer);
    }

    void marker(SplittableRandom r) throws Exception {
        List<ProducerState> open = log.activeProducers().stream().filter(one -> one.currentTxnStartOffset() >= 0).toList();
        boolean idle = open.isEmpty() || r.nextInt(8) == 0;
        long id = idle ? TRANSACTIONAL + r.nextInt(PRODUCERS) : open.get(r.nextInt(open.size())).producerId();
        ProducerState state = state(id);
        int bump = r.nextInt(2); // transactions of version 2 raise the epoch at each end
        short of = (short) ((state == null ? 0 : state.producerEpoch()) + bump);
        EndTransactionMarker marker = new EndTransactionMarker(r.nextInt(5) < 2 ? ControlRecordType.ABORT : ControlRecordType.COMMIT, r.nextInt(3));
        count(marker.controlType() == ControlRecordType.ABORT ? "aborts" : "commits");
        if (r.nextBoolean()) log.appendAsLeader(MemoryRecords.withEndTransactionMarker(clock.now, id, of, marker), epoch,
            AppendOrigin.COORDINATOR, RequestLocal.noCaching(), VerificationGuard.SENTINEL, (short) (2 * bump));
        else log.appendAsFollower(MemoryRecords.withEndTransactionMarker(log.logEndOffset(), clock.now, epoch, id, of, marker), epoch);
    }

    // -- what happens to a log

    /** Nothing was closed, and the last bytes may be gone. */
    void crash(SplittableRandom r) throws Exception {
        if (indexBytes == FULL_SOON) return; // Kafka's recovery fails on an index that is full
        long start = log.logStartOffset(), recoveryPoint = r.nextBoolean() ? 0 : log.activeSegment().baseOffset();
        File active = log.activeSegment().log().file();
        ByVersion.closeAsInACrash(log);
        if (r.nextBoolean()) {
            count("crashes with a torn end");
            try (RandomAccessFile file = new RandomAccessFile(active, "rw")) {
                file.setLength(Math.max(0, file.length() - r.nextInt(300)));
            }
        } else count("crashes");
        open(start, false, recoveryPoint);
    }

    void truncate(SplittableRandom r) {
        long low = Math.max(log.logStartOffset(), log.logEndOffset() - 60), end = log.logEndOffset();
        if (low >= end) return;
        count("truncations");
        log.truncateTo(low + r.nextLong(end - low));
        epoch++;
    }

    void deleteRecords(SplittableRandom r) throws IOException {
        long low = log.logStartOffset(), end = log.logEndOffset();
        if (low >= end || r.nextBoolean()) return;
        count("deletions of records");
        log.maybeIncrementLogStartOffset(low + 1 + r.nextLong(Math.min(80, end - low)), LogStartOffsetIncrementReason.ClientRecordDeletion);
        if (r.nextBoolean()) log.deleteOldSegments();
    }
}
