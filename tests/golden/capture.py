"""Capture golden bytes from Apache RocketMQ into tests/golden/data.

Run by hand from the root of the repository to capture more data (needs a JDK and Maven):

    .venv/bin/python tests/golden/capture.py

Files written, each with a JSON file that describes the bytes (the inputs as values):

    frames.bin, frames.json      frames that Java encoded, in both header encodings
    values.json                  hashes, ids, properties, checksums: inputs and Java's results
    bodies.json                  JSON bodies as fastjson writes them
    traffic.bin, traffic.json    exchanges between Java's client, broker and NameServer, recorded
                                 by a proxy between them
    store-*.tar.gz, store-*.json store directories, and their content as Java's store reads it
    ledger-*.tar.gz, .json       directories of DLedger nodes, the steps that led to them, and their
                                 entries as Java reads them
    bloom.json                   bloom filters: sizes, and the bits of strings
    sql.json                     SQL92 expressions: results for sets of properties
    rebalance.json               shares of a group's members, and a file of broadcasting offsets

Only timestamps, ports and process ids should differ between runs. The script imports nothing of
pyromq, so that it shares no code with the code under test.
"""

from __future__ import annotations

import gzip
import io
import json
import shutil
import socket
import struct
import sys
import tarfile
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # so that it also runs as a script

from tests.golden.golden_data import (  # noqa: E402 - needs the path above
    COMMIT_LOG_SEGMENT,
    CONSUME_QUEUE_SEGMENT,
    DATA,
    EXTENSION_SEGMENT,
    INDEX_ENTRIES,
    INDEX_SLOTS,
    LEDGER_DATA_FILE,
    LEDGER_INDEX_FILE,
    LEDGERS,
)
from tests.golden.sql_cases import SETS, cases  # noqa: E402
from tests.interop.java_programs import (  # noqa: E402
    BROKER,
    CLIENT,
    compiled,
    interop_client,
    run_program,
)
from tests.support.apache_rocketmq import ApacheRocketMQ, free_port  # noqa: E402

#: Exchanges of one kind to keep, and their maximum size.
SAME_KIND = 2
LARGEST_FRAME = 8 * 1024


def main() -> None:
    """Capture all data."""
    DATA.mkdir(exist_ok=True)
    java = compiled(HERE / "java", BROKER, CLIENT)
    with tempfile.TemporaryDirectory(prefix="golden-") as scratch:
        capture_values(java, Path(scratch))
        capture_sql(java, Path(scratch))
        run_program(java, "GoldenRebalance", [str(DATA / "rebalance.json")])
        capture_written_store(java, Path(scratch) / "written")
        capture_extension(java, Path(scratch) / "extension")
        capture_ledgers(java, Path(scratch))
        capture_traffic(java, Path(scratch) / "broker")


def capture_values(java: str, scratch: Path) -> None:
    """Capture frames, bodies and values, which are pure functions of Java's classes."""
    header_classes = next(jar for jar in java.split(":") if "/rocketmq-common-" in jar)
    run_program(java, "GoldenFrames", [str(DATA), header_classes])
    run_program(java, "GoldenValues", [str(DATA), str(scratch)])


def capture_sql(java: str, scratch: Path) -> None:
    """Capture results of SQL92 expressions."""
    questions = scratch / "sql.json"
    questions.write_text(json.dumps({"sets": SETS, "expressions": cases()}))
    run_program(java, "GoldenSql", [str(questions), str(DATA / "sql.json")])


def capture_written_store(java: str, store: Path) -> None:
    """Capture a store written without a broker, with arbitrary hosts, flags and transactions."""
    options = store_options()
    run_program(java, "GoldenStore", ["write", str(store), str(free_port())], options)
    keep_store(java, store, "store-written")


def capture_extension(java: str, store: Path) -> None:
    """Capture bloom filters, and a store with a consume-queue extension."""
    outputs = [str(DATA / "store-ext.json"), str(DATA / "bloom.json")]
    options = [*store_options(), f"-Dgolden.extensionSegment={EXTENSION_SEGMENT}"]
    run_program(java, "GoldenExt", [str(store), str(free_port()), *outputs], options)
    pack_store(store, "store-ext")


def capture_ledgers(java: str, scratch: Path) -> None:
    """Capture the directories of DLedger nodes."""
    sizes = [str(LEDGER_DATA_FILE), str(LEDGER_INDEX_FILE)]
    for name, steps in LEDGERS.items():
        base = scratch / f"ledger-{name}"
        run_program(java, "GoldenLedger", [str(base), *sizes, *steps])
        pack_store(base, base.name)
        copy = scratch / f"{base.name}-copy"
        shutil.copytree(base, copy)
        dump = run_program(java, "GoldenLedger", [str(copy), *sizes, "dump"])
        text = json.dumps({"steps": steps, "dump": dump}, indent=1)
        (DATA / f"{base.name}.json").write_text(text + "\n")


