import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.SplittableRandom;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Topics through the real producer. args: {bootstrap, specs: [LINE...]}; a line describes a topic, or more records for one:
 *
 *   topic= partitions=1 records=10000 seed=1
 *   keys=1000 dist=uniform|zipf|seq zipf=1.0 keysize=16 keyprefix= (readable keys: the prefix and a number)
 *   nullkeys=0.0 (share of records without a key; policy=delete, the broker refuses them otherwise)
 *   vmin=80 vmax=120 vmode=text|random|json tombstones=0.0 emptyvalues=0.0 headers=0 (up to so many a record)
 *   codec=none|gzip|snappy|lz4|zstd level= batch=16384 linger=20 flush=0 (flush after so many records: fixes where batches end)
 *   time=create|append t0=1700000000000|now (an hour ago) tsstep=10 tsjitter=0 (each timestamp moved by up to +-jitter)
 *   producers=1 idempotent=true turn=100 (records that a producer sends before another takes over)
 *   txn=false txnmin=1 txnmax=50 abort=0.3 (each producer transactional; their transactions interleave)
 *   hang=-1 (0..1: at that share of the records one more producer opens a transaction that is never ended)
 *   segment=1048576 (below 1 MiB by internal.segment.bytes; oldbroker=true: by segment.bytes, as brokers before 4.0 allow)
 *   policy=compact config.X=Y (any topic setting)
 *   roll=true (end with one record as large as a segment, up to 1 MiB, which begins a new active one: all other data is inactive)
 *   create=true (false: send more to an existing topic, after its config.X=Y are set)
 *
 * Content follows from the seed. Where batches end may move with the producer's timing unless flush is given.
 */
final class MakeLogs {
    static final byte[] MARKER_KEY = "zz-roll-marker-0".getBytes(StandardCharsets.US_ASCII);
    static final int MARKER_ROOM = 100; // what a record's headers and key add to its value, rounded up

    /** A producer, and the state of its transaction. */
    static final class Sender {
        final KafkaProducer<byte[], byte[]> producer;
        long leftInTransaction;
        boolean inTransaction;
        int sinceFlush;

        Sender(Properties settings) {
            producer = new KafkaProducer<>(settings);
        }
    }

    final String bootstrap, topic, dist, vmode, codec, level, t0, keyprefix;
    final int partitions, keysize, vmin, vmax, headers, batch, linger, flush, producers, turn, txnmin, txnmax, segment;
    final long records, seed, keys, tsjitter;
    final double zipf, nullkeys, tombstones, emptyvalues, tsstep, abort, hang;
    final boolean append, idempotent, txn, roll, create;
    final Map<String, String> configs, moreConfigs;
    final AtomicReference<Exception> failure = new AtomicReference<>();
    final SplittableRandom random;
    long commits, aborts, sentTombstones;

