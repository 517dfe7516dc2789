import com.alibaba.fastjson.serializer.SerializerFeature;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.DataVersion;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.admin.ConsumeStats;
import org.apache.rocketmq.common.admin.OffsetWrapper;
import org.apache.rocketmq.common.admin.TopicOffset;
import org.apache.rocketmq.common.admin.TopicStatsTable;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.filter.FilterAPI;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.protocol.body.ClusterInfo;
import org.apache.rocketmq.common.protocol.body.ConsumerOffsetSerializeWrapper;
import org.apache.rocketmq.common.protocol.body.KVTable;
import org.apache.rocketmq.common.protocol.body.LockBatchRequestBody;
import org.apache.rocketmq.common.protocol.body.LockBatchResponseBody;
import org.apache.rocketmq.common.protocol.body.RegisterBrokerBody;
import org.apache.rocketmq.common.protocol.body.SubscriptionGroupWrapper;
import org.apache.rocketmq.common.protocol.body.TopicConfigSerializeWrapper;
import org.apache.rocketmq.common.protocol.body.TopicList;
import org.apache.rocketmq.common.protocol.body.UnlockBatchRequestBody;
import org.apache.rocketmq.common.protocol.header.GetConsumerListByGroupResponseBody;
import org.apache.rocketmq.common.protocol.heartbeat.ConsumeType;
import org.apache.rocketmq.common.protocol.heartbeat.ConsumerData;
import org.apache.rocketmq.common.protocol.heartbeat.HeartbeatData;
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.common.protocol.heartbeat.ProducerData;
import org.apache.rocketmq.common.protocol.heartbeat.SubscriptionData;
import org.apache.rocketmq.common.protocol.route.BrokerData;
import org.apache.rocketmq.common.protocol.route.QueueData;
import org.apache.rocketmq.common.protocol.route.TopicRouteData;
import org.apache.rocketmq.common.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.store.MessageExtBrokerInner;
import org.apache.rocketmq.store.index.IndexFile;

/**
 * What Java computes for given inputs (values.json) and the JSON bodies it writes (bodies.json).
 *
 * <p>Arguments: the directory to write to, a scratch directory.
 */
public final class GoldenValues {
    private static final List<String> TEXTS = texts();
    private static final long TIMESTAMP = 1700000000000L;

    public static void main(String[] arguments) throws Exception {
        Path directory = Path.of(arguments[0]);
        Map<String, Object> values = new LinkedHashMap<>();
        values.put("hashes", hashes());
        values.put("indexKeyHashes", indexKeyHashes(arguments[1]));
        values.put("tagsCodes", tagsCodes());
        values.put("tagExpressions", tagExpressions());
        values.put("crc32", checksums());
        values.put("messageIds", messageIds());
        values.put("properties", properties());
        values.put("fileNames", fileNames());
        Files.writeString(directory.resolve("values.json"), Golden.pretty(values));
        Files.writeString(directory.resolve("bodies.json"), Golden.pretty(bodies()));
    }

    private static List<String> texts() {
        List<String> texts = new ArrayList<>(List.of("", "a", "TagA", "tag-b", "ÄÖÜ äöü ß", "é", "消息队列", "トピック",
            "🚀", "a🚀b", "👩‍👩‍👧‍👦", "\u0000", "\uFFFF", "polygenelubricants", "Aa", "BB", "AaAaAa",
            "GoldenTopic#key", "7F0000010001AAAAAAAAAAAAAAAA0000", " leading", "tab\tand\nnewline"));
        for (int length = 1; length <= 70; length += 3) {
            texts.add("key-" + "x".repeat(length) + length);
        }
        texts.add("𝒳".repeat(33));
        texts.add("z".repeat(1000));
        return texts;
    }

    private static List<Object> hashes() {
        List<Object> rows = new ArrayList<>();
        for (String text : TEXTS) {
            rows.add(row("text", text, "hash", text.hashCode()));
        }
        return rows;
    }

    private static List<Object> indexKeyHashes(String scratch) throws Exception {
        IndexFile file = new IndexFile(scratch + "/20240101000000000", 10, 10, 0, 0);
        List<Object> rows = new ArrayList<>();
        for (String text : TEXTS) {
            String key = "GoldenTopic#" + text;
            rows.add(row("topic", "GoldenTopic", "key", text, "hash", file.indexKeyHashMethod(key)));
        }
        // Java's hash of this key is the smallest int, whose absolute value is itself.
        rows.add(row("topic", "polygenelubricants", "key", null, "hash", file.indexKeyHashMethod("polygenelubricants")));
        file.destroy(0);
        return rows;
    }

