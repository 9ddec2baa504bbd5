import java.io.FileOutputStream;
import java.io.OutputStream;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/**
 * MiniYarn FOLDER
 *
 * Runs Hadoop's ResourceManager and two NodeManagers on free ports of localhost until standard input closes. Writes
 * FOLDER/yarn-site.xml, and then the word STARTED to standard output.
 */
public final class MiniYarn {
    public static void main(String[] argv) throws Exception {
        var conf = new YarnConfiguration();
        conf.setInt("yarn.nodemanager.resource.memory-mb", 2048); // two small containers: three do not fit on one node
        conf.setInt("yarn.scheduler.minimum-allocation-mb", 256);
        conf.setInt("yarn.resourcemanager.nodemanagers.heartbeat-interval-ms", 200);
        conf.setFloat("yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage", 100);
        conf.setBoolean("yarn.nodemanager.vmem-check-enabled", false); // a JVM reserves more than it uses
        conf.setBoolean("yarn.nodemanager.pmem-check-enabled", false);
        conf.set("yarn.scheduler.capacity.root.queues", "default");
        conf.set("yarn.scheduler.capacity.root.default.capacity", "100");
        conf.set("yarn.scheduler.capacity.maximum-am-resource-percent", "1");
        var cluster = new MiniYARNCluster("yarn", 2, 1, 1);
        cluster.init(conf);
        cluster.start();
        cluster.waitForNodeManagersToConnect(60_000);
        try (OutputStream out = new FileOutputStream(argv[0] + "/yarn-site.xml")) {
            cluster.getConfig().writeXml(out);
        }
        System.out.println("STARTED");
        while (System.in.read() >= 0) { } // whatever is written is skipped
        if (works(cluster, 0) || works(cluster, 1)) {
            cluster.stop(); // ends the containers; with none it would wait half a minute for its own logs
        }
        Runtime.getRuntime().halt(0);
    }

    static boolean works(MiniYARNCluster cluster, int node) {
        return !cluster.getNodeManager(node).getNMContext().getContainers().isEmpty();
    }

    private MiniYarn() { }
}
