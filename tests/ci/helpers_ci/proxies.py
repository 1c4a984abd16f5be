"""nginx, HAProxy and squid of Debian's packages, on free ports of the loopback, with a log that names each request.

A request is named by the ``name`` or the ``msgId`` in its body, so that its lines in the log can be compared with what a
client or a receiver says of it.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager

import pytest

from helpers.processes import wait_until
from helpers.sockets import free_port, listens

ENOUGH = 20.0


def _found(program):
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin")


NGINX, HAPROXY, SQUID = _found("nginx"), _found("haproxy"), _found("squid")

needs_proxies = [
    pytest.mark.skipif(sys.platform == "win32", reason="the proxies reload on a signal"),
    pytest.mark.skipif(not (NGINX and HAPROXY), reason="nginx or haproxy is not installed"),
]
"""The marks of tests that need both; CI installs them, and the tests fail there without them."""

needs_squid = pytest.mark.skipif(not SQUID, reason="squid is not installed")


class Proxy:
    """A proxy in front of upstream ports: ``with Nginx(folder, port).running() as proxy``.

    Each has its ``command``; ``ready``, how often it has said that it is ready, since the first start; and ``lines``, what
    was logged so far: ``name``, ``status``, and ``tries``, how many upstreams got the request.
    """

    reloads_on = signal.SIGHUP

    def __init__(self, folder, *upstreams, certificate=None, **settings):
        self.folder = folder
        self.port, self._commands = free_port(), free_port()
        self._certificate = certificate
        self._upstreams = upstreams
        self._settings = settings
        self._process = None
        self.scheme = "http" if certificate is None else "https"

    @property
    def origin(self):
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def tries(self):
        found = Counter()
        for line in self.lines():
            found[line["name"]] += line["tries"]
        return found

    def start(self):
        before = self.ready()
        with (self.folder / "output.log").open("ab") as output:
            self._process = subprocess.Popen(self.command(), cwd=self.folder, stdout=output, stderr=subprocess.STDOUT)
        self._until(lambda: listens(self.port))
        self._until(lambda: self.ready() > before)  # until then it heeds no signal

    def _until(self, true):
        def alive_and_true():
            assert self._process.poll() is None, (self.folder / "output.log").read_text()[-2000:]
            return true()

        wait_until(alive_and_true, ENOUGH, 0.01)

    def reload(self):
        """Reload the configuration; return when the new workers run. The old ones end when their requests are answered."""
        before = self.ready()
        self._process.send_signal(self.reloads_on)
        self._until(lambda: self.ready() > before)

    def stop(self):
        self._process.terminate()
        try:
            self._process.wait(ENOUGH)
        finally:
            self._process.kill()
            self._process.wait()

    @contextmanager
    def running(self):
        self.start()
        try:
            yield self
        finally:
            self.stop()


def _named(body):
    try:
        document = json.loads(body)
    except ValueError:
        return ""
    return str(document.get("name") or document.get("msgId") or "")


class Nginx(Proxy):
    """nginx with two workers. Settings: ``http``, ``server``, ``location`` and ``upstream`` are lines for these blocks."""

    CONFIGURATION = """
daemon off;
worker_processes 2;
pid {folder}/pid;
error_log {folder}/error.log notice;
events {{ worker_connections 512; }}
http {{
    log_format names escape=json
        '{{"body":"$request_body","status":"$status","upstream":"$upstream_addr","upstream_status":"$upstream_status"}}';
    access_log {folder}/access.log names;
    client_body_temp_path {folder}/body;
    client_body_buffer_size 64k;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_requests 1000000;
    {http}
    upstream service {{
        {servers}
        {upstream}
    }}
    server {{
        listen 127.0.0.1:{port}{tls};
        {server}
        location / {{
            proxy_pass http://service;
            proxy_set_header Host $http_host;
            {location}
        }}
    }}
}}
"""

    def command(self):
        assert NGINX, "CI must install nginx"
        tls, server = "", self._settings.get("server", "")
        if self._certificate is not None:
            tls = " ssl"
            server += f"\n        ssl_certificate {self._certificate}; ssl_certificate_key {self._certificate};"
        text = self.CONFIGURATION.format(
            folder=self.folder,
            port=self.port,
            tls=tls,
            server=server,
            servers=" ".join(f"server 127.0.0.1:{port} max_fails=0;" for port in self._upstreams),
            **{name: self._settings.get(name, "") for name in ("http", "upstream", "location")},
        )
        configuration = self.folder / "nginx.conf"
        configuration.write_text(text)
        return [NGINX, "-p", str(self.folder), "-c", str(configuration), "-e", str(self.folder / "error.log")]

    def ready(self):
        log = self.folder / "error.log"
        return log.read_text().count(": start worker processes") if log.exists() else 0

    def lines(self):
        log = self.folder / "access.log"
        found = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        return [
            {
                "name": _named(line["body"]),
                "status": int(line["status"]),
                "tries": len([each for each in line["upstream"].split(", ") if each not in {"", "-", "service"}]),
            }
            for line in found
            if line["body"]
        ]


class Haproxy(Proxy):
    """HAProxy as master and worker. Settings: ``defaults``, ``frontend`` and ``backend`` are lines for these sections."""

    reloads_on = signal.SIGUSR2

    CONFIGURATION = """
