import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.FileDescriptor;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.Collectors;
import jdk.jshell.DeclarationSnippet;
import jdk.jshell.Diag;
import jdk.jshell.EvalException;
import jdk.jshell.JShell;
import jdk.jshell.Snippet;
import jdk.jshell.SnippetEvent;
import jdk.jshell.SourceCodeAnalysis;
import jdk.jshell.SourceCodeAnalysis.Completeness;
import jdk.jshell.SourceCodeAnalysis.CompletionInfo;
import jdk.jshell.SourceCodeAnalysis.Suggestion;
import jdk.jshell.UnresolvedReferenceException;
import jdk.jshell.execution.LocalExecutionControl;
import jdk.jshell.spi.ExecutionControl;
import jdk.jshell.spi.ExecutionControlProvider;
import jdk.jshell.spi.ExecutionEnv;

// The driver of Java, for versions from 11 on. JShell compiles the code and runs it in this process.
final class Driver {
    static final int TEXT_CHARACTERS_MAX = 100_000;
    static final int REPRESENTATION_BYTES_MAX = 10 * 1024 * 1024;
    // As those of the tool `jshell`.
    private static final String[] IMPORTS = {
        "java.io", "java.math", "java.net", "java.nio.file", "java.util", "java.util.concurrent", "java.util.function",
        "java.util.prefs", "java.util.regex", "java.util.stream",
    };

    private static Messages messages;
    private static DataInputStream requests;
    private static PrintStream out;
    private static PrintStream err;
    private static Variables variables;
    private static Execution execution;
    private static JShell shell;
    private static SourceCodeAnalysis analysis;
    private static long count;
    // The run in progress. Whoever holds the lock finds it as it is.
    private static final Object lock = new Object();
    private static Run run;
    // Where each snippet of the code begins, by its id.
    private static final Map<String, Place> places = new HashMap<>();

    static final class Run {
        final long number;
        volatile boolean isInterrupted;

        Run(long number) {
            this.number = number;
        }
    }

    static final class Place {
        final long cell;
        final int line;

        Place(long cell, int line) {
            this.cell = cell;
            this.line = line;
        }

        String at(int lineOfSnippet) {
            return "<cell " + cell + ">:" + (line + lineOfSnippet - 1);
        }
    }

    // An error as a message has it.
    static final class Failure extends Exception {
        final String name;
        final String value;

        Failure(String name, String value, String traceback) {
            super(traceback, null, false, false);
            this.name = name;
            this.value = value;
        }
    }

    public static void main(String[] arguments) throws Throwable {
        new FileInputStream(descriptor(9)).close();
        requests = new DataInputStream(new BufferedInputStream(new FileInputStream(descriptor(4))));
        messages = new Messages(new Pipe(descriptor(3)), new Pipe(descriptor(5)));
        out = printer(FileDescriptor.out);
        err = printer(FileDescriptor.err);
        System.setOut(out);
        System.setErr(err);
        variables = new Variables();
        System.clearProperty("sun.java.command");
        handleInterrupts();
        messages.send(Messages.text("ready", "version", "Java " + System.getProperty("java.version")));
        try {
            startShell();
            for (;;) serve();
        } finally {
            // Threads of the code do not keep a kernel alive that answers nothing.
            Runtime.getRuntime().halt(1);
        }
    }

    static FileDescriptor descriptor(int number) throws ReflectiveOperationException {
        Constructor<FileDescriptor> constructor = FileDescriptor.class.getDeclaredConstructor(int.class);
        constructor.setAccessible(true);
        return constructor.newInstance(number);
    }

    private static PrintStream printer(FileDescriptor descriptor) {
        OutputStream stream = new BufferedOutputStream(new Pipe(descriptor), 8192);
        return new PrintStream(stream, true, StandardCharsets.UTF_8);
    }

    // JShell needs the streams, which code can set to null.
    static void restoreStreams() {
        if (System.out == null) System.setOut(out);
        if (System.err == null) System.setErr(err);
    }

    // Writes a line to stderr for the caller.
    static void warn(String text) {
        err.println(text);
    }

    private static void startShell() throws Exception {
        execution = new Execution();
        ExecutionControlProvider provider = new ExecutionControlProvider() {
            @Override
            public String name() {
                return "kernel";
            }

            @Override
            public ExecutionControl generate(ExecutionEnv env, Map<String, String> parameters) {
                return execution;
            }
        };
        shell = JShell.builder().executionEngine(provider, null).build();
        analysis = shell.sourceCodeAnalysis();
        String path = System.getenv("CLASSPATH");
        if (path != null && !path.isEmpty()) addToClasspath(path);
        for (String name : IMPORTS) shell.eval("import " + name + ".*;");
        // What the first run would otherwise wait for.
        analysis.analyzeCompletion("1");
        shell.eval("System.out.flush();").forEach(event -> shell.drop(event.snippet()));
    }

