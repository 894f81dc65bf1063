package golden;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.flink.api.connector.source.Boundedness;
import org.apache.flink.api.connector.source.ReaderOutput;
import org.apache.flink.api.connector.source.Source;
import org.apache.flink.api.connector.source.SourceReader;
import org.apache.flink.api.connector.source.SourceReaderContext;
import org.apache.flink.api.connector.source.SourceSplit;
import org.apache.flink.api.connector.source.SplitEnumerator;
import org.apache.flink.api.connector.source.SplitEnumeratorContext;
import org.apache.flink.core.io.InputStatus;
import org.apache.flink.core.io.SimpleVersionedSerializer;

/** A source of the numbers from 0, in splits of a fixed size, up to a limit that may be raised. */
public class Numbers implements Source<Long, Numbers.Split, List<Numbers.Split>> {
    static final long SIZE = 150;
    static final int SPLITS = 8;

    /** No number from this on is given. */
    static volatile long limit;

    /** The number that comes next; all before are given. */
    static volatile long next;

    /** Count one that another source has given. */
    static synchronized void count() {
        next++;
    }

    private final boolean dumps;
    private final long size;

    public Numbers(boolean dumps) {
        this(dumps, SIZE);
    }

    Numbers(boolean dumps, long size) {
        this.dumps = dumps;
        this.size = size;
    }

    /** The numbers of a range that were not given yet. */
    public static class Split implements SourceSplit {
        final long from;
        final long to;

        Split(long from, long to) {
            this.from = from;
            this.to = to;
        }

        @Override
        public String splitId() {
            return "to-" + to;
        }
    }

    @Override
    public Boundedness getBoundedness() {
        return Boundedness.CONTINUOUS_UNBOUNDED;
    }

    @Override
    public SourceReader<Long, Split> createReader(SourceReaderContext context) {
        return new Reader(context, dumps);
    }

    @Override
    public SplitEnumerator<Split, List<Split>> createEnumerator(
            SplitEnumeratorContext<Split> context) {
        List<Split> splits = new ArrayList<>();
        for (int at = 0; at < SPLITS; at++) {
            splits.add(new Split(at * size, (at + 1) * size));
        }
        return new Enumerator(context, splits);
    }

    @Override
    public SplitEnumerator<Split, List<Split>> restoreEnumerator(
            SplitEnumeratorContext<Split> context, List<Split> splits) {
        if (dumps) {
            Dump.line("operator", "\"numbers\"", "enumerator", json(splits));
        }
        return new Enumerator(context, splits);
    }

    @Override
    public SimpleVersionedSerializer<Split> getSplitSerializer() {
        return new Serializer<>() {
            @Override
            void write(Split split, DataOutputStream out) throws IOException {
                out.writeLong(split.from);
                out.writeLong(split.to);
            }

            @Override
            Split read(DataInputStream in) throws IOException {
                return new Split(in.readLong(), in.readLong());
            }
        };
    }

    @Override
    public SimpleVersionedSerializer<List<Split>> getEnumeratorCheckpointSerializer() {
        return new Serializer<>() {
            @Override
            void write(List<Split> splits, DataOutputStream out) throws IOException {
                out.writeInt(splits.size());
                for (Split split : splits) {
                    out.writeLong(split.from);
                    out.writeLong(split.to);
                }
            }

            @Override
            List<Split> read(DataInputStream in) throws IOException {
                List<Split> splits = new ArrayList<>();
                for (int left = in.readInt(); left > 0; left--) {
                    splits.add(new Split(in.readLong(), in.readLong()));
                }
                return splits;
            }
        };
    }

    private static String json(Iterable<Split> splits) {
        List<List<Long>> texts = new ArrayList<>();
        splits.forEach(split -> texts.add(List.of(split.from, split.to)));
        return Json.of(texts);
    }

    private abstract static class Serializer<T> implements SimpleVersionedSerializer<T> {
        abstract void write(T value, DataOutputStream out) throws IOException;

        abstract T read(DataInputStream in) throws IOException;

        @Override
        public int getVersion() {
            return 1;
        }

        @Override
        public byte[] serialize(T value) throws IOException {
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            write(value, new DataOutputStream(bytes));
            return bytes.toByteArray();
        }

        @Override
        public T deserialize(int version, byte[] bytes) throws IOException {
            return read(new DataInputStream(new ByteArrayInputStream(bytes)));
        }
    }

    private static class Enumerator implements SplitEnumerator<Split, List<Split>> {
        private final SplitEnumeratorContext<Split> context;
        private final ArrayDeque<Split> splits;

        Enumerator(SplitEnumeratorContext<Split> context, List<Split> splits) {
            this.context = context;
            this.splits = new ArrayDeque<>(splits);
        }

        @Override
        public void start() {}

        @Override
        public void handleSplitRequest(int subtask, String host) {
            Split split = splits.poll();
            if (split != null) {
                context.assignSplit(split, subtask);
            }
        }

        @Override
        public void addSplitsBack(List<Split> returned, int subtask) {
            returned.forEach(splits::addFirst);
        }

        @Override
        public void addReader(int subtask) {}

        @Override
        public List<Split> snapshotState(long checkpoint) {
            return new ArrayList<>(splits);
        }

        @Override
        public void close() {}
    }

    private static class Reader implements SourceReader<Long, Split> {
        private final SourceReaderContext context;
        private final boolean dumps;
        private final ArrayDeque<Split> splits = new ArrayDeque<>();

        Reader(SourceReaderContext context, boolean dumps) {
            this.context = context;
            this.dumps = dumps;
        }

        @Override
        public void start() {
            if (dumps) {
                Dump.line("operator", "\"numbers\"", "splits", json(splits));
                Dump.done();
            } else if (splits.isEmpty()) {
                context.sendSplitRequest();
            }
        }

        @Override
        public InputStatus pollNext(ReaderOutput<Long> output) {
            Split split = splits.peek();
            if (split == null || split.from >= limit || dumps) {
                return InputStatus.NOTHING_AVAILABLE;
            }
            output.collect(split.from, split.from);
            splits.poll();
            if (split.from + 1 < split.to) {
                splits.addFirst(new Split(split.from + 1, split.to));
            } else {
                context.sendSplitRequest();
            }
            next = split.from + 1;
            return InputStatus.MORE_AVAILABLE;
        }

        @Override
        public List<Split> snapshotState(long checkpoint) {
            return new ArrayList<>(splits);
        }

        @Override
        public CompletableFuture<Void> isAvailable() {
            return CompletableFuture.runAsync(
                    () -> {}, CompletableFuture.delayedExecutor(20, TimeUnit.MILLISECONDS));
        }

        @Override
        public void addSplits(List<Split> added) {
            splits.addAll(added);
        }

        @Override
        public void notifyNoMoreSplits() {}

        @Override
        public void close() {}
    }
}