global
    log stdout format raw local0
    hard-stop-after 10s
defaults
    mode http
    log global
    timeout connect 2s
    timeout client 20s
    timeout server 20s
    timeout http-keep-alive 60s
    option http-buffer-request
    {defaults}
frontend front
    bind 127.0.0.1:{port}{tls}
    http-request capture req.body,json_query('$.name') len 64
    http-request capture req.body,json_query('$.msgId') len 64
    log-format 'request %[capture.req.hdr(0)] %[capture.req.hdr(1)] %ST %s %rc %ts'
    {frontend}
    default_backend service
backend service
    {backend}
    {servers}
"""

    def command(self):
        assert HAPROXY, "CI must install haproxy"
        text = self.CONFIGURATION.format(
            port=self.port,
            tls="" if self._certificate is None else f" ssl crt {self._certificate}",
            servers="\n    ".join(f"server s{number} 127.0.0.1:{port}" for number, port in enumerate(self._upstreams)),
            **{
                name: "\n    ".join(self._settings.get(name, "").splitlines())
                for name in ("defaults", "frontend", "backend")
            },
        )
        configuration = self.folder / "haproxy.cfg"
        configuration.write_text(text)
        return [HAPROXY, "-W", "-S", f"127.0.0.1:{self._commands}", "-f", str(configuration)]

    def ready(self):
        log = self.folder / "output.log"
        loaded = log.read_text().count("Loading success.") if log.exists() else 0
        return loaded if loaded and self._master_answers() else -1

    def _master_answers(self):
        """Whether the master answers its command line: after it has loaded, it starts itself again, and loses signals."""
        with socket.socket() as line:
            line.settimeout(ENOUGH)
            try:
                line.connect(("127.0.0.1", self._commands))
                line.sendall(b"show proc\n")
                return b"worker" in line.recv(4096)
            except OSError:
                return False

    def lines(self):
        pattern = re.compile(r'^request "?([^" ]*)"? "?([^" ]*)"? (\d+|-1) (\S+) \+?(\d+) (\S+)$', re.MULTILINE)
        found = pattern.findall((self.folder / "output.log").read_text())
        return [
            {
                "name": next((each for each in (name, number) if each not in {"", "-"}), ""),
                "status": int(status),
                "tries": 0 if server == "<NOSRV>" else 1 + int(repeats),
            }
            for name, number, status, server, repeats, _ in found
            if status != "-1" or server != "<NOSRV>"
        ]


class Squid(Proxy):
    """squid as a proxy for clients: it refuses ``denied.example``, and takes any login for ``login.example``."""

    CONFIGURATION = """
http_port 127.0.0.1:{port}
pid_filename none
cache_log /dev/null
access_log none
cache deny all
shutdown_lifetime 0 seconds
visible_hostname squid.test
auth_param basic program /usr/lib/squid/basic_fake_auth
acl denied dstdomain denied.example
acl closed dstdomain login.example
acl login proxy_auth REQUIRED
http_access deny denied
http_access deny closed !login
http_access allow all
"""

    def command(self):
        assert SQUID, "CI must install squid"
        (self.folder / "squid.conf").write_text(self.CONFIGURATION.format(port=self.port))
        return [SQUID, "-N", "-d", "1", "-f", str(self.folder / "squid.conf")]

    def ready(self):
        log = self.folder / "output.log"
        return log.read_text().count("Accepting HTTP Socket connections") if log.exists() else 0

    def lines(self):
        return []


PROXIES = {"nginx": Nginx, "haproxy": Haproxy}


def versions_of(programs):
    commands = {"nginx": [NGINX, "-v"], "haproxy": [HAPROXY, "-v"]}
    found = {}
    for program in programs:
        done = subprocess.run([each or "" for each in commands[program]], capture_output=True, text=True, check=True)
        number = re.search(r"\d+\.\d+\.\d+", done.stdout + done.stderr)
        assert number is not None
        found[program] = number[0]
    return found
