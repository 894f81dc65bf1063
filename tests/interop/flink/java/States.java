package golden;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.flink.api.common.state.AppendingState;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.State;
import org.apache.flink.api.common.state.StateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.runtime.state.KeyGroupRangeAssignment;
import org.apache.flink.runtime.state.KeyedStateBackend;
import org.apache.flink.streaming.api.operators.AbstractStreamOperator;
import org.apache.flink.streaming.api.operators.InternalTimer;
import org.apache.flink.streaming.api.operators.InternalTimerService;
import org.apache.flink.streaming.api.operators.OneInputStreamOperator;
import org.apache.flink.streaming.api.operators.Triggerable;
import org.apache.flink.streaming.runtime.streamrecord.StreamRecord;

/**
 * An operator with keyed states of one namespace type, and timers: it fills them from events, or
 * tells what it was restored with.
 */
public abstract class States<K, N> extends AbstractStreamOperator<Long>
        implements OneInputStreamOperator<Event, Long>, Triggerable<K, N> {

    private final String uid;
    final boolean dumps;
    private final String service;
    private transient List<Kind> kinds;
    transient InternalTimerService<N> timers;

    /** A state, and what an event puts into it; nothing where that is null. */
    public static class Kind {
        final StateDescriptor<?, ?> descriptor;
        final Function<Event, Object> value;

        Kind(StateDescriptor<?, ?> descriptor, Function<Event, Object> value) {
            this.descriptor = descriptor;
            this.value = value;
        }
    }

    States(String uid, String service, boolean dumps) {
        this.uid = uid;
        this.service = service;
        this.dumps = dumps;
    }

    abstract List<Kind> kinds();

    abstract TypeSerializer<N> namespaces();

    abstract void process(Event event) throws Exception;

    @Override
    public void open() throws Exception {
        super.open();
        kinds = kinds();
        if (service != null) {
            timers = getInternalTimerService(service, namespaces(), this);
        }
        for (Kind kind : kinds) {
            getKeyedStateBackend().getOrCreateKeyedState(namespaces(), kind.descriptor);
        }
        if (dumps) {
            dump();
            Dump.done();
        }
    }

    @Override
    public void processElement(StreamRecord<Event> record) throws Exception {
        process(record.getValue());
    }

    @Override
    public void onEventTime(InternalTimer<K, N> timer) {}

    @Override
    public void onProcessingTime(InternalTimer<K, N> timer) {}

    void fill(N namespace, Event event) throws Exception {
        for (Kind kind : kinds) {
            Object value = kind.value.apply(event);
            if (value != null) {
                put(state(kind, namespace), value);
            }
        }
    }

    private State state(Kind kind, N namespace) throws Exception {
        return getKeyedStateBackend().getPartitionedState(namespace, namespaces(), kind.descriptor);
    }

    @SuppressWarnings("unchecked")
    private static void put(State state, Object value) throws Exception {
        if (state instanceof ValueState) {
            ((ValueState<Object>) state).update(value);
        } else if (state instanceof MapState) {
            Tuple2<?, ?> entry = (Tuple2<?, ?>) value;
            ((MapState<Object, Object>) state).put(entry.f0, entry.f1);
        } else {
            ((AppendingState<Object, Object>) state).add(value);
        }
    }

    private static Object get(State state) throws Exception {
        if (state instanceof ValueState) {
            return ((ValueState<?>) state).value();
        } else if (state instanceof MapState) {
            Map<Object, Object> entries = new java.util.HashMap<>();
            for (Map.Entry<?, ?> entry : ((MapState<?, ?>) state).entries()) {
                entries.put(entry.getKey(), entry.getValue());
            }
            return entries;
        } else if (state instanceof ListState) {
            List<Object> items = new ArrayList<>();
            ((ListState<?>) state).get().forEach(items::add);
            return items;
        }
        return ((AppendingState<?, ?>) state).get();
    }

    private void dump() throws Exception {
        KeyedStateBackend<K> backend = getKeyedStateBackend();
        for (Kind kind : kinds) {
            List<Tuple2<K, N>> found;
            try (Stream<Tuple2<K, N>> keys =
                    backend.getKeysAndNamespaces(kind.descriptor.getName())) {
                found = keys.distinct().collect(Collectors.toList());
            }
            for (Tuple2<K, N> one : found) {
                setCurrentKey(one.f0);
                String name = kind.descriptor.getName();
                line("state", name, one.f1, "value", Json.of(get(state(kind, one.f1))));
            }
        }
        if (timers != null) {
            timers.forEachEventTimeTimer((namespace, at) -> timer("event", namespace, at));
            timers.forEachProcessingTimeTimer((namespace, at) -> timer("processing", namespace, at));
        }
    }

    private void timer(String kind, N namespace, long at) {
        line("timer", kind, namespace, "time", Long.toString(at));
    }

    private void line(String what, String name, N namespace, String field, String json) {
        Object key = getCurrentKey();
        int max = getRuntimeContext().getTaskInfo().getMaxNumberOfParallelSubtasks();
        int group = KeyGroupRangeAssignment.assignToKeyGroup(key, max);
        Dump.line(
                "operator", Json.of(uid),
                what, Json.of(name),
                "group", Integer.toString(group),
                "key", Json.of(key),
                "namespace", Json.of(namespace),
                field, json);
    }
}