    private static List<Object> tagsCodes() {
        List<Object> rows = new ArrayList<>();
        for (String text : TEXTS) {
            rows.add(row("tags", text, "code", MessageExtBrokerInner.tagsString2tagsCode(null, text)));
        }
        return rows;
    }

    private static List<Object> tagExpressions() throws Exception {
        List<Object> rows = new ArrayList<>();
        for (String expression : new String[] {null, "", "*", "a", "a||b", " a || b ", "a ||", "||a", "ä || 标签 || a b", "a || a"}) {
            SubscriptionData data = FilterAPI.buildSubscriptionData("GoldenTopic", expression);
            rows.add(row("expression", expression, "subString", data.getSubString(),
                "tags", new TreeSet<>(data.getTagsSet()), "codes", new TreeSet<>(data.getCodeSet())));
        }
        return rows;
    }

    private static List<Object> checksums() {
        List<Object> rows = new ArrayList<>();
        for (String text : TEXTS) {
            byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
            rows.add(row("text", text, "crc", UtilAll.crc32(bytes)));
        }
        return rows;
    }

    private static List<Object> messageIds() throws Exception {
        List<Object> rows = new ArrayList<>();
        for (String host : List.of("127.0.0.1", "255.254.253.252", "::1", "fe80::1234:5678:9abc:def0", "2001:db8::ffff")) {
            for (long offset : new long[] {0, 1, 1L << 40, Long.MAX_VALUE}) {
                for (int port : new int[] {0, 10911, 65535}) {
                    InetSocketAddress address = new InetSocketAddress(InetAddress.getByName(host), port);
                    rows.add(row("host", host, "port", port, "offset", offset,
                        "id", MessageDecoder.createMessageId(address, offset)));
                }
            }
        }
        return rows;
    }

    private static List<Object> properties() {
        List<Object> rows = new ArrayList<>();
        rows.add(propertiesRow());
        rows.add(propertiesRow("KEYS", "one two", "TAGS", "tag"));
        rows.add(propertiesRow("KEYS", "ключ 键 🚀", "TAGS", "ä", "UNIQ_KEY", "7F0000010001AAAAAAAAAAAAAAAA0000", "WAIT", "true"));
        rows.add(propertiesRow("a", "", "b", "x"));
        rows.add(propertiesRow("name=with", "value;and=signs", "z", " spaces "));
        return rows;
    }

    private static Map<String, Object> propertiesRow(String... pairs) {
        Map<String, String> map = new LinkedHashMap<>();
        for (int i = 0; i < pairs.length; i += 2) {
            map.put(pairs[i], pairs[i + 1]);
        }
        String text = MessageDecoder.messageProperties2String(map);
        return row("pairs", map, "text", text, "read", new TreeMap<>(MessageDecoder.string2messageProperties(text)));
    }

    private static List<Object> fileNames() {
        List<Object> rows = new ArrayList<>();
        for (long offset : new long[] {0, 1, 1 << 30, 10L << 30, Long.MAX_VALUE}) {
            rows.add(row("offset", offset, "name", UtilAll.offset2FileName(offset)));
        }
        return rows;
    }

