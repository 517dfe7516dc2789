import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import java.io.ByteArrayOutputStream;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.jar.JarFile;
import org.apache.rocketmq.common.DataVersion;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.constant.PermName;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.protocol.RequestCode;
import org.apache.rocketmq.common.protocol.ResponseCode;
import org.apache.rocketmq.common.protocol.body.RegisterBrokerBody;
import org.apache.rocketmq.common.protocol.header.PullMessageRequestHeader;
import org.apache.rocketmq.common.protocol.header.PullMessageResponseHeader;
import org.apache.rocketmq.common.protocol.header.QueryConsumerOffsetRequestHeader;
import org.apache.rocketmq.common.protocol.header.SendMessageRequestHeader;
import org.apache.rocketmq.common.protocol.header.SendMessageRequestHeaderV2;
import org.apache.rocketmq.common.protocol.header.SendMessageResponseHeader;
import org.apache.rocketmq.common.protocol.header.namesrv.RegisterBrokerRequestHeader;
import org.apache.rocketmq.remoting.CommandCustomHeader;
import org.apache.rocketmq.remoting.annotation.CFNotNull;
import org.apache.rocketmq.remoting.protocol.LanguageCode;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.SerializeType;

/**
 * Frames as Java encodes them, with the values that went in.
 *
 * <p>Writes frames.bin (the frames one after the other) and frames.json (for each its place and its
 * values). Arguments: the directory to write to, the jar with the header classes.
 */
public final class GoldenFrames {
    private final ByteArrayOutputStream frames = new ByteArrayOutputStream();
    private final List<Map<String, Object>> index = new ArrayList<>();

    public static void main(String[] arguments) throws Exception {
        Path directory = Path.of(arguments[0]);
        System.setProperty(RemotingCommand.REMOTING_VERSION_KEY, "407");
        GoldenFrames golden = new GoldenFrames();
        golden.typicalFrames();
        golden.everyHeader(arguments[1]);
        Files.write(directory.resolve("frames.bin"), golden.frames.toByteArray());
        Files.writeString(directory.resolve("frames.json"), Golden.pretty(golden.index));
    }

