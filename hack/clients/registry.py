"""Checks that neptune-edge and neptune-cloud get from a container registry what oras and skopeo push there: without a
login, with one, with tokens, and over a network that fails. Run by hack/test-registry.sh."""

import base64
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

edge, cloud, registry_program = sys.argv[1:]
folder = Path(tempfile.mkdtemp(prefix="neptune-registry-"))
os.environ.update({"HOME": str(folder), "DOCKER_CONFIG": str(folder / "docker")})

import oras.client  # noqa: E402

from registry_tokens import ISSUER, SERVICE, TokenServer  # noqa: E402

USER, PASSWORD = "ann", "s3cret"
BASIC = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
# Of the password above, by `htpasswd -Bbn`.
HTPASSWD = "$2b$04$AA5RBIxor42YsdO7a5rROOkLpgmdAsw73qH7Qdtl7ilsA4avw3K7W"
SIZE = 32 << 20
CUTS = 20
IMAGE = "application/vnd.oci.image"
started = []


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_registry(name, auth):
    """Starts docker-registry on the storage that all of them share. Returns its host and port."""
    port = free_port()
    config = {
        "version": 0.1,
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "storage")}},
        "http": {"addr": f"127.0.0.1:{port}", "secret": "of the tests"},
    }
    path = folder / f"{name}.yml"
    # JSON is YAML.
    path.write_text(json.dumps(config | ({"auth": auth} if auth else {})))
    started.append(subprocess.Popen([registry_program, "serve", path], stderr=subprocess.DEVNULL))
    until = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return f"127.0.0.1:{port}"
        except OSError:
            assert time.monotonic() < until and started[-1].poll() is None, f"the registry {name} does not start"
            time.sleep(0.05)


class CuttingProxy:
    """Forwards connections, and closes the first ones after `limit` bytes of the registry's. Counts those bytes."""

    def __init__(self, target, limit):
        self.host, port = target.split(":")
        self.target, self.limit, self.cuts, self.sent = (self.host, int(port)), limit, 0, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            server = socket.create_connection(self.target)
            threading.Thread(target=self.requests, args=(client, server), daemon=True).start()
            threading.Thread(target=self.responses, args=(client, server), daemon=True).start()

    @staticmethod
    def requests(client, server):
        try:
            while chunk := client.recv(65536):
                server.sendall(chunk)
            server.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def responses(self, client, server):
        left = self.limit
        try:
            while chunk := server.recv(min(65536, left)):
                client.sendall(chunk)
                self.sent += len(chunk)
                left = left - len(chunk) if self.cuts < CUTS else 65536
                if left == 0:
                    self.cuts += 1
                    break
        except OSError:
            pass
        for end in (client, server):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()


def listing(files):
    """The text whose SHA-256 is the digest of a set of files."""
    lines = sorted((path.encode(), hashlib.sha256(content).hexdigest()) for path, content in files.items())
    return "".join(f"{digest}  {path.decode()}\n" for path, digest in lines)


def digest_of(files):
    return hashlib.sha256(listing(files).encode()).hexdigest()


def content(directory):
    paths = [path for path in Path(directory).rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


def run(program, *arguments):
    environment = {"PATH": os.environ["PATH"], "NEPTUNE_ALLOW_ADDRESS": "127.0.0.0/8"}
    return subprocess.run([program, *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=120)


def fetched(address, *arguments):
    output = tempfile.mkdtemp(dir=folder) + "/model"
    done = run(edge, "fetch", "--url", f"oci://{address}", "--output", output, *arguments)
    assert done.returncode == 0, done.stderr
    return content(output)


def check(name, is_true, what=""):
    assert is_true, f"{name}: {what}"
    print(f"ok   {name}", flush=True)


def equal(name, actual, expected):
    check(name, actual == expected, f"{describe(actual)} instead of {describe(expected)}")


def describe(value):
    return listing(value) if isinstance(value, dict) and all(isinstance(it, bytes) for it in value.values()) else value


def refused(name, expected, *arguments):
    done = run(*arguments)
    check(name, done.returncode != 0 and expected in done.stderr, f"{expected!r} is not in {done.stderr}")


def refused_fetch(name, expected, address, *arguments):
    output = tempfile.mkdtemp(dir=folder) + "/model"
    refused(name, expected, edge, "fetch", "--url", f"oci://{address}", "--output", output, *arguments)
    check(f"{name}: no output", not Path(output).exists())


def skopeo(*arguments):
    command = ["skopeo", "--insecure-policy", "copy", "--quiet"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def logins(name, host, password):
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"auths": {host: {"username": USER, "password": password}}}))
    return ["--registry-config", path]


