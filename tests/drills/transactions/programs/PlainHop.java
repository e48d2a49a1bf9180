import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.*;

/** The Java client as its documentation shows it: abort and rewind after an error, end where the producer is fenced. */
public class PlainHop {
    static volatile boolean running = true;

    public static void main(String[] arguments) {
        Map<String, String> env = System.getenv();
        Thread worker = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            running = false;
            try { worker.join(5000); } catch (InterruptedException x) { Thread.currentThread().interrupt(); }
        }));
        Properties c = new Properties();
        c.put(ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, env.get("BOOTSTRAP"));
        c.put(ConsumerConfig.GROUP_ID_CONFIG, env.get("GROUP"));
        c.put(ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG, "false");
        c.put(ConsumerConfig.ISOLATION_LEVEL_CONFIG, "read_committed");
        c.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        c.put(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG, "6000");
        c.put(ConsumerConfig.REQUEST_TIMEOUT_MS_CONFIG, env.get("REQUEST_TIMEOUT_MS"));
        c.put(ConsumerConfig.DEFAULT_API_TIMEOUT_MS_CONFIG, "20000");
        Properties p = new Properties();
        p.put(ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, env.get("BOOTSTRAP"));
        p.put(ProducerConfig.TRANSACTIONAL_ID_CONFIG, env.get("GROUP") + "-0");
        p.put(ProducerConfig.TRANSACTION_TIMEOUT_CONFIG, env.get("TRANSACTION_TIMEOUT_MS"));
        p.put(ProducerConfig.REQUEST_TIMEOUT_MS_CONFIG, env.get("REQUEST_TIMEOUT_MS"));
        p.put(ProducerConfig.DELIVERY_TIMEOUT_MS_CONFIG, "20000");
        p.put(ProducerConfig.MAX_BLOCK_MS_CONFIG, "20000");
        ByteArrayDeserializer in = new ByteArrayDeserializer();
        ByteArraySerializer out = new ByteArraySerializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(c, in, in);
                KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(p, out, out)) {
            producer.initTransactions();
            consumer.subscribe(List.of(env.get("IN")));
            while (running) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(100));
                if (!records.isEmpty()) transaction(consumer, producer, records, env.get("OUT"));
            }
        }
    }

    static void transaction(KafkaConsumer<byte[], byte[]> consumer, KafkaProducer<byte[], byte[]> producer,
            ConsumerRecords<byte[], byte[]> records, String sink) {
        try {
            producer.beginTransaction();
            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
            for (ConsumerRecord<byte[], byte[]> record : records) {
                int partition = (int) (Long.parseLong(new String(record.value())) % 3);
                producer.send(new ProducerRecord<>(sink, partition, record.key(), record.value()));
                offsets.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
            }
            producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
            producer.commitTransaction();
        } catch (ProducerFencedException | OutOfOrderSequenceException | AuthorizationException x) {
            throw x;
        } catch (KafkaException x) {
            System.out.println("aborting: " + x);
            producer.abortTransaction();
            Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(consumer.assignment());
            for (TopicPartition target : consumer.assignment()) {
                OffsetAndMetadata at = committed.get(target);
                if (at == null) consumer.seekToBeginning(List.of(target));
                else consumer.seek(target, at);
            }
        }
    }
}
