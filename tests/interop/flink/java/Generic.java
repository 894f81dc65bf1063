package golden;

import java.math.BigDecimal;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.runtime.state.VoidNamespace;
import org.apache.flink.runtime.state.VoidNamespaceSerializer;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/** Runs jobs as {@link Main} does, whose keys and values Kryo serializes. */
public class Generic extends States<Object, VoidNamespace> {
    private static final TypeInformation<Object> ANY = Types.GENERIC(Object.class);

    public Generic(boolean dumps) {
        super("generic", "user-timers", dumps);
    }

    /** Run the steps. */
    public static void main(String[] steps) throws Exception {
        Main.run(List.of(steps), Generic::build);
    }

    private static void build(StreamExecutionEnvironment env, Map<String, String> words) {
        boolean dumps = words.get("do").equals("dump");
        DataStream<Event> events = Main.events(Main.numbers(env, dumps));
        events.keyBy(event -> key(event), ANY)
                .transform("generic", Types.LONG, new Generic(dumps))
                .uid("generic");
    }

    private static Object key(Event event) {
        return event.small / 2.0;
    }

    @Override
    TypeSerializer<VoidNamespace> namespaces() {
        return VoidNamespaceSerializer.INSTANCE;
    }

    @Override
    List<Kind> kinds() {
        List<Kind> kinds = new ArrayList<>();
        kinds.add(new Kind(new ValueStateDescriptor<>("double", ANY), event -> event.amount));
        kinds.add(
                new Kind(
                        new ValueStateDescriptor<>("list", Types.GENERIC(ArrayList.class)),
                        event -> new ArrayList<>(Arrays.asList(event.amount, null, event.text))));
        kinds.add(
                new Kind(
                        new ListStateDescriptor<>("maps", Types.GENERIC(HashMap.class)),
                        event -> new HashMap<>(Map.of(event.name, Instant.ofEpochMilli(-event.time)))));
        kinds.add(
                new Kind(
                        new MapStateDescriptor<>("by_name", Types.STRING, ANY),
                        event -> Tuple2.of(event.name, new BigDecimal(event.number).movePointLeft(1))));
        kinds.add(
                new Kind(
                        new ValueStateDescriptor<>("pair", Types.TUPLE(Types.LONG, ANY)),
                        event -> Tuple2.of(event.number, event.amount)));
        return kinds;
    }

    @Override
    void process(Event event) throws Exception {
        fill(VoidNamespace.INSTANCE, event);
        if (event.number % 11 == 0) {
            timers.registerEventTimeTimer(VoidNamespace.INSTANCE, event.time + 1);
        }
    }
}
