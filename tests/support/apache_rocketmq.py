"""The real Apache RocketMQ (4.9.7, or a version that is asked for), run as child processes.

It comes from Maven Central. Interop tests and the benchmark call this, on any thread; every call
blocks. Nothing of pyromq is imported, so that the judge shares no code with what it judges.

    with ApacheRocketMQ() as java:            # a NameServer and a broker on free ports
        talk_to(java.namesrv_address, java.broker_address)

    with ApacheRocketMQ(broker_only=True, namesrv_address="127.0.0.1:9876", store=directory):
        ...                                   # a Java broker under another NameServer

Invariants:
1. Whatever was started is ended: by stop() or kill(), at interpreter exit, and, should this
   process itself be killed, by a watchdog that sees its pipe close.
2. Everything Java writes goes below one temporary directory (its user.home too), or below the
   store directory that the caller names. The temporary one is deleted by stop(), unless the
   start failed: then it stays, and the error names the log.
3. Maven runs once per list of artifacts; parallel callers wait on a file lock.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.downloads import download
from tests.support.patience import PATIENT_PROPERTIES

VERSION = "4.9.7"
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "apache-rocketmq"

#: Enough for tests; the benchmark gives Java what its own start script would.
TEST_JVM_OPTIONS = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC")
#: Small, and quick to start: most tests need a broker for seconds.
QUICK_JVM_OPTIONS = ("-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
NAMESRV_JVM_OPTIONS = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

#: RocketMQ 4.9 was written for Java 8; on 17 it needs these doors opened, to unmap its files and
#: to make a certificate for TLS.
_OPEN_MODULES = tuple(
    f"--add-{how}=java.base/{package}=ALL-UNNAMED"
    for how in ("exports", "opens")
    for package in ("java.nio", "sun.nio.ch", "jdk.internal.ref", "sun.security.x509")
)

_QUIET_LOGBACK = """<configuration>
  <appender name="file" class="ch.qos.logback.core.FileAppender">
    <file>{log}</file>
    <encoder><pattern>%d %p %t %c - %m%n</pattern></encoder>
  </appender>
  <root level="{level}"><appender-ref ref="file"/></root>
