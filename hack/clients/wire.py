"""A relay in front of a server, which records the bytes of both directions and when they arrived."""

import gzip
import http.client
import io
import socket
import threading
import time

PATIENCE_SECONDS = 10


class Relay:
    """Listens on a free port of loopback and passes each connection to `target` (HOST:PORT)."""

    def __init__(self, target):
        host, port = target.rsplit(":", 1)
        self.target = (host, int(port))
        self.lock = threading.Lock()
        self.answers = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def clear(self):
        """Forgets what was recorded."""
        with self.lock:
            self.answers = []

    def _accept(self):
        number = 0
        while True:
            client, _ = self.listener.accept()
            number += 1
            try:
                server = socket.create_connection(self.target)
            except OSError:
                client.close()
                continue
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._pump, args=(client, server, None), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, number), daemon=True).start()

    def _pump(self, source, sink, connection):
        try:
            while data := source.recv(65536):
                if connection is not None:
                    with self.lock:
                        self.answers.append((time.monotonic(), connection, data))
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            for end in (source, sink):
                end.close()

    def _connections(self):
        streams = {}
        with self.lock:
            for _, connection, data in self.answers:
                streams.setdefault(connection, bytearray()).extend(data)
        return [bytes(data) for data in streams.values()]

    def arrivals(self, marker=b""):
        """The times at which parts of answers with `marker` arrived."""
        with self.lock:
            return [at for at, _, data in self.answers if marker in data]

    def http(self):
        """The answers of HTTP/1.1, as (status, headers, body). Waits for the end of the last one."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return [answer for data in self._connections() for answer in http_answers(data)]
            except (http.client.HTTPException, ValueError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def body(self):
        """The body of the only answer."""
        answers = self.http()
        assert len(answers) == 1, f"{len(answers)} answers instead of one"
        return answers[0][2]

    def messages(self):
        """The data of the only answered call of gRPC, with the frame of its message."""
        calls = [data for stream in self._connections() for data in grpc_answers(stream)]
        assert len(calls) == 1, f"{len(calls)} calls with an answer instead of one"
        return calls[0]


class _Source(io.BytesIO):
    def makefile(self, _mode):
        return self

    def close(self):
        """Stays open for the next answer of the connection."""


def http_answers(data):
    """Parses the answers of a connection with HTTP/1.1."""
    source, answers = _Source(data), []
    while source.tell() < len(data):
        answer = http.client.HTTPResponse(source)
        answer.begin()
        try:
            body = answer.read()
        except http.client.IncompleteRead as cut:
            # The client of OpenAI may close the connection after the last event, before the last chunk.
            if not cut.partial.endswith(b"data: [DONE]\n\n"):
                raise
            body = cut.partial
        # A server compresses for clients that permit it. The gateway does not ask for that where it has to read.
        if answer.getheader("content-encoding") == "gzip":
            body = gzip.decompress(body)
        answers.append((answer.status, dict(answer.getheaders()), body))
    return answers


def grpc_answers(data):
    """Concatenates the DATA frames of each HTTP/2 stream; streams without data are left out."""
    at, streams = 0, {}
    while at + 9 <= len(data):
        length, kind = int.from_bytes(data[at : at + 3], "big"), data[at + 3]
        stream = int.from_bytes(data[at + 5 : at + 9], "big") & 0x7FFFFFFF
        if kind == 0:
            streams[stream] = streams.get(stream, b"") + data[at + 9 : at + 9 + length]
        at += 9 + length
    return [streams[stream] for stream in sorted(streams) if streams[stream]]
