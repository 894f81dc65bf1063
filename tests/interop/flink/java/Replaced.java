package golden;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.runtime.state.VoidNamespace;
import org.apache.flink.runtime.state.VoidNamespaceSerializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/** Runs a job as {@link Main} does, whose types replace those of a job in Scala. */
public class Replaced extends States<Object, VoidNamespace> {

    public Replaced(boolean dumps) {
        super("replaced", null, dumps);
    }

    /** Replaces a case class of a text and a number. */
    public static class Pair {
        public String name;
        public Long number;

        @Override
        public String toString() {
            return name + " " + number;
        }
    }

    /** Replaces a case class of a number and a pair; the names are in another order. */
    public static class Nesting {
        public Long value;
        public Pair pair;

        @Override
        public String toString() {
            return value + " (" + pair + ")";
        }
    }

    /** Replaces an enumeration. */
    public enum Count {
        ONE,
        TWO,
        THREE,
        FOUR
    }

    /** Run the steps. */
    public static void main(String[] steps) throws Exception {
        Main.run(List.of(steps), Replaced::build);
    }

    private static void build(StreamExecutionEnvironment env, Map<String, String> words) {
        boolean dumps = words.get("do").equals("dump");
        TypeInformation<Object> key = Types.GENERIC(Object.class);
        Main.events(Main.numbers(env, dumps))
                .keyBy(event -> (Object) event.id, key)
                .transform("replaced", Types.LONG, new Replaced(dumps))
                .setUidHash(words.get("hash"));
    }

    @Override
    TypeSerializer<VoidNamespace> namespaces() {
        return VoidNamespaceSerializer.INSTANCE;
    }

    @Override
    List<Kind> kinds() {
        TypeInformation<Pair> pair = Types.POJO(Pair.class);
        List<Kind> kinds = new ArrayList<>();
        add(kinds, "caseClassState", pair);
        add(kinds, "caseClassWithNestingState", Types.POJO(Nesting.class));
        add(kinds, "collectionState", Types.LIST(pair));
        add(kinds, "eitherLeftState", Types.EITHER(pair, Types.STRING));
        add(kinds, "eitherRightState", Types.EITHER(pair, Types.STRING));
        add(kinds, "enumOneState", Types.ENUM(Count.class));
        return kinds;
    }

    private static void add(List<Kind> kinds, String name, TypeInformation<?> type) {
        kinds.add(new Kind(new ValueStateDescriptor<>(name, type), event -> null));
    }

    @Override
    void process(Event event) {}
}
