package example;

import static java.nio.charset.StandardCharsets.UTF_8;
import static java.util.concurrent.TimeUnit.SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.time.Clock;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class CallbacksTest {

    private static Emulator emulator;
    private final BlockingQueue<String> received = new LinkedBlockingQueue<>();
    private Callbacks callbacks;
    private HttpServer server;

    @BeforeAll
    static void start() throws IOException {
        emulator = Emulator.start();
    }

    @AfterAll
    static void stop() throws InterruptedException {
        emulator.close();
    }

    @BeforeEach
    void serve() throws IOException {
        emulator.reset();
        var credentials = emulator.credentials();
        callbacks = new Callbacks(credentials.appId(), credentials.appToken(), emulator.clock());
        server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        server.createContext("/", this::receive);
        server.start();
        emulator.ask("PUT", "copy", Map.of("url", "http://127.0.0.1:" + server.getAddress().getPort() + "/"));
    }

    @AfterEach
    void close() {
        emulator.ask("DELETE", "copy", null);
        server.stop(0);
    }

    /** Answers a copy with 200 if it is authentic, and notes its text, or why it is refused. */
    private void receive(HttpExchange exchange) throws IOException {
        try (exchange) {
            byte[] body = exchange.getRequestBody().readAllBytes();
            var refused = callbacks.whyRefused(exchange.getRequestHeaders()::getFirst, body);
            exchange.sendResponseHeaders(refused.isEmpty() ? 200 : 403, -1);
            received.add(refused.orElseGet(() -> (String) Json.readObject(new String(body, UTF_8)).get("body")));
        }
    }

    private String say(String text) throws InterruptedException {
        emulator.ask("POST", "say", Map.of("sender", "1001", "to", "1002", "text", text));
        return received.poll(10, SECONDS);
    }

    @Test
    void aCopyIsVerifiedByItsSignature() throws Exception {
        assertEquals("你好", say("你好"));
    }

    @ParameterizedTest
    @CsvSource({
        "tamper, 0, MD5 is not that of the body",
        "stale, 3600, it was signed 3[56]\\d\\d seconds ago",
        "stale, -3600, it was signed -3[56]\\d\\d seconds ago",
    })
    void aCopyThatIsNotAuthenticIsRefused(String kind, int seconds, String reason) throws Exception {
        var effect = kind.equals("tamper") ? Map.of("kind", kind) : Map.of("kind", kind, "seconds", seconds);
        emulator.ask("PUT", "copy-faults", List.of(Map.of("effect", effect)));
        String why = say("hello");
        assertTrue(why.matches(reason), why);
    }

    @Test
    void withoutTheRightCheckSumItIsRefused() {
        var other = new Callbacks("another", "application", Clock.systemUTC());
        var headers = Map.of("MD5", "0".repeat(32), "CurTime", "1".repeat(13), "CheckSum", "0".repeat(32));
        assertEquals("CheckSum is not that of this application", other.whyRefused(headers::get, new byte[0]).get());
        assertTrue(other.whyRefused(name -> null, new byte[0]).get().contains("missing"));
    }
}
