package golden;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.time.LocalDate;
import java.util.ArrayList;
import java.util.Date;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import org.apache.flink.api.common.eventtime.Watermark;
import org.apache.flink.api.common.eventtime.WatermarkGenerator;
import org.apache.flink.api.common.eventtime.WatermarkOutput;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.AggregatingState;
import org.apache.flink.api.common.state.AggregatingStateDescriptor;
import org.apache.flink.api.common.state.BroadcastState;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.ReducingState;
import org.apache.flink.api.common.state.ReducingStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.functions.KeySelector;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.runtime.state.StateInitializationContext;
import org.apache.flink.runtime.state.VoidNamespace;
import org.apache.flink.runtime.state.VoidNamespaceSerializer;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.operators.AbstractStreamOperator;
import org.apache.flink.streaming.api.operators.InternalTimer;
import org.apache.flink.streaming.api.operators.InternalTimerService;
import org.apache.flink.streaming.api.operators.OneInputStreamOperator;
import org.apache.flink.streaming.api.operators.Triggerable;
import org.apache.flink.streaming.runtime.streamrecord.StreamRecord;
import org.apache.flink.types.Row;
import org.apache.flink.util.Collector;

/**
 * A job that can begin with tables: table= is a file of events, of which it takes those from the
 * line after= on. What it says of each event goes to results=.
 */
public class Boot {
    private static final long FAR = 7_000_000_000_000L;

    private Boot() {}

    /** Run the steps, as Main does. */
    public static void main(String[] steps) throws Exception {
        Main.run(List.of(steps), Boot::build);
    }

    /** An event: the number of its line, and what is between its tabs; "-" is null. */
    public static class Deed {
        public long number;
        public String user;
        public int amount;
        public String city;

        static Deed of(long number, String line) {
            String[] words = line.split("\t", -1);
            Deed deed = new Deed();
            deed.number = number;
            deed.user = words[0];
            deed.amount = Integer.parseInt(words[1]);
            deed.city = words[2].equals("-") ? null : words[2];
            return deed;
        }
    }

    /** How much somebody has. */
    public enum Level {
        LOW,
        HIGH
    }

    /** Where somebody is. */
    public static class Place {
        public Integer zip;
        public String city;
    }

    /** What is kept of a user: a field of each type that Flink does not leave to Kryo. */
    public static class Account {
        public String owner;
        public long total;
        public Integer last;
        public Place place;
        public Level level;
        public BigDecimal sum;
        public BigInteger product;
        public Instant seen;
        public Date since;
        public java.sql.Timestamp stamp;
        public char letter;
        public Boolean isOdd;
        public double half;
        public float third;
        public short small;
        public byte tiny;
        public byte[] raw;
        public int[] lately;
        public String[] names;
        public Place[] places;
        public Tuple2<String, Long> best;
    }

    /** An account with collections, which Flink 2 has serializers for. */
    public static class Basket {
        public List<String> names;
        public Map<String, Long> sums;
        public Set<Integer> sizes;
        public List<Place> places;
        public Map<String, Place> last;
    }

    /** A thing with an amount. */
    public static class Item {
        public String name;
        public int amount;

        static Item of(Deed deed) {
            Item item = new Item();
            item.name = deed.city;
            item.amount = deed.amount;
            return item;
        }
    }

    /** A key that is a class. */
    public static class Spot {
        public String name;
        public int zone;

        static Spot of(Deed deed) {
            Spot spot = new Spot();
            spot.name = deed.city;
            spot.zone = Math.abs(deed.amount) % 5;
            return spot;
        }

        @Override
        public int hashCode() {
            return 31 * (name == null ? 0 : name.hashCode()) + zone;
        }

        @Override
        public boolean equals(Object other) {
            return other instanceof Spot
                    && Objects.equals(((Spot) other).name, name)
                    && ((Spot) other).zone == zone;
        }
    }

