import java.util.ArrayList;
import java.util.List;

/**
 * UntilStdinCloses MAIN [ARG...] [-- MAIN [ARG...]]...
 *
 * Runs main classes, each in a thread of its own, until standard input closes; then exits as on SIGTERM (shutdown hooks run).
 * So a broker stops cleanly when the Python process that holds the other end of its input stops it, ends, or is killed.
 */
public final class UntilStdinCloses {
    public static void main(String[] argv) throws Exception {
        List<String> command = new ArrayList<>();
        for (String arg : argv) {
            if (!arg.equals("--")) {
                command.add(arg);
                continue;
            }
            start(command);
            command = new ArrayList<>();
        }
        start(command);
        while (System.in.read() >= 0) { } // whatever is written is skipped
        System.exit(0);
    }

    static void start(List<String> command) throws Exception {
        var main = Class.forName(command.get(0)).getMethod("main", String[].class);
        Object args = command.subList(1, command.size()).toArray(new String[0]);
        new Thread(() -> {
            try {
                main.invoke(null, args);
            } catch (Throwable e) {
                e.printStackTrace();
                System.exit(1);
            }
        }, command.get(0)).start();
    }

    private UntilStdinCloses() { }
}
