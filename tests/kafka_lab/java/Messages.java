import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.lang.reflect.ParameterizedType;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.SplittableRandom;
import java.util.TreeMap;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.types.BoundField;
import org.apache.kafka.common.protocol.types.RawTaggedField;
import org.apache.kafka.common.protocol.types.Schema;
import org.apache.kafka.common.protocol.types.Struct;
import org.apache.kafka.common.protocol.types.TaggedFields;
import org.apache.kafka.common.protocol.types.Type;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.SimpleRecord;

/** Kafka's generated messages: what they are made of, random ones, and what kafka-dump-log makes of records that hold them. */
final class Messages {
    static final String TOOL = "org.apache.kafka.tools.DumpLogSegments$";
    static final List<String> TEXTS = List.of("", "group", "Zürich", "a\"b\\c\n\t\u0001\u001f\u007f/", "日本\ud83d\ude00", "\u2028</x>");
    static final List<Long> LONGS = List.of(0L, 1L, -1L, 127L, 1700000000000L, Long.MAX_VALUE, Long.MIN_VALUE);

    /** Of each version the fields as they are written, and all as the JSON converter writes them. args: {classes: [NAME]} */
    static JsonNode describe(JsonNode args) throws Exception {
        ObjectNode result = Lab.JSON.createObjectNode();
        for (JsonNode name : args.get("classes")) {
            Class<?> message = Class.forName(name.asText());
            short lowest = message.getField("LOWEST_SUPPORTED_VERSION").getShort(null);
            short highest = message.getField("HIGHEST_SUPPORTED_VERSION").getShort(null);
            Schema[] schemas = (Schema[]) message.getField("SCHEMAS").get(null);
            ObjectNode one = result.putObject(name.asText()).put("lowest", lowest).put("highest", highest);
            for (int version = lowest; version <= highest; version++) one.withArray("schemas").add(schema(schemas[version]));
            one.set("order", order(message));
        }
        return result;
    }

    static JsonNode schema(Schema schema) {
        ArrayNode fields = Lab.JSON.createArrayNode();
        for (BoundField field : schema.fields()) {
            if (field.def.type instanceof TaggedFields tagged)
                tagged.fields().forEach((tag, def) -> fields.add(described(def.name, def.type).put("tag", tag)));
            else fields.add(described(field.def.name, field.def.type));
        }
        return fields;
    }

    static ObjectNode described(String name, Type type) {
        ObjectNode field = Lab.JSON.createObjectNode().put("name", name).put("nullable", type.isNullable());
        Type element = type.arrayElementType().orElse(type);
        field.put("type", (element == type ? "" : "[]") + (element instanceof Schema ? "struct" : typeName(element)));
        field.put("flexible", type.toString().startsWith("COMPACT") || element.toString().startsWith("COMPACT"));
        if (element instanceof Schema nested) field.set("fields", schema(nested));
        return field;
    }

    static String typeName(Type type) {
        return type.toString().toLowerCase().replace("compact_", "").replace("nullable_", "");
    }

    /** Fields in the order of their declaration, with those of nested structures; defaults as JSON has them, or text. */
    static JsonNode order(Class<?> type) throws Exception {
        ArrayNode names = Lab.JSON.createArrayNode();
        Object fresh = type.getDeclaredConstructor().newInstance();
        for (Field field : type.getDeclaredFields()) {
            if (Modifier.isStatic(field.getModifiers()) || field.getName().startsWith("_")) continue;
            if (field.getName().equals("next") || field.getName().equals("prev")) continue;
            field.setAccessible(true);
            Object value = field.get(fresh);
            ObjectNode one = names.addObject().put("name", field.getName()).put("default", value == null ? null : value.toString());
            one.put("java", field.getType().getSimpleName());
            Class<?> inner = inner(field);
            if (inner != null) one.set("fields", order(inner));
        }
        return names;
    }

    static Class<?> inner(Field field) throws Exception {
        Class<?> type = field.getType();
        if (field.getGenericType() instanceof ParameterizedType p && p.getActualTypeArguments()[0] instanceof Class<?> c) type = c;
        else if (type.getSimpleName().endsWith("Collection")) type = (Class<?>) ((ParameterizedType) type.getGenericSuperclass()).getActualTypeArguments()[0];
        return org.apache.kafka.common.protocol.Message.class.isAssignableFrom(type) ? type : null;
    }

