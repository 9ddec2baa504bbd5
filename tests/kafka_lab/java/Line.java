import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.Arrays;
import java.util.Base64;
import org.apache.kafka.common.header.Header;

/** A canonical line under construction: tab-separated UTF-8 in a reused buffer. Byte strings are base64, null is '-'. */
final class Line {
    private static final Base64.Encoder BASE64 = Base64.getEncoder();
    private byte[] bytes = new byte[1 << 16];
    private int length;

    Line start(char kind) {
        length = 0;
        return put(kind);
    }

    Line field(long number) {
        return field(Long.toString(number));
    }

    Line field(String text) {
        return put('\t').append(text.getBytes(StandardCharsets.ISO_8859_1));
    }

    Line field(byte[] value) {
        return put('\t').base64(value);
    }

    Line field(boolean flag) {
        return put('\t').put(flag ? '1' : '0');
    }

    /** name=value joined by ',', both in base64. */
    Line field(Header[] headers) {
        put('\t');
        for (int i = 0; i < headers.length; i++) {
            if (i > 0) put(',');
            base64(headers[i].key().getBytes(StandardCharsets.UTF_8)).put('=').base64(headers[i].value());
        }
        return this;
    }

    /** What a consumer sees of a record: D offset timestamp key value headers. */
    Line data(long offset, long timestamp, byte[] key, byte[] value, Header[] headers) {
        return start('D').field(offset).field(timestamp).field(key).field(value).field(headers);
    }

    /** Adds the line with its newline to a digest. */
    Line into(MessageDigest digest) {
        digest.update(bytes, 0, length);
        digest.update((byte) '\n');
        return this;
    }

    @Override
    public String toString() {
        return new String(bytes, 0, length, StandardCharsets.ISO_8859_1);
    }

    private Line put(char c) {
        reserve(1);
        bytes[length++] = (byte) c;
        return this;
    }

    private Line append(byte[] more) {
        reserve(more.length);
        System.arraycopy(more, 0, bytes, length, more.length);
        length += more.length;
        return this;
    }

    private Line base64(byte[] value) {
        return value == null ? put('-') : append(BASE64.encode(value));
    }

    private void reserve(int more) {
        if (length + more > bytes.length) bytes = Arrays.copyOf(bytes, Math.max(2 * bytes.length, length + more));
    }

    static byte[] bytes(ByteBuffer buffer) {
        if (buffer == null) return null;
        byte[] copy = new byte[buffer.remaining()];
        buffer.get(buffer.position(), copy);
        return copy;
    }
}
