import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.hook.SendMessageContext;
import org.apache.rocketmq.client.hook.SendMessageHook;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** A producer of any kind, and every way to send with it. */
final class Producer implements AutoCloseable {
    private static final long PATIENCE_NANOS = TimeUnit.SECONDS.toNanos(40);
    private static final long PAUSE_MILLIS = 100;

    private final String name;
    private final DefaultMQProducer producer;
    private final Map<Message, Integer> attempts = new ConcurrentHashMap<>();

    Producer(JSONObject call) throws Exception {
        name = call.getString("name");
        String group = call.getString("group");
        if (call.getBooleanValue("transactional")) {
            TransactionMQProducer transactional = new TransactionMQProducer(null, group, null, call.getBooleanValue("trace"), null);
            transactional.setTransactionListener(new Decisions());
            producer = transactional;
        } else {
            producer = new DefaultMQProducer(group, null, call.getBooleanValue("trace"), null);
        }
        Driver.configure(producer, call);
        producer.setSendMsgTimeout(call.containsKey("timeoutMillis") ? call.getIntValue("timeoutMillis") : 30000);
        producer.start();
        if (call.getBooleanValue("attempts")) {
            producer.getDefaultMQProducerImpl().registerSendMessageHook(new Count());
        }
    }

    List<Object> send(JSONObject call) throws Exception {
        String mode = call.getString("mode");
        List<Message> messages = messages(call);
        boolean patient = call.getBooleanValue("patient");
        List<Object> results = new ArrayList<>();
        if (mode.equals("batch")) {
            int size = call.containsKey("batch") ? call.getIntValue("batch") : messages.size();
            for (int i = 0; i < messages.size(); i += size) {
                List<Message> batch = messages.subList(i, Math.min(i + size, messages.size()));
                results.add(result(repeat(patient, () -> producer.send(batch)), null));
                Thread.sleep(call.getLongValue("pace"));
            }
            return results;
        }
        List<CompletableFuture<SendResult>> answers = new ArrayList<>();
        for (Message message : messages) {
            switch (mode) {
                case "sync":
                    results.add(result(repeat(patient, () -> producer.send(message)), message));
                    break;
                case "ordered":
                    results.add(result(repeat(patient, () -> producer.send(message, Producer::choose, message)), message));
                    break;
                case "transaction":
                    results.add(result(repeat(patient, () -> producer.sendMessageInTransaction(message, null)), message));
                    break;
                case "async":
                    answers.add(sendAsync(message));
                    break;
                case "oneway":
                    producer.sendOneway(message);
                    break;
                default:
                    throw new IllegalArgumentException("unknown mode " + mode);
            }
            Thread.sleep(call.getLongValue("pace"));
        }
        for (int i = 0; i < answers.size(); i++) {
            CompletableFuture<SendResult> answer = answers.get(i);
            Message message = messages.get(i);
            results.add(result(repeat(patient, () -> (answer.isCompletedExceptionally() ? sendAsync(message) : answer).get(20, TimeUnit.SECONDS)), message));
        }
        if (mode.equals("oneway")) {
            flushOneway(messages.get(0).getTopic());
        }
        return results;
    }

    Object request(JSONObject call) throws Exception {
        Message message = message(call.getString("topic"), call);
        Message reply = producer.request(message, call.getLongValue("millis"));
        return Map.of("body", new String(reply.getBody(), StandardCharsets.UTF_8), "properties", reply.getProperties());
    }

    @Override
    public void close() {
        producer.shutdown();
    }

    private interface Attempt {
        SendResult run() throws Exception;
    }

    /** A patient producer sends until it was told that the message is stored: that is what "at least once" needs. */
    private static SendResult repeat(boolean patient, Attempt attempt) throws Exception {
        long deadline = System.nanoTime() + PATIENCE_NANOS;
        while (true) {
            try {
                SendResult result = attempt.run();
                if (!patient || result.getSendStatus() == SendStatus.SEND_OK) {
                    return result;
                }
            } catch (Exception error) {
                if (!patient || System.nanoTime() > deadline) {
                    throw error;
                }
            }
            Thread.sleep(PAUSE_MILLIS);
        }
    }

    private CompletableFuture<SendResult> sendAsync(Message message) {
        CompletableFuture<SendResult> answer = new CompletableFuture<>();
        try {
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    answer.complete(result);
                }

                @Override
                public void onException(Throwable error) {
                    answer.completeExceptionally(error);
                }
            });
        } catch (Exception error) {
            answer.completeExceptionally(error);
        }
        return answer;
    }

    private static MessageQueue choose(List<MessageQueue> queues, Message message, Object argument) {
        return queues.get(Integer.parseInt(message.getUserProperty("shard")) % queues.size());
    }

    /** An answer on the same connection tells that the oneway sends before it were read. */
    private void flushOneway(String topic) throws Exception {
        for (MessageQueue queue : producer.fetchPublishMessageQueues(topic)) {
            producer.maxOffset(queue);
        }
    }

    private static List<Message> messages(JSONObject call) {
        List<Message> messages = new ArrayList<>();
        JSONArray descriptions = call.getJSONArray("messages");
        for (int i = 0; i < descriptions.size(); i++) {
            messages.add(message(call.getString("topic"), descriptions.getJSONObject(i)));
        }
        return messages;
    }

    private static Message message(String topic, JSONObject description) {
        Message message = new Message(topic, description.getString("body").getBytes(StandardCharsets.UTF_8));
        if (description.containsKey("tags")) {
            message.setTags(description.getString("tags"));
        }
        if (description.containsKey("keys")) {
            message.setKeys(description.getString("keys"));
        }
        if (description.containsKey("delay")) {
            message.setDelayTimeLevel(description.getIntValue("delay"));
        }
        if (description.containsKey("properties")) {
            description.getJSONObject("properties").forEach((key, value) -> message.putUserProperty(key, (String) value));
        }
        return message;
    }

    private Map<String, Object> result(SendResult result, Message message) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("status", result.getSendStatus().name());
        line.put("msgIds", Arrays.asList(result.getMsgId().split(",")));
        line.put("broker", result.getMessageQueue().getBrokerName());
        line.put("queueId", result.getMessageQueue().getQueueId());
        line.put("queueOffset", result.getQueueOffset());
        if (message != null) {
            line.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
            Integer count = attempts.remove(message);
            if (count != null) {
                line.put("attempts", count);
            }
        }
        return line;
    }

    /** Counts how often each message was sent, with the repetitions inside of the client. */
    private final class Count implements SendMessageHook {
        @Override
        public String hookName() {
            return "count";
        }

        @Override
        public void sendMessageBefore(SendMessageContext context) {
            attempts.merge(context.getMessage(), 1, Integer::sum);
        }

        @Override
        public void sendMessageAfter(SendMessageContext context) {
        }
    }

    /** The message itself says how its transaction ends: property "local" at once, "check" when it is asked for. */
    private final class Decisions implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return state(message.getUserProperty("local"));
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            Driver.print(Map.of("report", "check", "client", name, "body", new String(message.getBody(), StandardCharsets.UTF_8),
                "properties", message.getProperties()));
            return state(message.getUserProperty("check"));
        }

        private LocalTransactionState state(String decision) {
            switch (String.valueOf(decision)) {
                case "commit":
                    return LocalTransactionState.COMMIT_MESSAGE;
                case "rollback":
                    return LocalTransactionState.ROLLBACK_MESSAGE;
                default:
                    return LocalTransactionState.UNKNOW;
            }
        }
    }
}