    private void typicalFrames() throws Exception {
        byte[] body = "a body, ein Körper, 消息体 🚀".getBytes(StandardCharsets.UTF_8);

        SendMessageRequestHeader send = new SendMessageRequestHeader();
        send.setProducerGroup("golden_producer");
        send.setTopic("GoldenTopic");
        send.setDefaultTopic("TBW102");
        send.setDefaultTopicQueueNums(4);
        send.setQueueId(3);
        send.setSysFlag(0);
        send.setBornTimestamp(1700000000123L);
        send.setFlag(7);
        send.setProperties(properties("TAGS", "tag-ä", "KEYS", "one two three", "WAIT", "true"));
        send.setReconsumeTimes(0);
        send.setUnitMode(false);
        send.setBatch(false);
        add("send", RequestCode.SEND_MESSAGE, send, body, 0);

        SendMessageRequestHeaderV2 second = SendMessageRequestHeaderV2.createSendMessageRequestHeaderV2(send);
        add("send-v2", RequestCode.SEND_MESSAGE_V2, second, body, 0);
        add("send-v2-oneway", RequestCode.SEND_MESSAGE_V2, second, body, 2);

        Message first = new Message("GoldenTopic", "tag", "key1 key2", "first".getBytes(StandardCharsets.UTF_8));
        Message next = new Message("GoldenTopic", "zweiter".getBytes(StandardCharsets.UTF_8));
        next.setFlag(9);
        send.setBatch(true);
        SendMessageRequestHeaderV2 batch = SendMessageRequestHeaderV2.createSendMessageRequestHeaderV2(send);
        add("send-batch", RequestCode.SEND_BATCH_MESSAGE, batch, MessageDecoder.encodeMessages(List.of(first, next)), 0);

        SendMessageResponseHeader sent = new SendMessageResponseHeader();
        sent.setMsgId("7F00000100002A9F0000000000000400");
        sent.setQueueId(3);
        sent.setQueueOffset(1L << 40);
        response("send-response", ResponseCode.SUCCESS, null, sent, null);

        PullMessageRequestHeader pull = new PullMessageRequestHeader();
        pull.setConsumerGroup("golden_consumer");
        pull.setTopic("GoldenTopic");
        pull.setQueueId(0);
        pull.setQueueOffset(12L);
        pull.setMaxMsgNums(32);
        pull.setSysFlag(7);
        pull.setCommitOffset(10L);
        pull.setSuspendTimeoutMillis(15000L);
        pull.setSubscription("tag-ä || b");
        pull.setSubVersion(1700000000123L);
        pull.setExpressionType("TAG");
        add("pull", RequestCode.PULL_MESSAGE, pull, null, 0);

        PullMessageResponseHeader pulled = new PullMessageResponseHeader();
        pulled.setSuggestWhichBrokerId(0L);
        pulled.setNextBeginOffset(44L);
        pulled.setMinOffset(0L);
        pulled.setMaxOffset(Long.MAX_VALUE);
        response("pull-response", ResponseCode.SUCCESS, "FOUND", pulled, new byte[] {0, 1, 2, (byte) 0xFF});

        QueryConsumerOffsetRequestHeader offset = new QueryConsumerOffsetRequestHeader();
        offset.setConsumerGroup("golden_consumer");
        offset.setTopic("GoldenTopic");
        offset.setQueueId(Integer.MAX_VALUE);
        add("query-offset", RequestCode.QUERY_CONSUMER_OFFSET, offset, null, 0);

        for (boolean compressed : new boolean[] {false, true}) {
            byte[] registration = registerBody().encode(compressed);
            RegisterBrokerRequestHeader register = new RegisterBrokerRequestHeader();
            register.setBrokerName("golden-broker");
            register.setBrokerAddr("127.0.0.1:10911");
            register.setClusterName("DefaultCluster");
            register.setHaServerAddr("127.0.0.1:10912");
            register.setBrokerId(0L);
            register.setCompressed(compressed);
            register.setBodyCrc32(UtilAll.crc32(registration));
            add(compressed ? "register-broker-compressed" : "register-broker",
                RequestCode.REGISTER_BROKER, register, registration, 0);
        }

        add("no-header-no-body", RequestCode.GET_BROKER_CLUSTER_INFO, null, null, 0);
        response("remark-not-ascii", ResponseCode.SYSTEM_ERROR, "Fehler: über \"Anführung\" \\ \n\t 消息 🚀", null, null);
        response("remark-empty", ResponseCode.SUCCESS, "", null, null);
        for (LanguageCode language : LanguageCode.values()) {
            for (SerializeType encoding : SerializeType.values()) {
                RemotingCommand command = RemotingCommand.createRequestCommand(RequestCode.HEART_BEAT, null);
                command.setLanguage(language);
                command.setOpaque(-1);
                command.setBody("{}".getBytes(StandardCharsets.UTF_8));
                keep("language-" + language, command, encoding, bytes(command, encoding), null);
            }
        }
        for (SerializeType encoding : SerializeType.values()) {
            RemotingCommand command = RemotingCommand.createRequestCommand(RequestCode.SEND_MESSAGE, null);
            command.setOpaque(Integer.MAX_VALUE);
            command.addExtField("empty", "");
            command.addExtField("ключ", "\u0001\u0002 / \\ \" 值");
            keep("ext-fields-odd", command, encoding, bytes(command, encoding), null);
            command = RemotingCommand.createRequestCommand(RequestCode.SEND_MESSAGE, null);
            command.setOpaque(Integer.MIN_VALUE);
            command.setExtFields(new java.util.HashMap<>());
            keep("ext-fields-empty", command, encoding, bytes(command, encoding), null);
        }
    }

    /** One frame with every field of each header class, and one with only those that must be there. */
    private void everyHeader(String jar) throws Exception {
        List<Class<?>> classes = new ArrayList<>();
        try (JarFile file = new JarFile(jar)) {
            for (var entry : (Iterable<java.util.jar.JarEntry>) file.stream()::iterator) {
                String name = entry.getName();
                if (name.startsWith("org/apache/rocketmq/common/protocol/header/") && name.endsWith("Header.class")
                    || name.endsWith("RequestHeaderV2.class")) {
                    Class<?> type = Class.forName(name.substring(0, name.length() - 6).replace('/', '.'));
                    if (CommandCustomHeader.class.isAssignableFrom(type)) {
                        classes.add(type);
                    }
                }
            }
        }
        classes.sort(Comparator.comparing(Class::getSimpleName));
        for (Class<?> type : classes) {
            for (boolean all : new boolean[] {true, false}) {
                CommandCustomHeader header = (CommandCustomHeader) type.getDeclaredConstructor().newInstance();
                if (fill(header, all)) {
                    int code = RequestCode.GET_BROKER_CONFIG;
                    for (SerializeType encoding : SerializeType.values()) {
                        RemotingCommand command = RemotingCommand.createRequestCommand(code, header);
                        command.setOpaque(index.size());
                        keep(type.getSimpleName() + (all ? "-all" : "-required"), command, encoding,
                            bytes(command, encoding), header);
                    }
                }
            }
        }
    }

