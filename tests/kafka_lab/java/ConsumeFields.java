import com.fasterxml.jackson.databind.JsonNode;
import java.io.BufferedWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Base64;
import java.util.List;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;

/** All that the real consumer says of each record of a partition. */
final class ConsumeFields {
    private static final Base64.Encoder BASE64 = Base64.getEncoder();

    /**
     * From the beginning to the end. args: {bootstrap, partition, isolation, output}. The file `output` gets a line a record, with
     * tabs: topic partition offset timestamp timestampType leaderEpoch key value headers. Byte strings are base64, null is '-', a
     * header is key=value, ',' between them. Answers the number of records.
     */
    static JsonNode consume(JsonNode args) throws Exception {
        String name = args.get("partition").asText();
        int dash = name.lastIndexOf('-');
        TopicPartition partition = new TopicPartition(name.substring(0, dash), Integer.parseInt(name.substring(dash + 1)));
        long records = 0;
        try (KafkaConsumer<byte[], byte[]> consumer = Consume.consumer(args.get("bootstrap").asText(), args.get("isolation").asText());
             BufferedWriter out = Files.newBufferedWriter(Path.of(args.get("output").asText()), StandardCharsets.ISO_8859_1)) {
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long end = consumer.endOffsets(List.of(partition)).get(partition), moved = System.nanoTime();
            for (long position = consumer.position(partition); position < end; position = consumer.position(partition)) {
                for (ConsumerRecord<byte[], byte[]> r : consumer.poll(Duration.ofMillis(500))) {
                    out.write(line(r));
                    records++;
                }
                if (consumer.position(partition) > position) moved = System.nanoTime();
                else if (System.nanoTime() - moved > Consume.STUCK_NANOS)
                    throw new IllegalStateException(partition + " is stuck at " + position + " of " + end);
            }
        }
        return Lab.JSON.getNodeFactory().numberNode(records);
    }

    private static String line(ConsumerRecord<byte[], byte[]> r) {
        StringBuilder headers = new StringBuilder();
        for (Header header : r.headers()) {
            if (headers.length() > 0) headers.append(',');
            headers.append(text(header.key().getBytes(StandardCharsets.UTF_8))).append('=').append(text(header.value()));
        }
        return String.join("\t", r.topic(), "" + r.partition(), "" + r.offset(), "" + r.timestamp(), "" + r.timestampType().id,
            r.leaderEpoch().map(String::valueOf).orElse("-"), text(r.key()), text(r.value()), headers) + "\n";
    }

    private static String text(byte[] bytes) {
        return bytes == null ? "-" : BASE64.encodeToString(bytes);
    }

    private ConsumeFields() { }
}
