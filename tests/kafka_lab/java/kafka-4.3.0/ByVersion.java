import org.apache.kafka.storage.internals.log.AbstractIndex;
import org.apache.kafka.storage.internals.log.UnifiedLog;

/** Calls that the reference versions name differently: here Kafka 4.3.0. */
final class ByVersion {
    /** Close a log as a broker does when it stops. */
    static void close(UnifiedLog log) {
        log.close();
    }

    /** Close the files of a log and leave them as they are. */
    static void closeAsInACrash(UnifiedLog log) {
        log.closeHandlers();
    }

    /** Close an index and leave its file as it is. */
    static void close(AbstractIndex index) {
        index.closeHandler();
    }

    /** kafka-configs */
    static void configs(String[] argv) {
        kafka.admin.ConfigCommand.main(argv);
    }

    private ByVersion() { }
}
