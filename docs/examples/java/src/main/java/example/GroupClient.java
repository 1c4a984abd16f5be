package example;

import static java.nio.charset.StandardCharsets.UTF_8;

import example.PlatformException.NotSent;
import example.PlatformException.OutcomeUnknown;
import example.PlatformException.Refused;
import example.PlatformException.Throttled;
import java.io.IOException;
import java.net.ConnectException;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpConnectTimeoutException;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Clock;
import java.time.Duration;
import java.time.ZoneId;
import java.time.format.DateTimeFormatter;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ThreadLocalRandom;

/**
 * A client of the platform's group operations.
 *
 * <p>A request is repeated only if that cannot do anything twice: after {@link NotSent} and {@link Throttled}, and after
 * {@link OutcomeUnknown} if the operation is idempotent.
 */
public final class GroupClient {

    /** The application, and the account that acts. */
    public record Credentials(String appId, String appToken, String userName) {
        @Override
        public String toString() { // a token must not reach a log
            return "Credentials[" + appId + ", " + userName + "]";
        }
    }

    /** Waits before a request is repeated. */
    @FunctionalInterface
    public interface Sleeper {
        void sleep(Duration pause) throws InterruptedException;
    }

    /** The type of a group, which determines its capacity. */
    public enum GroupType {
        TEMPORARY,
        PAID_300,
        PAID_500,
        PAID_1000,
        VIP
    }

    private static final String VERSION = "2013-12-26";
    private static final String SUCCESS = "000000";
    private static final int ATTEMPTS = 3;
    private static final Duration TIMEOUT = Duration.ofSeconds(10);
    private static final DateTimeFormatter STAMP =
            DateTimeFormatter.ofPattern("yyyyMMddHHmmss").withZone(ZoneId.of("Asia/Shanghai"));

    private final HttpClient http = HttpClient.newBuilder()
            .version(HttpClient.Version.HTTP_1_1)
            .connectTimeout(TIMEOUT)
            .followRedirects(HttpClient.Redirect.NEVER) // a redirect would repeat the signature elsewhere
            .build();
    private final URI baseUrl;
    private final Credentials credentials;
    private final Clock clock;
    private final Sleeper sleeper;

    public GroupClient(URI baseUrl, Credentials credentials) {
        this(baseUrl, credentials, Clock.systemUTC(), pause -> Thread.sleep(pause.toMillis()));
    }

    public GroupClient(URI baseUrl, Credentials credentials, Clock clock, Sleeper sleeper) {
        this.baseUrl = baseUrl;
        this.credentials = credentials;
        this.clock = clock;
        this.sleeper = sleeper;
    }

    /**
     * Creates a group and returns its id. It is not repeated after {@link OutcomeUnknown}: that could make a second group.
     */
    public String createGroup(String name, GroupType type) throws PlatformException, InterruptedException {
        var body = new LinkedHashMap<String, Object>();
        body.put("name", name);
        body.put("type", String.valueOf(type.ordinal()));
        body.put("permission", "0");
        body.put("target", "1");
        return (String) call("CreateGroup", body, false).get("groupId");
    }

    /**
     * Invites accounts, which join at once, and returns the entries of those that the platform refuses. Inviting a member
     * again changes nothing.
     */
    public List<?> invite(String groupId, List<String> members) throws PlatformException, InterruptedException {
        return invite(groupId, members, false);
    }

    /** Sends invitations that the accounts must accept. Each request sends them. */
    public List<?> inviteWithConfirmation(String groupId, List<String> members)
            throws PlatformException, InterruptedException {
        return invite(groupId, members, true);
    }

    private List<?> invite(String groupId, List<String> members, boolean confirmation)
            throws PlatformException, InterruptedException {
        var body = new LinkedHashMap<String, Object>();
        body.put("groupId", groupId);
        body.put("members", members);
        body.put("confirm", confirmation ? "0" : "1");
        return call("InviteJoinGroup", body, !confirmation).get("fails") instanceof List<?> fails ? fails : List.of();
    }

    private Map<String, Object> call(String operation, Map<String, Object> body, boolean idempotent)
            throws PlatformException, InterruptedException {
        for (int attempt = 1; ; attempt++) {
            try {
                return send(operation, body);
            } catch (PlatformException failure) {
                if (attempt == ATTEMPTS || !isRepeatable(failure, idempotent)) {
                    throw failure;
                }
                sleeper.sleep(pause(failure, attempt));
            }
        }
    }

    private static boolean isRepeatable(PlatformException failure, boolean idempotent) {
        return failure instanceof NotSent
                || failure instanceof Throttled
                || (idempotent && failure instanceof OutcomeUnknown);
    }

    private static Duration pause(PlatformException failure, int attempt) {
        var backoff = Duration.ofMillis(ThreadLocalRandom.current().nextLong(200L << attempt));
        return failure instanceof Throttled throttled ? throttled.retryAfter().orElse(backoff) : backoff;
    }

    private Map<String, Object> send(String operation, Map<String, Object> body)
            throws PlatformException, InterruptedException {
        body.put("userName", credentials.userName());
        HttpResponse<String> response;
        try {
            response = http.send(request(operation, Json.write(body)), BodyHandlers.ofString(UTF_8));
        } catch (ConnectException | HttpConnectTimeoutException failure) {
            throw new NotSent(operation + ": cannot connect to " + baseUrl, failure);
        } catch (IOException failure) {
            throw new OutcomeUnknown(operation + ": no answer", failure);
        }
        int status = response.statusCode();
        if (status == 429) {
            throw new Throttled(response.headers().firstValue("Retry-After").map(GroupClient::seconds).orElse(null));
        }
        if (status >= 400 && status < 500) {
            throw new Refused(String.valueOf(status), operation);
        }
        return read(operation, status, response.body());
    }

    /** Makes a request that is signed now: the platform refuses old signatures. */
    private HttpRequest request(String operation, String body) {
        String appId = credentials.appId();
        String stamp = STAMP.format(clock.instant());
        String sig = Digests.md5(appId + credentials.appToken() + stamp);
        String id = URLEncoder.encode(appId, UTF_8);
        String path = "/%s/Application/%s/IM/Group/%s?sig=%s".formatted(VERSION, id, operation, sig);
        return HttpRequest.newBuilder(URI.create(baseUrl + path))
                .timeout(TIMEOUT)
                .header("Accept", "application/json")
                .header("Content-Type", "application/json;charset=utf-8")
                .header("Authorization", Base64.getEncoder().encodeToString((appId + ":" + stamp).getBytes(UTF_8)))
                .POST(BodyPublishers.ofString(body, UTF_8))
                .build();
    }

    private static Map<String, Object> read(String operation, int status, String body) throws PlatformException {
        Map<String, Object> answer;
        try {
            answer = Json.readObject(body);
        } catch (IllegalArgumentException failure) {
            throw new OutcomeUnknown(operation + ": HTTP " + status + " with an answer that is not JSON", failure);
        }
        if (status != 200 || !(answer.get("statusCode") instanceof String code)) {
            throw new OutcomeUnknown(operation + ": HTTP " + status + " without a status code", null);
        }
        if (!code.equals(SUCCESS)) {
            throw new Refused(code, String.valueOf(answer.get("statusMsg")));
        }
        return answer;
    }

    private static Duration seconds(String text) {
        try {
            return Duration.ofSeconds(Long.parseLong(text.strip()));
        } catch (NumberFormatException date) {
            return null;
        }
    }
}
