import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.fasterxml.jackson.databind.node.TextNode;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.kafka.common.utils.*; // Exit is here in 4.3, and in internals in 4.4
import org.apache.kafka.common.utils.internals.*;

/** Kafka's command line tools, run in this process; each answers with what it printed. */
final class Tools {
    static final class ToolExit extends RuntimeException {
        final int code;

        ToolExit(int code, String message) {
            super("exit code " + code + (message == null ? "" : ": " + message));
            this.code = code;
        }
    }

    /** kafka-dump-log. args: {argv}; answers {out, err} */
    static JsonNode dumpLogSegments(JsonNode args) throws Exception {
        String[] argv = strings(args.get("argv"));
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        PrintStream before = System.err;
        System.setErr(new PrintStream(bytes, true, StandardCharsets.UTF_8));
        try {
            TextNode out = printed(stream -> org.apache.kafka.tools.DumpLogSegments.main(argv));
            return JsonNodeFactory.instance.objectNode().<ObjectNode>set("out", out)
                .put("err", bytes.toString(StandardCharsets.UTF_8));
        } finally {
            System.setErr(before);
        }
    }

    /** kafka-storage. args: {argv} */
    static JsonNode formatStorage(JsonNode args) throws Exception {
        String[] argv = strings(args.get("argv"));
        return printed(out -> {
            int code = kafka.tools.StorageTool.execute(argv, out);
            if (code != 0) throw new ToolExit(code, null);
        });
    }

    /** kafka-configs. args: {argv} */
    static JsonNode configs(JsonNode args) throws Exception {
        String[] argv = strings(args.get("argv"));
        return printed(out -> scala.Console.withOut(out, () -> {
            ByVersion.configs(argv);
            return null;
        }));
    }

    /** kafka-topics. args: {argv} */
    static JsonNode topics(JsonNode args) throws Exception {
        String[] argv = strings(args.get("argv"));
        return printed(out -> org.apache.kafka.tools.TopicCommand.main(argv));
    }

    interface Tool {
        void run(PrintStream out) throws Exception;
    }

    /** What the tool prints, to the stream it is given or to System.out. Its calls of Exit end it, not the process. */
    static TextNode printed(Tool tool) throws Exception {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        PrintStream out = new PrintStream(bytes, true, StandardCharsets.UTF_8), before = System.out;
        ToolExit[] first = new ToolExit[1]; // a tool may catch its own exit, and exit again because of that
        Exit.setExitProcedure((code, message) -> {
            if (first[0] == null) first[0] = new ToolExit(code, message);
            throw first[0];
        });
        System.setOut(out);
        try {
            tool.run(out);
        } catch (ToolExit e) {
            if (e.code != 0) throw new IllegalStateException(e.getMessage() + "\n" + bytes.toString(StandardCharsets.UTF_8), e);
        } finally {
            System.setOut(before);
            Exit.resetExitProcedure();
        }
        return TextNode.valueOf(bytes.toString(StandardCharsets.UTF_8));
    }

    static String[] strings(JsonNode array) {
        String[] strings = new String[array.size()];
        for (int i = 0; i < strings.length; i++) strings[i] = array.get(i).asText();
        return strings;
    }

    private Tools() { }
}