</configuration>
"""

_GET_BROKER_CLUSTER_INFO = 106
_START_ATTEMPTS = 3
#: With fewer ports below those that the system gives away, any will do.
_LEAST_PORTS = 15_000
_REGISTRATION_POLL_SECONDS = 0.05
#: Files named like the ports that tests of this machine are about to use.
_RESERVED_PORTS = Path(tempfile.gettempdir(), f"pyromq-test-ports-{os.getuid()}")
_RESERVED_SECONDS = 300.0


class ApacheRocketMQError(RuntimeError):
    """The Java system could not be fetched, started or stopped; the text says where to look."""


def java_or_skip() -> tuple[str, str]:
    """Return the paths of java and mvn; skip the running test without them, fail it in CI."""
    import pytest

    paths = {name: shutil.which(name) for name in ("java", "mvn")}
    missing = [name for name, path in paths.items() if path is None]
    if missing:
        reason = f"{' and '.join(missing)} not found on PATH: no real Apache RocketMQ to talk to"
        if os.environ.get("CI") == "true":
            pytest.fail(reason + " (CI=true: a skip is a failure)")
        pytest.skip(reason)
    return str(paths["java"]), str(paths["mvn"])


def classpath(*artifacts: str, is_whole: bool = False) -> str:
    """Return the class path of "group:artifact:version" artifacts with all their dependencies.

    With `is_whole` the artifacts are all that is wanted, without dependencies. Raises
    DownloadError.
    """
    for artifact in artifacts:
        if len(artifact.split(":")) != 3:
            raise ValueError(f"{artifact!r} is not group:artifact:version")
    words = (*artifacts, "alone") if is_whole else artifacts
    key = hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]
    directory = CACHE / key
    directory.mkdir(parents=True, exist_ok=True)
    result = directory / "classpath.txt"
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cached = result.read_text() if result.exists() else ""
        if cached and all(Path(jar).exists() for jar in cached.split(os.pathsep)):
            return cached
        (directory / "pom.xml").write_text(_pom(artifacts, _NOTHING_ELSE if is_whole else ""))
        fresh = directory / "classpath.new"
        download(
            f"{', '.join(artifacts)} from Maven",
            [
                "mvn",
                "--batch-mode",
                "--quiet",
                "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath",
                f"-Dmdep.outputFile={fresh}",
                "-Dmdep.includeScope=runtime",
            ],
            directory,
        )
        found = fresh.read_text().strip()
        fresh.write_text(found)
        fresh.replace(result)
        return found


_NOTHING_ELSE = (
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
)


def _pom(artifacts: Sequence[str], exclusions: str) -> str:
    dependencies = "".join(
        "<dependency><groupId>{}</groupId><artifactId>{}</artifactId>"
        "<version>{}</version>{}</dependency>".format(*artifact.split(":"), exclusions)
        for artifact in artifacts
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>pyromq.tests</groupId><artifactId>classpath</artifactId><version>1</version>"
        f"<packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>\n"
    )


class ApacheRocketMQ:
    """A Java NameServer and broker, or one of the two, for as long as the `with` block runs.

    After start() these hold: `namesrv_address`, `broker_address` (the empty string for what this
    object does not know), `namesrv_pid`, `broker_pid` (None for what it did not start),
    `namesrv_log` and `broker_log` (Java's own log), `output_log` (what the JVMs printed).
    """

    def __init__(
        self,
        *,
        store: Path | None = None,
        broker_properties: Mapping[str, str] | None = None,
        broker_name: str = "broker-a",
        namesrv_only: bool = False,
        broker_only: bool = False,
        namesrv_address: str = "",
        namesrv_port: int = 0,
        broker_port: int = 0,
        jvm_options: Sequence[str] = TEST_JVM_OPTIONS,
        log_level: str = "WARN",
        start_timeout: float = 150.0,
        version: str = VERSION,
        files: Mapping[str, str] | None = None,
        patient: bool = True,
    ) -> None:
        """`files` are written below Java's ROCKETMQ_HOME: their text by their relative path.

        A `patient` broker refuses nothing because it waited, whatever the machine does.
        """
        if namesrv_only and broker_only:
            raise ValueError("namesrv_only and broker_only exclude each other")
        if broker_only and not namesrv_address:
            raise ValueError("broker_only needs namesrv_address, where the broker shall register")
        self.broker_name = broker_name
        self.namesrv_address = namesrv_address
        self.broker_address = ""
        self.namesrv_pid: int | None = None
        self.broker_pid: int | None = None
        self.home = Path()
        self.store = store
        self.namesrv_log = self.broker_log = self.output_log = Path()
        self._runs_namesrv = not broker_only
        self._runs_broker = not namesrv_only
        self._namesrv_port = namesrv_port
        self._broker_port = broker_port
        self._broker_properties = {
            **(PATIENT_PROPERTIES if patient else {}),
            **(broker_properties or {}),
        }
        self._jvm_options = tuple(jvm_options)
        self._log_level = log_level
        self._start_timeout = start_timeout
        self._version = version
        self._files = dict(files or {})
        self._children: list[ChildProcess] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self, *, wait: bool = True) -> None:
        """Start the processes; wait until they answer and the broker is registered.

        With wait=False this returns as soon as the processes exist: the benchmark, which times
        the start, asks by itself.
        """
        if self._children:
            raise ApacheRocketMQError("already started")
        self._make_home()
        atexit.register(self.kill)
        for attempt in range(_START_ATTEMPTS):
            try:
                if self._runs_namesrv:
                    self._start_namesrv()
                if self._runs_broker:
                    self._start_broker()
                if wait:
                    self.wait_ready()
                return
            except BaseException as error:
                self._end_children(signal.SIGKILL, 10.0)
                # Somebody else was quicker: other ports.
                if "Address already in use" not in str(error) or attempt == _START_ATTEMPTS - 1:
                    raise

    def wait_ready(self) -> None:
        """Block until the NameServer answers and, if there is one, the broker is in its table."""
        deadline = time.monotonic() + self._start_timeout
        wanted = f'"{self.broker_address}"'.encode() if self._runs_broker else b""
        while True:
            # Nothing is no answer: a broker that begins before its NameServer registers 10 s later.
            known = cluster_info(self.namesrv_address)
            if (
                known
                and wanted in known
                and (not self._runs_broker or accepts(self.broker_address))
            ):
                return
            for child in self._children:
                if child.process.poll() is not None:
                    raise ApacheRocketMQError(
                        f"the Java {child.name} ended with exit code {child.process.returncode} "
                        f"while starting; logs under {self.home}:\n{self._tail()}"
                    )
            if time.monotonic() > deadline:
                raise ApacheRocketMQError(
                    f"Java at {self.namesrv_address} was not ready within "
                    f"{self._start_timeout:g} s; logs under {self.home}:\n{self._tail()}"
                )
            time.sleep(_REGISTRATION_POLL_SECONDS)

    def has_ended(self) -> bool:
        """Return whether one of the processes ended by itself."""
        return any(child.process.poll() is not None for child in self._children)

    def stop(self, timeout: float = 30.0) -> None:
        """End the processes as an operator would (SIGTERM, broker first) and clean up."""
        clean = self._end_children(signal.SIGTERM, timeout)
        self._forget()
        if not clean:
            raise ApacheRocketMQError(f"Java did not stop within {timeout:g} s; it was killed")

    def kill(self) -> None:
        """End the processes at once, as a crash would; a store given by the caller stays."""
        self._end_children(signal.SIGKILL, 10.0)
        self._forget()

    def _make_home(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="apache-rocketmq-"))
        (self.home / "conf").mkdir()
        (self.home / "logs").mkdir()
        self.output_log = self.home / "logs" / "output.log"
        self.namesrv_log = self.home / "logs" / "namesrv.log"
        self.broker_log = self.home / "logs" / "broker.log"
        for name, log in (("namesrv", self.namesrv_log), ("broker", self.broker_log)):
            (self.home / "conf" / f"logback_{name}.xml").write_text(
                _QUIET_LOGBACK.format(log=log, level=self._log_level)
            )
        for name, text in self._files.items():
            path = self.home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def _start_namesrv(self) -> None:
        port = self._namesrv_port or free_port()
        self.namesrv_address = f"127.0.0.1:{port}"
        config = self.home / "conf" / "namesrv.properties"
        config.write_text(f"listenPort={port}\n")
        child = self._run(
            "NameServer",
            [
                *NAMESRV_JVM_OPTIONS,
                "-cp",
                classpath(f"org.apache.rocketmq:rocketmq-namesrv:{self._version}"),
            ],
            ["org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(config)],
        )
        self.namesrv_pid = child.process.pid

    def _start_broker(self) -> None:
        port = self._broker_port or free_port(-2, 1)
        self.broker_address = f"{self._broker_properties.get('brokerIP1', '127.0.0.1')}:{port}"
        if self.store is None:
            self.store = self.home / "store"
        properties = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": self.broker_name,
            "brokerId": "0",
            "brokerIP1": "127.0.0.1",
            "listenPort": str(port),
            "namesrvAddr": self.namesrv_address,
            "storePathRootDir": str(self.store),
            "storePathCommitLog": str(self.store / "commitlog"),
            **self._broker_properties,
        }
        config = self.home / "conf" / "broker.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        child = self._run(
            "broker",
            [
                *self._jvm_options,
                "-cp",
                classpath(f"org.apache.rocketmq:rocketmq-broker:{self._version}"),
            ],
            ["org.apache.rocketmq.broker.BrokerStartup", "-c", str(config)],
        )
        self.broker_pid = child.process.pid

    def _run(self, name: str, jvm: Sequence[str], main: Sequence[str]) -> ChildProcess:
        command = ["java", *_OPEN_MODULES, f"-Duser.home={self.home}", *jvm, *main]
        child = ChildProcess(name, command, self.output_log, {"ROCKETMQ_HOME": str(self.home)})
        self._children.append(child)
        return child

    def _end_children(self, how: signal.Signals, timeout: float) -> bool:
        """End the broker before its NameServer, so that it can still unregister."""
        clean = True
        for child in reversed(self._children):
            clean = child.end(how, timeout) and clean
        self._children.clear()
        return clean

    def _forget(self) -> None:
        atexit.unregister(self.kill)
        if self.home != Path():
            shutil.rmtree(self.home, ignore_errors=True)
            if self.store == self.home / "store":
                self.store = None
        self.home = Path()

    def _tail(self) -> str:
        logs = (self.output_log, self.namesrv_log, self.broker_log)
        return "\n".join(log.read_text(errors="replace")[-2000:] for log in logs if log.exists())


class ChildProcess:
    """A server process and a watchdog that outlives us just long enough to end the server.

    The benchmark starts pyromq with it too.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        output: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        with output.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
            )
        self._watchdog = subprocess.Popen(
            ["sh", "-c", 'cat >/dev/null; kill -KILL "$1"', "sh", str(self.process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C at the terminal must not end the watchdog first
        )

    def end(self, how: signal.Signals, timeout: float) -> bool:
        """Signal, wait, kill if that took too long; False when it had to be killed."""
        # The watchdog goes first: once the child is reaped its pid may belong to someone else.
        # Killing its shell leaves `cat`, which ends when the pipe is closed.
        self._watchdog.kill()
        self._watchdog.wait()
        assert self._watchdog.stdin is not None
        self._watchdog.stdin.close()
        clean = True
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            clean = False
            self.process.kill()
            self.process.wait()
        return clean


def free_port(*neighbours: int) -> int:
    """Return a TCP port that is free now, as are its neighbours at the given distances.

    It is none that the system gives to whoever asks for any: until Java has it, seconds pass.
    Other processes that call this do not get it meanwhile, either.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = range(10_000, first - 10) if first > _LEAST_PORTS else range(20_000, 60_000)
    for _ in range(200):
        port = random.choice(ports)
        wanted = [port + distance for distance in (0, *neighbours)]
        if all(_bindable(each) and _reserve(each) for each in wanted):
            return port
    raise ApacheRocketMQError("found no free port with free neighbours in 200 tries")


def _reserve(port: int) -> bool:
    """Reserve a port for some minutes, for all processes of this machine; False if it is taken."""
    file = _RESERVED_PORTS / str(port)
    _RESERVED_PORTS.mkdir(exist_ok=True)
    try:
        if time.time() - file.stat().st_mtime < _RESERVED_SECONDS:
            return False
        file.unlink()
    except FileNotFoundError:
        pass
    try:
        file.open("x").close()
    except FileExistsError:
        return False
    return True


def _bindable(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True


def accepts(address: str) -> bool:
    """Return whether somebody listens at an address."""
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=1.0).close()
    except OSError:
        return False
    return True


def cluster_info(address: str) -> bytes:
    """Return the NameServer's answer to "which brokers are there?", empty if it gives none."""
    try:
        header, body = ask(address, _GET_BROKER_CLUSTER_INFO)
    except OSError:
        return b""
    return body if header["code"] == 0 else b""


def ask(
    address: str, code: int, fields: Mapping[str, str] | None = None, timeout: float = 2.0
) -> tuple[dict[str, Any], bytes]:
    """Send one request on a new connection; return header and body of the response.

    Raises OSError, also if the server closes the connection instead.
    """
    header = json.dumps(
        {
            "code": code,
            "extFields": dict(fields or {}),
            "language": "PYTHON",
            "version": 407,
            "opaque": 1,
            "flag": 0,
            "serializeTypeCurrentRPC": "JSON",
        }
    ).encode()
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=timeout) as connection:
        connection.sendall(struct.pack(">II", 4 + len(header), len(header)) + header)
        with connection.makefile("rb") as answer:
            prefix = answer.read(8)
            if len(prefix) < 8:
                raise ConnectionError(f"{address} closed the connection instead of a response")
            total, length = struct.unpack(">II", prefix)
            content = answer.read(total - 4)
    if len(content) < total - 4:
        raise ConnectionError(f"{address} closed the connection within a response")
    return json.loads(content[:length]), content[length:]