    /** False for a header with a field that no extField can carry (4.9.7 has one, never sent). */
    private static boolean fill(CommandCustomHeader header, boolean all) throws Exception {
        int number = 0;
        for (Field field : Golden.fields(header.getClass())) {
            number++;
            field.setAccessible(true);
            Class<?> type = field.getType();
            if (!all && field.getAnnotation(CFNotNull.class) == null) {
                continue;
            }
            if (type == String.class) {
                boolean filter = field.getName().equals("topicFilterType");
                field.set(header, filter ? "MULTI_TAG" : field.getName() + "-ü" + number);
            } else if (type == Integer.class || type == int.class) {
                field.set(header, -1000 - number);
            } else if (type == Long.class || type == long.class) {
                field.set(header, (1L << 41) + number);
            } else if (type == Boolean.class || type == boolean.class) {
                field.set(header, true);
            } else {
                return false;
            }
        }
        return true;
    }

    private void add(String name, int code, CommandCustomHeader header, byte[] body, int flag) throws Exception {
        for (SerializeType encoding : SerializeType.values()) {
            RemotingCommand command = RemotingCommand.createRequestCommand(code, header);
            command.setOpaque(100 + index.size());
            command.setFlag(flag);
            command.setBody(body);
            keep(name, command, encoding, bytes(command, encoding), header);
        }
        // The path that the Netty encoder takes: the fields of "fast" headers in their own order.
        RemotingCommand command = RemotingCommand.createRequestCommand(code, header);
        command.setOpaque(100 + index.size());
        command.setFlag(flag);
        command.setBody(body);
        command.setSerializeTypeCurrentRPC(SerializeType.ROCKETMQ);
        ByteBuf buffer = Unpooled.buffer();
        command.fastEncodeHeader(buffer);
        if (body != null) {
            buffer.writeBytes(body);
        }
        byte[] bytes = new byte[buffer.readableBytes()];
        buffer.readBytes(bytes);
        command.makeCustomHeaderToNet();
        keep(name + "-fast", command, SerializeType.ROCKETMQ, bytes, header);
    }

    private void response(String name, int code, String remark, CommandCustomHeader header, byte[] body) throws Exception {
        for (SerializeType encoding : SerializeType.values()) {
            RemotingCommand command = RemotingCommand.createResponseCommand(code, remark);
            command.writeCustomHeader(header);
            command.setOpaque(100 + index.size());
            command.setBody(body);
            keep(name, command, encoding, bytes(command, encoding), header);
        }
    }

    private static byte[] bytes(RemotingCommand command, SerializeType encoding) {
        command.setSerializeTypeCurrentRPC(encoding);
        ByteBuffer buffer = command.encode();
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        return bytes;
    }

    private void keep(String name, RemotingCommand command, SerializeType encoding, byte[] bytes,
        CommandCustomHeader header) throws Exception {
        Map<String, Object> entry = new TreeMap<>();
        entry.put("name", name + "-" + encoding.name().toLowerCase());
        entry.put("start", frames.size());
        entry.put("length", bytes.length);
        entry.put("encoding", encoding.name());
        entry.put("code", command.getCode());
        entry.put("language", command.getLanguage().name());
        entry.put("version", command.getVersion());
        entry.put("opaque", command.getOpaque());
        entry.put("flag", command.getFlag());
        entry.put("remark", command.getRemark());
        entry.put("extFields", command.getExtFields() == null ? Map.of() : new TreeMap<>(command.getExtFields()));
        entry.put("body", command.getBody() == null ? "" : Golden.hex(command.getBody()));
        if (header != null) {
            Map<String, Object> values = new TreeMap<>();
            for (Field field : Golden.fields(header.getClass())) {
                field.setAccessible(true);
                values.put(field.getName(), field.get(header));
            }
            entry.put("header", header.getClass().getSimpleName());
            entry.put("headerValues", values);
        }
        index.add(entry);
        frames.write(bytes);
    }

    private static String properties(String... pairs) {
        Map<String, String> map = new TreeMap<>();
        for (int i = 0; i < pairs.length; i += 2) {
            map.put(pairs[i], pairs[i + 1]);
        }
        return MessageDecoder.messageProperties2String(map);
    }

    private static RegisterBrokerBody registerBody() {
        RegisterBrokerBody body = new RegisterBrokerBody();
        DataVersion version = new DataVersion();
        version.setTimestamp(1700000000000L);
        version.getCounter().set(42);
        body.getTopicConfigSerializeWrapper().setDataVersion(version);
        TopicConfig topic = new TopicConfig("GoldenTopic", 8, 4, PermName.PERM_READ | PermName.PERM_WRITE);
        topic.setTopicSysFlag(2);
        topic.setOrder(true);
        body.getTopicConfigSerializeWrapper().getTopicConfigTable().put("GoldenTopic", topic);
        body.getTopicConfigSerializeWrapper().getTopicConfigTable().put("TBW102", new TopicConfig("TBW102", 8, 8, 7));
        body.setFilterServerList(new ArrayList<>(List.of("127.0.0.1:30000")));
        return body;
    }
}
