#!/bin/sh
# Compile and run the tests with the JDK and the JUnit of Debian (default-jdk-headless, junit5), without Maven. With Maven or Gradle
# the dependency is org.junit.jupiter:junit-jupiter:5.9.2 or later, of the scope test.
# The tests start `rbim emulator`, which must be in PATH. With RBIM_BASE_URL, RBIM_APP_ID and RBIM_APP_TOKEN they use, and reset, one that
# runs: it needs --emulated-clock and, on another machine, --sign-copies. The client has the default dialect.
set -eu
cd "$(dirname "$0")"
built=${BUILD:-build}
library=${JUNIT:-/usr/share/java}
jars=$library/junit-jupiter-api.jar:$library/junit-jupiter-params.jar:$library/junit-jupiter-engine.jar
jars=$jars:$library/junit-platform-commons.jar:$library/junit-platform-engine.jar:$library/junit-platform-launcher.jar
jars=$jars:$library/junit-platform-console.jar:$library/junit-platform-reporting.jar
jars=$jars:$library/apiguardian-api.jar:$library/opentest4j.jar:$library/picocli.jar:$library/univocity-parsers.jar
mkdir -p "$built"
find src -name '*.java' > "$built/sources"
javac --release 17 -Xlint:all,-path,-serial,-try -Werror -encoding UTF-8 -d "$built/classes" -cp "$jars" "@$built/sources"
exec java -cp "$built/classes:$jars" org.junit.platform.console.ConsoleLauncher \
    --scan-classpath "$built/classes" --disable-banner --disable-ansi-colors --details tree --fail-if-no-tests "$@"
