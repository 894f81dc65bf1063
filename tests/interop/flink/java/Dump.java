package golden;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;

/** Lines that operators of this process have found in what they were restored from. */
public class Dump {
    private static final List<String> LINES = Collections.synchronizedList(new ArrayList<>());
    private static final AtomicInteger DONE = new AtomicInteger();

    private Dump() {}

    /** Forget all of it. */
    public static void clear() {
        LINES.clear();
        DONE.set(0);
    }

    /** Take a line: pairs of a name and JSON. */
    public static void line(Object... pairs) {
        LINES.add(Json.object(pairs));
    }

    /** Say that one subtask has given all its lines. */
    public static void done() {
        DONE.incrementAndGet();
    }

    /** The number of subtasks that have given all their lines. */
    public static int subtasks() {
        return DONE.get();
    }

    /** The lines, sorted. */
    public static List<String> lines() {
        List<String> sorted = new ArrayList<>(LINES);
        Collections.sort(sorted);
        return sorted;
    }
}
