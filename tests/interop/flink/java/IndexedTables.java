package golden;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.rocksdb.BlockBasedTableConfig;
import org.rocksdb.FlushOptions;
import org.rocksdb.IndexType;
import org.rocksdb.NativeLibraryLoader;
import org.rocksdb.Options;
import org.rocksdb.RocksDB;

/**
 * Writes one RocksDB table for each kind of index, KIND.sst in the folder of the first argument. Each has 600
 * entries in small blocks, so that an index in parts has many parts. Index entries are complete, and deltas.
 */
public class IndexedTables {
    private static final int ENTRIES = 600;

    private IndexedTables() {}

    /** Write the tables. */
    public static void main(String[] arguments) throws Exception {
        Path folder = Files.createDirectories(Path.of(arguments[0]));
        Path work = Files.createTempDirectory("indexed");
        NativeLibraryLoader.getInstance().loadLibrary(work.toString());
        for (IndexType type : IndexType.values()) {
            for (int interval : new int[] {1, 8}) {
                String name = type + "-" + interval;
                write(work.resolve(name), type, interval);
                try (Stream<Path> files = Files.list(work.resolve(name))) {
                    List<Path> tables =
                            files.filter(file -> file.toString().endsWith(".sst"))
                                    .collect(Collectors.toList());
                    Files.copy(tables.get(0), folder.resolve(name + ".sst"));
                }
            }
        }
    }

    private static void write(Path place, IndexType type, int interval) throws Exception {
        BlockBasedTableConfig tables =
                new BlockBasedTableConfig()
                        .setIndexType(type)
                        .setIndexBlockRestartInterval(interval)
                        .setBlockSize(256)
                        .setMetadataBlockSize(128)
                        .setFormatVersion(5);
        try (Options options = new Options().setCreateIfMissing(true).setTableFormatConfig(tables)) {
            options.useFixedLengthPrefixExtractor(1);
            try (RocksDB database = RocksDB.open(options, place.toString());
                    FlushOptions flush = new FlushOptions()) {
                for (int number = 0; number < ENTRIES; number++) {
                    byte[] key = new byte[5];
                    key[0] = (byte) (number / 10);
                    byte[] text = String.format("%04d", number).getBytes(StandardCharsets.US_ASCII);
                    System.arraycopy(text, 0, key, 1, text.length);
                    database.put(key, ("value-" + number).getBytes(StandardCharsets.US_ASCII));
                }
                database.flush(flush);
            }
        }
    }
}