    private static void addToClasspath(String path) throws IOException {
        for (String entry : path.split(":")) {
            if (!entry.equals("*") && !entry.endsWith("/*")) {
                shell.addToClasspath(entry.isEmpty() ? "." : entry);
                continue;
            }
            try (var jars = Files.newDirectoryStream(Paths.get(entry).resolveSibling(""), "*.jar")) {
                for (Path jar : jars) shell.addToClasspath(jar.toString());
            }
        }
    }

    // ---- Requests

    private static String line() throws IOException {
        StringBuilder line = new StringBuilder();
        for (;;) {
            int next = requests.read();
            if (next < 0) Runtime.getRuntime().halt(0);
            if (next == '\n') return line.toString();
            line.append((char) next);
        }
    }

    private static String text(String length) throws IOException {
        byte[] bytes = new byte[Integer.parseInt(length)];
        requests.readFully(bytes);
        return new String(bytes, StandardCharsets.UTF_8);
    }

    private static void serve() throws Exception {
        String[] words = line().split(" ");
        long number = Long.parseLong(words[1]);
        if (words[0].equals("complete")) {
            complete(number, text(words[3]), Integer.parseInt(words[2]));
            return;
        }
        String code = text(words[2]);
        Map<String, String> given = new LinkedHashMap<>();
        for (int i = 3; i < words.length; i++) {
            String variable = text(words[i]);
            int equals = variable.indexOf('=');
            given.put(variable.substring(0, equals), variable.substring(equals + 1));
        }
        count++;
        begin(number);
        Failure failure = null;
        String shown = null;
        try {
            variables.set(given);
            shown = evaluate(code);
        } catch (Failure error) {
            failure = error;
        } catch (Throwable error) {
            failure = new Failure(error.getClass().getSimpleName(), shortened(String.valueOf(error.getMessage())),
                shortened(error.toString()));
        }
        execution.forget();
        variables.restore();
        boolean isInterrupted;
        synchronized (lock) {
            isInterrupted = run.isInterrupted;
            run = null;
        }
        for (PrintStream stream : new PrintStream[] {System.out, System.err, out, err}) stream.flush();
        if (isInterrupted) {
            failure = new Failure("KeyboardInterrupt", "", "KeyboardInterrupt: the code was interrupted");
        }
        if (failure != null) {
            messages.send(Messages.head("error", number) + Messages.field("name", failure.name)
                + Messages.field("value", failure.value) + Messages.field("traceback", failure.getMessage()) + "}");
        } else if (shown != null) {
            messages.send(Messages.head("result", number) + ",\"main\":true,\"data\":" + shown + "}");
        }
        end(number);
    }

    private static void begin(long number) throws IOException {
        synchronized (lock) {
            run = new Run(number);
        }
        messages.sendBoth(Messages.head("begin", number) + ",\"count\":" + count + "}");
    }

    private static void end(long number) throws IOException {
        messages.sendBoth(Messages.head("end", number) + "}");
    }

    // ---- Code

    // Evaluates each snippet of the code. Returns the representations of the value of the last one, if it has any.
    private static String evaluate(String code) throws Exception {
        List<Snippet> declared = new ArrayList<>();
        Snippet last = null;
        int at = 0;
        while (at < code.length()) {
            String rest = code.substring(at);
            CompletionInfo info = analysis.analyzeCompletion(rest);
            if (info.completeness() == Completeness.EMPTY) break;
            boolean isLast = info.completeness() == Completeness.DEFINITELY_INCOMPLETE
                || info.completeness() == Completeness.CONSIDERED_INCOMPLETE || info.remaining().isEmpty();
            String source = info.source() == null ? rest : info.source();
            int start = at + rest.length() - rest.stripLeading().length();
            int line = 1 + (int) code.substring(0, start).chars().filter(c -> c == '\n').count();
            Place place = new Place(count, line);
            last = null;
            for (SnippetEvent event : evaluated(source.stripLeading(), place)) {
                Snippet snippet = event.snippet();
                if (event.causeSnippet() != null) continue;
                if (event.status() == Snippet.Status.REJECTED) throw wrong(snippet, place);
                if (event.exception() != null) throw described(event.exception());
                if (run.isInterrupted) return null;
                if (snippet instanceof DeclarationSnippet) declared.add(snippet);
                if (snippet.kind() == Snippet.Kind.EXPRESSION
                    || snippet.subKind() == Snippet.SubKind.TEMP_VAR_EXPRESSION_SUBKIND) {
                    last = snippet;
                }
            }
            if (run.isInterrupted) return null;
            at = isLast ? code.length() : code.length() - info.remaining().length();
        }
        for (Snippet snippet : declared) {
            Snippet.Status status = shell.status(snippet);
            if (status == Snippet.Status.RECOVERABLE_DEFINED || status == Snippet.Status.RECOVERABLE_NOT_DEFINED) {
                warn(unusable((DeclarationSnippet) snippet));
            }
        }
        return last == null ? null : execution.shown();
    }

