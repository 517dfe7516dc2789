import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Arrays;
import java.util.Locale;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * The Java client under the load of bench/client.py; the counterpart of bench/client_program.py.
 *
 * <p>Arguments: produce NAMESRV TOPIC LEAD_IN MESSAGES IN_FLIGHT SIZE, or consume NAMESRV TOPIC
 * LEAD_IN MESSAGES BATCH. Prints "first" after the first message and, at the end, one line of
 * JSON with the figures of the messages after the lead-in.
 */
public final class ClientBench {
    private static long startedAt;
    private static long cpuAtStart;

    public static void main(String[] args) throws Exception {
        long leadIn = Long.parseLong(args[3]);
        long messages = Long.parseLong(args[4]);
        int width = Integer.parseInt(args[5]);
        try {
            if (args[0].equals("produce")) {
                produce(args[1], args[2], leadIn, messages, width, Integer.parseInt(args[6]));
            } else {
                consume(args[1], args[2], leadIn, messages, width);
            }
        } catch (Exception error) {
            error.printStackTrace();
            System.exit(1); // the client's threads would keep the process
        }
        System.exit(0);
    }

    private static void produce(
            String namesrv, String topic, long leadIn, long messages, int inFlight, int size)
            throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("ClientBenchProducer");
        producer.setNamesrvAddr(namesrv);
        producer.setSendMsgTimeout(30_000);
        producer.start();
        byte[] body = new byte[size];
        Arrays.fill(body, (byte) 'x');
        if (producer.send(new Message(topic, body)).getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException("the first message was not stored");
        }
        say("first");
        AtomicReference<Throwable> failure = new AtomicReference<>();
        Semaphore room = new Semaphore(inFlight);
        SendCallback callback = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                if (result.getSendStatus() != SendStatus.SEND_OK) {
                    failure.set(new IllegalStateException(result.toString()));
                }
                room.release();
            }

            @Override
            public void onException(Throwable error) {
                failure.set(error);
                room.release();
            }
        };
        for (long number = 1; number < leadIn + messages; number++) {
            if (number == leadIn) {
                begin();
            }
            room.acquire();
            producer.send(new Message(topic, body), callback);
        }
        room.acquire(inFlight);
        if (failure.get() != null) {
            throw new IllegalStateException("a message was not stored", failure.get());
        }
        end(messages);
    }

    private static void consume(
            String namesrv, String topic, long leadIn, long messages, int batch) throws Exception {
        DefaultMQPushConsumer consumer =
            new DefaultMQPushConsumer("ClientBenchConsumer" + System.nanoTime());
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(batch);
        consumer.subscribe(topic, "*");
        AtomicLong consumed = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);
        consumer.registerMessageListener((MessageListenerConcurrently) (list, context) -> {
            long after = consumed.addAndGet(list.size());
            long before = after - list.size();
            if (before == 0) {
                say("first");
            }
            if (before < leadIn && after >= leadIn) {
                begin();
            }
            if (before < leadIn + messages && after >= leadIn + messages) {
                end(messages);
                done.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        done.await();
    }

    private static synchronized void begin() {
        cpuAtStart = cpuNanos();
        startedAt = System.nanoTime();
    }

    private static synchronized void end(long messages) {
        double seconds = (System.nanoTime() - startedAt) / 1e9;
        double cpu = (cpuNanos() - cpuAtStart) / 1e9;
        say(String.format(
            Locale.ROOT,
            "{\"messages\": %d, \"seconds\": %f, \"cpu_seconds\": %f, \"rss_mib\": %f}",
            messages, seconds, cpu, rssMib()));
    }

    private static long cpuNanos() {
        return ((com.sun.management.OperatingSystemMXBean)
            ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    private static double rssMib() {
        try {
            for (String line : Files.readAllLines(Paths.get("/proc/self/status"))) {
                if (line.startsWith("VmRSS:")) {
                    return Long.parseLong(line.replaceAll("[^0-9]", "")) / 1024.0;
                }
            }
        } catch (java.io.IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
        throw new IllegalStateException("no VmRSS in /proc/self/status");
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
