import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.NullNode;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Groups of every kind, so that the broker's own topics have records of every kind. args: {bootstrap, topic} */
final class Groups {
    static final ByteArrayDeserializer BYTES = new ByteArrayDeserializer();
    static final Duration TICK = Duration.ofMillis(200);
    static final int POLLS = 150; // half a minute

    static JsonNode run(JsonNode args) throws Exception {
        String bootstrap = args.get("bootstrap").asText(), topic = args.get("topic").asText();
        TopicPartition first = new TopicPartition(topic, 0), second = new TopicPartition(topic, 1);
        consume(settings(bootstrap, "classic-group", Map.of("group.instance.id", "instance-1")), topic, false);
        consume(settings(bootstrap, "classic-cooperative", Map.of("client.rack", "rack-ä", "partition.assignment.strategy",
            "org.apache.kafka.clients.consumer.CooperativeStickyAssignor")), topic, false);
        consume(settings(bootstrap, "new-group", Map.of("group.protocol", "consumer", "client.rack", "rack-1")), topic, false);
        consume(settings(bootstrap, "new-regex", Map.of("group.protocol", "consumer")), topic, true);
        transactions(bootstrap, topic);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            admin.alterConsumerGroupOffsets("simple \"group\"\n", Map.of(
                first, new OffsetAndMetadata(7, java.util.Optional.of(0), "metadata é"), second, new OffsetAndMetadata(8))).all().get();
            admin.deleteConsumerGroupOffsets("simple \"group\"\n", java.util.Set.of(second)).all().get();
            share(admin, bootstrap, topic);
            admin.deleteConsumerGroups(List.of("classic-cooperative", "new-group")).all().get();
        }
        return NullNode.instance;
    }

    static Map<String, Object> settings(String bootstrap, String group, Map<String, String> more) {
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", bootstrap, "group.id", group, "client.id", "client-" + group,
            "auto.offset.reset", "earliest", "enable.auto.commit", false, "max.poll.records", 10));
        settings.putAll(more);
        return settings;
    }

    /** Reads some, and commits them with metadata. */
    static void consume(Map<String, Object> settings, String topic, boolean pattern) {
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, BYTES, BYTES)) {
            if (pattern) consumer.subscribe(new SubscriptionPattern(topic.charAt(0) + ".*"));
            else consumer.subscribe(List.of(topic));
            for (int rounds = 0, polls = 0; rounds < 3; polls++) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(TICK);
                if (polls > POLLS) throw new IllegalStateException(settings.get("group.id") + " reads nothing");
                if (records.isEmpty()) continue;
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                for (TopicPartition partition : records.partitions())
                    offsets.put(partition, new OffsetAndMetadata(consumer.position(partition), "round " + rounds));
                consumer.commitSync(offsets);
                rounds++;
            }
        }
    }

    /** Transactions that commit, abort, and hand on offsets of a group. */
    static void transactions(String bootstrap, String topic) throws Exception {
        ByteArraySerializer bytes = new ByteArraySerializer();
        for (String id : List.of("pay-1", "pay-ü")) {
            Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "transactional.id", id, "transaction.timeout.ms", 60_000);
            try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, bytes, bytes)) {
                producer.initTransactions();
                for (int i = 0; i < 4; i++) {
                    producer.beginTransaction();
                    for (int partition = 0; partition <= i % 2; partition++)
                        producer.send(new ProducerRecord<>(topic, partition, new byte[] {(byte) i}, new byte[] {1}));
                    if (i == 2) producer.sendOffsetsToTransaction(Map.of(new TopicPartition(topic, 1), new OffsetAndMetadata(3)),
                        new org.apache.kafka.clients.consumer.ConsumerGroupMetadata("transactional-group"));
                    producer.flush();
                    if (i == 1) producer.abortTransaction();
                    else producer.commitTransaction();
                }
            }
        }
    }

    static void share(Admin admin, String bootstrap, String topic) throws Exception {
        ConfigResource group = new ConfigResource(ConfigResource.Type.GROUP, "share-group");
        admin.incrementalAlterConfigs(Map.of(group, List.of(
            new AlterConfigOp(new ConfigEntry("share.auto.offset.reset", "earliest"), AlterConfigOp.OpType.SET)))).all().get();
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "group.id", "share-group", "client.id", "client-share");
        try (KafkaShareConsumer<byte[], byte[]> consumer = new KafkaShareConsumer<>(settings, BYTES, BYTES)) {
            consumer.subscribe(List.of(topic));
            for (int polls = 0; consumer.poll(TICK).isEmpty(); polls++)
                if (polls > POLLS) throw new IllegalStateException("the share group reads nothing");
            consumer.commitSync();
        }
    }

    private Groups() { }
}
