// A pipe, also if a program has made it non-blocking. Pieces that it takes as a whole or not at all can be written
// again.
final class Pipe extends OutputStream {
    private static final int PIECE_BYTES_MAX = 4096;
    private final FileOutputStream file;

    Pipe(FileDescriptor descriptor) {
        file = new FileOutputStream(descriptor);
    }

    @Override
    public void write(int value) throws IOException {
        write(new byte[] {(byte) value}, 0, 1);
    }

    @Override
    public void write(byte[] bytes, int from, int length) throws IOException {
        for (int end = from + length; from < end; from += PIECE_BYTES_MAX) {
            int piece = Math.min(PIECE_BYTES_MAX, end - from);
            for (;;) {
                try {
                    file.write(bytes, from, piece);
                    break;
                } catch (IOException error) {
                    String message = error.getMessage();
                    if (message == null || !message.contains("temporarily unavailable")) throw error;
                }
                try {
                    Thread.sleep(1);
                } catch (InterruptedException interrupted) {
                    Thread.currentThread().interrupt();
                    Thread.yield();
                }
            }
        }
    }

    @Override
    public void close() throws IOException {
        file.close();
    }
}

final class Messages {
    private static final int SEGMENT_BYTES_MAX = 4096;
    private final Pipe output;
    private final Pipe errors;

    Messages(Pipe output, Pipe errors) {
        this.output = output;
        this.errors = errors;
    }

    void send(String message) {
        send(message, output);
    }

    void sendBoth(String message) {
        send(message, output);
        send(message, errors);
    }

    private static void send(String message, Pipe pipe) {
        byte[] payload = message.getBytes(StandardCharsets.UTF_8);
        int room = SEGMENT_BYTES_MAX - 2 - Marker.TEXT.length() - 4;
        for (int at = 0; at < payload.length; at += room) {
            int length = Math.min(room, payload.length - at);
            String end = at + length < payload.length ? "+" : ".";
            byte[] head = String.format("\036%s%04x%s", Marker.TEXT, length, end).getBytes(StandardCharsets.US_ASCII);
            byte[] segment = Arrays.copyOf(head, head.length + length);
            System.arraycopy(payload, at, segment, head.length, length);
            try {
                pipe.write(segment, 0, segment.length);
            } catch (IOException error) {
                Runtime.getRuntime().halt(1);
            }
        }
    }

    static String text(String type, String name, String value) {
        return "{\"type\":\"" + type + "\"" + field(name, value) + "}";
    }

    static String head(String type, long run) {
        return "{\"type\":\"" + type + "\",\"run\":" + run;
    }

    static String field(String name, String value) {
        return "," + quoted(name) + ":" + quoted(value);
    }

    // Returns how many bytes text has in a message.
    static long quotedBytes(String text) {
        long bytes = 0;
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            bytes += c < 0x20 ? 6 : c < 0x80 ? 1 : c < 0x800 ? 2 : 3;
        }
        return bytes;
    }

    static String quoted(String text) {
        StringBuilder json = new StringBuilder(text.length() + 16).append('"');
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            if (c == '"' || c == '\\') json.append('\\').append(c);
            else if (c == '\n') json.append("\\n");
            else if (c < 0x20) json.append(String.format("\\u%04x", (int) c));
            else json.append(c);
        }
        return json.append('"').toString();
    }
}
