import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.protocol.body.LockBatchRequestBody;

/**
 * Asks a Java NameServer and broker what the interop client does not, so that the exchanges can be recorded.
 *
 * <p>Arguments: the NameServer's address, the broker's address.
 */
public final class GoldenTraffic {
    private static final int TIMEOUT = 5000;

    public static void main(String[] arguments) {
        try {
            ask(arguments[0], arguments[1]);
            System.exit(0);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    private static void ask(String nameServer, String broker) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("golden_producer");
        producer.setNamesrvAddr(nameServer);
        producer.start();
        MQClientAPIImpl api = producer.getDefaultMQProducerImpl().getmQClientFactory().getMQClientAPIImpl();
        api.getBrokerClusterInfo(TIMEOUT);
        api.getTopicListFromNameServer(TIMEOUT);
        api.createTopic(broker, "TBW102", new TopicConfig("GoldenTopic", 2, 2, 6), TIMEOUT);
        api.getAllTopicConfig(broker, TIMEOUT);
        api.getAllSubscriptionGroup(broker, TIMEOUT);
        api.getTopicStatsInfo(broker, "GoldenTopic", TIMEOUT);
        Message message = new Message("GoldenTopic", "tag", "key-1 key-2", "Körper".getBytes("UTF-8"));
        SendResult sent = producer.send(message);
        MessageQueue queue = sent.getMessageQueue();
        api.getMaxOffset(broker, queue, TIMEOUT);
        api.getMinOffset(broker, queue, TIMEOUT);
        api.searchOffset(broker, queue, 0, TIMEOUT);
        api.getEarliestMsgStoretime(broker, queue, TIMEOUT);
        api.viewMessage(broker, MessageDecoder.decodeMessageId(sent.getOffsetMsgId()).getOffset(), TIMEOUT);
        producer.queryMessage("GoldenTopic", "key-2", 32, 0, Long.MAX_VALUE);

        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("golden_consumer");
        consumer.setNamesrvAddr(nameServer);
        consumer.start();
        PullResult pulled = consumer.pull(queue, "*", 0, 32);
        consumer.pull(queue, "no-such-tag", 0, 32);
        consumer.pull(queue, "*", pulled.getNextBeginOffset() + 100, 32);
        consumer.fetchConsumeOffset(queue, true);
        consumer.updateConsumeOffset(queue, pulled.getNextBeginOffset());
        consumer.getDefaultMQPullConsumerImpl().getOffsetStore().persist(queue);
        consumer.fetchConsumeOffset(queue, true);
        LockBatchRequestBody lock = new LockBatchRequestBody();
        lock.setConsumerGroup("golden_consumer");
        lock.setClientId("golden");
        lock.setMqSet(new HashSet<>(Set.of(queue)));
        api.lockBatchMQ(broker, lock, TIMEOUT);
        api.getConsumeStats(broker, "golden_consumer", TIMEOUT);
        consumer.shutdown();
        producer.send(List.of(message, new Message("GoldenTopic", "zwei".getBytes("UTF-8"))));
        producer.shutdown();
    }
}
