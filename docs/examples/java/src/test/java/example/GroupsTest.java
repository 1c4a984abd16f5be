package example;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import example.GroupClient.GroupType;
import example.PlatformException.NotSent;
import example.PlatformException.OutcomeUnknown;
import example.PlatformException.Refused;
import example.PlatformException.Throttled;
import java.io.IOException;
import java.net.ServerSocket;
import java.net.URI;
import java.time.Clock;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class GroupsTest {

    private static Emulator emulator;
    private final List<Duration> waits = new ArrayList<>();

    @BeforeAll
    static void start() throws IOException {
        emulator = Emulator.start();
    }

    @AfterAll
    static void stop() throws InterruptedException {
        emulator.close();
    }

    @BeforeEach
    void reset() {
        emulator.reset();
    }

    private GroupClient client() {
        return client(emulator.url(), emulator.clock());
    }

    private GroupClient client(URI url, Clock clock) {
        return new GroupClient(url, emulator.credentials(), clock, waits::add);
    }

    private static Set<?> members() {
        return ((Map<?, ?>) ((Map<?, ?>) emulator.groups().get(0)).get("members")).keySet();
    }

    @Test
    void aGroupIsCreatedAndAccountsJoinIt() throws Exception {
        String id = client().createGroup("产品公告", GroupType.VIP);
        assertEquals(List.of(), client().invite(id, List.of("1001", "1002")));
        var group = (Map<?, ?>) emulator.groups().get(0);
        assertEquals(List.of(id, "产品公告"), List.of(group.get("group_id"), group.get("name")));
        assertEquals(Set.of("admin", "1001", "1002"), members());
    }

    @Test
    void aRefusalHasItsCodeAndIsNotRepeated() {
        var refused = assertThrows(Refused.class, () -> client().invite("g80000000000000", List.of("1001")));
        assertNotEquals("429", refused.code());
        assertEquals(1, emulator.requests("InviteJoinGroup"));
    }

    @Test
    void aThrottledRequestIsRepeatedAsLateAsThePlatformAsksForAlsoIfItCreatesSomething() throws Exception {
        var throttled = Map.of("kind", "status", "status", 429, "retry_after", 7);
        emulator.fault(Map.of("effect", throttled, "nth", List.of(1)));
        client().createGroup("News", GroupType.VIP);
        assertEquals(List.of(Duration.ofSeconds(7)), waits);
        assertEquals(1, emulator.groups().size());
    }

    @Test
    void aRequestIsSentThreeTimesAtMost() {
        emulator.fault(Map.of("effect", Map.of("kind", "throttle", "per_second", 0)));
        assertThrows(Throttled.class, () -> client().createGroup("News", GroupType.VIP));
        assertEquals(3, emulator.requests("CreateGroup"));
    }

    @Test
    void aRequestIsRepeatedIfNothingWasSent() throws Exception {
        int port;
        try (var socket = new ServerSocket(0)) {
            port = socket.getLocalPort();
        }
        var lost = client(URI.create("http://127.0.0.1:" + port), emulator.clock());
        assertThrows(NotSent.class, () -> lost.createGroup("News", GroupType.VIP));
        assertEquals(2, waits.size());
    }

    @ParameterizedTest
    @ValueSource(strings = {"reset_before", "reset_after", "cut_short", "invalid_json"})
    void withoutAnAnswerOnlyAnIdempotentRequestIsRepeated(String kind) throws Exception {
        var effect = Map.of("kind", kind);
        String id = client().createGroup("News", GroupType.VIP);
        emulator.fault(Map.of("effect", effect, "operation", "InviteJoinGroup", "nth", List.of(1)));
        client().invite(id, List.of("1001"));
        assertEquals(Set.of("admin", "1001"), members());
        assertEquals(2, emulator.requests("InviteJoinGroup"));

        emulator.fault(Map.of("effect", effect));
        assertThrows(OutcomeUnknown.class, () -> client().inviteWithConfirmation(id, List.of("1002")));
        assertThrows(OutcomeUnknown.class, () -> client().createGroup("Other", GroupType.VIP));
        assertEquals(3, emulator.requests("InviteJoinGroup"));
        assertEquals(kind.equals("reset_before") ? 1 : 2, emulator.groups().size());
    }

    @Test
    void aSignatureIsRefusedADayLaterAndMadeAnewByTheTimeOfThePlatform() throws Exception {
        assumeTrue(emulator.emulated(), "the emulator of RBIM_BASE_URL has no emulated clock");
        var late = client();
        emulator.advance(25);
        assertThrows(Refused.class, () -> late.createGroup("News", GroupType.VIP));
        client().createGroup("News", GroupType.VIP);
        assertEquals(1, emulator.groups().size());
    }
}
