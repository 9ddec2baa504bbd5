import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import java.io.File;
import java.nio.file.Files;
import java.util.HashMap;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.function.Supplier;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.CleanerStats;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * The real org.apache.kafka.storage.internals.log.Cleaner without a broker, in place on partition directories, with a fixed
 * clock. args: {logs: [CleanSpec...]} as in oracle.py. Each log is cleaned from its first dirty offset up to the active
 * segment or the last stable offset, in as many rounds as the offset map needs, as if the broker had just started. One answer
 * a round.
 */
final class KafkaCleaner {
    static final int IO_BUFFER_BYTES = 512 << 10, MAX_TRANSACTION_TIMEOUT_MS = 900_000, EXPIRY_CHECK_MS = 600_000;
    static final double LOAD_FACTOR = 0.9; // log.cleaner.io.buffer.load.factor

    /** A fixed clock. */
    record FixedTime(long milliseconds) implements Time {
        public long nanoseconds() {
            return System.nanoTime();
        }

        public void sleep(long ms) { }

        public void waitObject(Object lock, Supplier<Boolean> condition, long deadlineMs) throws InterruptedException {
            Time.SYSTEM.waitObject(lock, condition, deadlineMs);
        }
    }

    static JsonNode clean(JsonNode args) throws Exception {
        ArrayNode rounds = Lab.JSON.createArrayNode();
        for (JsonNode spec : args.get("logs")) cleanOne(spec, rounds);
        return rounds;
    }

    static void cleanOne(JsonNode spec, ArrayNode rounds) throws Exception {
        File dir = new File(spec.get("directory").asText()).getCanonicalFile();
        Dump.logs(dir); // refuses a directory without segments, in which the broker would begin a new log
        Time time = new FixedTime(spec.get("now_ms").asLong());
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        UnifiedLog log = UnifiedLog.create(dir, config(spec), spec.get("log_start").asLong(), Long.MAX_VALUE, scheduler, new BrokerTopicStats(), time,
            MAX_TRANSACTION_TIMEOUT_MS, new ProducerStateManagerConfig(spec.get("producer_id_expiration_ms").asInt(), false),
            EXPIRY_CHECK_MS, new LogDirFailureChannel(1), true, Optional.empty());
        try {
            log.updateHighWatermark(log.logEndOffset());
            rounds(log, time, spec, rounds);
        } finally {
            ByVersion.close(log);
            scheduler.shutdown();
        }
        for (File file : Objects.requireNonNull(dir.listFiles())) // deletion is asynchronous, and may not have run
            if (file.getName().endsWith(".deleted")) Files.delete(file.toPath());
    }

    static LogConfig config(JsonNode spec) {
        int segmentBytes = spec.get("segment_bytes").asInt();
        Map<String, Object> settings = new HashMap<>();
        settings.put("cleanup.policy", "compact");
        settings.put(segmentBytes < 1 << 20 ? "internal.segment.bytes" : "segment.bytes", segmentBytes);
        settings.put("segment.ms", Long.MAX_VALUE);
        settings.put("segment.index.bytes", spec.get("segment_index_bytes").asInt());
        settings.put("index.interval.bytes", spec.get("index_interval_bytes").asInt());
        settings.put("max.message.bytes", spec.get("max_message_bytes").asInt());
        settings.put("delete.retention.ms", spec.get("delete_retention_ms").asLong());
        settings.put("retention.ms", -1L);
        settings.put("file.delete.delay.ms", 0L);
        return new LogConfig(settings);
    }

    static void rounds(UnifiedLog log, Time time, JsonNode spec, ArrayNode rounds) throws Exception {
        Cleaner cleaner = new Cleaner(0, new SkimpyOffsetMap(spec.get("dedupe_buffer_bytes").asInt(), "MD5"), IO_BUFFER_BYTES / 2,
            spec.get("max_message_bytes").asInt(), LOAD_FACTOR,
            new Throttler(Double.MAX_VALUE, 300, "lab-cleaner", "bytes", Time.SYSTEM), Time.SYSTEM, partition -> { });
        long from = spec.get("first_dirty_offset").asLong();
        while (true) {
            long limit = Math.min(log.lastStableOffset(), log.activeSegment().baseOffset());
            LogToClean toClean = new LogToClean(log, from, Math.max(from, limit), false);
            if (from >= toClean.firstUncleanableOffset() || toClean.cleanableBytes() == 0) return; // as the cleaner's manager
            if (spec.get("ends_with_range").asBoolean()) log.updateHighWatermark(toClean.firstUncleanableOffset());
            Map.Entry<Long, CleanerStats> done = cleaner.doClean(toClean, time.milliseconds());
            CleanerStats stats = done.getValue();
            rounds.addObject().put("directory", spec.get("directory").asText())
                .put("first_dirty_offset", from).put("end_offset", done.getKey())
                .put("messages_read", stats.messagesRead()).put("messages_written", stats.messagesWritten())
                .put("invalid_messages_read", stats.invalidMessagesRead())
                .put("bytes_read", stats.bytesRead()).put("bytes_written", stats.bytesWritten())
                .put("active_producers", log.lastRecordsOfActiveProducers().size())
                .put("seconds", stats.elapsedSecs());
            if (done.getKey() <= from) return;
            from = done.getKey();
        }
    }

    private KafkaCleaner() { }
}
