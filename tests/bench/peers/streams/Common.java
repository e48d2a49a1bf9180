import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.*;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.streams.*;

/** What both topologies share: the records, their JSON, the settings. */
final class Common {
    static final ObjectMapper JSON = new ObjectMapper();
    static final Set<String> CURRENCIES = Set.of("EUR", "USD", "GBP", "CHF", "JPY");
    private static volatile boolean seen;

    public static class Event {
        public String event_id, account_from, account_to;
        public long amount_minor;
        public String currency, occurred_at;
        public int schema_version;
        public String memo;
        public long fee;
        public boolean processed;
    }

    public static class Posting {
        public String event_id, account;
        public long amount_minor, fee, balance;
    }

    static boolean valid(Event e) {
        return e.amount_minor > 0 && e.account_from != null && !e.account_from.isEmpty()
            && e.account_to != null && !e.account_to.isEmpty() && CURRENCIES.contains(e.currency);
    }

    static Event fee(Event e) {
        e.fee = e.amount_minor * 29 / 10000 + 30;
        e.processed = true;
        return e;
    }

    static void first() {
        if (seen) return;
        seen = true;
        System.out.printf(Locale.ROOT, "FIRST %.3f%n", System.currentTimeMillis() / 1000.0);
        System.out.flush();
    }

    static <T> Serde<T> json(Class<T> type) {
        return Serdes.serdeFrom((topic, v) -> {
            try { return v == null ? null : JSON.writeValueAsBytes(v); } catch (Exception x) { throw new RuntimeException(x); }
        }, (topic, b) -> {
            try { return b == null ? null : JSON.readValue(b, type); } catch (Exception x) { throw new RuntimeException(x); }
        });
    }

    static void run(Topology topology) {
        Map<String, String> env = System.getenv();
        Properties p = new Properties();
        p.put(StreamsConfig.APPLICATION_ID_CONFIG, env.get("GROUP"));
        p.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, env.get("BOOTSTRAP"));
        p.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        p.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, env.get("COMMIT_MS"));
        p.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 3);
        p.put(StreamsConfig.STATE_DIR_CONFIG, env.get("STATE_DIR"));
        p.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        KafkaStreams ks = new KafkaStreams(topology, p);
        ks.setUncaughtExceptionHandler(x -> {
            x.printStackTrace();
            return org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> ks.close(java.time.Duration.ofSeconds(5))));
        ks.start();
    }
}
