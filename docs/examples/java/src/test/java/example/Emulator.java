package example;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Clock;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** An emulator of the platform, and its control interface. */
final class Emulator implements AutoCloseable {

    private static final String EXPORT = "export ";

    private final HttpClient http = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    private final Map<String, String> variables;
    private final Process process;
    private Clock clock;

    private Emulator(Map<String, String> variables, Process process) {
        this.variables = variables;
        this.process = process;
        this.clock = read(ask("GET", "clock", null));
    }

    /** Uses the emulator of RBIM_BASE_URL, such as the container beside these tests, or starts one. */
    static Emulator start() throws IOException {
        if (System.getenv("RBIM_BASE_URL") != null) {
            return new Emulator(System.getenv(), null);
        }
        Process process = new ProcessBuilder("rbim", "emulator", "--port", "0", "--emulated-clock", "--quiet")
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start();
        var variables = new HashMap<String, String>();
        var lines = new BufferedReader(new InputStreamReader(process.getInputStream(), UTF_8));
        while (!variables.containsKey("RBIM_EMULATOR_URL")) { // the last one
            String line = lines.readLine();
            if (line == null) {
                throw new IOException("rbim emulator has ended");
            }
            if (line.startsWith(EXPORT)) {
                String[] pair = line.substring(EXPORT.length()).split("=", 2);
                variables.put(pair[0], pair[1]);
            }
        }
        return new Emulator(variables, process);
    }

    URI url() {
        return URI.create(variables.get("RBIM_BASE_URL"));
    }

    GroupClient.Credentials credentials() {
        return new GroupClient.Credentials(variables.get("RBIM_APP_ID"), variables.get("RBIM_APP_TOKEN"), "admin");
    }

    /** Its time: that of this machine, or an emulated one that stands still. */
    Clock clock() {
        return clock;
    }

    boolean emulated() {
        return !clock.equals(Clock.systemUTC());
    }

    void advance(int hours) {
        clock = read(ask("POST", "clock/advance", Map.of("hours", hours)));
    }

    void reset() {
        ask("POST", "reset", null);
    }

    /** Lets requests fail. The kinds of faults are in the emulator's documentation. */
    void fault(Map<String, ?> fault) {
        ask("PUT", "faults", List.of(fault));
    }

    /** Returns the groups of its state. */
    List<?> groups() {
        return (List<?>) ((Map<?, ?>) ask("GET", "state", null)).get("groups");
    }

    /** Returns the number of requests for an operation since the last reset. */
    long requests(String operation) {
        var requests = (List<?>) ask("GET", "requests", null);
        return requests.stream().filter(each -> operation.equals(((Map<?, ?>) each).get("operation"))).count();
    }

    /** Sends a command: GET /_emulator/state is {@code ask("GET", "state", null)}. */
    Object ask(String method, String path, Object body) {
        var request = HttpRequest.newBuilder(URI.create(url() + "/_emulator/" + path))
                .header("Content-Type", "application/json")
                .method(method, body == null ? BodyPublishers.noBody() : BodyPublishers.ofString(Json.write(body)))
                .build();
        try {
            var response = http.send(request, BodyHandlers.ofString(UTF_8));
            if (response.statusCode() != 200) {
                throw new IllegalStateException(method + " " + path + ": " + response.body());
            }
            return Json.read(response.body());
        } catch (IOException | InterruptedException failure) {
            throw new IllegalStateException(method + " " + path, failure);
        }
    }

    @Override
    public void close() throws InterruptedException {
        if (process != null) {
            process.destroy();
            process.waitFor();
        }
    }

    private static Clock read(Object answer) {
        var fields = (Map<?, ?>) answer;
        if (!Boolean.TRUE.equals(fields.get("emulated"))) {
            return Clock.systemUTC();
        }
        return Clock.fixed(OffsetDateTime.parse((String) fields.get("now")).toInstant(), ZoneOffset.UTC);
    }
}
