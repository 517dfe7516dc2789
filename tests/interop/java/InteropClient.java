import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * The real Java client, driven from the command line; prints one JSON object per line.
 *
 * <pre>
 * produce --namesrv A --topic T [--modes sync,async,oneway,batch] [--count N] [--prefix P]
 *         [--tags a,b] [--size CHARACTERS]
 * consume --namesrv A --topic T --group G --count N [--expression "a || b"] [--consumers 2]
 *         [--deadline SECONDS] [--settle MILLISECONDS]
 * </pre>
 *
 * <p>produce sends N messages in each mode, prints the result of each send that has one, and exits with 1 when one
 * failed. Bodies and keys begin with the prefix and the mode.
 * consume prints {"event":"ready"} when its consumers share all queues among them, then each message; it ends when
 * N distinct messages came and nothing more did for the settling time (exit 0), or at the deadline (exit 3).
 */
public final class InteropClient {
    private final Map<String, String> options = new TreeMap<>();

    public static void main(String[] arguments) {
        int code;
        try {
            InteropClient client = new InteropClient();
            for (int i = 1; i + 1 < arguments.length; i += 2) {
                client.options.put(arguments[i].replaceFirst("^--", ""), arguments[i + 1]);
            }
            code = arguments[0].equals("produce") ? client.produce() : client.consume();
        } catch (Throwable error) {
            error.printStackTrace();
            code = 1;
        }
        System.exit(code);
    }

