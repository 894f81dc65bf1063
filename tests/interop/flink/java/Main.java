package golden;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import org.apache.flink.api.common.JobID;
import org.apache.flink.api.common.JobStatus;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.functions.KeySelector;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.runtime.execution.ExecutionState;
import org.apache.flink.runtime.executiongraph.AccessExecutionVertex;
import org.apache.flink.runtime.jobgraph.JobGraph;
import org.apache.flink.runtime.jobgraph.SavepointRestoreSettings;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.KeyedStream;
import org.apache.flink.streaming.api.datastream.SingleOutputStreamOperator;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.windowing.assigners.EventTimeSessionWindows;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.Collector;

/**
 * Runs jobs one after another in a cluster of this process. A step is one argument, words with "="
 * between blanks: do=savepoint|checkpoint|restore|dump, to=, from=, events=, parallelism=, max=, format=; with
 * results= the job is one of SQL; a dump waits for operators= of them; jar= has classes of the job; max=derived leaves
 * the max parallelism to Flink; a checkpoint waits pace= milliseconds between two events after first= of them; any
 * name with a dot is a setting of Flink.
 */
public class Main {
    private static final List<String> WINDOWS = List.of("sums", "lists", "sessions");

    private static final int USUAL = 128;

    private Main() {}

    /** Adds a job to an environment, as the words of a step say. */
    interface Job {
        void build(StreamExecutionEnvironment env, Map<String, String> words);
    }

    /** Run the steps. */
    public static void main(String[] steps) throws Exception {
        run(List.of(steps), Main::build);
    }

    static void run(Iterable<String> steps, Job job) throws Exception {
        try (MiniCluster mini = cluster()) {
            mini.start();
            for (String step : steps) {
                run(mini, words(step), job);
            }
        }
    }

    static MiniCluster cluster() {
        return new MiniCluster(
                new MiniClusterConfiguration.Builder()
                        .setConfiguration(clusterSettings())
                        .setNumTaskManagers(1)
                        .setNumSlotsPerTaskManager(8)
                        .build());
    }

    private static Configuration clusterSettings() {
        Configuration settings = new Configuration();
        settings.setString("rest.bind-port", "0");
        settings.setString("taskmanager.memory.managed.size", "128m");
        settings.setString("taskmanager.memory.network.min", "32m");
        settings.setString("taskmanager.memory.network.max", "32m");
        return settings;
    }

    static Map<String, String> words(String step) {
        Map<String, String> words = new TreeMap<>();
        for (String word : step.split(" ")) {
            int at = word.indexOf('=');
            words.put(word.substring(0, at), word.substring(at + 1));
        }
        return words;
    }

    static void run(MiniCluster mini, Map<String, String> words, Job built) throws Exception {
        boolean dumps = words.get("do").equals("dump");
        Dump.clear();
        Sql.clear();
        Numbers.next = 0;
        Numbers.limit = Long.parseLong(words.getOrDefault("first", words.getOrDefault("events", "0")));
        JobGraph graph = graph(words, built);
        mini.submitJob(graph).get();
        JobID job = graph.getJobID();
        if (dumps) {
            int operators = Integer.parseInt(words.getOrDefault("operators", "7"));
            int subtasks = 1 + operators * Integer.parseInt(words.get("parallelism"));
            waitFor(mini, job, () -> Dump.subtasks() == subtasks);
            Files.write(Path.of(words.get("to")), Dump.lines(), StandardCharsets.UTF_8);
            mini.cancelJob(job).get();
            mini.requestJobResult(job).get();
            System.out.println("dump " + words.get("to"));
            return;
        }
        waitFor(mini, job, () -> Numbers.next == Numbers.limit && allRun(mini, job));
        if (words.get("do").equals("restore")) {
            System.out.println("restored " + words.get("from"));
            mini.cancelJob(job).get();
            mini.requestJobResult(job).get();
            return;
        }
        String written;
        if (words.get("do").equals("savepoint")) {
            SavepointFormatType format = SavepointFormatType.valueOf(words.get("format"));
            written = mini.stopWithSavepoint(job, words.get("to"), false, format).get();
        } else {
            mini.triggerCheckpoint(job).get();
            raise(Long.parseLong(words.get("events")), Long.parseLong(words.getOrDefault("pace", "0")));
            waitFor(mini, job, () -> Numbers.next == Numbers.limit);
            written = mini.triggerCheckpoint(job).get();
            mini.cancelJob(job).get();
        }
        mini.requestJobResult(job).get();
        if (words.containsKey("results")) {
            Files.write(Path.of(words.get("results")), Sql.said(), StandardCharsets.UTF_8);
        }
        System.out.println(words.get("do") + " " + words.get("to") + " " + written);
    }

    /** Raise the limit of the numbers, one in each interval of so many milliseconds. */
    private static void raise(long limit, long pace) throws InterruptedException {
        while (pace > 0 && Numbers.limit < limit) {
            Numbers.limit++;
            Thread.sleep(pace);
        }
        Numbers.limit = limit;
    }

    private static void waitFor(MiniCluster mini, JobID job, Callable<Boolean> done) throws Exception {
        while (!done.call()) {
            if (mini.getJobStatus(job).get().isTerminalState()) {
                mini.requestJobResult(job).get().toJobExecutionResult(Main.class.getClassLoader());
            }
            Thread.sleep(20);
        }
    }

