import com.alibaba.fastjson.JSONObject;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** A lite-pull consumer with a thread that polls; it owns all queues ("assign") or its share of them. */
final class LiteConsumer implements AutoCloseable {
    private static final long POLL_MILLIS = 200;

    private final DefaultLitePullConsumer consumer;
    private final Thread poller;
    private volatile boolean running = true;

    LiteConsumer(JSONObject call) throws Exception {
        String topic = call.getString("topic");
        consumer = new DefaultLitePullConsumer(call.getString("group"));
        Driver.configure(consumer, call);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommitIntervalMillis(1000);
        consumer.setTopicMetadataCheckIntervalMillis(1000);
        if (!call.getBooleanValue("assign")) {
            if (call.getBooleanValue("sql")) {
                consumer.subscribe(topic, MessageSelector.bySql(call.getString("expression")));
            } else {
                consumer.subscribe(topic, call.getOrDefault("expression", "*").toString());
            }
        }
        consumer.start();
        if (call.getBooleanValue("assign")) {
            var queues = consumer.fetchMessageQueues(topic);
            consumer.assign(queues);
            for (MessageQueue queue : queues) {
                consumer.seekToBegin(queue);
            }
        }
        String name = call.getString("name");
        poller = new Thread(() -> {
            while (running) {
                for (MessageExt message : consumer.poll(POLL_MILLIS)) {
                    PushConsumer.report(name, message);
                }
            }
        });
        poller.start();
    }

    @Override
    public void close() throws Exception {
        running = false;
        poller.join();
        consumer.commitSync();
        consumer.shutdown();
    }
}
