import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Properties;
import java.util.Random;
import java.util.Scanner;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Kafka's own client, with its default settings, under the load of bench/kafka.py.
 *
 * <p>Arguments: produce ADDRESS TOPIC SIZE, consume ADDRESS TOPIC, or stored ADDRESS TOPIC. The
 * first two read numbers of messages from standard input and answer each, when that many messages
 * are acknowledged or received, with a line of three latencies in ns (median, p99, p99.9). A
 * consumer starts again at the first message after the last. "stored" prints the number of
 * messages of the topic.
 */
public final class KafkaBench {
    private static final int BODIES = 1024;

    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[1]);
        String topic = args[2];
        switch (args[0]) {
            case "produce" -> produce(settings, topic, Integer.parseInt(args[3]));
            case "consume" -> consume(settings, topic);
            default -> {
                try (KafkaConsumer<byte[], byte[]> consumer = consumer(settings)) {
                    List<TopicPartition> all = partitions(consumer, topic);
                    say(consumer.endOffsets(all).values().stream().mapToLong(each -> each).sum());
                }
            }
        }
    }

    private static void produce(Properties settings, String topic, int size) {
        byte[][] bodies = new byte[BODIES][size];
        Random random = new Random(1);
        for (byte[] body : bodies) {
            random.nextBytes(body);
        }
        AtomicReference<Exception> failure = new AtomicReference<>();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
                settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            Scanner orders = new Scanner(System.in);
            while (orders.hasNextInt()) {
                int messages = orders.nextInt();
                long[] latencies = new long[messages];
                for (int number = 0; number < messages; number++) {
                    int index = number;
                    long began = System.nanoTime();
                    producer.send(
                        new ProducerRecord<>(topic, bodies[number % BODIES]),
                        (metadata, error) -> {
                            latencies[index] = System.nanoTime() - began;
                            if (error != null) {
                                failure.set(error);
                            }
                        });
                }
                producer.flush();
                if (failure.get() != null) {
                    throw new IllegalStateException("a message was not stored", failure.get());
                }
                report(latencies, messages);
            }
        }
    }

    private static void consume(Properties settings, String topic) {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(settings)) {
            List<TopicPartition> all = partitions(consumer, topic);
            consumer.assign(all);
            consumer.seekToBeginning(all);
            long stored = consumer.endOffsets(all).values().stream().mapToLong(each -> each).sum();
            long position = 0;
            Scanner orders = new Scanner(System.in);
            while (orders.hasNextInt()) {
                int messages = orders.nextInt();
                long[] latencies = new long[messages];
                int polls = 0;
                for (int received = 0; received < messages; ) {
                    long began = System.nanoTime();
                    ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofSeconds(30));
                    if (records.isEmpty()) {
                        throw new IllegalStateException("no message within 30 s");
                    }
                    if (polls < latencies.length) {
                        latencies[polls++] = System.nanoTime() - began;
                    }
                    received += records.count();
                    position += records.count();
                    if (position >= stored) {
                        consumer.seekToBeginning(all);
                        position = 0;
                    }
                }
                report(latencies, polls);
            }
        }
    }

    private static KafkaConsumer<byte[], byte[]> consumer(Properties settings) {
        return new KafkaConsumer<>(
            settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static List<TopicPartition> partitions(
            KafkaConsumer<byte[], byte[]> consumer, String topic) {
        return consumer.partitionsFor(topic).stream()
            .map(info -> new TopicPartition(topic, info.partition()))
            .collect(Collectors.toList());
    }

    private static void report(long[] latencies, int count) {
        Arrays.sort(latencies, 0, count);
        say(String.format(
            Locale.ROOT,
            "%d %d %d",
            latencies[(int) (count * 0.5)],
            latencies[(int) (count * 0.99)],
            latencies[(int) (count * 0.999)]));
    }

    private static void say(Object line) {
        System.out.println(line);
        System.out.flush();
    }
}