    private static boolean allRun(MiniCluster mini, JobID job) throws Exception {
        if (mini.getJobStatus(job).get() != JobStatus.RUNNING) {
            return false;
        }
        for (AccessExecutionVertex each :
                mini.getExecutionGraph(job).join().getAllExecutionVertices()) {
            if (each.getExecutionState() != ExecutionState.RUNNING) {
                return false;
            }
        }
        return true;
    }

    private static JobGraph graph(Map<String, String> words, Job job) {
        Configuration settings = new Configuration();
        settings.setString("execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION");
        settings.setString("execution.checkpointing.interval", "24h");
        settings.setString("restart-strategy.type", "none");
        words.forEach(
                (name, value) -> {
                    if (name.contains(".")) {
                        settings.setString(name, value);
                    }
                });
        if (words.get("do").equals("checkpoint")) {
            settings.setString("execution.checkpointing.dir", "file://" + words.get("to"));
        }
        StreamExecutionEnvironment env =
                StreamExecutionEnvironment.getExecutionEnvironment(settings);
        env.setParallelism(Integer.parseInt(words.get("parallelism")));
        if (!words.getOrDefault("max", "").equals("derived")) {
            env.setMaxParallelism(most(words));
        }
        job.build(env, words);
        JobGraph graph = env.getStreamGraph().getJobGraph();
        if (words.containsKey("jar")) {
            graph.addJar(new org.apache.flink.core.fs.Path("file://" + words.get("jar")));
        }
        if (words.containsKey("from")) {
            graph.setSavepointRestoreSettings(
                    SavepointRestoreSettings.forPath(words.get("from"), false));
        }
        return graph;
    }

    private static int most(Map<String, String> words) {
        return Integer.parseInt(words.getOrDefault("max", Integer.toString(USUAL)));
    }

    private static void build(StreamExecutionEnvironment env, Map<String, String> words) {
        boolean dumps = words.get("do").equals("dump");
        if (words.containsKey("results")) {
            Sql.build(env, events(numbers(env, dumps)));
        } else {
            states(env, dumps, most(words));
        }
    }

    static DataStream<Long> numbers(StreamExecutionEnvironment env, boolean dumps) {
        WatermarkStrategy<Long> times =
                WatermarkStrategy.<Long>noWatermarks()
                        .withTimestampAssigner((number, at) -> Event.of(number).time);
        return env.fromSource(new Numbers(dumps), times, "numbers", Types.LONG)
                .uid("numbers")
                .setParallelism(1);
    }

    static DataStream<Event> events(DataStream<Long> numbers) {
        return numbers.map(Event::of).returns(Event.class).uid("events").setParallelism(1);
    }

    private static void states(StreamExecutionEnvironment env, boolean dumps, int most) {
        DataStream<Long> numbers = numbers(env, dumps);
        DataStream<Event> events = events(numbers);
        keyed(events, e -> e.name, Types.STRING, new Kinds(dumps), "kinds");
        keyed(events, e -> e.id, Types.LONG, new Few<>("by_long", dumps), "by_long")
                .setMaxParallelism(most == USUAL ? 300 : most);
        keyed(
                events,
                e -> Tuple2.of(e.name, e.small),
                Types.TUPLE(Types.STRING, Types.INT),
                new Few<>("by_tuple", dumps),
                "by_tuple");
        events.partitionCustom((number, parts) -> (int) (number % parts), e -> e.number)
                .transform("parts", Types.LONG, new Parts(dumps))
                .uid("parts");
        if (dumps) {
            for (String uid : WINDOWS) {
                keyed(events, e -> e.name, Types.STRING, new Windows(uid), uid);
            }
        } else {
            windows(numbers);
        }
    }

    private static <K> SingleOutputStreamOperator<Long> keyed(
            DataStream<Event> events,
            KeySelector<Event, K> key,
            TypeInformation<K> type,
            States<K, ?> operator,
            String uid) {
        return events.keyBy(key, type).transform(uid, Types.LONG, operator).uid(uid);
    }

    private static void windows(DataStream<Long> numbers) {
        KeyedStream<Long, String> named = numbers.keyBy(number -> Event.of(number).name, Types.STRING);
        TumblingEventTimeWindows minutes = TumblingEventTimeWindows.of(Duration.ofMinutes(1));
        named.window(minutes).aggregate(new Sum(), Types.LONG, Types.LONG).uid("sums");
        named.window(minutes).process(new Nothing(), Types.LONG).uid("lists");
        named.window(EventTimeSessionWindows.withGap(Duration.ofSeconds(20)))
                .process(new Nothing(), Types.LONG)
                .uid("sessions");
    }

    /** Adds numbers. */
    static class Sum implements AggregateFunction<Long, Long, Long> {
        @Override
        public Long createAccumulator() {
            return 0L;
        }

        @Override
        public Long add(Long number, Long sum) {
            return number + sum;
        }

        @Override
        public Long getResult(Long sum) {
            return sum;
        }

        @Override
        public Long merge(Long a, Long b) {
            return a + b;
        }
    }

    /** Gives nothing for a window. */
    static class Nothing extends ProcessWindowFunction<Long, Long, String, TimeWindow> {
        @Override
        public void process(String key, Context context, Iterable<Long> in, Collector<Long> out) {}
    }
}
