package golden;

import java.util.ArrayList;
import java.util.List;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.runtime.state.VoidNamespace;
import org.apache.flink.runtime.state.VoidNamespaceSerializer;

/** An operator with a value, a list, a map and timers, for keys of any type. */
public class Few<K> extends States<K, VoidNamespace> {

    public Few(String uid, boolean dumps) {
        super(uid, "user-timers", dumps);
    }

    @Override
    TypeSerializer<VoidNamespace> namespaces() {
        return VoidNamespaceSerializer.INSTANCE;
    }

    @Override
    List<Kind> kinds() {
        List<Kind> kinds = new ArrayList<>();
        kinds.add(new Kind(new ValueStateDescriptor<>("last", Types.LONG), e -> e.number));
        kinds.add(
                new Kind(
                        new ListStateDescriptor<>("texts", Types.STRING),
                        e -> e.small == 3 ? e.text : null));
        kinds.add(
                new Kind(
                        new MapStateDescriptor<>("sums", Types.INT, Types.DOUBLE),
                        e -> e.small == -1 ? Tuple2.of((int) e.number, e.amount) : null));
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
