package example;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;

/** Reads and writes JSON, which the JDK does not. Use the library of your application instead. */
final class Json {

    private static final int DEEPEST = 100;

    private final String text;
    private int at;
    private int depth;

    private Json(String text) {
        this.text = text;
    }

    /** Returns an object. Throws IllegalArgumentException for any other text. */
    @SuppressWarnings("unchecked")
    static Map<String, Object> readObject(String text) {
        if (read(text) instanceof Map<?, ?> object) {
            return (Map<String, Object>) object;
        }
        throw new IllegalArgumentException("not an object");
    }

    /** Returns a value: Map, List, String, Double, Boolean or null. Throws IllegalArgumentException if it is not JSON. */
    static Object read(String text) {
        var json = new Json(text);
        Object value = json.value();
        json.blanks();
        if (json.at < text.length()) {
            throw json.wrong();
        }
        return value;
    }

    static String write(Object value) {
        var out = new StringBuilder();
        write(value, out);
        return out.toString();
    }

    private static void write(Object value, StringBuilder out) {
        if (value instanceof Map<?, ?> object) {
            String comma = "{";
            for (var entry : object.entrySet()) {
                out.append(comma);
                write(String.valueOf(entry.getKey()), out);
                out.append(':');
                write(entry.getValue(), out);
                comma = ",";
            }
            out.append(object.isEmpty() ? "{}" : "}");
        } else if (value instanceof List<?> list) {
            String comma = "[";
            for (var each : list) {
                out.append(comma);
                write(each, out);
                comma = ",";
            }
            out.append(list.isEmpty() ? "[]" : "]");
        } else if (value instanceof String string) {
            out.append('"');
            string.chars().forEach(c -> {
                if (c == '"' || c == '\\') {
                    out.append('\\').append((char) c);
                } else if (c < ' ') {
                    out.append("\\u%04x".formatted(c));
                } else {
                    out.append((char) c);
                }
            });
            out.append('"');
        } else {
            out.append(value); // a number, true, false, null
        }
    }

    private Object value() {
        blanks();
        if (at == text.length()) {
            throw wrong();
        }
        return switch (text.charAt(at)) {
            case '{' -> nested(this::object);
            case '[' -> nested(this::array);
            case '"' -> string();
            default -> word();
        };
    }

    private Object nested(Supplier<Object> read) {
        if (++depth > DEEPEST) {
            throw wrong();
        }
        at++;
        Object value = read.get();
        depth--;
        return value;
    }

    private Map<String, Object> object() {
        var object = new LinkedHashMap<String, Object>();
        if (take('}')) {
            return object;
        }
        do {
            blanks();
            if (at == text.length() || text.charAt(at) != '"') {
                throw wrong();
            }
            String name = string();
            expect(':');
            object.put(name, value());
        } while (take(','));
        expect('}');
        return object;
    }

    private List<Object> array() {
        var array = new ArrayList<>();
        if (take(']')) {
            return array;
        }
        do {
            array.add(value());
        } while (take(','));
        expect(']');
        return array;
    }

    private String string() {
        var out = new StringBuilder();
        for (at++; at < text.length(); at++) {
            char c = text.charAt(at);
            if (c == '"') {
                at++;
                return out.toString();
            }
            if (c < ' ') {
                throw wrong();
            }
            out.append(c == '\\' ? escaped() : c);
        }
        throw wrong();
    }

    private char escaped() {
        if (++at == text.length()) {
            throw wrong();
        }
        char c = text.charAt(at);
        if (c == 'u' && at + 4 < text.length()) {
            at += 4;
            return (char) Integer.parseInt(text, at - 3, at + 1, 16);
        }
        int known = "bfnrt\"\\/".indexOf(c);
        if (known < 0) {
            throw wrong();
        }
        return "\b\f\n\r\t\"\\/".charAt(known);
    }

    private Object word() {
        int begin = at;
        while (at < text.length() && " \t\r\n,:]}".indexOf(text.charAt(at)) < 0) {
            at++;
        }
        String word = text.substring(begin, at);
        return switch (word) {
            case "true" -> true;
            case "false" -> false;
            case "null" -> null;
            default -> number(word);
        };
    }

    private Double number(String word) {
        if (!word.matches("-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?")) {
            throw wrong();
        }
        return Double.valueOf(word);
    }

    private boolean take(char c) {
        blanks();
        boolean there = at < text.length() && text.charAt(at) == c;
        at += there ? 1 : 0;
        return there;
    }

    private void expect(char c) {
        if (!take(c)) {
            throw wrong();
        }
    }

    private void blanks() {
        while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
    }

    private IllegalArgumentException wrong() {
        return new IllegalArgumentException("not JSON at character " + at);
    }
}
