package golden;

import java.util.Random;

/** What a job is given: all of it follows from its number. */
public class Event {
    private static final String[] WORDS = {
        "", "a", "Zürich", "東京", "🦊 fox", "tab\tand\nline", "\u0000", "ключ", "x,y", "long word "
    };
    private static final int NAMES = 20;
    private static final int IDS = 90;

    public long number;
    public String name;
    public long id;
    public int small;
    public String text;
    public double amount;
    public long time;

    /** The event of a number. */
    public static Event of(long number) {
        Random random = new Random(20260901L + number * 7919L);
        Event event = new Event();
        event.number = number;
        int name = random.nextInt(NAMES);
        event.name = name < WORDS.length ? WORDS[name] : WORDS[name % WORDS.length] + name;
        event.id = (random.nextInt(IDS) - IDS / 2) * 1_000_003L * (random.nextInt(2) + 1);
        event.small = random.nextInt(9) - 4;
        event.text = WORDS[random.nextInt(WORDS.length)] + random.nextInt(1000);
        event.amount = (random.nextInt(2_000_001) - 1_000_000) / 64.0;
        event.time = 1_700_000_000_000L + number * 977L;
        return event;
    }
}
