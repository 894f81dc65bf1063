package golden;

import java.util.ArrayList;
import java.util.List;
import org.apache.flink.api.common.state.AggregatingStateDescriptor;
import org.apache.flink.api.common.state.ListStateDescriptor;

import org.apache.flink.api.common.state.StateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;

/** Stands where a window operator stood, and tells what is in its windows. */
public class Windows extends States<String, TimeWindow> {
    private final boolean sums;

    public Windows(String uid) {
        super(uid, "window-timers", true);
        this.sums = uid.equals("sums");
    }

    @Override
    TypeSerializer<TimeWindow> namespaces() {
        return new TimeWindow.Serializer();
    }

    @Override
    List<Kind> kinds() {
        StateDescriptor<?, ?> contents =
                sums
                        ? new AggregatingStateDescriptor<>(
                                "window-contents", new Main.Sum(), Types.LONG)
                        : new ListStateDescriptor<>("window-contents", Types.LONG);
        List<Kind> kinds = new ArrayList<>();
        kinds.add(new Kind(contents, e -> null));
        return kinds;
    }

    @Override
    void process(Event event) {}
}
