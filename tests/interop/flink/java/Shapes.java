package golden;

import java.util.List;
import java.util.Map;
import java.util.Objects;

/** The user's classes that states hold. */
public class Shapes {
    private Shapes() {}

    /** An enum, in an order that is not the alphabet's. */
    public enum Color {
        RED,
        GREEN,
        BLUE
    }

    /** A POJO: Flink sorts its fields by name. */
    public static class Person {
        public String name;
        public int age;
        public Long score;
        public List<String> tags;
        public Map<String, Integer> marks;
        public Place place;

        @Override
        public boolean equals(Object other) {
            return other instanceof Person
                    && other.getClass() == getClass()
                    && Json.of(this).equals(Json.of(other));
        }

        @Override
        public int hashCode() {
            return Objects.hash(name, age, score);
        }
    }

    /** A POJO in a POJO. */
    public static class Place {
        public double latitude;
        public double longitude;
    }

    /** A subclass: a state of Person may hold it. */
    public static class Worker extends Person {
        public String employer;
    }

    /** One that Flink cannot look into: it has no constructor without arguments. */
    public static class Opaque {
        private final String inner;
        private final int count;

        public Opaque(String inner, int count) {
            this.inner = inner;
            this.count = count;
        }

        @Override
        public String toString() {
            return inner + "#" + count;
        }
    }
}
