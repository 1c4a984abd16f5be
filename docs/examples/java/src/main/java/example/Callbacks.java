package example;

import static java.nio.charset.StandardCharsets.US_ASCII;

import java.security.MessageDigest;
import java.time.Clock;
import java.time.Duration;
import java.time.Instant;
import java.util.Locale;
import java.util.Optional;
import java.util.function.Function;
import java.util.regex.Pattern;

/** Checks the signature of message copies, which the platform posts to your server. */
public final class Callbacks {

    private static final Duration OLDEST = Duration.ofMinutes(5);
    private static final Duration AHEAD = Duration.ofMinutes(1);
    private static final Pattern DIGEST = Pattern.compile("[0-9A-Fa-f]{32}");
    private static final Pattern MILLISECONDS = Pattern.compile("[0-9]{13}");

    private final String appId;
    private final String appToken;
    private final Clock clock;

    public Callbacks(String appId, String appToken, Clock clock) {
        this.appId = appId;
        this.appToken = appToken;
        this.clock = clock;
    }

    /**
     * Returns why a message copy is not authentic; empty if it is.
     *
     * <p>The platform signs with three headers: {@code MD5} of the raw body, {@code CurTime} in milliseconds, and
     * {@code CheckSum}, the MD5 of application id, token, the text of {@code MD5} and that of {@code CurTime}.
     * {@code MD5} must be compared with the body, too: otherwise one captured delivery would authenticate every other
     * body.
     *
     * @param header returns the value of a header, or null
     * @param body the bytes as they came, before any parser
     */
    public Optional<String> whyRefused(Function<String, String> header, byte[] body) {
        String digest = header.apply("MD5");
        String moment = header.apply("CurTime");
        String sum = header.apply("CheckSum");
        if (!matches(DIGEST, digest) || !matches(DIGEST, sum) || !matches(MILLISECONDS, moment)) {
            return Optional.of("a header of the signature is missing, or has another form");
        }
        if (!same(sum, Digests.md5(appId + appToken + digest + moment))) {
            return Optional.of("CheckSum is not that of this application");
        }
        if (!same(digest, Digests.md5(body))) {
            return Optional.of("MD5 is not that of the body");
        }
        Duration age = Duration.between(Instant.ofEpochMilli(Long.parseLong(moment)), clock.instant());
        boolean inTime = age.compareTo(OLDEST) <= 0 && age.compareTo(AHEAD.negated()) >= 0;
        return inTime ? Optional.empty() : Optional.of("it was signed " + age.toSeconds() + " seconds ago");
    }

    private static boolean matches(Pattern pattern, String text) {
        return text != null && pattern.matcher(text).matches();
    }

    private static boolean same(String left, String right) {
        return MessageDigest.isEqual(lower(left), lower(right));
    }

    private static byte[] lower(String text) {
        return text.toLowerCase(Locale.ROOT).getBytes(US_ASCII);
    }
}
