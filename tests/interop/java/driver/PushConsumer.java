import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** A push consumer that reports each delivery, fails those that ask for it, and answers requests. */
final class PushConsumer implements AutoCloseable {
    private static final int RETRY_MILLIS = 200;

    private final String name;
    private final DefaultMQPushConsumer consumer;
    private final DefaultMQProducer replies;
    private final long handlerMillis;

    PushConsumer(JSONObject call) throws Exception {
        name = call.getString("name");
        handlerMillis = call.getLongValue("handlerMillis");
        consumer = new DefaultMQPushConsumer(call.getString("group"), null, new AllocateMessageQueueAveragely(),
            call.getBooleanValue("trace"), null);
        Driver.configure(consumer, call);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        // As many as by default, if handlers take their time.
        int threads = handlerMillis > 0 ? 20 : 2;
        consumer.setConsumeThreadMin(threads);
        consumer.setConsumeThreadMax(threads);
        consumer.setPullTimeDelayMillsWhenException(RETRY_MILLIS);
        consumer.setSuspendCurrentQueueTimeMillis(RETRY_MILLIS);
        if (call.getBooleanValue("broadcast")) {
            // Its package is not the same in 4.9 and 5.x.
            consumer.setMessageModel(Enum.valueOf(consumer.getMessageModel().getDeclaringClass(), "BROADCASTING"));
        }
        if (call.containsKey("maxReconsumeTimes")) {
            consumer.setMaxReconsumeTimes(call.getIntValue("maxReconsumeTimes"));
        }
        if (call.getBooleanValue("sql")) {
            consumer.subscribe(call.getString("topic"), MessageSelector.bySql(call.getString("expression")));
        } else {
            consumer.subscribe(call.getString("topic"), call.getOrDefault("expression", "*").toString());
        }
        if (call.getBooleanValue("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                take(messages) ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
                take(messages) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        }
        if (call.getBooleanValue("replies")) {
            replies = new DefaultMQProducer(call.getString("group") + "_replies");
            Driver.configure(replies, call);
            replies.start();
        } else {
            replies = null;
        }
        consumer.start();
    }

    /** The queues of the topics that this consumer owns now, retries not counted. */
    List<Object> queues() {
        List<Object> owned = new ArrayList<>();
        for (MessageQueue queue : consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()) {
            if (!queue.getTopic().contains("%RETRY%")) {
                owned.add(List.of(queue.getBrokerName(), queue.getQueueId()));
            }
        }
        return owned;
    }

    @Override
    public void close() {
        consumer.shutdown();
        if (replies != null) {
            replies.shutdown();
        }
    }

    private boolean take(List<MessageExt> messages) {
        boolean done = true;
        for (MessageExt message : messages) {
            rest();
            report(name, message);
            String failures = message.getUserProperty("fail");
            done &= failures == null || message.getReconsumeTimes() >= Integer.parseInt(failures);
            if (replies != null) {
                reply(message);
            }
        }
        return done;
    }

    private void rest() {
        try {
            Thread.sleep(handlerMillis);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    private void reply(MessageExt message) {
        try {
            String body = "reply to " + new String(message.getBody(), StandardCharsets.UTF_8);
            Message reply = MessageUtil.createReplyMessage(message, body.getBytes(StandardCharsets.UTF_8));
            replies.send(reply, 3000);
        } catch (Exception error) {
            error.printStackTrace();
        }
    }

    static void report(String consumer, MessageExt message) {
        Map<String, Object> line = description(message);
        line.put("report", "message");
        line.put("client", consumer);
        Driver.print(line);
    }

    static Map<String, Object> description(MessageExt message) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("topic", message.getTopic());
        line.put("broker", message.getBrokerName());
        line.put("queueId", message.getQueueId());
        line.put("queueOffset", message.getQueueOffset());
        line.put("msgId", message.getMsgId());
        line.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
        line.put("tags", message.getTags());
        line.put("keys", message.getKeys());
        line.put("reconsumeTimes", message.getReconsumeTimes());
        line.put("bornTimestamp", message.getBornTimestamp());
        line.put("storeTimestamp", message.getStoreTimestamp());
        line.put("properties", message.getProperties());
        return line;
    }
}
