import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import java.util.Map;
import org.apache.kafka.common.errors.SerializationException;
import org.apache.kafka.common.serialization.BooleanDeserializer;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.DoubleDeserializer;
import org.apache.kafka.common.serialization.FloatDeserializer;
import org.apache.kafka.common.serialization.IntegerDeserializer;
import org.apache.kafka.common.serialization.LongDeserializer;
import org.apache.kafka.common.serialization.ShortDeserializer;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.UUIDDeserializer;

/** Kafka's deserializers. */
final class Deserializers {
    static final Map<String, Deserializer<?>> KINDS = Map.of(
        "string", new StringDeserializer(), "boolean", new BooleanDeserializer(), "short", new ShortDeserializer(),
        "int", new IntegerDeserializer(), "long", new LongDeserializer(), "float", new FloatDeserializer(),
        "double", new DoubleDeserializer(), "uuid", new UUIDDeserializer());

    /** args: {kind, values: [BASE64]}. Answers each as text, or null where it is refused; floats and doubles as their bits. */
    static JsonNode deserialize(JsonNode args) throws Exception {
        Deserializer<?> deserializer = KINDS.get(args.get("kind").asText());
        ArrayNode texts = Lab.JSON.createArrayNode();
        for (JsonNode value : args.get("values")) {
            try {
                Object read = deserializer.deserialize("topic", value.binaryValue());
                if (read instanceof Float f) read = Float.floatToRawIntBits(f);
                if (read instanceof Double d) read = Double.doubleToRawLongBits(d);
                texts.add(read.toString());
            } catch (SerializationException e) {
                texts.addNull();
            }
        }
        return texts;
    }

    private Deserializers() { }
}