    private static void build(StreamExecutionEnvironment env, Map<String, String> words) {
        List<String> lines;
        try {
            lines = Files.readAllLines(Path.of(words.get("table")), StandardCharsets.UTF_8);
        } catch (java.io.IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
        long after = Long.parseLong(words.getOrDefault("after", "0"));
        WatermarkStrategy<Long> times =
                WatermarkStrategy.<Long>forGenerator(context -> new Each())
                        .withTimestampAssigner((number, at) -> number * 1000);
        DataStream<Deed> deeds =
                env.fromSource(new Numbers(false), times, "numbers", Types.LONG)
                        .uid("numbers")
                        .setParallelism(1)
                        .filter(number -> number >= after)
                        .setParallelism(1)
                        .map(number -> Deed.of(number, lines.get(number.intValue())))
                        .returns(Deed.class)
                        .setParallelism(1);
        boolean builtIn = Boolean.parseBoolean(words.getOrDefault("collections", "false"));
        // In Flink's hashmap backend no savepoint can be taken of rows that have names alone.
        boolean byName = words.get("state.backend.type").equals("rocksdb");
        deeds.keyBy(deed -> deed.user, Types.STRING)
                .process(new Accounts(builtIn, byName), Types.LONG)
                .uid("accounts");
        count(deeds, "by_class", Spot::of, Types.POJO(Spot.class));
        count(
                deeds,
                "by_tuple",
                deed -> Tuple2.of(deed.user, deed.amount),
                Types.TUPLE(Types.STRING, Types.INT));
        count(
                deeds,
                "by_row",
                deed -> Row.of(deed.city, deed.amount),
                Types.ROW(Types.STRING, Types.INT));
        count(deeds, "by_int", deed -> deed.amount, Types.INT);
        count(deeds, "by_day", deed -> LocalDate.ofEpochDay(deed.amount), Types.LOCAL_DATE);
        deeds.keyBy(deed -> deed.user, Types.STRING)
                .transform("services", Types.LONG, new Services())
                .uid("services");
        deeds.broadcast().transform("rules", Types.LONG, new Rules()).uid("rules");
    }

    private static <K> void count(
            DataStream<Deed> deeds, String uid, KeySelector<Deed, K> key, TypeInformation<K> type) {
        deeds.keyBy(key, type).process(new Counter<K>(uid), Types.LONG).uid(uid);
    }

    /** Gives a watermark after each event, so that timers fire between the same two events. */
    private static class Each implements WatermarkGenerator<Long> {
        @Override
        public void onEvent(Long number, long at, WatermarkOutput output) {
            output.emitWatermark(new Watermark(at));
        }

        @Override
        public void onPeriodicEmit(WatermarkOutput output) {}
    }

    private static void say(String uid, long number, Object... said) {
        Object[] all = new Object[said.length + 1];
        all[0] = number;
        System.arraycopy(said, 0, all, 1, said.length);
        Sql.say(uid, Row.of(all));
    }

    /** Keeps states of every kind, and says after each event what is in them. */
    private static class Accounts extends KeyedProcessFunction<String, Deed, Long> {
        private final boolean builtIn;
        private final boolean byName;
        private transient ValueState<Account> account;
        private transient ValueState<Basket> basket;
        private transient ListState<Item> items;
        private transient MapState<Tuple2<String, Integer>, Item> entries;
        private transient MapState<String, Long> sums;
        private transient ReducingState<Long> most;
        private transient AggregatingState<Long, Double> mean;
        private transient ValueState<Row> named;
        private transient ValueState<Row> positional;
        private transient ValueState<Tuple3<String, Long, Double>> triple;
        private transient ValueState<LocalDate> day;
        private transient ValueState<List<Long>> numbers;

        Accounts(boolean builtIn, boolean byName) {
            this.builtIn = builtIn;
            this.byName = byName;
        }

        @Override
        public void open(OpenContext context) {
            account = value("account", Types.POJO(Account.class));
            if (builtIn) {
                basket = value("basket", Types.POJO(Basket.class));
            }
            items =
                    getRuntimeContext()
                            .getListState(new ListStateDescriptor<>("items", Types.POJO(Item.class)));
            TypeInformation<Tuple2<String, Integer>> key = Types.TUPLE(Types.STRING, Types.INT);
            entries =
                    getRuntimeContext()
                            .getMapState(
                                    new MapStateDescriptor<>("entries", key, Types.POJO(Item.class)));
            sums =
                    getRuntimeContext()
                            .getMapState(new MapStateDescriptor<>("sums", Types.STRING, Types.LONG));
            most =
                    getRuntimeContext()
                            .getReducingState(
                                    new ReducingStateDescriptor<>("most", Math::max, Types.LONG));
            mean =
                    getRuntimeContext()
                            .getAggregatingState(
                                    new AggregatingStateDescriptor<>(
                                            "mean", new Mean(), Types.TUPLE(Types.LONG, Types.LONG)));
            String[] names = {"city", "count"};
            named = value("named", Types.ROW_NAMED(names, Types.STRING, Types.LONG));
            positional = value("positional", Types.ROW(Types.LONG, Types.STRING));
            triple = value("triple", Types.TUPLE(Types.STRING, Types.LONG, Types.DOUBLE));
            day = value("day", Types.LOCAL_DATE);
            numbers = value("numbers", Types.LIST(Types.LONG));
        }

        private <T> ValueState<T> value(String name, TypeInformation<T> type) {
            return getRuntimeContext().getState(new ValueStateDescriptor<>(name, type));
        }

        @Override
        public void processElement(Deed deed, Context context, Collector<Long> out)
                throws Exception {
            account.update(changed(account.value(), deed));
            items.add(Item.of(deed));
            String city = deed.city == null ? "" : deed.city;
            entries.put(Tuple2.of(city, deed.amount), deed.amount % 2 == 0 ? null : Item.of(deed));
            sums.put(city, (sums.contains(city) ? sums.get(city) : 0L) + deed.amount);
            most.add((long) deed.amount);
            mean.add((long) deed.amount);
            Row before = named.value();
            long count = before == null ? 1 : before.<Long>getFieldAs(1) + 1;
            Row row = byName ? Row.withNames() : Row.withPositions(2);
            if (byName) {
                row.setField("count", count);
                row.setField("city", deed.city);
            } else {
                row.setField(1, count);
                row.setField(0, deed.city);
            }
            named.update(row);
            positional.update(Row.of(count, deed.city));
            triple.update(Tuple3.of(city, count, count / 2.0));
            day.update(LocalDate.ofEpochDay(deed.amount));
            List<Long> all = numbers.value() == null ? new ArrayList<>() : numbers.value();
            all.add(deed.number);
            numbers.update(all);
            List<Item> list = new ArrayList<>();
            items.get().forEach(list::add);
            say("accounts", deed.number, deed.user, account.value(), list, map(entries), map(sums));
            say("values", deed.number, deed.user, most.get(), mean.get(), named.value(),
                    positional.value(), triple.value(), day.value(), numbers.value());
            if (builtIn) {
                fill(deed, city);
            }
        }

        private void fill(Deed deed, String city) throws Exception {
            Basket one = basket.value() == null ? new Basket() : basket.value();
            if (one.names == null && deed.city != null) {
                one.names = new ArrayList<>();
                one.sums = new HashMap<>();
                one.sizes = new HashSet<>();
                one.places = new ArrayList<>();
                one.last = new HashMap<>();
            }
            if (one.names != null) {
                Place place = new Place();
                place.city = deed.city;
                place.zip = deed.amount % 3 == 0 ? null : Integer.valueOf(deed.amount);
                one.names.add(deed.city);
                one.sums.merge(city, (long) deed.amount, Long::sum);
                one.sizes.add(deed.amount);
                one.places.add(deed.amount % 4 == 0 ? null : place);
                one.last.put(city, deed.amount % 5 == 0 ? null : place);
            }
            basket.update(one);
            say("basket", deed.number, deed.user, Json.of(one));
        }

        private static <K, V> Map<K, V> map(MapState<K, V> state) throws Exception {
            Map<K, V> found = new HashMap<>();
            for (Map.Entry<K, V> entry : state.entries()) {
                found.put(entry.getKey(), entry.getValue());
            }
            return found;
        }

        private static Account changed(Account before, Deed deed) {
            Account one = before == null ? new Account() : before;
            one.owner = deed.user;
            one.total += deed.amount;
            one.last = deed.amount < 0 ? null : Integer.valueOf(deed.amount);
            Place place = new Place();
            place.zip = deed.amount % 3 == 0 ? null : Integer.valueOf(deed.amount);
            place.city = deed.city;
            one.place = deed.amount % 5 == 0 ? null : place;
            one.level = deed.amount % 7 == 0 ? null : one.total < 0 ? Level.LOW : Level.HIGH;
            one.sum = BigDecimal.valueOf(one.total, 2);
            one.product = BigInteger.valueOf(one.total).multiply(BigInteger.valueOf(deed.amount));
            one.seen = Instant.ofEpochMilli(deed.number * 1001);
            one.since = one.since == null ? new Date(deed.number * 1000) : one.since;
            one.stamp = new java.sql.Timestamp(deed.number * 1001);
            one.letter = (char) ('a' + Math.abs(deed.amount) % 26);
            one.isOdd = deed.city == null ? null : Boolean.valueOf(deed.amount % 2 != 0);
            one.half = deed.amount / 2.0;
            one.third = deed.amount / 4.0f;
            one.small = (short) deed.amount;
            one.tiny = (byte) deed.amount;
            one.raw = deed.city == null ? null : deed.city.getBytes(StandardCharsets.UTF_8);
            one.lately = new int[] {deed.amount, (int) deed.number};
            one.names = new String[] {deed.user, deed.city};
            one.places = new Place[] {place, null};
            one.best = Tuple2.of(deed.user, one.total);
            return one;
        }
    }

    /** Gives the mean of numbers. */
    private static class Mean implements AggregateFunction<Long, Tuple2<Long, Long>, Double> {
        @Override
        public Tuple2<Long, Long> createAccumulator() {
            return Tuple2.of(0L, 0L);
        }

        @Override
        public Tuple2<Long, Long> add(Long number, Tuple2<Long, Long> mean) {
            return Tuple2.of(mean.f0 + 1, mean.f1 + number);
        }

        @Override
        public Double getResult(Tuple2<Long, Long> mean) {
            return mean.f1 / (double) mean.f0;
        }

        @Override
        public Tuple2<Long, Long> merge(Tuple2<Long, Long> a, Tuple2<Long, Long> b) {
            return Tuple2.of(a.f0 + b.f0, a.f1 + b.f1);
        }
    }

    /** Counts the events of a key, and says it again a while later. */
    private static class Counter<K> extends KeyedProcessFunction<K, Deed, Long> {
        private final String uid;
        private transient ValueState<Long> count;

        Counter(String uid) {
            this.uid = uid;
        }

        @Override
        public void open(OpenContext context) {
            count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Types.LONG));
        }

