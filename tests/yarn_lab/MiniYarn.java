import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;
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
        Thread.currentThread().setContextClassLoader(MiniYarn.class.getClassLoader()); // which finds NodeFiles
        var conf = new YarnConfiguration();
        // Two small containers: three do not fit on one node
        conf.setInt(YarnConfiguration.YARN_MINICLUSTER_NM_PMEM_MB, 2048);
        conf.setInt("yarn.scheduler.minimum-allocation-mb", 256);
        conf.setInt("yarn.resourcemanager.nodemanagers.heartbeat-interval-ms", 100);
        conf.setFloat("yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage", 100);
        conf.setBoolean("yarn.nodemanager.container-monitor.enabled", false); // no limits, no measuring
        conf.set("yarn.scheduler.capacity.root.queues", "default");
        conf.set("yarn.scheduler.capacity.root.default.capacity", "100");
        conf.set("yarn.scheduler.capacity.maximum-am-resource-percent", "1");
        var cluster = new MiniYARNCluster("yarn", 2, 1, 1);
        cluster.init(conf);
        cluster.start();
        cluster.waitForNodeManagersToConnect(60_000);
        try (OutputStream out = new FileOutputStream(argv[0] + "/yarn-site.xml")) {
            var ofClients = new Configuration(cluster.getConfig());
            ofClients.unset("fs.AbstractFileSystem.file.impl"); // they lack NodeFiles
            ofClients.writeXml(out);
        }
        System.out.println("STARTED");
        while (System.in.read() >= 0) { } // whatever is written is skipped
        for (int i = 0; i < 50 && (works(cluster, 0) || works(cluster, 1)); i++) {
            Thread.sleep(100); // the last container of an application ends after the application
        }
        if (works(cluster, 0) || works(cluster, 1)) {
            cluster.stop(); // ends the containers; with none it would wait half a minute for its own logs
        }
        Runtime.getRuntime().halt(0);
    }

    static boolean works(MiniYARNCluster cluster, int node) {
        return !cluster.getNodeManager(node).getNMContext().getContainers().isEmpty();
    }

    /**
     * Files of a node. Hadoop's native library, which nodes have and Maven lacks, sets permissions by a system call;
     * without it Hadoop runs the command chmod once for each file of an archive: a minute for 7,000.
     */
    public static final class NodeFiles extends DelegateToFileSystem {
        public NodeFiles(URI uri, Configuration conf) throws IOException, URISyntaxException {
            super(uri, new RawLocalFileSystem() {
                @Override
                public void setPermission(Path path, FsPermission permission) throws IOException {
                    Files.setPosixFilePermissions(
                        pathToFile(path).toPath(), PosixFilePermissions.fromString(permission.toString()));
                }
            }, conf, "file", false);
        }

        @Override
        public int getUriDefaultPort() {
            return -1; // none
        }
    }

    private MiniYarn() { }
}
