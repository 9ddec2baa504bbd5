import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.File;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.record.internal.FileLogInputStream;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Reads a partition with the real consumer. */
final class Consume {
    static final long STUCK_NANOS = 30_000_000_000L;

    /**
     * From the beginning, or from `start`, to the end. args: {bootstrap, partition, isolation, lines, start}. The digest is over
     * the same D lines as Dump's; lines: answer them too.
     */
    static JsonNode consume(JsonNode args) {
        TopicPartition partition = partition(args.get("partition").asText());
        MessageDigest digest = Dump.sha256();
        Line line = new Line();
        ObjectNode result = Lab.JSON.createObjectNode();
        boolean lines = args.get("lines").asBoolean();
        long records = 0, last = -1;
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(args.get("bootstrap").asText(), args.get("isolation").asText())) {
            consumer.assign(List.of(partition));
            if (args.hasNonNull("start")) consumer.seek(partition, args.get("start").asLong());
            else consumer.seekToBeginning(List.of(partition));
            long begin = consumer.position(partition), end = consumer.endOffsets(List.of(partition)).get(partition);
            long position = begin, moved = System.nanoTime();
            while (position < end) {
                for (ConsumerRecord<byte[], byte[]> r : consumer.poll(Duration.ofMillis(500))) {
                    if (r.offset() <= last) throw new IllegalStateException("offset " + r.offset() + " after " + last);
                    last = r.offset();
                    records++;
                    line.data(r.offset(), r.timestamp(), r.key(), r.value(), r.headers().toArray()).into(digest);
                    if (lines) result.withArray("lines").add(line.toString());
                }
                if (consumer.position(partition) > position) moved = System.nanoTime();
                else if (System.nanoTime() - moved > STUCK_NANOS)
                    throw new IllegalStateException(partition + " is stuck at " + position + " of " + end);
                position = consumer.position(partition);
            }
            result.put("begin_offset", begin).put("end_offset", end);
        }
        return result.put("records", records).put("last_offset", last).put("data_sha256", Dump.hex(digest));
    }

    /**
     * The first record that a consumer gets after a seek. args: {bootstrap, queries: {"topic-n": [offset...]}}, offsets below the
     * end of the log. Answers {"topic-n": [offset...]}, -1 where nothing came up to the end.
     */
    static JsonNode seek(JsonNode args) {
        ObjectNode result = Lab.JSON.createObjectNode();
        for (Map.Entry<String, JsonNode> one : args.get("queries").properties()) {
            TopicPartition partition = partition(one.getKey());
            try (KafkaConsumer<byte[], byte[]> consumer = consumer(args.get("bootstrap").asText(), "read_uncommitted")) {
                consumer.assign(List.of(partition));
                long end = consumer.endOffsets(List.of(partition)).get(partition);
                for (JsonNode offset : one.getValue()) {
                    consumer.seek(partition, offset.asLong());
                    long first = -1, moved = System.nanoTime();
                    while (first < 0 && consumer.position(partition) < end) {
                        for (ConsumerRecord<byte[], byte[]> r : consumer.poll(Duration.ofMillis(500))) {
                            first = r.offset();
                            break;
                        }
                        if (System.nanoTime() - moved > STUCK_NANOS) throw new IllegalStateException(partition + " is stuck at " + offset);
                    }
                    result.withArray(one.getKey()).add(first);
                }
            }
        }
        return result;
    }

    /**
     * offsetsForTimes against a scan of the files. args: {bootstrap, directory, times}. Answers {times, hidden, failures: [...]}.
     * Kafka looks only into the first segment whose largest timestamp reaches the time, and takes the file's mtime for a segment
     * without any (an empty one left by the cleaner), so it can miss a record: hidden counts the times at which it does.
     */
    static JsonNode offsetsForTimes(JsonNode args) throws Exception {
        File directory = new File(args.get("directory").asText());
        TopicPartition partition = partition(directory.getName());
        List<Times> segments = new ArrayList<>();
        for (File log : Dump.logs(directory)) segments.add(Times.of(log));
        ObjectNode result = Lab.JSON.createObjectNode();
        result.putArray("failures");
        int hidden = 0;
        TreeSet<Long> asked = someTimes(segments, args.get("times").asInt());
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(args.get("bootstrap").asText(), "read_uncommitted")) {
            for (long time : asked) {
                OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(partition, time)).get(partition);
                long offset = found == null ? -1 : found.offset(), expected = byKafkasRule(segments, time);
                if (offset != expected)
                    result.withArray("failures").add(partition + ": offsetsForTimes(" + time + ") is " + offset + ", a scan says " + expected);
                if (expected != firstAtOrAfter(segments, time)) hidden++;
            }
        }
        return result.put("times", asked.size()).put("hidden", hidden);
    }

    /** Offsets and timestamps of a segment's records; largest as the broker sees it. */
    record Times(List<Long> offsets, List<Long> timestamps, long largest) {
        static Times of(File log) throws Exception {
            List<Long> offsets = new ArrayList<>(), timestamps = new ArrayList<>();
            long largest = -1;
            FileRecords file = FileRecords.open(log, false);
            for (FileLogInputStream.FileChannelRecordBatch batch : file.batches()) {
                largest = Math.max(largest, batch.maxTimestamp());
                for (Record record : batch) {
                    offsets.add(record.offset());
                    timestamps.add(record.timestamp());
                }
            }
            file.channel().close();
            return new Times(offsets, timestamps, largest >= 0 ? largest : log.lastModified());
        }

        long firstAtOrAfter(long time) {
            for (int i = 0; i < offsets.size(); i++) if (timestamps.get(i) >= time) return offsets.get(i);
            return -1;
        }
    }

    static long byKafkasRule(List<Times> segments, long time) {
        for (Times segment : segments) if (segment.largest >= time) return segment.firstAtOrAfter(time);
        return -1;
    }

    static long firstAtOrAfter(List<Times> segments, long time) {
        for (Times segment : segments) if (segment.firstAtOrAfter(time) >= 0) return segment.firstAtOrAfter(time);
        return -1;
    }

    /** Some timestamps of records and their neighbours, some between, and the ends; none for a log without timestamps. */
    static TreeSet<Long> someTimes(List<Times> segments, int count) {
        List<Long> all = new ArrayList<>();
        for (Times segment : segments) for (long t : segment.timestamps) if (t >= 0) all.add(t);
        TreeSet<Long> times = new TreeSet<>();
        if (all.isEmpty()) return times;
        long low = all.stream().min(Long::compare).get(), high = all.stream().max(Long::compare).get();
        times.addAll(List.of(0L, low, low + 1, high, high + 1));
        SplittableRandom random = new SplittableRandom(42);
        for (int i = 0; i < count / 2; i++) {
            times.add(all.get(random.nextInt(all.size())) + random.nextInt(-1, 2));
            times.add(low + random.nextLong(high - low + 1));
        }
        return times;
    }

    static TopicPartition partition(String name) {
        int dash = name.lastIndexOf('-');
        return new TopicPartition(name.substring(0, dash), Integer.parseInt(name.substring(dash + 1)));
    }

    static KafkaConsumer<byte[], byte[]> consumer(String bootstrap, String isolation) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("isolation.level", isolation);
        settings.put("key.deserializer", ByteArrayDeserializer.class);
        settings.put("value.deserializer", ByteArrayDeserializer.class);
        settings.put("max.poll.records", 20_000);
        settings.put("max.partition.fetch.bytes", 16 << 20);
        settings.put("fetch.max.wait.ms", 10); // close() waits for the fetch at the log's end
        settings.put("auto.offset.reset", "none"); // an offset that is out of range is an error
        settings.put("enable.auto.commit", false);
        settings.put("allow.auto.create.topics", false);
        return new KafkaConsumer<>(settings);
    }

    private Consume() { }
}
