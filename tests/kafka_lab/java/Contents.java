import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;

/** Keys, values and headers out of a seed. */
final class Contents {
    private static final byte[] HEX = "0123456789abcdef".getBytes(StandardCharsets.US_ASCII);
    private static final String[] WORDS = words(512);

    /** SplitMix64's finalizer: a well mixed number from a number. */
    static long mix(long z) {
        z += 0x9E3779B97F4A7C15L;
        z = (z ^ (z >>> 30)) * 0xBF58476D1CE4E5B9L;
        z = (z ^ (z >>> 27)) * 0x94D049BB133111EBL;
        return z ^ (z >>> 31);
    }

    /** Key number `index`: hex digits, or the prefix and the number in six digits. */
    static byte[] key(long index, long seed, int size, String prefix) {
        if (prefix != null) return String.format("%s%06d", prefix, index).getBytes(StandardCharsets.UTF_8);
        byte[] key = new byte[size];
        long hash = mix(index * 0x9E3779B97F4A7C15L + seed);
        for (int i = 0; i < size; i++) {
            if (i % 16 == 0 && i > 0) hash = mix(hash);
            key[i] = HEX[(int) (hash >>> (4 * (i % 16))) & 15];
        }
        return key;
    }

    /** mode: text (words), random (bytes), json (an object that names its key and the record's number). */
    static byte[] value(SplittableRandom random, int size, String mode, byte[] key, long number) {
        if (mode.equals("random")) {
            byte[] value = new byte[size];
            random.nextBytes(value);
            return value;
        }
        if (mode.equals("text")) return text(random, size).getBytes(StandardCharsets.US_ASCII);
        if (!mode.equals("json")) throw new IllegalArgumentException("vmode=" + mode);
        String id = key == null ? "" : new String(key, StandardCharsets.UTF_8);
        String head = String.format("{\"id\":\"%s\",\"rev\":%d,\"note\":\"", id, number);
        return (head + text(random, Math.max(1, size - head.length() - 2)) + "\"}").getBytes(StandardCharsets.UTF_8);
    }

    static List<Header> headers(SplittableRandom random, int most) {
        if (most == 0) return null;
        List<Header> headers = new ArrayList<>();
        for (int i = random.nextInt(most + 1); i > 0; i--) {
            byte[] value = random.nextInt(8) == 0 ? null : new byte[random.nextInt(20)];
            if (value != null) random.nextBytes(value);
            headers.add(new RecordHeader((random.nextInt(8) == 0 ? "h\u00e9" : "h") + i, value));
        }
        return headers;
    }

    /** Inverse of the continuous approximation of Zipf's distribution over 0 .. n-1. */
    static long zipf(SplittableRandom random, long n, double s) {
        double u = random.nextDouble();
        if (Math.abs(s - 1.0) < 1e-9) return Math.min(n - 1, (long) Math.exp(u * Math.log(n + 1.0)) - 1);
        double a = Math.pow(n + 1.0, 1 - s);
        return Math.min(n - 1, (long) Math.pow(u * (a - 1) + 1, 1 / (1 - s)) - 1);
    }

    private static String text(SplittableRandom random, int size) {
        StringBuilder text = new StringBuilder(size + 16);
        while (text.length() < size) text.append(WORDS[(int) (random.nextInt(WORDS.length) * random.nextDouble())]).append(' ');
        text.setLength(size);
        return text.toString();
    }

    private static String[] words(int count) {
        SplittableRandom random = new SplittableRandom(7);
        String[] words = new String[count];
        for (int i = 0; i < count; i++) {
            StringBuilder word = new StringBuilder();
            for (int n = 3 + random.nextInt(7); n > 0; n--) word.append((char) ('a' + random.nextInt(26)));
            words[i] = word.toString();
        }
        return words;
    }

    private Contents() { }
}
