import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.Map;

/**
 * Kafka's own classes as a service to one Python process: a command a line on standard input, its answer a line on standard
 * output, both JSON. {"command": NAME, "args": {...}} is answered by {"result": ...} or {"error": STACK TRACE}. Ends when its
 * input closes, so it never outlives the process that started it. All that Kafka's classes print goes to standard error.
 */
public final class Lab {
    interface Command {
        JsonNode run(JsonNode args) throws Exception;
    }

    static final ObjectMapper JSON = new ObjectMapper();

    static final Map<String, Command> COMMANDS = Map.ofEntries(
        Map.entry("clean", KafkaCleaner::clean),
        Map.entry("draw_logs", DrawnLog::draw),
        Map.entry("dump", Dump::dump),
        Map.entry("index_check", IndexCheck::check),
        Map.entry("make_logs", MakeLogs::make),
        Map.entry("create_topics", Topics::create),
        Map.entry("delete_topics", Topics::delete),
        Map.entry("alter_configs", Topics::alterConfigs),
        Map.entry("describe_configs", Topics::describeConfigs),
        Map.entry("configs", Tools::configs),
        Map.entry("topics", Tools::topics),
        Map.entry("consume", Consume::consume),
        Map.entry("consume_fields", ConsumeFields::consume),
        Map.entry("seek", Consume::seek),
        Map.entry("offsets_for_times", Consume::offsetsForTimes),
        Map.entry("list_offsets", Topics::listOffsets),
        Map.entry("format_storage", Tools::formatStorage),
        Map.entry("dump_log_segments", Tools::dumpLogSegments),
        Map.entry("partition_for_keys", Partitioner::partitionForKeys),
        Map.entry("send_keys", Partitioner::sendKeys),
        Map.entry("deserialize", Deserializers::deserialize),
        Map.entry("describe_messages", Messages::describe),
        Map.entry("make_messages", Messages::make),
        Map.entry("parse_records", Messages::parse),
        Map.entry("write_transactions", Transactions::write),
        Map.entry("run_groups", Groups::run),
        Map.entry("deliver", Deliveries::deliver),
        Map.entry("committed_offsets", Deliveries::committed),
        Map.entry("combine_share_batches", Deliveries::combine),
        Map.entry("read_group", ReadGroup::read),
        Map.entry("delete_old_segments", KafkaLog::deleteOldSegments),
        Map.entry("recover", KafkaLog::recover),
        Map.entry("recover_segments", KafkaLog::recoverSegments),
        Map.entry("locate", KafkaLog::locate));

    public static void main(String[] argv) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            answers.write(JSON.writeValueAsBytes(answer(JSON.readTree(line))));
            answers.write('\n');
            answers.flush();
        }
        System.exit(0); // Kafka's clients and schedulers may have left threads behind
    }

    static ObjectNode answer(JsonNode request) {
        ObjectNode answer = JSON.createObjectNode();
        try {
            Command command = COMMANDS.get(request.get("command").asText());
            if (command == null) throw new IllegalArgumentException("no command " + request.get("command"));
            answer.set("result", command.run(request.get("args")));
        } catch (Throwable e) { // whatever it is, Python has to hear of it
            StringWriter trace = new StringWriter();
            e.printStackTrace(new PrintWriter(trace));
            answer.put("error", trace.toString());
        }
        return answer;
    }

    private Lab() { }
}
