package golden;

import java.util.List;
import java.util.Map;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.v2.ValueState;
import org.apache.flink.api.common.state.v2.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/** A job with a state of the asynchronous API: the number of the last event of each name. */
public class Async {
    private Async() {}

    /** Run steps, as Main does. */
    public static void main(String[] steps) throws Exception {
        Main.run(List.of(steps), Async::build);
    }

    private static void build(StreamExecutionEnvironment env, Map<String, String> words) {
        Main.events(Main.numbers(env, false))
                .keyBy(event -> event.name, Types.STRING)
                .enableAsyncState()
                .process(new Last())
                .returns(Types.LONG)
                .uid("async");
    }

    private static class Last extends KeyedProcessFunction<String, Event, Long> {
        private transient ValueState<Long> last;

        @Override
        public void open(OpenContext context) {
            last = getRuntimeContext().getState(new ValueStateDescriptor<>("last", Types.LONG));
        }

        @Override
        public void processElement(Event event, Context context, Collector<Long> out) {
            last.asyncUpdate(event.number);
        }
    }
}
