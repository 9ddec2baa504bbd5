import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.Utils;

/** Where the producer puts keys. */
final class Partitioner {
    /** By its own hash. args: {keys: [BASE64], partitions}. Answers {hashes: [INT], partitions: [INT]}. */
    static JsonNode partitionForKeys(JsonNode args) throws Exception {
        ObjectNode result = Lab.JSON.createObjectNode();
        int partitions = args.get("partitions").asInt();
        for (JsonNode key : args.get("keys")) {
            byte[] bytes = key.binaryValue();
            result.withArray("hashes").add(Utils.murmur2(bytes));
            result.withArray("partitions").add(BuiltInPartitioner.partitionForKey(bytes, partitions));
        }
        return result;
    }

    /** Sends them. args: {bootstrap, topic, keys: [BASE64]}. Answers the partitions that the records went to. */
    static JsonNode sendKeys(JsonNode args) throws Exception {
        String topic = args.get("topic").asText();
        Map<String, Object> settings = Map.of("bootstrap.servers", args.get("bootstrap").asText());
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        ByteArraySerializer bytes = new ByteArraySerializer();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, bytes, bytes)) {
            for (JsonNode key : args.get("keys")) sent.add(producer.send(new ProducerRecord<>(topic, key.binaryValue(), null)));
        }
        var partitions = Lab.JSON.createArrayNode();
        for (Future<RecordMetadata> record : sent) partitions.add(record.get().partition());
        return partitions;
    }

    private Partitioner() { }
}