    private static List<SnippetEvent> evaluated(String source, Place place) {
        execution.forget();
        // The id of the snippet is not known before it has run, but only its errors need it.
        List<SnippetEvent> events = shell.eval(source);
        for (SnippetEvent event : events) {
            if (event.causeSnippet() == null && event.snippet().id() != null) places.put(event.snippet().id(), place);
        }
        return events;
    }

    private static String message(Diag diag) {
        return Arrays.stream(diag.getMessage(Locale.ROOT).split("\n"))
            .filter(line -> !line.trim().startsWith("location:"))
            .map(line -> line.replaceAll("REPL\\.\\$JShell\\$\\d+[A-Z]?\\.?", ""))
            .collect(Collectors.joining("\n"));
    }

    // Returns the error of a snippet that does not compile.
    private static Failure wrong(Snippet snippet, Place place) {
        StringBuilder text = new StringBuilder();
        String first = null;
        String source = snippet.source();
        for (Diag diag : (Iterable<Diag>) shell.diagnostics(snippet)::iterator) {
            if (!diag.isError()) continue;
            String message = message(diag);
            if (first == null) first = message.replaceAll("\\s*\n\\s*", "; ");
            int position = (int) Math.max(0, Math.min(diag.getPosition(), source.length()));
            int begin = source.lastIndexOf('\n', position - 1) + 1;
            int end = source.indexOf('\n', position);
            String excerpt = source.substring(begin, end < 0 ? source.length() : end);
            int line = 1 + (int) source.substring(0, begin).chars().filter(c -> c == '\n').count();
            text.append(place.at(line)).append(": error: ").append(message).append('\n');
            if (excerpt.length() <= 1000) {
                text.append(excerpt).append('\n').append(" ".repeat(position - begin)).append("^\n");
            }
        }
        if (first == null) first = "the code does not compile";
        String traceback = text.length() == 0 ? first : text.toString().stripTrailing();
        return new Failure("CompileError", shortened(first), shortened(traceback));
    }

    static String shortened(String text) {
        int length = text.length();
        if (length <= TEXT_CHARACTERS_MAX) return text;
        int half = TEXT_CHARACTERS_MAX / 2;
        return text.substring(0, half) + "\n[... " + (length - TEXT_CHARACTERS_MAX) + " characters were left out ...]\n"
            + text.substring(length - half);
    }

    // Returns the error of code that threw something.
    private static Failure described(Throwable thrown) {
        String name = nameOf(thrown);
        String value = thrown instanceof UnresolvedReferenceException
            ? unusable(((UnresolvedReferenceException) thrown).getSnippet())
            : thrown.getMessage();
        StringBuilder text = new StringBuilder();
        Set<Throwable> seen = new LinkedHashSet<>();
        for (Throwable cause = thrown; cause != null && seen.add(cause) && seen.size() < 20; cause = cause.getCause()) {
            if (cause != thrown) text.append("Caused by: ");
            text.append(nameOf(cause));
            String message = cause == thrown ? value : cause.getMessage();
            if (message != null) text.append(": ").append(shortened(message));
            text.append('\n');
            frames(cause.getStackTrace(), text);
        }
        String simple = name.substring(Math.max(name.lastIndexOf('.'), name.lastIndexOf('$')) + 1);
        return new Failure(simple, value == null ? "" : shortened(value), shortened(text.toString().stripTrailing()));
    }

    private static String nameOf(Throwable thrown) {
        String name = thrown instanceof EvalException ? ((EvalException) thrown).getExceptionClassName()
            : thrown instanceof UnresolvedReferenceException ? "UnresolvedReference" : thrown.getClass().getName();
        return name.replaceAll("^REPL\\.\\$JShell\\$\\d+[A-Z]?\\$", "");
    }