    MakeLogs(String bootstrap, Spec spec) {
        this.bootstrap = bootstrap;
        topic = spec.text("topic", null);
        partitions = spec.integer("partitions", 1);
        records = spec.number("records", 10_000);
        seed = spec.number("seed", 1);
        keys = spec.number("keys", 1000);
        dist = spec.text("dist", "uniform");
        zipf = spec.fraction("zipf", 1.0);
        keysize = spec.integer("keysize", 16);
        keyprefix = spec.text("keyprefix", null);
        nullkeys = spec.fraction("nullkeys", 0);
        vmin = spec.integer("vmin", 80);
        vmax = spec.integer("vmax", 120);
        vmode = spec.text("vmode", "text");
        tombstones = spec.fraction("tombstones", 0);
        emptyvalues = spec.fraction("emptyvalues", 0);
        headers = spec.integer("headers", 0);
        codec = spec.text("codec", "none");
        level = spec.text("level", null);
        batch = spec.integer("batch", 16384);
        linger = spec.integer("linger", 20);
        flush = spec.integer("flush", 0);
        append = spec.text("time", "create").equals("append");
        t0 = spec.text("t0", "1700000000000");
        tsstep = spec.fraction("tsstep", 10);
        tsjitter = spec.number("tsjitter", 0);
        producers = spec.integer("producers", 1);
        idempotent = spec.flag("idempotent", true);
        turn = spec.integer("turn", 100);
        txn = spec.flag("txn", false);
        txnmin = spec.integer("txnmin", 1);
        txnmax = spec.integer("txnmax", 50);
        abort = spec.fraction("abort", 0.3);
        hang = spec.fraction("hang", -1);
        segment = spec.integer("segment", 1 << 20);
        roll = spec.flag("roll", true);
        create = spec.flag("create", true);
        configs = new TreeMap<>();
        configs.put("cleanup.policy", spec.text("policy", "compact"));
        boolean anySize = segment >= 1 << 20 || spec.flag("oldbroker", false);
        configs.put(anySize ? "segment.bytes" : "internal.segment.bytes", Integer.toString(segment));
        configs.put("message.timestamp.type", append ? "LogAppendTime" : "CreateTime");
        // records of 2023 beside transaction markers of today must not roll segments by themselves
        configs.put("segment.ms", Long.toString(Long.MAX_VALUE));
        moreConfigs = spec.under("config.");
        configs.putAll(moreConfigs);
        spec.refuseOthers();
        if (roll && segment > 1 << 20) throw new IllegalArgumentException(topic + ": a segment above 1 MiB needs roll=false");
        random = new SplittableRandom(Contents.mix(seed) ^ 0x5DEECE66DL);
    }

