import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TimeWindows;

/**
 * A Kafka Streams application under exactly-once: counts by a part of the key, in all and in windows of a minute.
 * argv: bootstrap, input topic, state folder, segment bytes of its topics, records after which it dies in mid-transaction.
 */
public final class Counts {
    static final Duration WINDOW = Duration.ofMinutes(1);

    public static void main(String[] argv) {
        String bootstrap = argv[0], input = argv[1];
        long dies = Long.parseLong(argv[4]);
        AtomicLong seen = new AtomicLong();
        StreamsBuilder builder = new StreamsBuilder();
        KGroupedStream<String, String> grouped = builder.stream(input, Consumed.with(Serdes.String(), Serdes.String()))
            .map((key, value) -> KeyValue.pair("group-" + Math.floorMod(key.hashCode(), 40), value))
            .groupByKey(Grouped.with(Serdes.String(), Serdes.String()));
        grouped.aggregate(() -> 0L, (key, value, sum) -> {
            if (seen.incrementAndGet() == dies) Runtime.getRuntime().halt(9);
            return sum % 7 == 6 ? null : sum + 1;
        }, Materialized.with(Serdes.String(), Serdes.Long()))
            .toStream().to("totals", Produced.with(Serdes.String(), Serdes.Long()));
        grouped.windowedBy(TimeWindows.ofSizeWithNoGrace(WINDOW)).count()
            .suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()))
            .toStream((window, count) -> window.key()).to("windows", Produced.with(Serdes.String(), Serdes.Long()));
        new KafkaStreams(builder.build(), settings(argv)).start();
    }

    static Properties settings(String[] argv) {
        Properties settings = new Properties();
        settings.putAll(Map.of(
            StreamsConfig.APPLICATION_ID_CONFIG, "counts", StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, argv[0],
            StreamsConfig.STATE_DIR_CONFIG, argv[2], StreamsConfig.topicPrefix("internal.segment.bytes"), argv[3],
            StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2, StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0,
            StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 60, StreamsConfig.REPARTITION_PURGE_INTERVAL_MS_CONFIG, 300L,
            "max.poll.records", 50, "producer.linger.ms", 0));
        settings.put("consumer.session.timeout.ms", 6000);
        settings.put("consumer.auto.offset.reset", "earliest");
        return settings;
    }

    private Counts() { }
}
