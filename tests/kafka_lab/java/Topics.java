import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.NullNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

/** Topics through the real Admin client. */
final class Topics {
    /** args: {bootstrap, topics: {name: partitions}, configs: {setting: value}} */
    static JsonNode create(JsonNode args) throws Exception {
        Map<String, String> configs = new HashMap<>();
        args.get("configs").properties().forEach(e -> configs.put(e.getKey(), e.getValue().asText()));
        List<NewTopic> topics = new ArrayList<>();
        args.get("topics").properties().forEach(
            e -> topics.add(new NewTopic(e.getKey(), Optional.of(e.getValue().asInt()), Optional.empty()).configs(configs)));
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", args.get("bootstrap").asText()))) {
            admin.createTopics(topics).all().get();
        }
        return NullNode.instance;
    }

    /**
     * args: {bootstrap, isolation, queries: {"topic-n": [time...]}}; the times -1, -2 and -3 as in ListOffsets. Answers
     * {"topic-n": [[offset, timestamp, leader epoch]...]}, -1 for none. The n-th times of all partitions are asked in one call.
     */
    static JsonNode listOffsets(JsonNode args) throws Exception {
        ListOffsetsOptions options = new ListOffsetsOptions(
            IsolationLevel.valueOf(args.get("isolation").asText().toUpperCase(Locale.ROOT)));
        ObjectNode answer = Lab.JSON.createObjectNode();
        int most = 0;
        for (Map.Entry<String, JsonNode> one : args.get("queries").properties()) most = Math.max(most, one.getValue().size());
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", args.get("bootstrap").asText()))) {
            for (int i = 0; i < most; i++) {
                Map<TopicPartition, OffsetSpec> specs = new HashMap<>();
                for (Map.Entry<String, JsonNode> one : args.get("queries").properties())
                    if (i < one.getValue().size()) specs.put(Consume.partition(one.getKey()), spec(one.getValue().get(i).asLong()));
                for (var found : admin.listOffsets(specs, options).all().get().entrySet())
                    answer.withArray(found.getKey().toString()).addArray().add(found.getValue().offset())
                        .add(found.getValue().timestamp()).add(found.getValue().leaderEpoch().orElse(-1));
            }
        }
        return answer;
    }

    /** args: {bootstrap, topics: [name...]} */
    static JsonNode delete(JsonNode args) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", args.get("bootstrap").asText()))) {
            admin.deleteTopics(List.of(Tools.strings(args.get("topics")))).all().get();
        }
        return NullNode.instance;
    }

    /** args: {bootstrap, kind: TOPIC or BROKER, name, configs: {setting: value, or null to remove it}} */
    static JsonNode alterConfigs(JsonNode args) throws Exception {
        ConfigResource of = resource(args.get("kind").asText(), args.get("name").asText());
        List<AlterConfigOp> ops = new ArrayList<>();
        args.get("configs").properties().forEach(e -> ops.add(new AlterConfigOp(
            new ConfigEntry(e.getKey(), e.getValue().isNull() ? null : e.getValue().asText()),
            e.getValue().isNull() ? AlterConfigOp.OpType.DELETE : AlterConfigOp.OpType.SET)));
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", args.get("bootstrap").asText()))) {
            admin.incrementalAlterConfigs(Map.of(of, ops)).all().get();
        }
        return NullNode.instance;
    }

    /** args: {bootstrap, kind, names: [name...]}; answers {name: {setting: value}}, all as Kafka resolves them */
    static JsonNode describeConfigs(JsonNode args) throws Exception {
        List<ConfigResource> wanted = new ArrayList<>();
        for (String name : Tools.strings(args.get("names"))) wanted.add(resource(args.get("kind").asText(), name));
        ObjectNode answer = Lab.JSON.createObjectNode();
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", args.get("bootstrap").asText()))) {
            for (var found : admin.describeConfigs(wanted).all().get().entrySet())
                for (ConfigEntry entry : found.getValue().entries())
                    answer.withObject("/" + found.getKey().name()).put(entry.name(), entry.value());
        }
        return answer;
    }

    static ConfigResource resource(String kind, String name) {
        return new ConfigResource(ConfigResource.Type.valueOf(kind), name);
    }

    static OffsetSpec spec(long time) {
        if (time == -1) return OffsetSpec.latest();
        if (time == -2) return OffsetSpec.earliest();
        if (time == -3) return OffsetSpec.maxTimestamp();
        return OffsetSpec.forTimestamp(time);
    }

    private Topics() { }
}
