package golden;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.StateTtlConfig;
import org.apache.flink.api.common.state.v2.AggregatingState;
import org.apache.flink.api.common.state.v2.AggregatingStateDescriptor;
import org.apache.flink.api.common.state.v2.ListState;
import org.apache.flink.api.common.state.v2.ListStateDescriptor;
import org.apache.flink.api.common.state.v2.MapState;
import org.apache.flink.api.common.state.v2.MapStateDescriptor;
import org.apache.flink.api.common.state.v2.ReducingState;
import org.apache.flink.api.common.state.v2.ReducingStateDescriptor;
import org.apache.flink.api.common.state.v2.StateDescriptor;
import org.apache.flink.api.common.state.v2.ValueState;
import org.apache.flink.api.common.state.v2.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.types.Row;
import org.apache.flink.util.Collector;

/**
 * A job with each kind of state of the asynchronous API, with timers and TTL. With results=, it says for each event
 * what the state of its name was.
 */
public class Async {
    private Async() {}

    /** Run steps, as Main does. */
    public static void main(String[] steps) throws Exception {
        Main.run(List.of(steps), Async::build);
        System.exit(0); // ForSt leaves threads behind after a job was cancelled
    }

    private static void build(StreamExecutionEnvironment env, Map<String, String> words) {
        Main.events(Main.numbers(env, false))
                .keyBy(event -> event.name, Types.STRING)
                .enableAsyncState()
                .process(new Kept())
                .returns(Types.LONG)
                .uid("async");
    }

    private static class Kept extends KeyedProcessFunction<String, Event, Long> {
        private static final StateTtlConfig CENTURY =
                StateTtlConfig.newBuilder(Duration.ofDays(36_500)).build();

        private transient ValueState<Long> last;
        private transient ListState<String> texts;
        private transient MapState<Integer, String> smalls;
        private transient ReducingState<Long> sum;
        private transient AggregatingState<Event, Double> mean;
        private transient ValueState<String> ttlText;
        private transient ListState<Long> ttlNumbers;
        private transient MapState<String, Long> ttlTexts;

        @Override
        public void open(OpenContext context) {
            last = getRuntimeContext().getState(new ValueStateDescriptor<>("last", Types.LONG));
            texts = getRuntimeContext().getListState(new ListStateDescriptor<>("texts", Types.STRING));
            smalls =
                    getRuntimeContext()
                            .getMapState(new MapStateDescriptor<>("smalls", Types.INT, Types.STRING));
            sum =
                    getRuntimeContext()
                            .getReducingState(
                                    new ReducingStateDescriptor<>("sum", Long::sum, Types.LONG));
            mean =
                    getRuntimeContext()
                            .getAggregatingState(
                                    new AggregatingStateDescriptor<>(
                                            "mean",
                                            new Mean(),
                                            Types.TUPLE(Types.LONG, Types.DOUBLE)));
            ttlText =
                    getRuntimeContext()
                            .getState(expires(new ValueStateDescriptor<>("ttl_text", Types.STRING)));
            ttlNumbers =
                    getRuntimeContext()
                            .getListState(
                                    expires(new ListStateDescriptor<>("ttl_numbers", Types.LONG)));
            ttlTexts =
                    getRuntimeContext()
                            .getMapState(
                                    expires(
                                            new MapStateDescriptor<>(
                                                    "ttl_texts", Types.STRING, Types.LONG)));
        }

        private static <D extends StateDescriptor<?>> D expires(D descriptor) {
            descriptor.enableTimeToLive(CENTURY);
            return descriptor;
        }

        @Override
        public void processElement(Event event, Context context, Collector<Long> out) {
            say(event);
            last.update(event.number);
            if (event.small < 1) {
                texts.add(event.text);
            } else if (event.small == 4) {
                texts.clear();
            }
            if (event.small == 3) {
                smalls.remove((int) (event.number % 4));
            } else {
                smalls.put((int) (event.number % 4), event.text);
            }
            sum.add(event.number);
            mean.add(event);
            ttlText.update(event.text);
            if (event.small > 2) {
                ttlNumbers.add(event.number);
            }
            if (event.small > 1) {
                ttlTexts.put(event.text, event.number);
            }
            if (event.number % 5 == 0) {
                context.timerService().registerEventTimeTimer(event.time + 86_400_000L);
            }
            if (event.number % 7 == 0) {
                context.timerService().registerProcessingTimeTimer(7_000_000_000_000L + event.number);
            }
        }

        private void say(Event event) {
            Sql.say(
                    event.name,
                    Row.of(
                            event.number,
                            last.value(),
                            all(texts.get()),
                            map(smalls.entries()),
                            sum.get(),
                            mean.get(),
                            ttlText.value(),
                            all(ttlNumbers.get()),
                            map(ttlTexts.entries())));
        }

        private static <T> List<T> all(Iterable<T> elements) {
            List<T> all = new ArrayList<>();
            if (elements != null) {
                elements.forEach(all::add);
            }
            return all;
        }

        private static <K, V> Map<K, V> map(Iterable<Map.Entry<K, V>> entries) {
            Map<K, V> map = new TreeMap<>();
            entries.forEach(entry -> map.put(entry.getKey(), entry.getValue()));
            return map;
        }
    }

    private static class Mean implements AggregateFunction<Event, Tuple2<Long, Double>, Double> {
        @Override
        public Tuple2<Long, Double> createAccumulator() {
            return Tuple2.of(0L, 0.0);
        }

        @Override
        public Tuple2<Long, Double> add(Event event, Tuple2<Long, Double> sum) {
            return Tuple2.of(sum.f0 + 1, sum.f1 + event.amount);
        }

        @Override
        public Double getResult(Tuple2<Long, Double> sum) {
            return sum.f1 / sum.f0;
        }

        @Override
        public Tuple2<Long, Double> merge(Tuple2<Long, Double> a, Tuple2<Long, Double> b) {
            return Tuple2.of(a.f0 + b.f0, a.f1 + b.f1);
        }
    }
}
