import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.filter.util.BitsArray;
import org.apache.rocketmq.filter.util.BloomFilter;
import org.apache.rocketmq.store.ConsumeQueue;
import org.apache.rocketmq.store.ConsumeQueueExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageExtBrokerInner;
import org.apache.rocketmq.store.PutMessageStatus;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Bloom filters, and a store that Java wrote with a consume-queue extension.
 *
 * <p>Arguments: DIRECTORY PORT STORE_OUTPUT BLOOM_OUTPUT. The bit map of a message that has the property
 * "groups" names the groups in it, joined by commas; other messages have none.
 */
public final class GoldenExt {
    private static final BloomFilter BLOOM = BloomFilter.createByFn(20, 32);

    private GoldenExt() {
    }

    public static void main(String[] arguments) {
        try {
            Files.writeString(Path.of(arguments[3]), Golden.pretty(filters()));
            DefaultMessageStore store = open(Path.of(arguments[0]), Integer.parseInt(arguments[1]));
            write(store);
            Files.writeString(Path.of(arguments[2]), Golden.pretty(describe(store)));
            store.shutdown();
            System.exit(0);
        } catch (Throwable error) {
            // The store's threads would keep the process alive.
            error.printStackTrace();
            System.exit(1);
        }
    }

    private static List<Object> filters() {
        int[][] shapes = {{20, 32}, {10, 128}, {1, 1}, {1, 1000}, {50, 7}, {99, 3}, {3, 64}};
        String[] texts = {"", "a", "CID_group#Topic", "fifteen bytes..", "sixteen bytes...", "seventeen bytes..",
            "Schlüssel 键 🚀", "x".repeat(31), "x".repeat(32), "x".repeat(33), "long ".repeat(100)};
        List<Object> result = new ArrayList<>();
        for (int[] shape : shapes) {
            BloomFilter filter = BloomFilter.createByFn(shape[0], shape[1]);
            BitsArray all = BitsArray.create(filter.getM());
            List<Object> positions = new ArrayList<>();
            for (String text : texts) {
                positions.add(Map.of("text", text, "positions", filter.calcBitPositions(text)));
                filter.hashTo(text, all);
            }
            Map<String, Object> one = new LinkedHashMap<>();
            one.put("f", filter.getF());
            one.put("n", filter.getN());
            one.put("k", filter.getK());
            one.put("m", filter.getM());
            one.put("texts", positions);
            one.put("bits", Golden.hex(all.bytes()));
            result.add(one);
        }
        return result;
    }

    private static DefaultMessageStore open(Path root, int port) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(root.toString());
        config.setStorePathCommitLog(root.resolve("commitlog").toString());
        config.setMappedFileSizeCommitLog(Integer.getInteger("golden.commitLogSegment"));
        config.setMappedFileSizeConsumeQueue(Integer.getInteger("golden.consumeQueueSegment"));
        config.setMappedFileSizeConsumeQueueExt(Integer.getInteger("golden.extensionSegment"));
        config.setEnableConsumeQueueExt(true);
        config.setMaxHashSlotNum(Integer.getInteger("golden.indexSlots"));
        config.setMaxIndexNum(Integer.getInteger("golden.indexEntries"));
        config.setHaListenPort(port);
        DefaultMessageStore store = new DefaultMessageStore(config, new BrokerStatsManager("golden", false),
            (topic, queueId, logicOffset, tagsCode, msgStoreTime, filterBitMap, properties) -> { }, new BrokerConfig());
        store.getDispatcherList().addFirst(request -> {
            String groups = request.getPropertiesMap() == null ? null : request.getPropertiesMap().get("groups");
            if (groups != null) {
                BitsArray bits = BitsArray.create(BLOOM.getM());
                for (String group : groups.split(",")) {
                    BLOOM.hashTo(group, bits);
                }
                request.setBitMap(bits.bytes());
            }
        });
        if (!store.load()) {
            throw new IllegalStateException("the store at " + root + " does not load");
        }
        store.start();
        return store;
    }

    private static void write(DefaultMessageStore store) throws Exception {
        for (int i = 0; i < 330; i++) {
            MessageExtBrokerInner message = new MessageExtBrokerInner();
            message.setTopic("ExtTopic");
            message.setQueueId(i % 11 == 0 ? 1 : 0);
            message.setBody(("m" + i).getBytes(StandardCharsets.UTF_8));
            if (i % 5 != 0) {
                message.setTags("tag" + i % 4);
            }
            if (i % 3 != 0) {
                message.putUserProperty("groups", i % 2 == 0 ? "even" : "odd,group" + i);
            }
            if (i == 100) {
                message.setDelayTimeLevel(18);
            }
            message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
            message.setBornTimestamp(1700000000000L);
            message.setBornHost(new InetSocketAddress("127.0.0.1", 40404));
            message.setStoreHost(new InetSocketAddress("127.0.0.1", 10911));
            if (store.asyncPutMessage(message).get().getPutMessageStatus() != PutMessageStatus.PUT_OK) {
                throw new IllegalStateException("the store refused message " + i);
            }
        }
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(5);
        }
    }

    /** Each queue's entries, and the unit that Java reads for each. */
    private static List<Object> describe(DefaultMessageStore store) {
        List<Object> result = new ArrayList<>();
        for (ConcurrentMap<Integer, ConsumeQueue> queues : new TreeMap<>(store.getConsumeQueueTable()).values()) {
            for (ConsumeQueue queue : new TreeMap<>(queues).values()) {
                List<Object> entries = new ArrayList<>();
                for (long offset = 0; offset < queue.getMaxOffsetInQueue();) {
                    SelectMappedBufferResult found = queue.getIndexBuffer(offset);
                    ByteBuffer buffer = found.getByteBuffer();
                    while (buffer.hasRemaining()) {
                        entries.add(entry(queue, buffer.getLong(), buffer.getInt(), buffer.getLong()));
                        offset++;
                    }
                    found.release();
                }
                if (!entries.isEmpty()) {
                    result.add(Map.of("topic", queue.getTopic(), "queueId", queue.getQueueId(), "entries", entries));
                }
            }
        }
        return result;
    }

    private static Map<String, Object> entry(ConsumeQueue queue, long physicalOffset, int size, long address) {
        ConsumeQueueExt.CqExtUnit unit = queue.getExt(address);
        Map<String, Object> entry = new LinkedHashMap<>();
        entry.put("offset", physicalOffset);
        entry.put("size", size);
        entry.put("address", address);
        entry.put("unitSize", unit.getSize());
        entry.put("tagsCode", unit.getTagsCode());
        entry.put("storeTimestamp", unit.getMsgStoreTime());
        entry.put("bitMap", unit.getFilterBitMap() == null ? null : Golden.hex(unit.getFilterBitMap()));
        return entry;
    }
}
