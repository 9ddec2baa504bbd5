import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.File;
import java.nio.file.Files;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.OffsetOutOfRangeException;
import org.apache.kafka.common.record.internal.FileRecords.TimestampAndOffset;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.storage.log.FetchIsolation;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.FetchDataInfo;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.ProducerStateManager;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/** A broker's log without the broker: recovered, and searched by offset and by time. */
final class KafkaLog {
    static final int ONE_BATCH = 1; // bytes that a read is allowed: it gives the first batch all the same

    static LogConfig config(int interval) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("index.interval.bytes", interval);
        settings.put("cleanup.policy", "compact");
        settings.put("internal.segment.bytes", Integer.MAX_VALUE);
        settings.put("retention.ms", -1L);
        return new LogConfig(settings);
    }

    static UnifiedLog open(File dir, int interval, long logStart, boolean clean, KafkaScheduler scheduler) throws Exception {
        return open(dir, config(interval), logStart, clean, scheduler, 0);
    }

    static UnifiedLog open(File dir, LogConfig config, long logStart, boolean clean, KafkaScheduler scheduler, long now) throws Exception {
        Dump.logs(dir); // refuses a directory without segments, in which the broker would begin a new log
        return UnifiedLog.create(dir, config, logStart, clean ? Long.MAX_VALUE : 0L, scheduler, new BrokerTopicStats(),
            new KafkaCleaner.FixedTime(now), KafkaCleaner.MAX_TRANSACTION_TIMEOUT_MS,
            new ProducerStateManagerConfig(Integer.MAX_VALUE, false), KafkaCleaner.EXPIRY_CHECK_MS, new LogDirFailureChannel(1),
            clean, Optional.empty());
    }

    /**
     * Load partition directories as a broker does after a crash, at a clock at which no producer expires, and close them.
     * args: {logs: [{directory, interval, log_start}...]}. Answers [{log_start, log_end}...].
     */
    static JsonNode recover(JsonNode args) throws Exception {
        ArrayNode done = Lab.JSON.createArrayNode();
        for (JsonNode one : args.get("logs")) {
            KafkaScheduler scheduler = new KafkaScheduler(1);
            scheduler.startup();
            File dir = new File(one.get("directory").asText()).getCanonicalFile();
            UnifiedLog log = open(dir, one.get("interval").asInt(), one.get("log_start").asLong(), false, scheduler);
            done.addObject().put("log_start", log.logStartOffset()).put("log_end", log.logEndOffset());
            ByVersion.close(log);
            scheduler.shutdown();
        }
        return done;
    }

    /**
     * UnifiedLog.deleteOldSegments of a partition directory that is loaded as after a clean shutdown, at a clock. Its
     * files are changed. args: {directory, log_start, now, settings, high_watermark: the log end if it is left out}.
     * Answers {log_start, log_end, segments: [base offsets]}.
     */
    static JsonNode deleteOldSegments(JsonNode args) throws Exception {
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        File dir = new File(args.get("directory").asText()).getCanonicalFile();
        Map<String, Object> settings = new HashMap<>();
        args.get("settings").fields().forEachRemaining(one -> settings.put(one.getKey(), one.getValue().asText()));
        UnifiedLog log = open(dir, new LogConfig(settings), args.get("log_start").asLong(), true, scheduler, args.get("now").asLong());
        try {
            log.updateHighWatermark(args.path("high_watermark").asLong(log.logEndOffset()));
            log.deleteOldSegments();
            ObjectNode answer = Lab.JSON.createObjectNode().put("log_start", log.logStartOffset()).put("log_end", log.logEndOffset());
            ArrayNode segments = answer.putArray("segments");
            for (LogSegment segment : log.logSegments()) segments.add(segment.baseOffset());
            return answer;
        } finally {
            ByVersion.close(log);
            scheduler.shutdown();
        }
    }

    /**
     * args: {directory, log_start, offsets: [...], times: [...]}. Answers {log_start, log_end, offsets, times}:
     * of each offset [segment base, position, last offset of the batch there], [] out of range, [-1, -1, -1] nothing to read;
     * of each time [offset, timestamp, leader epoch], [] none.
     */
    static JsonNode locate(JsonNode args) throws Exception {
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        File dir = new File(args.get("directory").asText()).getCanonicalFile();
        UnifiedLog log = open(dir, 4096, args.get("log_start").asLong(), true, scheduler);
        try {
            log.updateHighWatermark(log.logEndOffset());
            ObjectNode answer = Lab.JSON.createObjectNode().put("log_start", log.logStartOffset()).put("log_end", log.logEndOffset());
            ArrayNode offsets = answer.putArray("offsets"), times = answer.putArray("times");
            for (JsonNode offset : args.get("offsets")) {
                ArrayNode one = offsets.addArray();
                try {
                    FetchDataInfo read = log.read(offset.asLong(), ONE_BATCH, FetchIsolation.LOG_END, true);
                    RecordBatch first = null;
                    for (RecordBatch batch : read.records.batches()) {
                        first = batch;
                        break;
                    }
                    if (first == null) one.add(-1).add(-1).add(-1);
                    else one.add(read.fetchOffsetMetadata.segmentBaseOffset).add(read.fetchOffsetMetadata.relativePositionInSegment)
                        .add(first.lastOffset());
                } catch (OffsetOutOfRangeException e) {
                    continue;
                }
            }
            for (JsonNode time : args.get("times")) {
                ArrayNode one = times.addArray();
                Optional<TimestampAndOffset> found = log.fetchOffsetByTimestamp(time.asLong(), Optional.empty()).timestampAndOffsetOpt();
                if (found.isPresent())
                    one.add(found.get().offset).add(found.get().timestamp).add(found.get().leaderEpoch.orElse(-1));
            }
            return answer;
        } finally {
            ByVersion.close(log);
            scheduler.shutdown();
        }
    }

    /**
     * LogSegment.recover of every segment of a directory, `rounds` times; it rebuilds the indexes each time.
     * args: {directory, interval, rounds}. Answers {bytes, seconds: [of all recover calls of a round...]}.
     */
    static JsonNode recoverSegments(JsonNode args) throws Exception {
        File dir = new File(args.get("directory").asText()).getCanonicalFile();
        LogConfig config = config(args.get("interval").asInt());
        TopicPartition partition = UnifiedLog.parseTopicPartitionName(dir);
        ObjectNode answer = Lab.JSON.createObjectNode();
        ArrayNode seconds = answer.putArray("seconds");
        long bytes = 0;
        for (int round = 0; round < args.get("rounds").asInt(); round++) {
            bytes = 0;
            double spent = 0;
            for (File file : Dump.logs(dir)) {
                long base = Long.parseLong(file.getName().substring(0, 20));
                for (String kind : new String[] {".index", ".timeindex", ".txnindex"})
                    Files.deleteIfExists(new File(dir, file.getName().replace(".log", kind)).toPath());
                LogSegment segment = LogSegment.open(dir, base, config, Time.SYSTEM, true, 0, false, "");
                ProducerStateManager producers = new ProducerStateManager(partition, dir, KafkaCleaner.MAX_TRANSACTION_TIMEOUT_MS,
                    new ProducerStateManagerConfig(Integer.MAX_VALUE, false), Time.SYSTEM);
                var epochs = UnifiedLog.createLeaderEpochCache(dir, partition, new LogDirFailureChannel(1), Optional.empty(),
                    new IndexCheck.IdleScheduler());
                long start = System.nanoTime();
                segment.recover(producers, epochs);
                spent += (System.nanoTime() - start) / 1e9;
                bytes += file.length();
                segment.close();
            }
            seconds.add(spent);
        }
        return answer.put("bytes", bytes);
    }

    private KafkaLog() { }
}
