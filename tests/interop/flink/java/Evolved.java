package golden;

import java.io.IOException;
import java.io.OutputStream;
import java.io.Serializable;
import java.io.StringWriter;
import java.io.UncheckedIOException;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.function.LongFunction;
import java.util.jar.JarEntry;
import java.util.jar.JarOutputStream;
import java.util.stream.Stream;
import javax.tools.JavaCompiler;
import javax.tools.StandardJavaFileManager;
import javax.tools.ToolProvider;
import org.apache.flink.api.common.state.BroadcastState;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.OperatorStateStore;
import org.apache.flink.api.common.state.ReducingStateDescriptor;
import org.apache.flink.api.common.state.StateDescriptor;
import org.apache.flink.api.common.state.StateTtlConfig;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.java.functions.KeySelector;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.typeutils.ResultTypeQueryable;
import org.apache.flink.runtime.state.StateInitializationContext;
import org.apache.flink.runtime.state.VoidNamespace;
import org.apache.flink.runtime.state.VoidNamespaceSerializer;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.SingleOutputStreamOperator;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.operators.AbstractStreamOperator;
import org.apache.flink.streaming.api.operators.OneInputStreamOperator;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.streaming.runtime.streamrecord.StreamRecord;

/** A job whose operators a {@link Version} declares; two versions have classes of the same names. */
public class Evolved {
    private static final long TTL_DAYS = 30;

    private final StreamExecutionEnvironment env;
    private final boolean dumps;
    private DataStream<Event> events;
    private int operators;

    private Evolved(StreamExecutionEnvironment env, boolean dumps) {
        this.env = env;
        this.dumps = dumps;
        this.events = Main.events(Main.numbers(env, dumps));
    }

    /** Makes the value of a number. */
    public interface Sampler extends LongFunction<Object>, Serializable {}

    /** A state: its kind, its types, and the values that it gets. */
    public static class State implements Serializable {
        private final String kind;
        private final String name;
        private final TypeInformation<?> key;
        private final TypeInformation<?> value;
        private Sampler sampler;
        private boolean hasTtl;

        private State(String kind, String name, TypeInformation<?> key, TypeInformation<?> value) {
            this.kind = kind;
            this.name = name;
            this.key = key;
            this.value = value;
            this.sampler = number -> Samples.of(value, number);
        }

        /** The state with a TTL. */
        public State ttl() {
            hasTtl = true;
            return this;
        }

        /** The state with values of its own. */
        public State of(Sampler values) {
            sampler = values;
            return this;
        }

        @SuppressWarnings({"unchecked", "rawtypes"})
        private StateDescriptor<?, ?> descriptor() {
            StateDescriptor<?, ?> descriptor;
            switch (kind) {
                case "value":
                    descriptor = new ValueStateDescriptor<>(name, value);
                    break;
                case "list":
                    descriptor = new ListStateDescriptor<>(name, value);
                    break;
                case "map":
                    descriptor = new MapStateDescriptor<>(name, key, value);
                    break;
                default:
                    descriptor =
                            new ReducingStateDescriptor(name, (older, newer) -> newer, value);
            }
            if (hasTtl) {
                descriptor.enableTimeToLive(
                        StateTtlConfig.newBuilder(Duration.ofDays(TTL_DAYS)).build());
            }
            return descriptor;
        }

        private Object sample(long number) {
            Object value = sampler.apply(number);
            return kind.equals("map") ? Tuple2.of(Samples.of(key, number), value) : value;
        }
    }

    /** A state of one value. */
    public static State value(String name, TypeInformation<?> type) {
        return new State("value", name, null, type);
    }

    /** A state of lists, or a split state. */
    public static State list(String name, TypeInformation<?> type) {
        return new State("list", name, null, type);
    }

    /** A union state. */
    public static State union(String name, TypeInformation<?> type) {
        return new State("union", name, null, type);
    }

    /** A state of maps, or a broadcast state. */
    public static State map(String name, TypeInformation<?> key, TypeInformation<?> value) {
        return new State("map", name, key, value);
    }