    private static Map<String, Object> bodies() {
        Map<String, Object> bodies = new LinkedHashMap<>();
        body(bodies, route());
        body(bodies, "TopicRouteData-ordered", orderedRoute());
        body(bodies, clusterInfo());
        body(bodies, heartbeat());
        body(bodies, topicConfigs());
        RegisterBrokerBody register = new RegisterBrokerBody();
        register.setTopicConfigSerializeWrapper(topicConfigs());
        register.setFilterServerList(new ArrayList<>(List.of("127.0.0.1:30000", "127.0.0.1:30001")));
        body(bodies, register);
        body(bodies, "RegisterBrokerBody-empty", new RegisterBrokerBodyAt(TIMESTAMP));
        KVTable table = new KVTable();
        table.setTable(new HashMap<>(Map.of("brokerVersionDesc", "V4_9_7", "größe", "äöü 消息 🚀 \"'\\/<>&", "empty", "")));
        body(bodies, table);
        body(bodies, consumeStats());
        body(bodies, topicStats());
        TopicList topics = new TopicList();
        topics.setTopicList(new LinkedHashSet<>(List.of("TopicA", "%RETRY%group")));
        body(bodies, topics);
        body(bodies, subscriptionGroups());
        ConsumerOffsetSerializeWrapper offsets = new ConsumerOffsetSerializeWrapper();
        offsets.getOffsetTable().put("GoldenTopic@golden_consumer", new ConcurrentHashMap<>(Map.of(0, 10L, 1, 1L << 40)));
        offsets.getOffsetTable().put("Other@golden_consumer", new ConcurrentHashMap<>(Map.of(7, 0L)));
        body(bodies, offsets);
        LockBatchRequestBody lock = new LockBatchRequestBody();
        lock.setConsumerGroup("golden_consumer");
        lock.setClientId("127.0.0.1@1");
        lock.setMqSet(queues());
        body(bodies, lock);
        LockBatchResponseBody locked = new LockBatchResponseBody();
        locked.setLockOKMQSet(queues());
        body(bodies, locked);
        UnlockBatchRequestBody unlock = new UnlockBatchRequestBody();
        unlock.setConsumerGroup("golden_consumer");
        unlock.setClientId("127.0.0.1@1");
        unlock.setMqSet(queues());
        body(bodies, unlock);
        GetConsumerListByGroupResponseBody members = new GetConsumerListByGroupResponseBody();
        members.setConsumerIdList(List.of("127.0.0.1@1", "127.0.0.1@2"));
        body(bodies, members);
        body(bodies, dataVersion());
        return bodies;
    }

    private static void body(Map<String, Object> bodies, RemotingSerializable value) {
        body(bodies, value.getClass().getSimpleName(), value);
    }

    /** Both forms that Java writes: fastjson's default and the one for clients that ask for standard JSON. */
    private static void body(Map<String, Object> bodies, String name, RemotingSerializable value) {
        byte[] standard = value.encode(SerializerFeature.BrowserCompatible, SerializerFeature.QuoteFieldNames,
            SerializerFeature.SkipTransientField, SerializerFeature.MapSortField);
        bodies.put(name, row("text", new String(value.encode(), StandardCharsets.UTF_8),
            "standard", new String(standard, StandardCharsets.UTF_8)));
    }

    private static TopicRouteData route() {
        TopicRouteData route = new TopicRouteData();
        route.setQueueDatas(List.of(queueData("broker-a", 8, 4, 6, 0), queueData("broker-b", 16, 16, 4, 1)));
        route.setBrokerDatas(List.of(
            new BrokerData("DefaultCluster", "broker-a", new HashMap<>(Map.of(0L, "127.0.0.1:10911", 1L, "127.0.0.2:10911"))),
            new BrokerData("DefaultCluster", "broker-b", new HashMap<>(Map.of(0L, "[::1]:10911")))));
        route.setFilterServerTable(new HashMap<>());
        return route;
    }

    private static TopicRouteData orderedRoute() {
        TopicRouteData route = route();
        route.setOrderTopicConf("broker-a:4;broker-b:16");
        route.setFilterServerTable(new HashMap<>(Map.of("127.0.0.1:10911", List.of("127.0.0.1:30000"))));
        return route;
    }

    private static QueueData queueData(String broker, int read, int write, int permission, int flag) {
        QueueData data = new QueueData();
        data.setBrokerName(broker);
        data.setReadQueueNums(read);
        data.setWriteQueueNums(write);
        data.setPerm(permission);
        data.setTopicSysFlag(flag);
        return data;
    }

    private static ClusterInfo clusterInfo() {
        ClusterInfo info = new ClusterInfo();
        info.setBrokerAddrTable(new HashMap<>(Map.of(
            "broker-a", new BrokerData("DefaultCluster", "broker-a", new HashMap<>(Map.of(0L, "127.0.0.1:10911", 1L, "127.0.0.2:10911"))))));
        info.setClusterAddrTable(new HashMap<>(Map.of("DefaultCluster", new LinkedHashSet<>(List.of("broker-a")))));
        return info;
    }