    /** Random messages. args: {class, version, count, seed}. Answers [{bytes: BASE64, json}] */
    static JsonNode make(JsonNode args) throws Exception {
        Class<?> message = Class.forName(args.get("class").asText());
        short version = (short) args.get("version").asInt();
        Class<?> converter = Class.forName(message.getName() + "JsonConverter");
        Method write = converter.getMethod("write", message, short.class);
        Schema schema = ((Schema[]) message.getField("SCHEMAS").get(null))[version];
        SplittableRandom random = new SplittableRandom(args.get("seed").asLong());
        ArrayNode made = Lab.JSON.createArrayNode();
        for (int i = 0; i < args.get("count").asInt(); i++) {
            Struct struct = (Struct) value(schema, random, 0);
            ByteBuffer bytes = ByteBuffer.allocate(struct.sizeOf());
            struct.writeTo(bytes);
            bytes.flip();
            ApiMessage read = (ApiMessage) message.getConstructor().newInstance();
            read.read(new ByteBufferAccessor(bytes.duplicate()), version);
            made.addObject().put("bytes", bytes.array()).put("json", write.invoke(null, read, version).toString());
        }
        return made;
    }

    static Object value(Type type, SplittableRandom random, int depth) {
        if (type.isNullable() && random.nextInt(4) == 0) return null;
        Optional<Type> element = type.arrayElementType();
        if (element.isPresent()) {
            Object[] items = new Object[random.nextInt(depth > 1 ? 2 : 4)];
            for (int i = 0; i < items.length; i++) items[i] = value(element.get(), random, depth + 1);
            return items;
        }
        if (type instanceof Schema schema) return struct(schema, random, depth);
        if (type instanceof TaggedFields tagged) {
            TreeMap<Integer, Object> values = new TreeMap<>();
            tagged.fields().forEach((tag, field) -> {
                if (random.nextInt(3) == 0) return;
                Object value = value(field.type, random, depth + 1);
                // the generated classes write a null structure with a tag otherwise than its schema does
                if (value != null || !(field.type instanceof Schema)) values.put(tag, value);
            });
            if (random.nextInt(4) == 0) values.put(1000, new RawTaggedField(1000, bytes(random))); // of a version to come
            return values;
        }
        long number = random.nextBoolean() ? LONGS.get(random.nextInt(LONGS.size())) : random.nextLong();
        switch (typeName(type)) {
            case "boolean": return random.nextBoolean();
            case "int8": return (byte) number;
            case "int16": return (short) number;
            case "uint16": return (int) (number & 0xffff);
            case "int32": return (int) number;
            case "uint32": return number & 0xffffffffL;
            case "int64": return number;
            case "float64": return random.nextBoolean() ? random.nextDouble() : number >> 16; // larger ones Java 17 writes with too many digits
            case "uuid": return random.nextInt(3) == 0 ? Uuid.ZERO_UUID : new Uuid(random.nextLong(), random.nextLong());
            case "string": return TEXTS.get(random.nextInt(TEXTS.size()));
            case "bytes": return ByteBuffer.wrap(bytes(random));
            default: throw new IllegalArgumentException("no values of " + type);
        }
    }

    static Struct struct(Schema schema, SplittableRandom random, int depth) {
        Struct struct = new Struct(schema);
        for (BoundField field : schema.fields()) struct.set(field, value(field.def.type, random, depth + 1));
        return struct;
    }

    static byte[] bytes(SplittableRandom random) {
        byte[] bytes = new byte[random.nextInt(6)];
        random.nextBytes(bytes);
        return bytes;
    }

    /**
     * What kafka-dump-log prints of records. args: {parser: OffsetsMessageParser or another of the tool's, records: [[OFFSET,
     * KEY, VALUE]...], in BASE64 or null}. Answers [[KEY TEXT, PAYLOAD TEXT]...], null where it prints none.
     */
    static JsonNode parse(JsonNode args) throws Exception {
        Constructor<?> constructor = Class.forName(TOOL + args.get("parser").asText()).getDeclaredConstructor();
        constructor.setAccessible(true);
        Object parser = constructor.newInstance();
        Method parse = Class.forName(TOOL + "MessageParser").getMethod("parse", Record.class);
        parse.setAccessible(true);
        ArrayNode texts = Lab.JSON.createArrayNode();
        for (JsonNode one : args.get("records")) {
            SimpleRecord record = new SimpleRecord(0L, one.get(1).binaryValue(), one.get(2).binaryValue());
            Record read = MemoryRecords.withRecords(one.get(0).asLong(), Compression.NONE, record).records().iterator().next();
            Object result = parse.invoke(parser, read);
            ArrayNode pair = texts.addArray();
            for (String part : new String[] {"key", "value"}) {
                Method get = result.getClass().getDeclaredMethod(part);
                get.setAccessible(true);
                pair.add((String) ((Optional<?>) get.invoke(result)).orElse(null));
            }
        }
        return texts;
    }

    private Messages() { }
}