def capture_traffic(java: str, store: Path) -> None:
    """Capture the traffic of a NameServer, a broker and clients, and the resulting store."""
    properties = {
        "mappedFileSizeCommitLog": str(COMMIT_LOG_SEGMENT),
        "mappedFileSizeConsumeQueue": str(CONSUME_QUEUE_SEGMENT),
        "maxHashSlotNum": str(INDEX_SLOTS),
        "maxIndexNum": str(INDEX_ENTRIES),
        "compressedRegister": "false",
    }
    proxies: list[RecordingProxy] = []
    with ApacheRocketMQ(namesrv_only=True) as nameserver:
        registrations = RecordingProxy("broker-nameserver", nameserver.namesrv_address)
        proxies.append(registrations)
        with ApacheRocketMQ(
            broker_only=True,
            namesrv_address=registrations.address,
            store=store,
            broker_properties=properties,
        ) as broker:
            to_broker = RecordingProxy("client-broker", broker.broker_address)
            # Replace the broker's address in routes, so that the client connects to the proxy. Both
            # addresses have the same length, so frames stay valid. The original is recorded.
            to_nameserver = RecordingProxy(
                "client-nameserver",
                nameserver.namesrv_address,
                lambda frame: frame.replace(
                    broker.broker_address.encode(), to_broker.address.encode()
                ),
            )
            proxies += [to_broker, to_nameserver]
            drive_clients(to_nameserver.address)
            run_program(java, "GoldenTraffic", [to_nameserver.address, to_broker.address])
    for proxy in proxies:
        proxy.close()
    keep_traffic(proxies)
    keep_store(java, store, "store-broker")


def drive_clients(namesrv: str) -> None:
    """Run sends of every kind, in both encodings, and two consumers of one group."""
    binary = ["-Drocketmq.serialize.type=ROCKETMQ"]
    common = ("--namesrv", namesrv, "--topic", "Traffic")
    total = 0
    for options in ([], binary):
        prefix = "binary" if options else "json"
        modes = ("--modes", "sync,async,oneway,batch", "--count", "4", "--prefix", prefix)
        with interop_client("produce", *common, *modes, options=options) as producer:
            producer.lines()
        total += 16
    with interop_client(
        "produce", *common, "--count", "2", "--size", "5000", "--prefix", "large"
    ) as producer:
        producer.lines()
    total += 2
    for options, group in (([], "golden_json"), (binary, "golden_binary")):
        with interop_client(
            *("consume", *common, "--group", group, "--count", str(total), "--consumers", "2"),
            options=options,
        ) as consumer:
            consumer.lines()


def store_options() -> list[str]:
    """Return the sizes above as arguments of GoldenStore.java."""
    return [
        f"-Dgolden.commitLogSegment={COMMIT_LOG_SEGMENT}",
        f"-Dgolden.consumeQueueSegment={CONSUME_QUEUE_SEGMENT}",
        f"-Dgolden.indexSlots={INDEX_SLOTS}",
        f"-Dgolden.indexEntries={INDEX_ENTRIES}",
    ]


def keep_store(java: str, store: Path, name: str) -> None:
    """Pack a store directory, and have Java's store list the content of a copy."""
    pack_store(store, name)
    copy = store.with_name(store.name + "-copy")
    shutil.copytree(store, copy)
    arguments = ["describe", str(copy), str(free_port()), str(DATA / f"{name}.json")]
    run_program(java, "GoldenStore", arguments, store_options())