    private static HeartbeatData heartbeat() {
        SubscriptionData subscription = new SubscriptionData("GoldenTopic", "tag-ä || b");
        subscription.setSubVersion(TIMESTAMP);
        subscription.setTagsSet(new LinkedHashSet<>(List.of("tag-ä", "b")));
        subscription.setCodeSet(new LinkedHashSet<>(List.of("tag-ä".hashCode(), "b".hashCode())));
        ConsumerData consumer = new ConsumerData();
        consumer.setGroupName("golden_consumer");
        consumer.setConsumeType(ConsumeType.CONSUME_PASSIVELY);
        consumer.setMessageModel(MessageModel.CLUSTERING);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setUnitMode(false);
        consumer.setSubscriptionDataSet(new LinkedHashSet<>(Set.of(subscription)));
        ProducerData producer = new ProducerData();
        producer.setGroupName("golden_producer");
        HeartbeatData heartbeat = new HeartbeatData();
        heartbeat.setClientID("127.0.0.1@4711");
        heartbeat.setProducerDataSet(new LinkedHashSet<>(Set.of(producer)));
        heartbeat.setConsumerDataSet(new LinkedHashSet<>(Set.of(consumer)));
        return heartbeat;
    }

    private static TopicConfigSerializeWrapper topicConfigs() {
        TopicConfigSerializeWrapper wrapper = new TopicConfigSerializeWrapper();
        wrapper.setDataVersion(dataVersion());
        TopicConfig topic = new TopicConfig("GoldenTopic", 8, 4, 6);
        topic.setTopicSysFlag(2);
        topic.setOrder(true);
        wrapper.getTopicConfigTable().put("GoldenTopic", topic);
        wrapper.getTopicConfigTable().put("TBW102", new TopicConfig("TBW102", 8, 8, 7));
        return wrapper;
    }

    private static DataVersion dataVersion() {
        DataVersion version = new DataVersion();
        version.setTimestamp(TIMESTAMP);
        version.getCounter().set(42);
        return version;
    }

    private static ConsumeStats consumeStats() {
        ConsumeStats stats = new ConsumeStats();
        stats.setConsumeTps(1.5);
        // One object for each queue, as the broker makes them: a shared one is written once and then as "$ref".
        for (int queue = 0; queue < 2; queue++) {
            OffsetWrapper wrapper = new OffsetWrapper();
            wrapper.setBrokerOffset(100 + queue);
            wrapper.setConsumerOffset(90);
            wrapper.setLastTimestamp(TIMESTAMP);
            stats.getOffsetTable().put(new MessageQueue("GoldenTopic", "broker-a", queue), wrapper);
        }
        return stats;
    }

    private static TopicStatsTable topicStats() {
        TopicStatsTable stats = new TopicStatsTable();
        TopicOffset offset = new TopicOffset();
        offset.setMinOffset(1);
        offset.setMaxOffset(100);
        offset.setLastUpdateTimestamp(TIMESTAMP);
        stats.getOffsetTable().put(new MessageQueue("GoldenTopic", "broker-a", 0), offset);
        return stats;
    }

    private static SubscriptionGroupWrapper subscriptionGroups() {
        SubscriptionGroupWrapper wrapper = new SubscriptionGroupWrapper();
        wrapper.setDataVersion(dataVersion());
        SubscriptionGroupConfig plain = new SubscriptionGroupConfig();
        plain.setGroupName("plain");
        SubscriptionGroupConfig changed = new SubscriptionGroupConfig();
        changed.setGroupName("changed");
        changed.setConsumeEnable(false);
        changed.setConsumeFromMinEnable(false);
        changed.setConsumeBroadcastEnable(false);
        changed.setRetryQueueNums(2);
        changed.setRetryMaxTimes(3);
        changed.setBrokerId(4);
        changed.setWhichBrokerWhenConsumeSlowly(5);
        changed.setNotifyConsumerIdsChangedEnable(false);
        wrapper.getSubscriptionGroupTable().put("plain", plain);
        wrapper.getSubscriptionGroupTable().put("changed", changed);
        return wrapper;
    }

    private static Set<MessageQueue> queues() {
        return new LinkedHashSet<>(List.of(new MessageQueue("GoldenTopic", "broker-a", 0), new MessageQueue("GoldenTopic", "broker-b", 3)));
    }

    private static Map<String, Object> row(Object... pairs) {
        Map<String, Object> row = new LinkedHashMap<>();
        for (int i = 0; i < pairs.length; i += 2) {
            row.put((String) pairs[i], pairs[i + 1]);
        }
        return row;
    }

    /** A registration without topics whose data version does not depend on the clock. */
    public static final class RegisterBrokerBodyAt extends RegisterBrokerBody {
        public RegisterBrokerBodyAt(long timestamp) {
            getTopicConfigSerializeWrapper().getDataVersion().setTimestamp(timestamp);
        }
    }
}