    private int produce() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(option("group", "interop_producer"));
        producer.setNamesrvAddr(option("namesrv", null));
        producer.setSendMsgTimeout(30000);
        producer.setMqClientApiTimeout(30000);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.start();
        try {
            for (String mode : option("modes", "sync").split(",")) {
                send(producer, mode, messages(option("prefix", "message") + "-" + mode));
            }
            return 0;
        } finally {
            producer.shutdown();
        }
    }

    private static void send(DefaultMQProducer producer, String mode, List<Message> messages) throws Exception {
        switch (mode) {
            case "sync":
                for (Message message : messages) {
                    printSent(producer.send(message), message);
                }
                break;
            case "async":
                sendAsync(producer, messages);
                break;
            case "oneway":
                for (Message message : messages) {
                    producer.sendOneway(message);
                }
                flushOneway(producer, messages.get(0).getTopic());
                break;
            case "batch":
                SendResult result = producer.send(messages);
                print(Map.of("msgIds", result.getMsgId().split(","), "offsetMsgIds", result.getOffsetMsgId().split(","),
                    "queueId", result.getMessageQueue().getQueueId(), "queueOffset", result.getQueueOffset(),
                    "status", result.getSendStatus().name()));
                break;
            default:
                throw new IllegalArgumentException("unknown mode " + mode);
        }
    }

    /**
     * A oneway send may still be in the connection's buffer when the producer closes. A question on the same
     * connection, answered after all of it was read, tells that everything has arrived.
     */
    private static void flushOneway(DefaultMQProducer producer, String topic) throws Exception {
        for (MessageQueue queue : producer.fetchPublishMessageQueues(topic)) {
            producer.maxOffset(queue);
        }
    }

    private List<Message> messages(String prefix) {
        String[] tags = option("tags", "TagA,TagB").split(",");
        int size = Integer.parseInt(option("size", "0"));
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < Integer.parseInt(option("count", "10")); i++) {
            StringBuilder body = new StringBuilder(prefix + "-" + i + " äöü 消息 🚀");
            while (body.length() < size) {
                body.append(" padding").append(body.length() % 97);
            }
            Message message = new Message(option("topic", null), tags[i % tags.length],
                prefix + "-" + i + " all-" + prefix, body.toString().getBytes(StandardCharsets.UTF_8));
            message.putUserProperty("number", String.valueOf(i));
            message.putUserProperty("umlaut", "grün-" + i);
            message.setFlag(i);
            messages.add(message);
        }
        return messages;
    }

    private static void sendAsync(DefaultMQProducer producer, List<Message> messages) throws Exception {
        CountDownLatch answers = new CountDownLatch(messages.size());
        List<Throwable> failures = java.util.Collections.synchronizedList(new ArrayList<>());
        for (Message message : messages) {
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    printSent(result, message);
                    answers.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    failures.add(error);
                    answers.countDown();
                }
            });
        }
        boolean all = answers.await(60, TimeUnit.SECONDS);
        failures.forEach(Throwable::printStackTrace);
        if (!all || !failures.isEmpty()) {
            throw new IllegalStateException(failures.size() + " sends failed, " + answers.getCount() + " without answer");
        }
    }

    private int consume() throws Exception {
        int expected = Integer.parseInt(option("count", "1"));
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(Long.parseLong(option("deadline", "90")));
        long settle = TimeUnit.MILLISECONDS.toNanos(Long.parseLong(option("settle", "300")));
        Set<String> distinct = ConcurrentHashMap.newKeySet();
        long[] last = {System.nanoTime()};
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        for (int i = 0; i < Integer.parseInt(option("consumers", "1")); i++) {
            String name = "consumer" + i;
            DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(option("group", null));
            consumer.setNamesrvAddr(option("namesrv", null));
            consumer.setInstanceName(name + "-" + ProcessHandle.current().pid());
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.subscribe(option("topic", null), option("expression", "*"));
            consumer.setConsumeThreadMin(2);
            consumer.setConsumeThreadMax(2);
            consumer.registerMessageListener((MessageListenerConcurrently) (received, context) -> {
                for (MessageExt message : received) {
                    printReceived(name, message);
                    distinct.add(message.getQueueId() + "@" + message.getQueueOffset());
                }
                last[0] = System.nanoTime();
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            consumers.add(consumer);
        }
        boolean ready = false;
        boolean complete = false;
        while (!complete && System.nanoTime() < deadline) {
            if (!ready && queuesShared(consumers)) {
                ready = true;
                print(Map.of("event", "ready"));
            }
            complete = ready && distinct.size() >= expected && System.nanoTime() - last[0] > settle;
            Thread.sleep(20);
        }
        for (DefaultMQPushConsumer consumer : consumers) {
            consumer.shutdown();
        }
        return complete ? 0 : 3;
    }

    /** True when every queue of the topic belongs to exactly one consumer, and each consumer has at least one. */
    private boolean queuesShared(List<DefaultMQPushConsumer> consumers) throws Exception {
        Set<MessageQueue> all = consumers.get(0).fetchSubscribeMessageQueues(option("topic", null));
        List<MessageQueue> owned = new ArrayList<>();
        for (DefaultMQPushConsumer consumer : consumers) {
            int before = owned.size();
            for (MessageQueue queue : consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()) {
                if (queue.getTopic().equals(option("topic", null))) {
                    owned.add(queue);
                }
            }
            if (owned.size() == before) {
                return false;
            }
        }
        return owned.size() == all.size() && owned.containsAll(all);
    }

    private static void printSent(SendResult result, Message message) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("msgId", result.getMsgId());
        line.put("offsetMsgId", result.getOffsetMsgId());
        line.put("queueId", result.getMessageQueue().getQueueId());
        line.put("queueOffset", result.getQueueOffset());
        line.put("status", result.getSendStatus().name());
        line.put("keys", message.getKeys());
        line.put("tags", message.getTags());
        print(line);
    }

    private static void printReceived(String consumer, MessageExt message) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("consumer", consumer);
        line.put("msgId", message.getMsgId());
        line.put("queueId", message.getQueueId());
        line.put("queueOffset", message.getQueueOffset());
        line.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
        line.put("keys", message.getKeys());
        line.put("tags", message.getTags());
        line.put("flag", message.getFlag());
        line.put("sysFlag", message.getSysFlag());
        line.put("properties", message.getProperties());
        print(line);
    }

    private static synchronized void print(Map<String, ?> line) {
        byte[] bytes = (JSON.toJSONString(line, SerializerFeature.MapSortField) + "\n").getBytes(StandardCharsets.UTF_8);
        System.out.write(bytes, 0, bytes.length);
        System.out.flush();
    }

    private String option(String name, String fallback) {
        String value = options.getOrDefault(name, fallback);
        if (value == null) {
            throw new IllegalArgumentException("--" + name + " is missing");
        }
        return value;
    }
}
