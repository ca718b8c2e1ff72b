// The environment: what `System.getenv` returns, what programs get, and system properties of the same names.
final class Variables {
    private final Map<String, String> environment;
    // Properties that Java itself has set.
    private final Set<String> reserved = new LinkedHashSet<>(System.getProperties().stringPropertyNames());
    private final Map<String, String> old = new LinkedHashMap<>();
    private Map<String, String> given = Collections.emptyMap();
    private Environ environ;

    @SuppressWarnings("unchecked")
    Variables() throws ReflectiveOperationException {
        Map<String, String> unmodifiable = System.getenv();
        Field field = Class.forName("java.util.Collections$UnmodifiableMap").getDeclaredField("m");
        field.setAccessible(true);
        environment = (Map<String, String>) field.get(unmodifiable);
        environment.forEach(this::setProperty);
    }

    void set(Map<String, String> given) {
        this.given = given;
        if (given.isEmpty()) return;
        given.forEach((name, value) -> {
            old.put(name, environment.get(name));
            environment.put(name, value);
            setProperty(name, value);
        });
        try {
            if (environ == null) environ = new Environ();
            environ.set(environment);
        } catch (IOException | ReflectiveOperationException | RuntimeException error) {
            Driver.warn("programs that the code starts do not get the variables of the run: " + error.getMessage());
        }
    }

    void restore() throws ReflectiveOperationException {
        if (given.isEmpty()) return;
        old.forEach((name, value) -> {
            if (value == null) environment.remove(name);
            else environment.put(name, value);
            setProperty(name, value);
        });
        old.clear();
        given = Collections.emptyMap();
        if (environ != null) environ.restore();
    }

    private void setProperty(String name, String value) {
        if (name.isEmpty() || reserved.contains(name)) return;
        if (value == null) System.clearProperty(name);
        else System.setProperty(name, value);
    }
}

// The variable `environ` of the C library, from which programs get their environment. Java never changes it.
final class Environ {
    private final Object unsafe;
    private final long arrayOffset;
    private final long address;
    private long original;
    private List<Long> blocks = new ArrayList<>();

    Environ() throws ReflectiveOperationException, IOException {
        Class<?> type = Class.forName("jdk.internal.misc.Unsafe");
        unsafe = type.getMethod("getUnsafe").invoke(null);
        // Newer versions return a `long`.
        Method offset = type.getMethod("arrayBaseOffset", Class.class);
        arrayOffset = ((Number) offset.invoke(unsafe, byte[].class)).longValue();
        address = find();
        if (address == 0 || getAddress(address) == 0) throw new IOException("the C library is not known");
    }

    void set(Map<String, String> variables) throws ReflectiveOperationException {
        original = getAddress(address);
        // A program may just be starting with those of the run before.
        List<Long> unused = blocks;
        blocks = new ArrayList<>();
        ByteBuffer array = ByteBuffer.allocate((variables.size() + 1) * 8).order(ByteOrder.nativeOrder());
        for (Map.Entry<String, String> variable : new TreeMap<>(variables).entrySet()) {
            String text = variable.getKey() + "=" + variable.getValue() + "\0";
            array.putLong(copied(text.getBytes(StandardCharsets.UTF_8)));
        }
        putAddress(address, copied(array.array()));
        Method free = unsafe.getClass().getMethod("freeMemory", long.class);
        for (long block : unused) free.invoke(unsafe, block);
    }

    void restore() throws ReflectiveOperationException {
        if (original != 0) putAddress(address, original);
        original = 0;
    }

    // Returns the address of a copy that does not move.
    private long copied(byte[] bytes) throws ReflectiveOperationException {
        long block = (Long) unsafe.getClass().getMethod("allocateMemory", long.class).invoke(unsafe, bytes.length);
        blocks.add(block);
        unsafe.getClass().getMethod("copyMemory", Object.class, long.class, Object.class, long.class, long.class)
            .invoke(unsafe, bytes, arrayOffset, null, block, bytes.length);
        return block;
    }

    private long getAddress(long at) throws ReflectiveOperationException {
        return (Long) unsafe.getClass().getMethod("getAddress", long.class).invoke(unsafe, at);
    }

    private void putAddress(long at, long value) throws ReflectiveOperationException {
        unsafe.getClass().getMethod("putAddress", long.class, long.class).invoke(unsafe, at, value);
    }

    private static long find() throws IOException {
        if (!"64".equals(System.getProperty("sun.arch.data.model"))) return 0;
        for (String mapping : Files.readAllLines(Paths.get("/proc/self/maps"), StandardCharsets.ISO_8859_1)) {
            String[] words = mapping.split(" +", 6);
            if (words.length < 6 || !words[2].matches("0+")) continue;
            if (!words[5].matches(".*/(libc[.-][^/]*|ld-musl-[^/]*)")) continue;
            long base = Long.parseUnsignedLong(words[0].substring(0, words[0].indexOf('-')), 16);
            long symbol = symbol(ByteBuffer.wrap(Files.readAllBytes(Paths.get(words[5]))), "environ");
            return symbol == 0 ? 0 : base + symbol;
        }
        return 0;
    }

    // Returns the value of a dynamic symbol of a 64-bit ELF file; 0 if it has none.
    private static long symbol(ByteBuffer file, String name) {
        file.order(ByteOrder.nativeOrder());
        byte[] wanted = (name + "\0").getBytes(StandardCharsets.US_ASCII);
        int sections = (int) file.getLong(0x28);
        int size = file.getShort(0x3a);
        for (int i = 0; i < file.getShort(0x3c); i++) {
            int section = sections + i * size;
            int isDynamicSymbols = 11;
            if (file.getInt(section + 4) != isDynamicSymbols) continue;
            int names = (int) file.getLong(sections + file.getInt(section + 0x28) * size + 0x18);
            int begin = (int) file.getLong(section + 0x18);
            int end = begin + (int) file.getLong(section + 0x20);
            for (int at = begin; at < end; at += 24) {
                int text = names + file.getInt(at);
                boolean isSame = true;
                for (int j = 0; isSame && j < wanted.length; j++) isSame = file.get(text + j) == wanted[j];
                if (isSame) return file.getLong(at + 8);
            }
        }
        return 0;
    }
}
