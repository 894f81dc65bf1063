package golden;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import org.apache.flink.api.common.state.BroadcastState;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.OperatorStateStore;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.runtime.state.StateInitializationContext;
import org.apache.flink.streaming.api.operators.AbstractStreamOperator;
import org.apache.flink.streaming.api.operators.OneInputStreamOperator;
import org.apache.flink.streaming.runtime.streamrecord.StreamRecord;

/** An operator without keys, with split, union and broadcast state. */
public class Parts extends AbstractStreamOperator<Long>
        implements OneInputStreamOperator<Event, Long> {
    private final boolean dumps;
    private transient ListState<String> split;
    private transient ListState<Tuple2<Integer, Long>> union;
    private transient BroadcastState<String, Long> broadcast;

    public Parts(boolean dumps) {
        this.dumps = dumps;
    }

    /** Tell of a state of the operator, as one subtask has it. */
    static void line(
            AbstractStreamOperator<?> operator, String uid, String name, String mode, Object values) {
        int subtask = operator.getRuntimeContext().getTaskInfo().getIndexOfThisSubtask();
        Dump.line(
                "operator", Json.of(uid),
                "state", Json.of(name),
                "mode", Json.of(mode),
                "subtask", Integer.toString(subtask),
                "values", Json.of(values));
    }

    @Override
    public void initializeState(StateInitializationContext context) throws Exception {
        super.initializeState(context);
        OperatorStateStore store = context.getOperatorStateStore();
        split = store.getListState(new ListStateDescriptor<>("split", Types.STRING));
        union =
                store.getUnionListState(
                        new ListStateDescriptor<>("union", Types.TUPLE(Types.INT, Types.LONG)));
        broadcast =
                store.getBroadcastState(
                        new MapStateDescriptor<>("rules", Types.STRING, Types.LONG));
        if (dumps) {
            line(this, "parts", "split", "split", items(split));
            // In which order the parts of a union come is not said.
            line(this, "parts", "union", "union", new HashSet<>(items(union)));
            Map<String, Long> rules = new HashMap<>();
            for (Map.Entry<String, Long> one : broadcast.entries()) {
                rules.put(one.getKey(), one.getValue());
            }
            line(this, "parts", "rules", "broadcast", rules);
            Dump.done();
        } else {
            for (int at = 0; at < 20; at++) {
                Event event = Event.of(1_000_000L + at);
                broadcast.put(event.text, event.id);
            }
        }
    }

    @Override
    public void processElement(StreamRecord<Event> record) throws Exception {
        Event event = record.getValue();
        if (event.small == 1) {
            split.add(event.text);
        } else if (event.small == 2) {
            union.add(Tuple2.of(event.small, event.number));
        }
    }

    private static <T> List<T> items(ListState<T> state) throws Exception {
        List<T> items = new ArrayList<>();
        state.get().forEach(items::add);
        return items;
    }
}
