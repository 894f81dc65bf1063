package golden;

import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.state.AggregatingStateDescriptor;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.ReducingStateDescriptor;
import org.apache.flink.api.common.state.StateDescriptor;
import org.apache.flink.api.common.state.StateTtlConfig;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.base.LongSerializer;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.runtime.state.VoidNamespace;
import org.apache.flink.runtime.state.VoidNamespaceSerializer;
import org.apache.flink.runtime.state.ttl.TtlStateFactory;
import org.apache.flink.runtime.state.ttl.TtlValue;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;

/** An operator whose key type, states, TTLs, timers and data are in a JSON document. */
public class Drawn extends States<Object, Object> {
    /** The description of the job that this process runs. */
    private static volatile JsonNode plan;

    private final int index;

    private Drawn(int index, boolean dumps) {
        super(
                plan.get(index).get("uid").asText(),
                plan.get(index).get("timers").asBoolean() ? service(plan.get(index)) : null,
                dumps);
        this.index = index;
    }

    private static String service(JsonNode operator) {
        return operator.get("windows").asBoolean() ? "window-timers" : "user-timers";
    }

    static void build(StreamExecutionEnvironment env, Map<String, String> words) {
        try {
            plan = new ObjectMapper().readTree(Path.of(words.get("plan")).toFile());
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
        boolean dumps = words.get("do").equals("dump");
        DataStream<Event> events = Main.events(Main.numbers(env, dumps));
        for (int at = 0; at < plan.size(); at++) {
            int index = at;
            String uid = plan.get(at).get("uid").asText();
            @SuppressWarnings("unchecked")
            TypeInformation<Object> key =
                    (TypeInformation<Object>) DrawnTypes.type(plan.get(at).get("key"));
            events.filter(event -> event.number < plan.get(index).get("events").size())
                    .setParallelism(1)
                    .keyBy(event -> key(index, event), key)
                    .transform(uid, Types.LONG, new Drawn(index, dumps))
                    .uid(uid);
        }
    }

    private static Object key(int index, Event event) {
        JsonNode operator = plan.get(index);
        JsonNode value = operator.get("events").get((int) event.number).get("key");
        return DrawnTypes.value(operator.get("key"), value);
    }

    @Override
    @SuppressWarnings({"unchecked", "rawtypes"})
    TypeSerializer<Object> namespaces() {
        return plan.get(index).get("windows").asBoolean()
                ? (TypeSerializer) new TimeWindow.Serializer()
                : (TypeSerializer) VoidNamespaceSerializer.INSTANCE;
    }

    @Override
    List<Kind> kinds() {
        JsonNode states = plan.get(index).get("states");
        List<Kind> kinds = new ArrayList<>();
        for (int at = 0; at < states.size(); at++) {
            int number = at;
            JsonNode state = states.get(at);
            StateDescriptor<?, ?> descriptor = descriptor(state);
            kinds.add(new Kind(descriptor, event -> element(state, event(event), number)));
        }
        return kinds;
    }

    /**
     * Whether the program writes or reads the times of last access itself. The descriptor then has
     * no TTL, but the serializer that Flink uses for a state with one.
     */
    private boolean hasTimes(JsonNode state) {
        JsonNode ttl = state.get("ttl");
        if (ttl.isNull()) {
            return false;
        }
        return dumps
                ? ttl.get("shows").asText().equals("times")
                : ttl.get("has_drawn_times").asBoolean();
    }

    private StateDescriptor<?, ?> descriptor(JsonNode state) {
        if (hasTimes(state)) {
            return timed(state);
        }
        StateDescriptor<?, ?> descriptor = plain(state);
        JsonNode ttl = state.get("ttl");
        if (!ttl.isNull()) {
            Duration duration = Duration.ofMillis(ttl.get("millis").asLong());
            descriptor.enableTimeToLive(StateTtlConfig.newBuilder(duration).build());
        }
        return descriptor;
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    private StateDescriptor<?, ?> timed(JsonNode state) {
        String name = state.get("name").asText();
        TypeSerializer value =
                getRuntimeContext().createSerializer(DrawnTypes.type(state.get("type")));
        TypeSerializer timed = new TtlStateFactory.TtlSerializer<>(LongSerializer.INSTANCE, value);
        switch (state.get("kind").asText()) {
            case "value":
                return new ValueStateDescriptor<>(name, timed);
            case "list":
                return new ListStateDescriptor<>(name, timed);
            case "map":
                TypeInformation key = DrawnTypes.type(state.get("map_key"));
                return new MapStateDescriptor<>(
                        name, getRuntimeContext().createSerializer(key), timed);
            case "reducing":
                return new ReducingStateDescriptor<Object>(name, (older, newer) -> newer, timed);
            case "aggregating":
                return new AggregatingStateDescriptor<>(name, new TimedSum(), timed);
            default:
                throw new IllegalArgumentException("no kind of state: " + state);
        }
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    private static StateDescriptor<?, ?> plain(JsonNode state) {
        String name = state.get("name").asText();
        TypeInformation type = DrawnTypes.type(state.get("type"));
        switch (state.get("kind").asText()) {
            case "value":
                return new ValueStateDescriptor<>(name, type);
            case "list":
                return new ListStateDescriptor<>(name, type);
            case "map":
                return new MapStateDescriptor<>(name, DrawnTypes.type(state.get("map_key")), type);
            case "reducing":
                return new ReducingStateDescriptor<Object>(name, (older, newer) -> newer, type);
            case "aggregating":
                return new AggregatingStateDescriptor<>(name, new Main.Sum(), Types.LONG);
            default:
                throw new IllegalArgumentException("no kind of state: " + state);
        }
    }

    private Object element(JsonNode state, JsonNode event, int number) {
        JsonNode value = event.get("values").get(number);
        if (value.isNull()) {
            return null;
        }
        boolean isMap = state.get("kind").asText().equals("map");
        Object last = DrawnTypes.value(state.get("type"), isMap ? value.get(1) : value);
        if (hasTimes(state)) {
            last = new TtlValue<>(last, event.get("times").get(number).asLong());
        }
        return isMap ? Tuple2.of(DrawnTypes.value(state.get("map_key"), value.get(0)), last) : last;
    }

    private JsonNode event(Event event) {
        return plan.get(index).get("events").get((int) event.number);
    }

    @Override
    void process(Event event) throws Exception {
        JsonNode drawn = event(event);
        Object namespace = VoidNamespace.INSTANCE;
        if (plan.get(index).get("windows").asBoolean()) {
            long start = drawn.get("window").get(0).asLong();
            namespace = new TimeWindow(start, drawn.get("window").get(1).asLong());
        }
        fill(namespace, event);
        if (timers == null) {
            return;
        }
        for (JsonNode time : drawn.get("event_timers")) {
            timers.registerEventTimeTimer(namespace, time.asLong());
        }
        for (JsonNode time : drawn.get("processing_timers")) {
            timers.registerProcessingTimeTimer(namespace, time.asLong());
        }
    }

    /** Adds numbers, and keeps the time of the last one. */
    private static class TimedSum
            implements AggregateFunction<TtlValue<Long>, TtlValue<Long>, TtlValue<Long>> {
        @Override
        public TtlValue<Long> createAccumulator() {
            return new TtlValue<>(0L, 0L);
        }

        @Override
        public TtlValue<Long> add(TtlValue<Long> number, TtlValue<Long> sum) {
            return new TtlValue<>(
                    number.getUserValue() + sum.getUserValue(), number.getLastAccessTimestamp());
        }

        @Override
        public TtlValue<Long> getResult(TtlValue<Long> sum) {
            return sum;
        }

        @Override
        public TtlValue<Long> merge(TtlValue<Long> a, TtlValue<Long> b) {
            return add(a, b);
        }
    }
}