def image(directory):
    """An image of one empty layer, as a folder in the layout of the OCI."""
    blobs = directory / "blobs/sha256"
    blobs.mkdir(parents=True)

    def blob(kind, body):
        digest = hashlib.sha256(body).hexdigest()
        (blobs / digest).write_bytes(body)
        return {"mediaType": f"{IMAGE}.{kind}", "digest": f"sha256:{digest}", "size": len(body)}

    layer = blob("layer.v1.tar", bytes(1024))
    settings = {"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]}}
    parts = {"config": blob("config.v1+json", json.dumps(settings).encode()), "layers": [layer]}
    manifest = blob("manifest.v1+json", json.dumps({"schemaVersion": 2} | parts).encode())
    (directory / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [manifest]}))
    (directory / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')


def checks():
    (folder / "htpasswd").write_text(f"{USER}:{HTPASSWD}\n")
    tokens = TokenServer(folder, BASIC)
    public = start_registry("public", None)
    basic = start_registry("basic", {"htpasswd": {"realm": "tests", "path": str(folder / "htpasswd")}})
    bearer = start_registry("bearer", {"token": {"realm": tokens.url, "service": SERVICE, "issuer": ISSUER,
                                                 "rootcertbundle": str(tokens.certificate)}})
    files = {
        "config.json": b'{"model_type": "test"}',
        "README.md": b"# Test",
        "onnx/names of classes.txt": b"0\n1\n",
        "onnx/weights.bin": random.Random(1).randbytes(SIZE),
    }
    source = folder / "source"
    for path, body in files.items():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_bytes(body)

    os.chdir(source)
    client = oras.client.OrasClient(hostname=basic, insecure=True, auth_backend="basic")
    client.login(hostname=basic, username=USER, password=PASSWORD)
    # The client of Python names files without their folders, unless annotations do.
    titles = folder / "annotations.json"
    titles.write_text(json.dumps({path: {"org.opencontainers.image.title": path} for path in files}))
    client.push(target=f"{basic}/team/model:v1", files=list(files), annotation_file=str(titles))
    ann, wrong = logins("ann", basic, PASSWORD), logins("wrong", basic, "other")
    digest = manifest_digest(f"{basic}/v2/team/model/manifests/v1")
    only = {path: body for path, body in files.items() if path.endswith(".json")}

    equal("tag, without a login", fetched(f"{public}/team/model:v1"), files)
    equal("digest, and the digest of the set",
          fetched(f"{public}/team/model@{digest}", "--sha256", digest_of(files)), files)
    equal("files", fetched(f"{public}/team/model:v1?files=*.json"), only)
    equal("files of a folder", set(fetched(f"{public}/team/model:v1?files=onnx/**")),
          {path for path in files if path.startswith("onnx/")})
    refused_fetch("absent tag", 'no artifact "v2"', f"{public}/team/model:v2")
    refused_fetch("absent digest", "no artifact", f"{public}/team/model@sha256:{'0' * 64}")
    refused_fetch("absent file", "similar: config.json", f"{public}/team/model:v1?files=config.jsn")
    refused_fetch("another digest", "expected", f"{public}/team/model:v1", "--sha256", "0" * 64)
    image(folder / "image")
    skopeo("--dest-tls-verify=false", f"oci:{folder}/image", f"docker://{public}/team/image:v1")
    refused_fetch("image", f"{IMAGE}.layer.v1.tar", f"{public}/team/image:v1")

    remedy = "add a login for the registry to the file of --registry-config"
    refused_fetch("Basic, without a login", remedy, f"{basic}/team/model:v1")
    refused_fetch("Basic, wrong password", remedy, f"{basic}/team/model:v1", *wrong)
    equal("Basic, with a login", fetched(f"{basic}/team/model:v1", *ann), files)

    ann = logins("ann-bearer", bearer, PASSWORD)
    skopeo("--src-tls-verify=false", "--dest-tls-verify=false", "--src-creds", f"{USER}:{PASSWORD}", "--dest-creds",
           f"{USER}:{PASSWORD}", f"docker://{basic}/team/model:v1", f"docker://{bearer}/team/copy:v1")
    check("skopeo got a token", tokens.issued["skopeo"] >= 1)
    refused_fetch("tokens, without a login", remedy, f"{bearer}/team/copy:v1")
    refused_fetch("tokens, wrong password", remedy, f"{bearer}/team/copy:v1", *logins("wrong", bearer, "other"))
    equal("no token without the password", tokens.issued["neptune-models"], 0)
    equal("tokens, copy by skopeo", fetched(f"{bearer}/team/copy:v1", *ann), files)
    equal("one token for all files", tokens.issued["neptune-models"], 1)

    printed = run(cloud, "resolve", f"oci://{bearer}/team/copy:v1", *ann)
    assert printed.returncode == 0, printed.stderr
    copied = manifest_digest(f"{public}/v2/team/copy/manifests/v1")
    check("resolve: digests", f"modelUrl: oci://{bearer}/team/copy:v1@{copied}\n" in printed.stdout
          and f"sha256sum: {digest_of(files)}\n" in printed.stdout, printed.stdout)
    printed = run(cloud, "resolve", f"oci://{public}/team/model:v1", "--files", "*.json")
    check("resolve: files", f"sha256sum: {digest_of(only)}\n" in printed.stdout, printed.stdout + printed.stderr)
    refused("resolve: without a login", "--registry-config", cloud, "resolve", f"oci://{bearer}/team/copy:v1")

    proxy = CuttingProxy(bearer, SIZE // (CUTS + 2))
    tokens.issued.clear()
    equal(f"{CUTS} interruptions", fetched(f"{proxy.address}/team/copy:v1", *logins("proxy", proxy.address, PASSWORD)),
          files)
    equal("interruptions", proxy.cuts, CUTS)
    total = sum(map(len, files.values()))
    check(f"{proxy.sent} bytes of {total}", proxy.sent <= 1.05 * total)
    equal("one token over the interruptions", tokens.issued["neptune-models"], 1)


def manifest_digest(url):
    accept = {"Accept": f"{IMAGE}.manifest.v1+json", "Authorization": BASIC}
    with urllib.request.urlopen(urllib.request.Request(f"http://{url}", headers=accept), timeout=30) as response:
        return "sha256:" + hashlib.sha256(response.read()).hexdigest()


try:
    checks()
finally:
    for process in started:
        process.send_signal(signal.SIGTERM)
        process.wait()
    shutil.rmtree(folder, ignore_errors=True)
