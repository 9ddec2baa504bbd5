import java.util.Arrays;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;

/** One line of a spec file: key=value options apart by blanks. An unknown option is an error. */
final class Spec {
    private final Map<String, String> options = new LinkedHashMap<>();
    private final Set<String> asked = new HashSet<>();

    Spec(String line) {
        for (String word : line.trim().split("\\s+")) {
            int equals = word.indexOf('=');
            if (equals < 1) throw new IllegalArgumentException("not key=value: " + word);
            options.put(word.substring(0, equals), word.substring(equals + 1));
        }
    }

    String text(String name, String otherwise) {
        asked.add(name);
        return options.getOrDefault(name, otherwise);
    }

    long number(String name, long otherwise) {
        return Long.parseLong(text(name, Long.toString(otherwise)));
    }

    int integer(String name, int otherwise) {
        return Math.toIntExact(number(name, otherwise));
    }

    double fraction(String name, double otherwise) {
        return Double.parseDouble(text(name, Double.toString(otherwise)));
    }

    boolean flag(String name, boolean otherwise) {
        String value = text(name, Boolean.toString(otherwise));
        if (!Arrays.asList("true", "false").contains(value)) throw new IllegalArgumentException(name + "=" + value);
        return value.equals("true");
    }

    /** The options that begin with a prefix, without it. */
    Map<String, String> under(String prefix) {
        Map<String, String> found = new TreeMap<>();
        options.forEach((name, value) -> {
            if (!name.startsWith(prefix)) return;
            asked.add(name);
            found.put(name.substring(prefix.length()), value);
        });
        return found;
    }

    void refuseOthers() {
        for (String name : options.keySet())
            if (!asked.contains(name)) throw new IllegalArgumentException("unknown option " + name);
    }
}
