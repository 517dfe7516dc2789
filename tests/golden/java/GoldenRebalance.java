import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.client.consumer.store.OffsetSerializeWrapper;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * The shares that Java's strategies give, and the file in which a broadcasting consumer keeps offsets.
 *
 * <p>Argument: OUTPUT (JSON). Queues are written as broker:id. Rooms: what stands before the @ in a
 * broker's name, and before the - in a member's id.
 */
public final class GoldenRebalance {
    private GoldenRebalance() {
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, AllocateMessageQueueStrategy> strategies = new LinkedHashMap<>();
        strategies.put("averagely", new AllocateMessageQueueAveragely());
        strategies.put("averagely by circle", new AllocateMessageQueueAveragelyByCircle());
        AllocateMessageQueueByMachineRoom byRoom = new AllocateMessageQueueByMachineRoom();
        byRoom.setConsumeridcs(Set.of("east", "west"));
        strategies.put("by machine room", byRoom);
        AllocateMachineRoomNearby.MachineRoomResolver rooms = new AllocateMachineRoomNearby.MachineRoomResolver() {
            @Override
            public String brokerDeployIn(MessageQueue queue) {
                return queue.getBrokerName().split("@")[0];
            }

            @Override
            public String consumerDeployIn(String member) {
                return member.split("-")[0];
            }
        };
        strategies.put("nearby", new AllocateMachineRoomNearby(new AllocateMessageQueueAveragely(), rooms));
        strategies.put("nearby by circle",
            new AllocateMachineRoomNearby(new AllocateMessageQueueAveragelyByCircle(), rooms));
        strategies.put("consistent hash", new AllocateMessageQueueConsistentHash());
        strategies.put("consistent hash of 3", new AllocateMessageQueueConsistentHash(3));

        List<List<String>> groups = List.of(
            List.of("east-1"),
            List.of("east-1", "west-1"),
            List.of("east-1", "east-2", "south-1"),
            List.of("10.0.0.1@1#2", "10.0.0.2@1#2", "10.0.0.3@1#2", "10.0.0.4@1#2", "10.0.0.5@1#2"),
            List.of("east-1", "east-2", "north-1", "west-1", "west-2", "west-3", "west-4", "west-5"));
        List<List<String>> topics = List.of(
            List.of("east@a"),
            List.of("a", "b"),
            List.of("east@a", "north@a", "west@a"),
            List.of("east@a", "east@b", "south@a", "west@a@b", "west@"));

        List<Object> cases = new ArrayList<>();
        for (List<String> brokers : topics) {
            for (int count : new int[] {1, 4, 7}) {
                List<MessageQueue> queues = new ArrayList<>();
                for (String broker : brokers) {
                    for (int id = 0; id < count; id++) {
                        queues.add(new MessageQueue("orders", broker, id));
                    }
                }
                Collections.sort(queues);
                for (List<String> members : groups) {
                    List<String> sorted = new ArrayList<>(members);
                    Collections.sort(sorted);
                    for (Map.Entry<String, AllocateMessageQueueStrategy> strategy : strategies.entrySet()) {
                        Map<String, Object> shares = new LinkedHashMap<>();
                        for (String member : sorted) {
                            shares.put(member, texts(strategy.getValue().allocate("group", member, queues, sorted)));
                        }
                        Map<String, Object> one = new LinkedHashMap<>();
                        one.put("strategy", strategy.getKey());
                        one.put("queues", texts(queues));
                        one.put("shares", shares);
                        cases.add(one);
                    }
                }
            }
        }
        OffsetSerializeWrapper wrapper = new OffsetSerializeWrapper();
        wrapper.getOffsetTable().put(new MessageQueue("orders", "a", 0), new AtomicLong(12));
        wrapper.getOffsetTable().put(new MessageQueue("orders", "b", 3), new AtomicLong(5_000_000_000L));

        Map<String, Object> output = new LinkedHashMap<>();
        output.put("cases", cases);
        output.put("offsets", wrapper.toJson(true));
        Files.writeString(Path.of(arguments[0]), Golden.pretty(output));
    }

    private static String texts(List<MessageQueue> queues) {
        List<String> texts = new ArrayList<>();
        for (MessageQueue queue : queues) {
            texts.add(queue.getBrokerName() + ":" + queue.getQueueId());
        }
        return String.join(" ", texts);
    }
}
