"""A server of tokens for docker-registry with one account. Counts the tokens of each program."""

import base64
import json
import secrets
import subprocess
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

SERVICE = "registry of the tests"
ISSUER = "tokens of the tests"


class TokenServer:
    """Signs with a key that it makes in `folder`, where the registry finds the certificate."""

    def __init__(self, folder, authorization):
        self.key, self.certificate = folder / "tokens.key", folder / "tokens.pem"
        make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=tokens"]
        subprocess.run([*make, "-keyout", self.key, "-out", self.certificate], check=True, capture_output=True)
        self.authorization, self.issued = authorization, Counter()
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), self.handler())
        self.url = f"http://127.0.0.1:{self.http.server_port}/token"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def handler(server):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                if self.headers["Authorization"] != server.authorization:
                    return self.send_error(401)
                scopes = parse_qs(urlsplit(self.path).query).get("scope", [])
                body = json.dumps({"token": server.token(scopes)}).encode()
                server.issued[self.headers["User-Agent"].split("/")[0]] += 1
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            log_message = lambda *_: None  # noqa: E731

        return Handler

    def token(self, scopes):
        access = [dict(zip(("type", "name", "actions"), scope.split(":"))) for scope in scopes]
        access = [entry | {"actions": entry["actions"].split(",")} for entry in access]
        certificate = "".join(self.certificate.read_text().split("-----")[2].split())
        now = int(time.time())
        claims = {"iss": ISSUER, "aud": SERVICE, "sub": "ann", "jti": secrets.token_hex(8), "access": access,
                  "iat": now, "nbf": now - 10, "exp": now + 300}
        parts = [{"typ": "JWT", "alg": "RS256", "x5c": [certificate]}, claims]
        signed = b".".join(encoded(json.dumps(part).encode()) for part in parts)
        sign = subprocess.run(["openssl", "dgst", "-sha256", "-sign", self.key], input=signed, capture_output=True)
        return (signed + b"." + encoded(sign.stdout)).decode()


def encoded(content):
    return base64.urlsafe_b64encode(content).rstrip(b"=")