        @Override
        public void processElement(Deed deed, Context context, Collector<Long> out)
                throws Exception {
            count.update(count.value() == null ? 1 : count.value() + 1);
            say(uid, deed.number, count.value(), text(context.getCurrentKey()));
            context.timerService().registerEventTimeTimer(deed.number * 1000 + 7500);
            context.timerService().registerProcessingTimeTimer(FAR + deed.number);
        }

        @Override
        public void onTimer(long at, OnTimerContext context, Collector<Long> out)
                throws Exception {
            say(uid, at / 1000 + 1, "later", count.value(), text(context.getCurrentKey()));
        }

        private static Object text(Object key) {
            return key instanceof Row ? Json.of(key) : key;
        }
    }

    /** Has two timer services with names of their own. */
    private static class Services extends AbstractStreamOperator<Long>
            implements OneInputStreamOperator<Deed, Long>, Triggerable<String, VoidNamespace> {
        private transient InternalTimerService<VoidNamespace> cleanup;
        private transient InternalTimerService<VoidNamespace> retry;

        @Override
        public void open() throws Exception {
            super.open();
            cleanup = getInternalTimerService("cleanup", VoidNamespaceSerializer.INSTANCE, this);
            retry = getInternalTimerService("retry", VoidNamespaceSerializer.INSTANCE, this);
        }

        @Override
        public void processElement(StreamRecord<Deed> record) {
            long number = record.getValue().number;
            cleanup.registerEventTimeTimer(VoidNamespace.INSTANCE, number * 1000 + 4500);
            retry.registerEventTimeTimer(VoidNamespace.INSTANCE, number * 1000 + 9500);
            retry.registerProcessingTimeTimer(VoidNamespace.INSTANCE, FAR + number);
        }

        @Override
        public void onEventTime(InternalTimer<String, VoidNamespace> timer) {
            say("services", timer.getTimestamp() / 1000 + 1, timer.getKey(), timer.getTimestamp());
        }

        @Override
        public void onProcessingTime(InternalTimer<String, VoidNamespace> timer) {}
    }

    /** Has broadcast and union state; each subtask is given all events. */
    private static class Rules extends AbstractStreamOperator<Long>
            implements OneInputStreamOperator<Deed, Long> {
        private transient BroadcastState<String, Item> rules;
        private transient ListState<Item> log;
        private transient ListState<Tuple2<String, Integer>> parts;
        private transient boolean isFirst;

        @Override
        public void initializeState(StateInitializationContext context) throws Exception {
            super.initializeState(context);
            rules =
                    context.getOperatorStateStore()
                            .getBroadcastState(
                                    new MapStateDescriptor<>(
                                            "rules", Types.STRING, Types.POJO(Item.class)));
            log =
                    context.getOperatorStateStore()
                            .getUnionListState(
                                    new ListStateDescriptor<>("log", Types.POJO(Item.class)));
            parts =
                    context.getOperatorStateStore()
                            .getListState(
                                    new ListStateDescriptor<>(
                                            "parts", Types.TUPLE(Types.STRING, Types.INT)));
            isFirst = getRuntimeContext().getTaskInfo().getIndexOfThisSubtask() == 0;
            if (!isFirst) {
                log.clear();
            }
        }

        @Override
        public void processElement(StreamRecord<Deed> record) throws Exception {
            Deed deed = record.getValue();
            int subtask = getRuntimeContext().getTaskInfo().getIndexOfThisSubtask();
            int all = getRuntimeContext().getTaskInfo().getNumberOfParallelSubtasks();
            Item rule = rules.get(deed.user);
            rules.put(deed.user, Item.of(deed));
            if (deed.number % all == subtask) {
                parts.add(Tuple2.of(deed.user, deed.amount));
                say("rules", deed.number, rule);
            }
            if (isFirst) {
                log.add(Item.of(deed));
                List<Item> found = new ArrayList<>();
                log.get().forEach(found::add);
                say("log", deed.number, found);
            }
        }
    }
}
