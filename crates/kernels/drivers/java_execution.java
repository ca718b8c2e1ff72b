// Runs the code, each snippet in a thread of its own.
final class Execution extends LocalExecutionControl {
    private static final Object NOTHING = new Object();
    private static Thread driver;
    private static volatile Thread thread;
    private static Method method;
    private static Object value = NOTHING;
    private static String shown;
    private static Throwable failure;
    private static Thread.UncaughtExceptionHandler handler;

    void forget() {
        value = NOTHING;
        shown = null;
        failure = null;
    }

    @Override
    protected String invoke(Method method) throws Exception {
        Execution.method = method;
        call("runCode");
        if (failure != null) throw new InvocationTargetException(failure);
        return "";
    }

    // Returns the representations of the value of the last expression, as JSON; nothing if there is no value.
    String shown() throws Exception {
        if (value == NOTHING) return null;
        clientCodeEnter();
        try {
            call("showValue");
        } finally {
            clientCodeLeave();
        }
        return shown;
    }

    private void call(String name) throws Exception {
        if (Driver.isInterrupted()) throw new StoppedException();
        driver = Thread.currentThread();
        handler = Thread.getDefaultUncaughtExceptionHandler();
        Method target = Execution.class.getDeclaredMethod(name);
        target.setAccessible(true);
        try {
            super.invoke(target);
        } finally {
            thread = null;
            Driver.restoreStreams();
            Thread.setDefaultUncaughtExceptionHandler(handler);
        }
    }

    private static void prepare() {
        // Threads that the code starts must not be among those that the driver waits for.
        while (driver.getState() != Thread.State.WAITING) Thread.yield();
        Thread.setDefaultUncaughtExceptionHandler(handler);
        thread = Thread.currentThread();
        thread.setName("main");
        thread.setContextClassLoader(method.getDeclaringClass().getClassLoader());
        if (Driver.isInterrupted()) throw new ThreadDeath();
    }

    static void runCode() throws IllegalAccessException {
        prepare();
        try {
            Object result = method.invoke(null);
            if (method.getReturnType() != void.class) value = result;
        } catch (InvocationTargetException error) {
            Throwable cause = error.getCause();
            if (!(cause instanceof ThreadDeath && Driver.isInterrupted())) failure = cause;
        }
    }

    static void showValue() {
        prepare();
        shown = Values.representations(value);
    }

    void interrupt() {
        Thread running = thread;
        if (running != null) running.interrupt();
    }

    void end() {
        try {
            stop();
        } catch (Exception | LinkageError error) {
            interrupt();
        }
    }

    static String text(Object value) {
        return valueString(value);
    }
}

final class Values {
    private Values() {}

    static String representations(Object value) {
        String text = text(value);
        String image = value == null ? null : image(value);
        if (image != null && image.length() > Driver.REPRESENTATION_BYTES_MAX) {
            text += "\n" + leftOut("image/png", image.length());
            image = null;
        }
        String shown = image == null ? "" : Messages.field("image/png", image);
        return "{" + Messages.quoted("text/plain") + ":" + Messages.quoted(text) + shown + "}";
    }

    private static String text(Object value) {
        if (value instanceof CharSequence && ((CharSequence) value).length() > Driver.REPRESENTATION_BYTES_MAX) {
            return leftOut("text/plain", ((CharSequence) value).length());
        }
        String text;
        try {
            text = String.valueOf(Execution.text(value));
        } catch (ThreadDeath death) {
            throw death;
        } catch (Throwable error) {
            Driver.warn("`toString` failed: " + error.getClass().getName());
            return value.getClass().getName() + "@" + Integer.toHexString(System.identityHashCode(value));
        }
        long bytes = Messages.quotedBytes(text);
        return bytes > Driver.REPRESENTATION_BYTES_MAX ? leftOut("text/plain", bytes) : text;
    }

    // Returns an image as PNG in base64, if the value is one. Not every Java has the module for it.
    private static String image(Object value) {
        try {
            Class<?> rendered = Class.forName("java.awt.image.RenderedImage");
            if (!rendered.isInstance(value)) return null;
            java.io.ByteArrayOutputStream bytes = new java.io.ByteArrayOutputStream();
            Class.forName("javax.imageio.ImageIO").getMethod("write", rendered, String.class, OutputStream.class)
                .invoke(null, value, "png", bytes);
            return java.util.Base64.getEncoder().encodeToString(bytes.toByteArray());
        } catch (ClassNotFoundException ignored) {
            // It is no image.
        } catch (ReflectiveOperationException | LinkageError error) {
            Driver.warn("`image/png` was left out: " + error);
        }
        return null;
    }

    private static String leftOut(String type, long bytes) {
        return String.format(Locale.ROOT, "%s was left out: %.1f MB are more than 10 MiB", type, bytes / 1e6);
    }
}