    static JsonNode make(JsonNode args) throws Exception {
        String bootstrap = args.get("bootstrap").asText();
        List<MakeLogs> topics = new ArrayList<>();
        for (JsonNode line : args.get("specs")) topics.add(new MakeLogs(bootstrap, new Spec(line.asText())));
        ArrayNode made = Lab.JSON.createArrayNode();
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            for (MakeLogs topic : topics) made.add(topic.make(admin));
        }
        return made;
    }

    ObjectNode make(Admin admin) throws Exception {
        if (create) admin.createTopics(List.of(new NewTopic(topic, Optional.of(partitions), Optional.empty()).configs(configs))).all().get();
        else if (!moreConfigs.isEmpty()) set(admin, moreConfigs);
        if (records > 0) send();
        if (roll) rollSegments();
        return Lab.JSON.createObjectNode().put("topic", topic).put("records", records).put("tombstones", sentTombstones)
            .put("commits", commits).put("aborts", aborts);
    }

    void set(Admin admin, Map<String, String> settings) throws Exception {
        List<AlterConfigOp> changes = new ArrayList<>();
        settings.forEach((name, value) -> changes.add(new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET)));
        admin.incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.TOPIC, topic), changes)).all().get();
    }

    void send() throws Exception {
        List<Sender> senders = new ArrayList<>();
        for (int i = 0; i < producers; i++) senders.add(newSender(i));
        long start = t0.equals("now") ? System.currentTimeMillis() - 3_600_000 : Long.parseLong(t0);
        int current = 0, inTurn = 0;
        KafkaProducer<byte[], byte[]> hanging = null;
        for (long i = 0; i < records; i++) {
            if (hang >= 0 && hanging == null && i >= hang * records) hanging = hang(start + (long) (i * tsstep));
            if (producers > 1 && inTurn++ >= turn) {
                current = random.nextInt(producers);
                inTurn = 0;
            }
            sendOne(senders.get(current), i, start, producers > 1 && inTurn >= turn);
            if (failure.get() != null) throw failure.get();
        }
        for (Sender sender : senders) {
            sender.producer.flush();
            if (sender.inTransaction) end(sender, false);
            sender.producer.close();
        }
        if (failure.get() != null) throw failure.get();
        if (hanging != null) hanging.close(Duration.ZERO);
    }

    void sendOne(Sender sender, long i, long start, boolean endOfTurn) {
        if (txn && !sender.inTransaction) {
            sender.producer.beginTransaction();
            sender.inTransaction = true;
            sender.leftInTransaction = txnmin + random.nextInt(txnmax - txnmin + 1);
        }
        sender.producer.send(record(i, start), (metadata, e) -> {
            if (e != null) failure.compareAndSet(null, e);
        });
        if (flush > 0 && ++sender.sinceFlush >= flush || endOfTurn) { // the producers' batches have to alternate in the log
            sender.producer.flush();
            sender.sinceFlush = 0;
        }
        if (txn && --sender.leftInTransaction == 0) {
            sender.producer.flush();
            end(sender, random.nextDouble() < abort);
        }
    }

    ProducerRecord<byte[], byte[]> record(long i, long start) {
        long index = dist.equals("seq") ? i % keys : dist.equals("zipf") ? Contents.zipf(random, keys, zipf) : random.nextLong(keys);
        byte[] key = nullkeys > 0 && random.nextDouble() < nullkeys ? null : Contents.key(index, seed, keysize, keyprefix);
        int partition = Math.floorMod(Contents.mix(index ^ seed), partitions);
        byte[] value;
        double kind = random.nextDouble();
        if (kind < tombstones) {
            value = null;
            sentTombstones++;
        } else if (kind < tombstones + emptyvalues) {
            value = new byte[0];
        } else {
            value = Contents.value(random, vmin + random.nextInt(vmax - vmin + 1), vmode, key, i);
        }
        long timestamp = start + (long) (i * tsstep) + (tsjitter > 0 ? random.nextLong(-tsjitter, tsjitter + 1) : 0);
        return new ProducerRecord<>(topic, partition, sent(timestamp), key, value, Contents.headers(random, headers));
    }

    /** The timestamp that a record is sent with: none where the broker sets it. */
    Long sent(long timestamp) {
        return append ? null : (Long) timestamp;
    }

    void end(Sender sender, boolean aborted) {
        if (aborted) {
            sender.producer.abortTransaction();
            aborts++;
        } else {
            sender.producer.commitTransaction();
            commits++;
        }
        sender.inTransaction = false;
    }

    /** A transaction that never ends: the last stable offset stays before it. */
    KafkaProducer<byte[], byte[]> hang(long timestamp) {
        Properties settings = settings();
        settings.put("transactional.id", topic + "-hang");
        settings.put("transaction.timeout.ms", KafkaCleaner.MAX_TRANSACTION_TIMEOUT_MS);
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings);
        producer.initTransactions();
        producer.beginTransaction();
        byte[] value = "hanging".getBytes(StandardCharsets.US_ASCII);
        for (int i = 0; i < 3; i++)
            producer.send(new ProducerRecord<>(topic, 0, sent(timestamp), Contents.key(i, seed, keysize, keyprefix), value));
        producer.flush();
        return producer;
    }

    Sender newSender(int i) {
        Properties settings = settings();
        settings.put("compression.type", codec);
        if (level != null) settings.put("compression." + codec + ".level", level);
        settings.put("batch.size", batch);
        settings.put("linger.ms", linger);
        settings.put("enable.idempotence", idempotent || txn);
        settings.put("max.in.flight.requests.per.connection", 1);
        if (txn) {
            settings.put("transactional.id", topic + "-" + i);
            settings.put("transaction.timeout.ms", 600_000);
        }
        Sender sender = new Sender(settings);
        if (txn) sender.producer.initTransactions();
        return sender;
    }

    Properties settings() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("key.serializer", ByteArraySerializer.class.getName());
        settings.put("value.serializer", ByteArraySerializer.class.getName());
        settings.put("acks", "all");
        return settings;
    }

    /** A record as large as a segment does not fit behind anything, so it begins a new one. */
    void rollSegments() throws Exception {
        Properties settings = settings();
        settings.put("enable.idempotence", false);
        settings.put("max.request.size", 2 * segment);
        byte[] value = ".".repeat(segment - MARKER_ROOM).getBytes(StandardCharsets.US_ASCII);
        Long timestamp = sent(System.currentTimeMillis());
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
            for (int i = 0; i < partitions; i++)
                producer.send(new ProducerRecord<>(topic, i, timestamp, MARKER_KEY, value)).get();
        }
    }
}
