import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.NullNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;

/** Makes topics. args: {bootstrap, topics: {name: partitions}, configs: {setting: value}} */
final class Topics {
    static JsonNode create(JsonNode args) throws Exception {
        Map<String, String> configs = new HashMap<>();
        args.get("configs").properties().forEach(e -> configs.put(e.getKey(), e.getValue().asText()));
        List<NewTopic> topics = new ArrayList<>();
        args.get("topics").properties().forEach(
            e -> topics.add(new NewTopic(e.getKey(), e.getValue().asInt(), (short) 1).configs(configs)));
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", args.get("bootstrap").asText()))) {
            admin.createTopics(topics).all().get();
        }
        return NullNode.instance;
    }

    private Topics() { }
}
