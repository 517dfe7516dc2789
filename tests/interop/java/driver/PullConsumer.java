import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** The old pull consumer: its user keeps the offsets. One call takes all that a topic has for the group. */
final class PullConsumer {
    private static final int BATCH = 16;

    static List<Object> pull(JSONObject call) throws Exception {
        String topic = call.getString("topic");
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(call.getString("group"));
        Driver.configure(consumer, call);
        consumer.start();
        try {
            List<Object> found = new ArrayList<>();
            for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
                long offset = Math.max(0, consumer.fetchConsumeOffset(queue, true));
                PullResult result;
                do {
                    result = consumer.pull(queue, call.getOrDefault("expression", "*").toString(), offset, BATCH);
                    if (result.getPullStatus() == PullStatus.FOUND) {
                        for (MessageExt message : result.getMsgFoundList()) {
                            found.add(PushConsumer.description(message));
                        }
                    }
                    offset = result.getNextBeginOffset();
                } while (offset < result.getMaxOffset());
                consumer.updateConsumeOffset(queue, offset);
                consumer.getDefaultMQPullConsumerImpl().getOffsetStore().persist(queue);
            }
            return found;
        } finally {
            consumer.shutdown();
        }
    }
}
