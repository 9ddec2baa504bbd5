import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.File;
import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HexFormat;
import java.util.List;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.DefaultRecordBatch;
import org.apache.kafka.common.record.internal.FileLogInputStream;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.*; // BufferSupplier is here in 4.3, and in internals in 4.4
import org.apache.kafka.common.utils.internals.*;

/**
 * Canonical lines of a partition directory, or of one .log file, through Kafka's own reader; each batch's CRC is checked.
 * args: {path, kinds}: kinds is a string of those wanted of D, R and B ("" for counts and digests alone).
 *
 *   D  offset timestamp key value headers                       (no control records: what a consumer sees)
 *   R  offset timestamp tstype key value headers pid epoch seq txn control magic codec leaderEpoch batchBase batchLast horizon
 *   B  base last count magic codec tstype baseTs maxTs pid epoch baseSeq txn control leaderEpoch horizon segmentBase
 *
 * Null key and value are '-', others base64; tstype is C, L or N (magic 0); absent numbers are -1; control of R is '-' or the
 * type; count is the number of records as read; baseTs is the stored field (the horizon where there is one), -1 below magic 2.
 * The three digests are SHA-256 over exactly these lines, each with its newline, in log order.
 */
final class Dump {
    final String kinds;
    final ArrayNode lines = Lab.JSON.createArrayNode();
    final MessageDigest data = sha256(), records = sha256(), batches = sha256();
    final Line line = new Line();
    final BufferSupplier buffers = BufferSupplier.create();
    long nBatches, nEmpty, nData, nControl, nTombstones, nBytes, first = -1, last = -1;

    Dump(String kinds) {
        this.kinds = kinds;
    }

    static JsonNode dump(JsonNode args) throws Exception {
        Dump dump = new Dump(args.get("kinds").asText());
        List<File> logs = logs(new File(args.get("path").asText()));
        for (File log : logs) dump.segment(log);
        ObjectNode result = Lab.JSON.createObjectNode();
        result.set("lines", dump.lines);
        ObjectNode digest = result.putObject("digest");
        digest.put("segments", logs.size()).put("bytes", dump.nBytes)
            .put("batches", dump.nBatches).put("empty_batches", dump.nEmpty).put("data", dump.nData).put("control", dump.nControl).put("tombstones", dump.nTombstones)
            .put("first_offset", dump.first).put("last_offset", dump.last)
            .put("data_sha256", hex(dump.data)).put("record_sha256", hex(dump.records)).put("batch_sha256", hex(dump.batches));
        return result;
    }

    /** The .log files of a directory in offset order, or the file itself. */
    static List<File> logs(File path) {
        if (path.isFile()) return List.of(path);
        File[] found = path.listFiles((d, name) -> name.matches("\\d{20}\\.log"));
        if (found == null || found.length == 0) throw new IllegalArgumentException("no segments in " + path);
        Arrays.sort(found, Comparator.comparing(File::getName));
        return new ArrayList<>(Arrays.asList(found));
    }

    void segment(File log) throws Exception {
        long segmentBase = Long.parseLong(log.getName().substring(0, 20)), valid = 0;
        FileRecords file = FileRecords.open(log, false);
        try {
            for (FileLogInputStream.FileChannelRecordBatch onDisk : file.batches()) {
                ByteBuffer whole = ByteBuffer.allocate(onDisk.sizeInBytes()); // one read a batch
                file.readInto(whole, onDisk.position());
                RecordBatch batch = MemoryRecords.readableRecords(whole).batches().iterator().next();
                batch.ensureValid();
                valid += batch.sizeInBytes();
                batch(batch, segmentBase);
            }
        } finally {
            file.channel().close();
        }
        if (valid != log.length())
            throw new IllegalStateException(log + ": " + (log.length() - valid) + " trailing bytes that are no batch");
        nBytes += valid;
    }

    void batch(RecordBatch batch, long segmentBase) {
        long count = 0;
        try (var it = batch.streamingIterator(buffers)) {
            for (; it.hasNext(); count++) {
                Record record = it.next();
                record.ensureValid();
                if (record.offset() <= last) throw new IllegalStateException("offset " + record.offset() + " after " + last);
                if (first < 0) first = record.offset();
                last = record.offset();
                record(batch, record);
            }
        }
        nBatches++;
        if (count == 0) nEmpty++;
        long baseTimestamp = batch instanceof DefaultRecordBatch b ? b.baseTimestamp() : -1;
        line.start('B').field(batch.baseOffset()).field(batch.lastOffset()).field(count).field(batch.magic())
            .field(batch.compressionType().name).field(timestampType(batch)).field(baseTimestamp).field(batch.maxTimestamp())
            .field(batch.producerId()).field(batch.producerEpoch()).field(batch.baseSequence()).field(batch.isTransactional())
            .field(batch.isControlBatch()).field(batch.partitionLeaderEpoch()).field(horizon(batch)).field(segmentBase);
        emit('B', batches);
    }

    void record(RecordBatch batch, Record record) {
        byte[] key = Line.bytes(record.key()), value = Line.bytes(record.value());
        Header[] headers = record.headers();
        if (batch.isControlBatch()) {
            nControl++;
        } else {
            nData++;
            if (value == null) nTombstones++;
            line.data(record.offset(), record.timestamp(), key, value, headers);
            emit('D', data);
        }
        line.start('R').field(record.offset()).field(record.timestamp()).field(timestampType(batch))
            .field(key).field(value).field(headers).field(batch.producerId()).field(batch.producerEpoch()).field(record.sequence()).field(batch.isTransactional())
            .field(controlType(batch, record)).field(batch.magic()).field(batch.compressionType().name)
            .field(batch.partitionLeaderEpoch()).field(batch.baseOffset()).field(batch.lastOffset()).field(horizon(batch));
        emit('R', records);
    }

    void emit(char kind, MessageDigest digest) {
        line.into(digest);
        if (kinds.indexOf(kind) >= 0) lines.add(line.toString());
    }

    static String controlType(RecordBatch batch, Record record) {
        if (!batch.isControlBatch()) return "-";
        short id = ControlRecordType.parseTypeId(record.key());
        ControlRecordType type = ControlRecordType.fromTypeId(id);
        return type == ControlRecordType.UNKNOWN ? Short.toString(id) : type.name();
    }

    static String timestampType(RecordBatch batch) {
        TimestampType type = batch.timestampType();
        return type == TimestampType.CREATE_TIME ? "C" : type == TimestampType.LOG_APPEND_TIME ? "L" : "N";
    }

    static long horizon(RecordBatch batch) {
        return batch.deleteHorizonMs().orElse(-1L);
    }

    static MessageDigest sha256() {
        try {
            return MessageDigest.getInstance("SHA-256");
        } catch (java.security.NoSuchAlgorithmException e) {
            throw new IllegalStateException(e);
        }
    }

    static String hex(MessageDigest digest) {
        return HexFormat.of().formatHex(digest.digest());
    }
}
