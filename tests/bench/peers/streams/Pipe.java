import org.apache.kafka.common.serialization.*;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.kstream.*;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.*;

/** Three exactly-once hops in one application: in -> validated -> enriched -> postings (balance store with changelog). */
public class Pipe {
    static class Ledger extends ContextualProcessor<String, Common.Event, String, Common.Posting> {
        KeyValueStore<String, Long> store;

        @Override public void init(ProcessorContext<String, Common.Posting> c) {
            super.init(c);
            store = c.getStateStore("balances");
        }

        @Override public void process(Record<String, Common.Event> r) {
            Common.Event e = r.value();
            Long old = store.get(r.key());
            Common.Posting p = new Common.Posting();
            p.event_id = e.event_id;
            p.account = r.key();
            p.amount_minor = e.amount_minor;
            p.fee = e.fee;
            p.balance = (old == null ? 0 : old) + e.amount_minor;
            store.put(r.key(), p.balance);
            context().forward(r.withValue(p));
        }
    }

    public static void main(String[] a) {
        String in = System.getenv("IN"), validated = System.getenv("VALIDATED"), enriched = System.getenv("ENRICHED");
        Serde<Common.Event> ev = Common.json(Common.Event.class);
        Produced<String, Common.Event> produced = Produced.with(Serdes.String(), ev);
        Consumed<String, Common.Event> consumed = Consumed.with(Serdes.String(), ev);
        StreamsBuilder b = new StreamsBuilder();
        b.addStateStore(Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore("balances"), Serdes.String(), Serdes.Long()));
        b.stream(in, consumed).peek((k, v) -> Common.first()).split()
            .branch((k, v) -> Common.valid(v), Branched.withConsumer(s -> s.to(validated, produced)))
            .defaultBranch(Branched.withConsumer(s -> s.to(System.getenv("DLQ"), produced)));
        b.stream(validated, consumed).mapValues(Common::fee).to(enriched, produced);
        b.stream(enriched, consumed).process(Ledger::new, "balances")
            .to(System.getenv("OUT"), Produced.with(Serdes.String(), Common.json(Common.Posting.class)));
        Common.run(b.build());
    }
}
