import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.NullNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.coordinator.share.PersisterStateBatchCombiner;
import org.apache.kafka.server.share.persister.PersisterStateBatch;

/** Groups that commit, lag, rebalance, continue and are deleted, with the offsets that the broker reports for each. */
final class Deliveries {
    /** args: {bootstrap, topic}, of three partitions with some hundred records each */
    static JsonNode deliver(JsonNode args) throws Exception {
        String bootstrap = args.get("bootstrap").asText(), topic = args.get("topic").asText();
        for (String protocol : List.of("classic", "consumer")) {
            Map<String, String> more = new HashMap<>(Map.of("group.protocol", protocol, "max.poll.records", "7"));
            if (protocol.equals("classic")) more.put("heartbeat.interval.ms", "200"); // else the broker's setting
            rebalance(Groups.settings(bootstrap, protocol + "-lagging", more), topic);
            Groups.consume(Groups.settings(bootstrap, protocol + "-deleted", more), topic, false);
        }
        transactions(bootstrap, topic);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
            for (int i = 0; i < 3; i++) offsets.put(new TopicPartition(topic, i), new OffsetAndMetadata(40 + i, java.util.Optional.of(0), "é" + i));
            admin.alterConsumerGroupOffsets("simple ü", offsets).all().get();
            admin.deleteConsumerGroupOffsets("simple ü", Set.of(new TopicPartition(topic, 1))).all().get();
            for (String group : List.of("share-explicit", "share-implicit", "share-deleted")) {
                earliest(admin, group);
                share(bootstrap, topic, group);
            }
            admin.deleteConsumerGroups(List.of("classic-deleted", "consumer-deleted")).all().get();
            admin.deleteShareGroups(List.of("share-deleted")).all().get();
        }
        return NullNode.instance;
    }

    /** One member reads and commits; a second joins, and both commit their partitions; it leaves, and the first continues. */
    static void rebalance(Map<String, Object> settings, String topic) {
        try (KafkaConsumer<byte[], byte[]> first = new KafkaConsumer<>(settings, Groups.BYTES, Groups.BYTES)) {
            first.subscribe(List.of(topic));
            commit(first, 3);
            try (KafkaConsumer<byte[], byte[]> second = new KafkaConsumer<>(settings, Groups.BYTES, Groups.BYTES)) {
                second.subscribe(List.of(topic));
                for (int polls = 0; second.assignment().isEmpty(); polls++) {
                    if (polls > 5 * Groups.POLLS) throw new IllegalStateException("the second member gets nothing");
                    first.poll(Duration.ofMillis(20)); // read and not committed
                    second.poll(Duration.ofMillis(20));
                }
                commit(second, 2);
            }
            commit(first, 2);
        }
    }

    static void commit(KafkaConsumer<byte[], byte[]> consumer, int rounds) {
        for (int done = 0, polls = 0; done < rounds; polls++) {
            if (polls > Groups.POLLS) throw new IllegalStateException("a member reads nothing");
            ConsumerRecords<byte[], byte[]> records = consumer.poll(Groups.TICK);
            if (records.isEmpty()) continue;
            consumer.commitSync();
            done++;
        }
    }

    /** Offsets of one group handed on by transactions: committed, aborted, one still open; and ordinary commits behind the open one. */
    static void transactions(String bootstrap, String topic) throws Exception {
        ByteArraySerializer bytes = new ByteArraySerializer();
        ConsumerGroupMetadata group = new ConsumerGroupMetadata("transactional");
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "transactional.id", "hands-on", "transaction.timeout.ms", 600_000);
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, bytes, bytes);
        producer.initTransactions();
        long[][] rounds = {{11, 12, 13}, {21, 22, -1}, {31, -1, -1}, {51, -1, 53}};
        for (int i = 0; i < rounds.length; i++) {
            producer.beginTransaction();
            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
            for (int partition = 0; partition < 3; partition++)
                if (rounds[i][partition] >= 0) offsets.put(new TopicPartition(topic, partition), new OffsetAndMetadata(rounds[i][partition], "round " + i));
            producer.sendOffsetsToTransaction(offsets, group);
            if (i == 2) producer.abortTransaction();
            else if (i < 3) producer.commitTransaction();
        }
        producer.close(Duration.ZERO); // the last transaction stays open
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            for (String name : List.of("behind-1", "behind-2", "behind-3", "behind-4", "transactional"))
                admin.alterConsumerGroupOffsets(name, Map.of(new TopicPartition(topic, 1), new OffsetAndMetadata(77))).all().get();
        }
    }

    static void earliest(Admin admin, String group) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.GROUP, group);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(
            new AlterConfigOp(new ConfigEntry("share.auto.offset.reset", "earliest"), AlterConfigOp.OpType.SET)))).all().get();
    }

    /** Two members; those of an explicit group accept, release and reject records by their offsets. */
    static void share(String bootstrap, String topic, String group) {
        boolean explicit = group.endsWith("explicit");
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "group.id", group, "max.poll.records", 20,
            "share.acquire.mode", "record_limit",
            "share.acknowledgement.mode", explicit ? "explicit" : "implicit");
        try (KafkaShareConsumer<byte[], byte[]> first = new KafkaShareConsumer<>(settings, Groups.BYTES, Groups.BYTES);
             KafkaShareConsumer<byte[], byte[]> second = new KafkaShareConsumer<>(settings, Groups.BYTES, Groups.BYTES)) {
            first.subscribe(List.of(topic));
            acknowledge(first, explicit, 6);
            second.subscribe(List.of(topic));
            acknowledge(second, explicit, 4);
            acknowledge(first, explicit, 3);
        }
    }

    static void acknowledge(KafkaShareConsumer<byte[], byte[]> consumer, boolean explicit, int rounds) {
        for (int done = 0, polls = 0; done < rounds; polls++) {
            if (polls > Groups.POLLS) throw new IllegalStateException("a share member reads nothing");
            ConsumerRecords<byte[], byte[]> records = consumer.poll(Groups.TICK);
            if (explicit)
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    long kind = (record.offset() / 3) % 5;
                    consumer.acknowledge(record, kind == 1 ? AcknowledgeType.RELEASE : kind == 3 ? AcknowledgeType.REJECT : AcknowledgeType.ACCEPT);
                }
            consumer.commitSync();
            if (!records.isEmpty()) done++;
        }
    }

    /** args: {bootstrap}. Answers {group: {type, offsets: {"topic-n": [offset, leader epoch, metadata] or of share groups [start, lag]}}} */
    static JsonNode committed(JsonNode args) throws Exception {
        ObjectNode answer = Lab.JSON.createObjectNode();
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", args.get("bootstrap").asText()))) {
            for (GroupListing listing : admin.listGroups().all().get()) {
                ObjectNode group = answer.putObject(listing.groupId()).put("type", listing.type().get().toString().toLowerCase());
                ObjectNode offsets = group.putObject("offsets");
                if (listing.type().get() == GroupType.SHARE) {
                    for (var one : admin.listShareGroupOffsets(Map.of(listing.groupId(), new ListShareGroupOffsetsSpec())).all().get().get(listing.groupId()).entrySet())
                        if (one.getValue() != null) offsets.putArray(one.getKey().toString()).add(one.getValue().startOffset()).add(one.getValue().lag().orElse(-1L));
                } else {
                    for (var one : admin.listConsumerGroupOffsets(listing.groupId()).partitionsToOffsetAndMetadata().get().entrySet())
                        if (one.getValue() != null) offsets.putArray(one.getKey().toString()).add(one.getValue().offset())
                            .add(one.getValue().leaderEpoch().orElse(-1)).add(one.getValue().metadata());
                }
            }
        }
        return answer;
    }

    /** args: {folds: [[[start, [[first, last, state, count]...]]...]...]}: a snapshot and its updates. Answers [[[first, last, state, count]...]...] */
    static JsonNode combine(JsonNode args) {
        ArrayNode answer = Lab.JSON.createArrayNode();
        for (JsonNode fold : args.get("folds")) {
            List<PersisterStateBatch> state = batches(fold.get(0).get(1));
            long start = fold.get(0).get(0).asLong();
            for (int i = 1; i < fold.size(); i++) {
                long said = fold.get(i).get(0).asLong();
                start = said == -1 ? start : said;
                state = new PersisterStateBatchCombiner(state, batches(fold.get(i).get(1)), start).combineStateBatches();
            }
            ArrayNode one = answer.addArray();
            for (PersisterStateBatch batch : state)
                one.addArray().add(batch.firstOffset()).add(batch.lastOffset()).add(batch.deliveryState()).add(batch.deliveryCount());
        }
        return answer;
    }

    static List<PersisterStateBatch> batches(JsonNode all) {
        List<PersisterStateBatch> batches = new ArrayList<>();
        for (JsonNode one : all)
            batches.add(new PersisterStateBatch(one.get(0).asLong(), one.get(1).asLong(), (byte) one.get(2).asInt(), (short) one.get(3).asInt()));
        return batches;
    }

    private Deliveries() { }
}
