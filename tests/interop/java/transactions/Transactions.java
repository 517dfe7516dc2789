import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * The real transactional producer of Java, and a consumer beside it; prints one JSON object per line.
 *
 * <pre>Transactions --namesrv A --topic T --keys k1,k2 --expect N [--settle MILLISECONDS]</pre>
 *
 * <p>A key says how its transaction ends: "commit..." and "rollback..." at once; "checked-commit..." and
 * "checked-rollback..." when the broker asks; "twice-commit..." when it asks for the second time; "large" in it
 * makes a body that is compressed, "immune" one that is not asked about for two seconds.
 *
 * <p>It sends each key and prints the result, prints each question and each message that arrives, and ends when N
 * distinct messages came and nothing more did for the settling time (exit 0), or after a minute (exit 3).
 */
public final class Transactions {
    private final Map<String, String> options = new TreeMap<>();
    private final Map<String, Integer> questions = new ConcurrentHashMap<>();
    private final Map<String, Boolean> arrived = new ConcurrentHashMap<>();
    private volatile long lastEvent = System.currentTimeMillis();

    public static void main(String[] arguments) {
        int code;
        try {
            Transactions program = new Transactions();
            for (int i = 0; i + 1 < arguments.length; i += 2) {
                program.options.put(arguments[i].replaceFirst("^--", ""), arguments[i + 1]);
            }
            code = program.run();
        } catch (Throwable error) {
            error.printStackTrace();
            code = 1;
        }
        System.exit(code);
    }

    private int run() throws Exception {
        String topic = options.get("topic");
        TransactionMQProducer producer = new TransactionMQProducer("transactors");
        producer.setNamesrvAddr(options.get("namesrv"));
        producer.setHeartbeatBrokerInterval(500);
        producer.setSendMsgTimeout(30000);
        producer.setMqClientApiTimeout(30000);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                String key = message.getKeys();
                return key.startsWith("commit") ? LocalTransactionState.COMMIT_MESSAGE
                    : key.startsWith("rollback") ? LocalTransactionState.ROLLBACK_MESSAGE
                    : LocalTransactionState.UNKNOW;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return answer(message);
            }
        });
        producer.start();
        for (String key : options.get("keys").split(",")) {
            send(producer, topic, key);
        }
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("transaction_consumers");
        consumer.setNamesrvAddr(options.get("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                lastEvent = System.currentTimeMillis();
                arrived.put(message.getKeys(), true);
                print(described("received", message));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        int code = waitForTheRest();
        consumer.shutdown();
        producer.shutdown();
        return code;
    }

    private void send(TransactionMQProducer producer, String topic, String key) throws Exception {
        String body = key + " äöü 消息" + (key.contains("large") ? "x".repeat(20_000) : "");
        Message message = new Message(topic, "Tag-" + key.length() % 2, key, body.getBytes(StandardCharsets.UTF_8));
        message.putUserProperty("umlaut", "grün");
        if (key.startsWith("commit")) {
            message.setFlag(7);
        }
        if (key.contains("immune")) {
            message.putUserProperty("CHECK_IMMUNITY_TIME_IN_SECONDS", "2");
        }
        TransactionSendResult result = producer.sendMessageInTransaction(message, null);
        Map<String, Object> line = new TreeMap<>();
        line.put("kind", "sent");
        line.put("key", key);
        line.put("status", result.getSendStatus().name());
        line.put("state", result.getLocalTransactionState().name());
        line.put("hasTransactionId", result.getTransactionId() != null);
        line.put("topic", result.getMessageQueue().getTopic());
        print(line);
    }

    private LocalTransactionState answer(MessageExt message) {
        lastEvent = System.currentTimeMillis();
        String key = message.getKeys();
        int asked = questions.merge(key, 1, Integer::sum);
        Map<String, Object> line = described("asked", message);
        line.put("time", asked);
        line.put("transactionIdIsKey", message.getTransactionId().equals(message.getProperty("UNIQ_KEY")));
        line.put("checkTimes", message.getProperty("TRANSACTION_CHECK_TIMES"));
        print(line);
        if (key.startsWith("twice") && asked == 1) {
            return LocalTransactionState.UNKNOW;
        }
        return key.contains("rollback") ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.COMMIT_MESSAGE;
    }

    private int waitForTheRest() throws InterruptedException {
        long end = System.currentTimeMillis() + TimeUnit.MINUTES.toMillis(3);
        long settle = Long.parseLong(options.getOrDefault("settle", "3000"));
        int expected = Integer.parseInt(options.get("expect"));
        while (System.currentTimeMillis() < end) {
            if (arrived.size() >= expected && System.currentTimeMillis() - lastEvent > settle) {
                return 0;
            }
            Thread.sleep(50);
        }
        return 3;
    }

    private static Map<String, Object> described(String kind, MessageExt message) {
        String body = new String(message.getBody(), StandardCharsets.UTF_8);
        Map<String, Object> line = new TreeMap<>();
        line.put("kind", kind);
        line.put("key", message.getKeys());
        line.put("topic", message.getTopic());
        line.put("body", body.length() > 100 ? body.substring(0, 40) + body.length() : body);
        line.put("tags", message.getTags());
        line.put("flag", message.getFlag());
        line.put("sysFlag", message.getSysFlag());
        line.put("hasPreparedOffset", message.getPreparedTransactionOffset() > 0);
        line.put("reconsumeTimes", message.getReconsumeTimes());
        line.put("umlaut", message.getUserProperty("umlaut"));
        line.put("properties", new TreeSet<>(message.getProperties().keySet()));
        return line;
    }

    private static synchronized void print(Map<String, ?> line) {
        byte[] bytes = (JSON.toJSONString(line, SerializerFeature.MapSortField) + "\n").getBytes(StandardCharsets.UTF_8);
        System.out.write(bytes, 0, bytes.length);
        System.out.flush();
    }
}