def pack_store(store: Path, name: str) -> None:
    """Pack a store directory."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in sorted(store.rglob("*")):
            if path.is_file() and path.name != "lock":
                information = tarfile.TarInfo(str(path.relative_to(store)))
                information.size = path.stat().st_size
                archive.addfile(information, io.BytesIO(path.read_bytes()))
    packed = gzip.compress(buffer.getvalue(), mtime=0)
    (DATA / f"{name}.tar.gz").write_bytes(packed)


@dataclass
class Recorded:
    """The bytes of one connection in both directions."""

    to_server: bytearray = field(default_factory=bytearray)
    to_client: bytearray = field(default_factory=bytearray)


class RecordingProxy:
    """A TCP proxy that records traffic; `rewrite` may change frames to the client."""

    def __init__(
        self, link: str, target: str, rewrite: Callable[[bytes], bytes] = lambda frame: frame
    ) -> None:
        self.link = link
        self.recorded: list[Recorded] = []
        self._target = target.rsplit(":", 1)
        self._rewrite = rewrite
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Stop accepting connections."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = self._connect()
            recorded = Recorded()
            self.recorded.append(recorded)
            for pump, arguments in (
                (self._pump_to_server, (client, server, recorded.to_server)),
                (self._pump_to_client, (server, client, recorded.to_client)),
            ):
                threading.Thread(target=pump, args=arguments, daemon=True).start()

    def _connect(self) -> socket.socket:
        deadline = time.monotonic() + 30.0
        while True:
            try:
                return socket.create_connection((self._target[0], int(self._target[1])))
            except ConnectionRefusedError:  # it is still starting
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def _pump_to_server(
        self, client: socket.socket, server: socket.socket, kept: bytearray
    ) -> None:
        while chunk := receive(client):
            kept += chunk
            server.sendall(chunk)
        server.close()

    def _pump_to_client(
        self, server: socket.socket, client: socket.socket, kept: bytearray
    ) -> None:
        sent = 0
        while chunk := receive(server):
            kept += chunk
            for start, length in frame_places(kept, sent):
                client.sendall(self._rewrite(bytes(kept[start : start + length])))
                sent = start + length
        client.close()


def receive(connection: socket.socket) -> bytes:
    """Read the next bytes; return none at the end of the connection or on an error."""
    try:
        return connection.recv(65536)
    except OSError:
        return b""


def frame_places(stream: bytes | bytearray, start: int = 0) -> list[tuple[int, int]]:
    """Yield the complete frames from `start` on as (start, length with its prefix)."""
    places = []
    while len(stream) - start >= 4:
        length = 4 + int(struct.unpack_from(">I", stream, start)[0])
        if start + length > len(stream):
            break
        places.append((start, length))
        start += length
    return places


@dataclass(frozen=True)
class Frame:
    """The fields of a frame that pair it with its response."""

    code: int
    opaque: int
    flag: int
    encoding: int
    language: str
    data: bytes


def read_frame(data: bytes) -> Frame:
    """Decode the header of a frame literally."""
    encoding = data[4]
    header = data[8 : 8 + int.from_bytes(data[5:8], "big")]
    if encoding == 0:
        values = json.loads(header)
        code, opaque, flag = values["code"], values["opaque"], values["flag"]
        return Frame(code, opaque, flag, encoding, values["language"], data)
    code, language, _, opaque, flag = struct.unpack_from(">hBhii", header)
    return Frame(code, opaque, flag, encoding, "JAVA" if language == 0 else str(language), data)


def keep_traffic(proxies: list[RecordingProxy]) -> None:
    """Select a few exchanges of each kind and write them."""
    kept = bytearray()
    index: list[dict[str, object]] = []
    kinds: Counter[tuple[object, ...]] = Counter()

    def place(frame: Frame | None) -> dict[str, int] | None:
        if frame is None:
            return None
        kept.extend(frame.data)
        return {"start": len(kept) - len(frame.data), "length": len(frame.data)}

    for proxy in sorted(proxies, key=lambda proxy: proxy.link):
        for connection in proxy.recorded:
            there, back = (
                [read_frame(bytes(way[start : start + n])) for start, n in frame_places(way)]
                for way in (connection.to_server, connection.to_client)
            )
            for asker, requests, answers in (("client", there, back), ("server", back, there)):
                by_opaque = {frame.opaque: frame for frame in answers if frame.flag & 1}
                for request in requests:
                    answer = by_opaque.get(request.opaque)
                    unanswered = answer is None and not request.flag & 2
                    if request.flag & 1 or request.language != "JAVA" or unanswered:
                        continue
                    if len(request.data) + len(answer.data if answer else b"") > LARGEST_FRAME:
                        continue
                    outcome = answer.code if answer else None
                    kind = (
                        proxy.link,
                        asker,
                        request.code,
                        request.encoding,
                        request.flag,
                        outcome,
                    )
                    kinds[kind] += 1
                    if kinds[kind] <= SAME_KIND:
                        index.append(
                            {
                                "link": proxy.link,
                                "asker": asker,
                                "code": request.code,
                                "encoding": request.encoding,
                                "oneway": bool(request.flag & 2),
                                "outcome": outcome,
                                "request": place(request),
                                "response": place(answer),
                            }
                        )
    (DATA / "traffic.bin").write_bytes(bytes(kept))
    (DATA / "traffic.json").write_text(json.dumps(index, indent=1) + "\n")


if __name__ == "__main__":
    main()
