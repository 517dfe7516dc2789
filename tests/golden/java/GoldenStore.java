import java.net.InetAddress;
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
import java.util.TreeSet;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.store.CommitLog;
import org.apache.rocketmq.store.ConsumeQueue;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageExtBrokerInner;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.PutMessageStatus;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Java's message store without a broker around it: writes one, or says what one holds.
 *
 * <p>Arguments: "write" DIRECTORY PORT, or "describe" DIRECTORY PORT OUTPUT. The port is for the
 * replication service that the store starts with. Describing recovers the store: give it a copy.
 * The sizes are those of tests/golden/capture.py.
 */
public final class GoldenStore {
    private static final String TOPIC = "GoldenTopic";
    private final DefaultMessageStore store;

    private GoldenStore(Path root, int port) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(root.toString());
        config.setStorePathCommitLog(root.resolve("commitlog").toString());
        config.setMappedFileSizeCommitLog(Integer.getInteger("golden.commitLogSegment"));
        config.setMappedFileSizeConsumeQueue(Integer.getInteger("golden.consumeQueueSegment"));
        config.setMaxHashSlotNum(Integer.getInteger("golden.indexSlots"));
        config.setMaxIndexNum(Integer.getInteger("golden.indexEntries"));
        config.setHaListenPort(port);
        store = new DefaultMessageStore(config, new BrokerStatsManager("golden", false), (topic, queueId, logicOffset,
            tagsCode, msgStoreTime, filterBitMap, properties) -> { }, new BrokerConfig());
        if (!store.load()) {
            throw new IllegalStateException("the store at " + root + " does not load");
        }
        store.start();
    }

    public static void main(String[] arguments) {
        try {
            GoldenStore golden = new GoldenStore(Path.of(arguments[1]), Integer.parseInt(arguments[2]));
            if (arguments[0].equals("write")) {
                golden.write();
            } else {
                Files.writeString(Path.of(arguments[3]), Golden.pretty(golden.describe()));
            }
            golden.store.shutdown();
            System.exit(0);
        } catch (Throwable error) {
            // The store's threads would keep the process alive.
            error.printStackTrace();
            System.exit(1);
        }
    }

    private void write() throws Exception {
        String[][] hosts = {{"127.0.0.1", "127.0.0.1"}, {"::1", "127.0.0.1"}, {"10.1.2.3", "2001:db8::1"}, {"fe80::1", "::1"}};
        for (int i = 0; i < hosts.length; i++) {
            MessageExtBrokerInner message = message(i % 2, "hosts " + i, "host", "host" + i);
            message.setBornHost(address(hosts[i][0], 40000 + i));
            message.setStoreHost(address(hosts[i][1], 10911));
            put(message);
        }
        put(message(0, "no tags, no keys", null, null));
        put(message(1, "Schlüssel und Etikett, 键和标签 🚀", "Etikett-ä", "Schlüssel 键 🚀 plain"));
        put(message(0, "", "empty", "empty-body"));

        MessageExtBrokerInner flags = message(0, "flag and reconsume times", "t", "k");
        flags.setFlag(-1);
        flags.setReconsumeTimes(3);
        put(flags);

        MessageExtBrokerInner compressed = message(1, "", "compressed", "compressed-1");
        compressed.setBody(UtilAll.compress("compress me ".repeat(1000).getBytes(StandardCharsets.UTF_8), 5));
        compressed.setSysFlag(MessageSysFlag.COMPRESSED_FLAG);
        put(compressed);

        int[] transactions = {MessageSysFlag.TRANSACTION_PREPARED_TYPE, MessageSysFlag.TRANSACTION_COMMIT_TYPE,
            MessageSysFlag.TRANSACTION_ROLLBACK_TYPE};
        for (int type : transactions) {
            MessageExtBrokerInner message = message(0, "transaction " + type, "t", "transaction-" + type);
            message.setSysFlag(type);
            message.setPreparedTransactionOffset(type == MessageSysFlag.TRANSACTION_PREPARED_TYPE ? 0 : 4711);
            put(message);
        }

        MessageExtBrokerInner delayed = message(1, "in two hours", "later", "delayed-1");
        delayed.setDelayTimeLevel(18);
        delayed.setPropertiesString(MessageDecoder.messageProperties2String(delayed.getProperties()));
        put(delayed);

        check(store.asyncPutMessages(batch()).get());
        for (int i = 0; i < 60; i++) {
            put(message(i % 3, "filler " + i + " " + "x".repeat(i * 7), "tag" + i % 4, "filler" + i + " even" + i / 2));
        }
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(5);
        }
    }

    private static MessageExtBrokerInner message(int queueId, String body, String tags, String keys) throws Exception {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(TOPIC);
        message.setQueueId(queueId);
        message.setBody(body.getBytes(StandardCharsets.UTF_8));
        if (tags != null) {
            message.setTags(tags);
            message.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode(null, tags));
            message.setKeys(keys);
            message.putUserProperty("own", "eigen-ü");
            MessageAccessor.putProperty(message, MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, "UNIQ" + keys.hashCode());
        }
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        message.setBornTimestamp(1700000000000L + body.length());
        message.setBornHost(address("127.0.0.1", 40404));
        message.setStoreHost(address("127.0.0.1", 10911));
        return message;
    }

    private static MessageExtBatch batch() throws Exception {
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            messages.add(new Message(TOPIC, "tag" + i, "batch" + i, ("of a batch " + i).getBytes(StandardCharsets.UTF_8)));
        }
        MessageExtBatch batch = new MessageExtBatch();
        batch.setTopic(TOPIC);
        batch.setQueueId(1);
        batch.setBody(MessageDecoder.encodeMessages(messages));
        batch.setBornTimestamp(1700000000000L);
        batch.setBornHost(address("127.0.0.1", 40404));
        batch.setStoreHost(address("127.0.0.1", 10911));
        return batch;
    }

    private static InetSocketAddress address(String host, int port) throws Exception {
        return new InetSocketAddress(InetAddress.getByName(host), port);
    }

    private void put(MessageExtBrokerInner message) throws Exception {
        check(store.asyncPutMessage(message).get());
    }

    private static void check(PutMessageResult result) {
        if (result.getPutMessageStatus() != PutMessageStatus.PUT_OK) {
            throw new IllegalStateException("the store refused a message: " + result);
        }
    }

    private Map<String, Object> describe() {
        Map<String, Object> result = new LinkedHashMap<>();
        TreeMap<String, TreeSet<String>> keys = new TreeMap<>();
        List<Object> records = new ArrayList<>();
        List<Object> blanks = new ArrayList<>();
        CommitLog log = store.getCommitLog();
        long end = store.getMaxPhyOffset();
        for (long offset = store.getMinPhyOffset(); offset < end;) {
            SelectMappedBufferResult head = log.getMessage(offset, 8);
            int size = head.getByteBuffer().getInt();
            int magic = head.getByteBuffer().getInt();
            head.release();
            if (magic == MessageDecoder.MESSAGE_MAGIC_CODE) {
                SelectMappedBufferResult whole = log.getMessage(offset, size);
                MessageExt message = MessageDecoder.decode(whole.getByteBuffer(), true, false);
                whole.release();
                records.add(record(message));
                TreeSet<String> words = keys.computeIfAbsent(message.getTopic(), topic -> new TreeSet<>());
                if (message.getKeys() != null) {
                    words.addAll(List.of(message.getKeys().split(" ")));
                }
                String unique = message.getProperty(MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX);
                if (unique != null) {
                    words.add(unique);
                }
                offset += size;
            } else {
                blanks.add(Map.of("offset", offset, "size", size, "magic", magic));
                offset = log.rollNextFile(offset);
            }
        }
        result.put("minOffset", store.getMinPhyOffset());
        result.put("maxOffset", end);
        result.put("records", records);
        result.put("blanks", blanks);
        result.put("consumeQueues", consumeQueues());
        result.put("queries", queries(keys));
        return result;
    }

    private static Map<String, Object> record(MessageExt message) {
        Map<String, Object> record = new LinkedHashMap<>();
        record.put("offset", message.getCommitLogOffset());
        record.put("size", message.getStoreSize());
        record.put("id", message.getMsgId());
        record.put("topic", message.getTopic());
        record.put("queueId", message.getQueueId());
        record.put("queueOffset", message.getQueueOffset());
        record.put("flag", message.getFlag());
        record.put("sysFlag", message.getSysFlag());
        record.put("bodyCrc", message.getBodyCRC());
        record.put("bornTimestamp", message.getBornTimestamp());
        record.put("bornHost", host(message.getBornHost()));
        record.put("storeTimestamp", message.getStoreTimestamp());
        record.put("storeHost", host(message.getStoreHost()));
        record.put("reconsumeTimes", message.getReconsumeTimes());
        record.put("preparedTransactionOffset", message.getPreparedTransactionOffset());
        record.put("body", message.getBody() == null ? "" : Golden.hex(message.getBody()));
        record.put("properties", message.getProperties() == null ? Map.of() : new TreeMap<>(message.getProperties()));
        return record;
    }

    private static Map<String, Object> host(java.net.SocketAddress address) {
        InetSocketAddress socket = (InetSocketAddress) address;
        return Map.of("ip", Golden.hex(socket.getAddress().getAddress()), "port", socket.getPort());
    }

    private List<Object> consumeQueues() {
        List<Object> result = new ArrayList<>();
        for (ConcurrentMap<Integer, ConsumeQueue> queues : new TreeMap<>(store.getConsumeQueueTable()).values()) {
            for (ConsumeQueue queue : new TreeMap<>(queues).values()) {
                List<Object> entries = new ArrayList<>();
                for (long offset = queue.getMinOffsetInQueue(); offset < queue.getMaxOffsetInQueue();) {
                    SelectMappedBufferResult found = queue.getIndexBuffer(offset);
                    ByteBuffer buffer = found.getByteBuffer();
                    while (buffer.hasRemaining()) {
                        entries.add(List.of(buffer.getLong(), buffer.getInt(), buffer.getLong()));
                        offset++;
                    }
                    found.release();
                }
                if (entries.isEmpty()) {
                    continue; // made by the delay service just now
                }
                Map<String, Object> one = new LinkedHashMap<>();
                one.put("topic", queue.getTopic());
                one.put("queueId", queue.getQueueId());
                one.put("minOffset", queue.getMinOffsetInQueue());
                one.put("entries", entries);
                result.add(one);
            }
        }
        return result;
    }

    /** For each key that occurs, and one that does not, the physical offsets of what Java finds. */
    private List<Object> queries(Map<String, TreeSet<String>> keys) {
        List<Object> result = new ArrayList<>();
        for (Map.Entry<String, TreeSet<String>> entry : keys.entrySet()) {
            entry.getValue().add("no-such-key");
            for (String key : entry.getValue()) {
                QueryMessageResult found = store.queryMessage(entry.getKey(), key, 32, 0, Long.MAX_VALUE);
                TreeSet<Long> offsets = new TreeSet<>();
                for (ByteBuffer buffer : found.getMessageBufferList()) {
                    offsets.add(buffer.getLong(MessageDecoder.MESSAGE_PHYSIC_OFFSET_POSTION));
                }
                found.release();
                result.add(Map.of("topic", entry.getKey(), "key", key, "offsets", offsets));
            }
        }
        return result;
    }
}
