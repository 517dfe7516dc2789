import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.store.ConsumeQueue;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Java's message store without a broker around it: opens store directories, brings what is made of the log up to date,
 * and closes them as a clean stop does.
 *
 * <p>Arguments: PROPERTIES DIRECTORY... The properties are those of MessageStoreConfig. All directories are open at
 * the same time, since starting and stopping is mostly waiting. Prints one JSON object for each: its name, the ends of
 * its log, and the ends of each consume queue that has messages.
 */
public final class StoreOpener extends Thread {
    private final Properties properties;
    private final Path root;
    private String report;
    private Throwable failure;

    private StoreOpener(Properties properties, Path root) {
        this.properties = properties;
        this.root = root;
    }

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        try (var stream = Files.newInputStream(Path.of(arguments[0]))) {
            properties.load(stream);
        }
        List<StoreOpener> openers = new ArrayList<>();
        for (int i = 1; i < arguments.length; i++) {
            StoreOpener opener = new StoreOpener(properties, Path.of(arguments[i]));
            openers.add(opener);
            opener.start();
        }
        int code = 0;
        for (StoreOpener opener : openers) {
            opener.join();
            if (opener.failure != null) {
                opener.failure.printStackTrace();
                code = 1;
            } else {
                System.out.println(opener.report);
            }
        }
        // The stores leave threads behind that would keep the process alive.
        System.out.flush();
        System.exit(code);
    }

    @Override
    public void run() {
        try {
            open();
        } catch (Throwable error) {
            failure = error;
        }
    }

    private void open() throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        MixAll.properties2Object(properties, config);
        config.setStorePathRootDir(root.toString());
        config.setStorePathCommitLog(root.resolve("commitlog").toString());
        config.setHaListenPort(0);
        DefaultMessageStore store;
        // They share static tables while they are made and loaded.
        synchronized (StoreOpener.class) {
            store = new DefaultMessageStore(config, new BrokerStatsManager("opener", false),
                (topic, queueId, logicOffset, tagsCode, msgStoreTime, filterBitMap, props) -> { }, new BrokerConfig());
            if (!store.load()) {
                throw new IllegalStateException("the store at " + root + " does not load");
            }
        }
        store.start();
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(5);
        }
        report = describe(store);
        store.shutdown();
    }

    private String describe(DefaultMessageStore store) {
        StringBuilder text = new StringBuilder();
        text.append("{\"store\": \"").append(root.getFileName()).append("\", \"first\": ").append(store.getMinPhyOffset());
        text.append(", \"end\": ").append(store.getMaxPhyOffset()).append(", \"queues\": {");
        String separator = "";
        for (var topic : new TreeMap<>(store.getConsumeQueueTable()).entrySet()) {
            ConcurrentMap<Integer, ConsumeQueue> queues = topic.getValue();
            for (var queue : new TreeMap<>(queues).entrySet()) {
                if (queue.getValue().getMaxOffsetInQueue() == 0) {
                    continue; // made by the delay service just now
                }
                text.append(separator).append('"').append(topic.getKey()).append('/').append(queue.getKey());
                text.append("\": [").append(queue.getValue().getMinOffsetInQueue()).append(", ");
                text.append(queue.getValue().getMaxOffsetInQueue()).append(']');
                separator = ", ";
            }
        }
        return text.append("}}").toString();
    }
}
