import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;

/** A group that reads some, and stops in the middle. */
final class ReadGroup {
    /**
     * args: {bootstrap, group, topics, records}: read about so many, a few of each partition in turn, as read_committed; commit.
     * Answers {"topic-n": the offset committed}.
     */
    static JsonNode read(JsonNode args) {
        List<String> topics = new ArrayList<>();
        for (JsonNode topic : args.get("topics")) topics.add(topic.asText());
        Map<String, Object> settings = Groups.settings(args.get("bootstrap").asText(), args.get("group").asText(),
            Map.of("isolation.level", "read_committed", "max.partition.fetch.bytes", "2000", "fetch.max.bytes", "4000"));
        ObjectNode result = Lab.JSON.createObjectNode();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, Groups.BYTES, Groups.BYTES)) {
            consumer.subscribe(topics);
            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
            long read = 0, wanted = args.get("records").asLong();
            for (int polls = 0; read < wanted; polls++) {
                if (polls > 10 * Groups.POLLS) throw new IllegalStateException("read " + read + " of " + wanted);
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Groups.TICK);
                for (ConsumerRecord<byte[], byte[]> record : records) read++;
                for (TopicPartition partition : records.partitions())
                    offsets.put(partition, new OffsetAndMetadata(consumer.position(partition)));
            }
            consumer.commitSync(offsets);
            offsets.forEach((partition, offset) -> result.put(partition.toString(), offset.offset()));
        }
        return result;
    }

    private ReadGroup() { }
}