    // Says why something that was declared cannot be used.
    private static String unusable(DeclarationSnippet snippet) {
        String missing = shell.unresolvedDependencies(snippet).collect(Collectors.joining(", "));
        String why = shell.diagnostics(snippet).map(diag -> message(diag).replaceAll("\\s*\n\\s*", "; "))
            .collect(Collectors.joining("; "));
        String until = missing.isEmpty() ? why : "declare " + missing;
        return "`" + snippet.name() + "` cannot be used yet: " + until;
    }

    private static void frames(StackTraceElement[] trace, StringBuilder text) {
        int length = trace.length;
        while (length > 0 && !isCode(trace[length - 1])) length--;
        // Without a frame of the code, it was thrown for the code.
        if (length == 0) length = trace.length;
        for (int i = 0; i < length; i++) {
            StackTraceElement frame = trace[i];
            if (length > 200 && i == 100) {
                text.append("    ... ").append(length - 200).append(" frames were left out ...\n");
                i = length - 100;
            }
            if (!isCode(frame)) {
                if (!frame.getClassName().startsWith("jdk.jshell.")) text.append("    at ").append(frame).append('\n');
                continue;
            }
            Place place = places.get(frame.getFileName().substring(1));
            String where = place == null ? "<cell " + count + ">" : place.at(frame.getLineNumber());
            String method = frame.getMethodName().startsWith("lambda$do_it$") ? "" : frame.getMethodName();
            String type = frame.getClassName();
            String of = type.isEmpty() || method.isEmpty() ? method : type + "." + method;
            text.append("    at ").append(of.isEmpty() ? where : of + " (" + where + ")").append('\n');
        }
    }

    private static boolean isCode(StackTraceElement frame) {
        return frame.getFileName() != null && frame.getFileName().startsWith("#");
    }

    // ---- Completions

    private static void complete(long number, String code, int cursor) throws IOException {
        messages.sendBoth(Messages.head("begin", number) + ",\"count\":" + count + "}");
        int start = cursor;
        Set<String> matches = new LinkedHashSet<>();
        try {
            String before = code.substring(0, code.offsetByCodePoints(0, cursor));
            int at = 0;
            for (;;) {
                CompletionInfo info = analysis.analyzeCompletion(before.substring(at));
                if (!info.completeness().isComplete() || info.remaining() == null || info.remaining().isEmpty()) break;
                at = before.length() - info.remaining().length();
            }
            String snippet = before.substring(at);
            int[] anchor = {snippet.length()};
            for (Suggestion suggestion : analysis.completionSuggestions(snippet, snippet.length(), anchor)) {
                if (matches.size() < 5000) matches.add(suggestion.continuation());
            }
            start = before.codePointCount(0, at + anchor[0]);
        } catch (RuntimeException error) {
            matches.clear();
        }
        String list = matches.stream().map(Messages::quoted).collect(Collectors.joining(","));
        messages.send(Messages.head("completions", number) + ",\"start\":" + start + ",\"matches\":[" + list + "]}");
        end(number);
    }

    // ---- Interrupts

    // By reflection, because the compiler warns of the names.
    private static void handleInterrupts() throws ReflectiveOperationException {
        Class<?> signal = Class.forName("sun.misc.Signal");
        Class<?> handler = Class.forName("sun.misc.SignalHandler");
        Class<?>[] types = {handler};
        Object ours = Proxy.newProxyInstance(handler.getClassLoader(), types, (proxy, method, given) -> {
            if (method.getName().equals("handle")) interrupt();
            return null;
        });
        Object number = signal.getConstructor(String.class).newInstance("INT");
        signal.getMethod("handle", signal, handler).invoke(null, number, ours);
    }

    private static void interrupt() {
        Run ours;
        synchronized (lock) {
            ours = run;
            if (ours == null || ours.isInterrupted) return;
            ours.isInterrupted = true;
        }
        // What ignores the first kind of interrupt gets the second kind.
        for (int tries = 0; tries < 100; tries++) {
            synchronized (lock) {
                if (run != ours) return;
            }
            if (tries == 0) execution.interrupt();
            else execution.end();
            try {
                Thread.sleep(150);
            } catch (InterruptedException ignored) {
                return;
            }
        }
    }

    static boolean isInterrupted() {
        return run != null && run.isInterrupted;
    }
}
