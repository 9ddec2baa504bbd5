import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.Stores;

/**
 * A Kafka Streams application whose members are a streams group (KIP-1071): counts records by the length of their key.
 * argv: bootstrap, name of the group, input topic, state folder, records after which it stops, processing guarantee.
 */
public final class StreamsGroup {
    public static void main(String[] argv) throws Exception {
        long stop = Long.parseLong(argv[4]);
        AtomicLong seen = new AtomicLong();
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(argv[2], Consumed.with(Serdes.ByteArray(), Serdes.ByteArray()))
            .map((key, value) -> {
                pause(2);
                seen.incrementAndGet();
                return KeyValue.pair(key == null ? "none" : "of " + key.length, "");
            })
            .groupByKey(Grouped.with(Serdes.String(), Serdes.String()))
            .count(Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts"))
                .withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()));
        Properties settings = new Properties();
        settings.putAll(Map.of("bootstrap.servers", argv[0], "application.id", argv[1], "state.dir", argv[3],
            "group.protocol", "streams", "commit.interval.ms", 50, "max.poll.records", 20, "processing.guarantee", argv[5]));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.start();
        for (int i = 0; seen.get() < stop; i++) {
            if (i > 3000) throw new IllegalStateException("the application reads nothing: " + streams.state());
            pause(20);
        }
        if (!streams.close(Duration.ofSeconds(20))) throw new IllegalStateException("the application does not stop");
    }

    static void pause(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    private StreamsGroup() { }
}
