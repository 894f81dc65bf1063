package golden;

import java.util.List;
import java.util.Map;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/** Runs jobs as {@link Main} does, whose keys are a class with a hashCode() of its own. */
public class ByClass {
    private ByClass() {}

    /** Run the steps. */
    public static void main(String[] steps) throws Exception {
        Main.run(List.of(steps), ByClass::build);
    }

    private static void build(StreamExecutionEnvironment env, Map<String, String> words) {
        boolean dumps = words.get("do").equals("dump");
        DataStream<Event> events = Main.events(Main.numbers(env, dumps));
        events.keyBy(ByClass::key, Types.POJO(Spot.class))
                .transform("by_class", Types.LONG, new Few<Spot>("by_class", dumps))
                .uid("by_class");
    }

    private static Spot key(Event event) {
        Spot spot = new Spot();
        spot.name = event.small < 0 ? null : event.name;
        spot.number = event.number / 3;
        spot.isOdd = event.number % 2 == 1;
        return spot;
    }

    /** A key. */
    public static class Spot {
        public String name;
        public long number;
        public boolean isOdd;

        @Override
        public int hashCode() {
            int result = name != null ? name.hashCode() : 0;
            result = 31 * result + (int) (number ^ (number >>> 32));
            return 31 * result + (isOdd ? 1 : 0);
        }

        @Override
        public boolean equals(Object other) {
            return other instanceof Spot
                    && java.util.Objects.equals(((Spot) other).name, name)
                    && ((Spot) other).number == number
                    && ((Spot) other).isOdd == isOdd;
        }
    }
}
