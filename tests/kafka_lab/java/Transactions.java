import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.NullNode;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.FeatureUpdate;
import org.apache.kafka.clients.admin.UpdateFeaturesOptions;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/** Transactions of one transactional id, with both versions of the protocol, ended by their producer or by the next one. */
final class Transactions {
    /** args: {bootstrap, topic}; the topic is there. Ends with transaction.version 2. */
    static JsonNode write(JsonNode args) throws Exception {
        String bootstrap = args.get("bootstrap").asText(), topic = args.get("topic").asText();
        int n = 0;
        for (short version : new short[] {1, 2}) {
            setVersion(bootstrap, version);
            for (int round = 0; round < 3; round++) {
                KafkaProducer<String, String> producer = producer(bootstrap); // ends what the one before left open
                for (boolean commit : new boolean[] {true, false, true}) {
                    send(producer, topic, n++);
                    if (commit) producer.commitTransaction();
                    else producer.abortTransaction();
                }
                send(producer, topic, n++);
                producer.flush();
                if (round == 2) producer.commitTransaction();
                producer.close();
            }
        }
        return NullNode.instance;
    }

    static void send(KafkaProducer<String, String> producer, String topic, int n) {
        producer.beginTransaction();
        producer.send(new ProducerRecord<>(topic, 0, "k" + n % 5, "v" + n));
        producer.send(new ProducerRecord<>(topic, 0, "own" + n, "v"));
    }

    static KafkaProducer<String, String> producer(String bootstrap) {
        Properties settings = new Properties();
        settings.putAll(Map.of("bootstrap.servers", bootstrap, "transactional.id", "one", "acks", "all",
            "key.serializer", StringSerializer.class.getName(), "value.serializer", StringSerializer.class.getName()));
        KafkaProducer<String, String> producer = new KafkaProducer<>(settings);
        producer.initTransactions();
        return producer;
    }

    static void setVersion(String bootstrap, short version) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            var now = admin.describeFeatures().featureMetadata().get().finalizedFeatures().get("transaction.version");
            if (now != null && now.maxVersionLevel() == version) return;
            boolean down = now != null && now.maxVersionLevel() > version;
            var update = new FeatureUpdate(version,
                down ? FeatureUpdate.UpgradeType.SAFE_DOWNGRADE : FeatureUpdate.UpgradeType.UPGRADE);
            admin.updateFeatures(Map.of("transaction.version", update), new UpdateFeaturesOptions()).all().get();
        }
    }

    private Transactions() { }
}
