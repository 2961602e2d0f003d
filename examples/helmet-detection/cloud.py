"""The edge worker's client of the cloud worker: one call at a time, a timeout of the whole call, pauses after failures."""

import http.client
import json
import socket
import threading
import time
import urllib.parse


class Cloud:
    """Calls POST <url>. Behind EdgeMesh every connection opens at once, so only the time of the whole call is limited."""

    TIMEOUT = 5.0
    FIRST_PAUSE = 1.0
    LONGEST_PAUSE = 30.0

    def __init__(self, url):
        """Take the URL of the service's predict path, or None: then only the edge model is used."""
        self.url = urllib.parse.urlsplit(url) if url else None
        self.running = None
        self.failures = 0
        self.next_try = 0.0

    def detect(self, frame):
        """Return the cloud worker's boxes, or None."""
        if not self.url or time.monotonic() < self.next_try or (self.running and self.running.is_alive()):
            return None
        connection = http.client.HTTPConnection(self.url.hostname, self.url.port or 80, timeout=self.TIMEOUT)
        sockets, results = [], []
        self.running = threading.Thread(target=self._call, args=(connection, frame, sockets, results), daemon=True)
        self.running.start()
        self.running.join(self.TIMEOUT)
        if not results:
            # The socket's own timeout is per read, so that a slow answer would never end.
            _abort(sockets)
            return self._failed(f"no answer within {self.TIMEOUT} s")
        if isinstance(results[0], Exception):
            return self._failed(results[0])
        self.failures = 0
        return results[0]

    def _call(self, connection, frame, sockets, results):
        try:
            connection.connect()
            sockets.append(connection.sock)
            body = json.dumps({"data": [frame]})
            connection.request("POST", self.url.path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise OSError(f"HTTP {response.status}")
            (boxes,) = json.load(response)["result"]
            results.append(boxes)
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            results.append(error)
        finally:
            connection.close()

    def _failed(self, why):
        print(f"using the edge model's answer: {why}", flush=True)
        self.next_try = time.monotonic() + min(self.FIRST_PAUSE * 2**self.failures, self.LONGEST_PAUSE)
        self.failures = min(self.failures + 1, 10)


def _abort(sockets):
    """End a blocked read or write of another thread, and so the thread."""
    for open_socket in sockets:
        try:
            open_socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