    /** A reducing state. */
    public static State reducing(String name, TypeInformation<?> type) {
        return new State("reducing", name, null, type);
    }

    /** Add the operators of a version, which is the class job.V of the jar. */
    static void build(StreamExecutionEnvironment env, Map<String, String> words) {
        try {
            URL[] jar = {Path.of(words.get("jar")).toUri().toURL()};
            ClassLoader loader = new URLClassLoader(jar, Evolved.class.getClassLoader());
            Thread.currentThread().setContextClassLoader(loader);
            Evolved job = new Evolved(env, words.get("do").equals("dump"));
            Class<?> version = Class.forName("job.V", true, loader);
            ((Version) version.getDeclaredConstructor().newInstance()).build(job);
            words.put("operators", Integer.toString(job.operators));
        } catch (IOException | ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }

    /** The environment of the job. */
    public StreamExecutionEnvironment env() {
        return env;
    }

    /** Add an operator without state, and without a uid. */
    public void inserted() {
        events = events.map(event -> event).returns(Event.class).setParallelism(1);
    }

    /** Add an operator with keyed states; a uid of null is none. */
    public SingleOutputStreamOperator<Long> keyed(
            String uid, TypeInformation<?> key, State... states) {
        return keyed(uid, key, null, states);
    }

    /** Add an operator with timers, and the number of each as their time. */
    public SingleOutputStreamOperator<Long> timed(
            String uid, TypeInformation<?> key, State... states) {
        return keyed(uid, key, new Keyed(uid, "user-timers", false, dumps, List.of(states)), states);
    }

    /** Add an operator whose states have a window as their namespace. */
    public SingleOutputStreamOperator<Long> windowed(
            String uid, TypeInformation<?> key, State... states) {
        return keyed(uid, key, new Keyed(uid, null, true, dumps, List.of(states)), states);
    }

    @SuppressWarnings("unchecked")
    private SingleOutputStreamOperator<Long> keyed(
            String uid, TypeInformation<?> key, Keyed operator, State... states) {
        operators++;
        Keyed keyed =
                operator != null ? operator : new Keyed(uid, null, false, dumps, List.of(states));
        SingleOutputStreamOperator<Long> added =
                events.keyBy(new Key(key), (TypeInformation<Object>) key)
                        .transform("keyed", Types.LONG, keyed);
        return uid == null ? added : added.uid(uid);
    }

    /** Add an operator with split, union and broadcast states. */
    public void parts(String uid, State... states) {
        operators++;
        events.transform("parts", Types.LONG, new Unkeyed(uid, dumps, List.of(states))).uid(uid);
    }

    private static class Key implements KeySelector<Event, Object>, ResultTypeQueryable<Object> {
        private final TypeInformation<?> type;

        Key(TypeInformation<?> type) {
            this.type = type;
        }

        @Override
        public Object getKey(Event event) {
            return Samples.of(type, event.number);
        }

        @Override
        @SuppressWarnings("unchecked")
        public TypeInformation<Object> getProducedType() {
            return (TypeInformation<Object>) type;
        }
    }

    private static class Keyed extends States<Object, Object> {
        private final boolean hasTimers;
        private final boolean hasWindows;
        private final List<State> declared;

        Keyed(String uid, String timers, boolean hasWindows, boolean dumps, List<State> declared) {
            super(uid == null ? "none" : uid, timers, dumps);
            this.hasTimers = timers != null;
            this.hasWindows = hasWindows;
            this.declared = new ArrayList<>(declared);
        }

        @Override
        @SuppressWarnings({"unchecked", "rawtypes"})
        TypeSerializer<Object> namespaces() {
            return hasWindows
                    ? (TypeSerializer) new TimeWindow.Serializer()
                    : (TypeSerializer) VoidNamespaceSerializer.INSTANCE;
        }

        @Override
        List<Kind> kinds() {
            List<Kind> kinds = new ArrayList<>();
            for (State state : declared) {
                kinds.add(new Kind(state.descriptor(), event -> state.sample(event.number)));
            }
            return kinds;
        }

        @Override
        void process(Event event) throws Exception {
            Object namespace = hasWindows ? new TimeWindow(0, 10) : VoidNamespace.INSTANCE;
            fill(namespace, event);
            if (hasTimers) {
                timers.registerEventTimeTimer(namespace, Long.MAX_VALUE - 1 - event.number);
            }
        }
    }

    private static class Unkeyed extends AbstractStreamOperator<Long>
            implements OneInputStreamOperator<Event, Long> {
        private final String uid;
        private final boolean dumps;
        private final List<State> declared;
        private transient List<Object> opened;

        Unkeyed(String uid, boolean dumps, List<State> declared) {
            this.uid = uid;
            this.dumps = dumps;
            this.declared = new ArrayList<>(declared);
        }

        @Override
        @SuppressWarnings({"unchecked", "rawtypes"})
        public void initializeState(StateInitializationContext context) throws Exception {
            super.initializeState(context);
            OperatorStateStore store = context.getOperatorStateStore();
            opened = new ArrayList<>();
            for (State state : declared) {
                ListStateDescriptor list = new ListStateDescriptor<>(state.name, state.value);
                if (state.kind.equals("map")) {
                    opened.add(
                            store.getBroadcastState(
                                    (MapStateDescriptor<?, ?>) state.descriptor()));
                } else if (state.kind.equals("union")) {
                    opened.add(store.getUnionListState(list));
                } else {
                    opened.add(store.getListState(list));
                }
            }
            if (dumps) {
                for (int at = 0; at < opened.size(); at++) {
                    Parts.line(this, uid, declared.get(at).name, "operator", items(opened.get(at)));
                }
                Dump.done();
            }
        }

        private static List<Object> items(Object state) throws Exception {
            List<Object> items = new ArrayList<>();
            if (state instanceof ListState) {
                ((ListState<?>) state).get().forEach(items::add);
            } else {
                for (Map.Entry<?, ?> entry : ((BroadcastState<?, ?>) state).entries()) {
                    items.add(Tuple2.of(entry.getKey(), entry.getValue()));
                }
            }
            return items;
        }

        @Override
        @SuppressWarnings("unchecked")
        public void processElement(StreamRecord<Event> record) throws Exception {
            for (int at = 0; at < opened.size(); at++) {
                Object value = declared.get(at).sample(record.getValue().number);
                if (opened.get(at) instanceof ListState) {
                    ((ListState<Object>) opened.get(at)).add(value);
                } else {
                    Tuple2<?, ?> entry = (Tuple2<?, ?>) value;
                    ((BroadcastState<Object, Object>) opened.get(at)).put(entry.f0, entry.f1);
                }
            }
        }
    }

    /** Compile a source file into a jar. */
    static void compile(Path source, Path jar) throws IOException {
        JavaCompiler compiler = ToolProvider.getSystemJavaCompiler();
        Path classes = Files.createTempDirectory(jar.getParent(), "classes");
        StringWriter said = new StringWriter();
        List<String> options = List.of("-nowarn", "-d", classes.toString());
        try (StandardJavaFileManager files = compiler.getStandardFileManager(null, null, null)) {
            if (!compiler.getTask(said, files, null, options, null, files.getJavaFileObjects(source))
                    .call()) {
                throw new IllegalStateException(said.toString());
            }
        }
        try (OutputStream out = Files.newOutputStream(jar);
                JarOutputStream target = new JarOutputStream(out);
                Stream<Path> found = Files.walk(classes)) {
            for (Path file : (Iterable<Path>) found.filter(Files::isRegularFile)::iterator) {
                target.putNextEntry(new JarEntry(classes.relativize(file).toString()));
                Files.copy(file, target);
            }
        } catch (UncheckedIOException error) {
            throw error.getCause();
        }
    }
}
