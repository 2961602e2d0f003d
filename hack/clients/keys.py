"""Checks of clients with keys over TLS: the client of OpenAI in front of llama.cpp, and tritonclient over REST and gRPC in
front of KServe. None of them is modified: key and certificate are what their users set."""

import hashlib
import ssl
import subprocess

import httpx
import numpy as np
import openai
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from chat import QUESTION

HALL, LINE, OFFICE, OTHER = "npk_hall", "npk_line", "npk_office", "npk_other"
# The calls of these checks, and one that is refused.
PER_MINUTE = 4


def certificate(folder):
    """Issues a certificate for `localhost`; returns its file and that of the key."""
    files = folder / "web.crt", folder / "web.key"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(files[1])]
    command = ["openssl", "req", "-x509", "-days", "2", *key, "-out", str(files[0]), *subject]
    subprocess.run(command, check=True, capture_output=True)
    return files


def clients(model):
    """The clients of the gateway: two with limits, and one without."""
    digest = lambda key: [hashlib.sha256(key.encode()).hexdigest()]
    limits = {"requestsPerMinute": PER_MINUTE, "models": [model]}
    limited = [{"name": key[4:], "keySha256": digest(key), **limits} for key in (HALL, LINE)]
    return [*limited, {"name": "office", "keySha256": digest(OFFICE)}]


def refused(error, call):
    """The error of a call that has to be refused with this one."""
    try:
        call()
    except error as raised:
        return raised
    raise AssertionError(f"the call was answered instead of refused with {error.__name__}")


def check_openai(results, servers, files):
    """The client of OpenAI."""
    edge = servers.llama("small")
    config = {
        "protocol": "openai",
        "edge": {"address": edge, "model": "small"},
        "hardExample": {"algorithm": "EdgeOnly"},
        "clients": clients("small"),
        "tls": {"certFile": str(files[0]), "keyFile": str(files[1])},
    }
    address, _, _ = servers.gateway("keys-chat", config)
    port = address.rsplit(":", 1)[1]
    trusted = ssl.create_default_context(cafile=files[0])

    def ask(key, model="small", trust=trusted, **options):
        connection = httpx.Client(verify=trust)
        base = f"https://localhost:{port}/v1"
        client = openai.OpenAI(base_url=base, api_key=key, max_retries=0, timeout=100, http_client=connection)
        with connection:
            return call(client, model, **options)

    def call(client, model, **options):
        options = {"max_tokens": 8, "temperature": 0, "seed": 1, "messages": QUESTION, **options}
        answer = client.chat.completions.create(model=model, **options)
        return list(answer) if options.get("stream") else answer

    direct = call(openai.OpenAI(base_url=f"http://{edge}/v1", api_key="none", max_retries=0), "small")
    with results.case("llama.cpp", "openai", "key over TLS: the answer of the model server"):
        answer = ask(HALL)
        assert answer.choices[0].message.content == direct.choices[0].message.content, answer
    with results.case("llama.cpp", "openai", "key over TLS: stream"):
        assert len(ask(HALL, stream=True)) > 2
    with results.case("llama.cpp", "openai", "another model: PermissionDeniedError") as notes:
        notes.append(refused(openai.PermissionDeniedError, lambda: ask(HALL, "other")).body["message"])
    with results.case("llama.cpp", "openai", "above the rate: RateLimitError with Retry-After") as notes:
        assert ask(HALL).choices
        error = refused(openai.RateLimitError, lambda: ask(HALL))
        assert 1 <= int(error.response.headers["retry-after"]) <= 61, error.response.headers
        assert error.code == "rate_limit_exceeded", error.body
        assert ask(OFFICE).choices, "another client has its own rate"
        notes.append(error.body["message"])
    with results.case("llama.cpp", "openai", "unknown key: AuthenticationError, invalid_api_key"):
        for key in (OTHER, HALL.upper(), HALL + "a"):
            assert refused(openai.AuthenticationError, lambda: ask(key)).code == "invalid_api_key"
    with results.case("llama.cpp", "openai", "certificate that is not trusted: APIConnectionError"):
        refused(openai.APIConnectionError, lambda: ask(HALL, trust=ssl.create_default_context()))


def check_triton(results, servers, files, rows):
    """tritonclient, over REST and gRPC."""
    edge = servers.kserve("small")
    config = {
        "protocol": "oip",
        "edge": {"address": edge[0], "grpcAddress": edge[1], "model": "small"},
        # It is never asked: every answer is easy.
        "cloud": {"url": f"http://{edge[0]}", "grpcUrl": f"http://{edge[1]}"},
        "hardExample": {"algorithm": "EdgeOnly"},
        "clients": clients("small"),
        "tls": {"certFile": str(files[0]), "keyFile": str(files[1])},
    }
    rest, grpc, _ = servers.gateway("keys-oip", config)
    rows = np.ascontiguousarray(rows[:4], dtype=np.float64)

    def over_rest(key, model="small"):
        context = lambda: ssl.create_default_context(cafile=files[0])
        address = f"localhost:{rest.rsplit(':', 1)[1]}"
        client = triton_http.InferenceServerClient(address, ssl=True, ssl_context_factory=context)
        tensor = triton_http.InferInput("X", list(rows.shape), "FP64")
        tensor.set_data_from_numpy(rows)
        headers = {"Authorization": f"Bearer {key}"}
        try:
            return client.infer(model, [tensor], headers=headers).as_numpy("y_pred")
        finally:
            client.close()

    def over_grpc(key, model="small"):
        address = f"localhost:{grpc.rsplit(':', 1)[1]}"
        client = triton_grpc.InferenceServerClient(address, ssl=True, root_certificates=str(files[0]))
        assert client.is_server_ready(), "health needs no key"
        tensor = triton_grpc.InferInput("X", list(rows.shape), "FP64")
        tensor.set_data_from_numpy(rows)
        headers = {"authorization": f"Bearer {key}"}
        try:
            return client.infer(model, [tensor], headers=headers).as_numpy("y_pred")
        finally:
            client.close()

    for name, ask, key, status in (("REST", over_rest, HALL, "{}"), ("gRPC", over_grpc, LINE, "StatusCode.{}")):
        code = lambda call: str(refused(triton_http.InferenceServerException, call).status())
        names = ("401", "403", "429") if name == "REST" else ("UNAUTHENTICATED", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED")
        with results.case("kserve", f"tritonclient {name}", "key over TLS, refused key, other model, rate"):
            answers = [ask(OFFICE), ask(OFFICE)]
            assert all(np.array_equal(answer, answers[0]) and len(answer) == 4 for answer in answers), answers
            assert code(lambda: ask(OTHER)) == status.format(names[0])
            assert code(lambda: ask(key, "other")) == status.format(names[1])
            shown = [ask(key)]
            while len(shown) < PER_MINUTE + 1:
                try:
                    shown.append(ask(key))
                except triton_http.InferenceServerException as error:
                    assert str(error.status()) == status.format(names[2]), error
                    break
            assert len(shown) <= PER_MINUTE, "the rate is not limited"


def check(results, servers, rows):
    """All checks of clients with keys."""
    files = certificate(servers.folder)
    check_openai(results, servers, files)
    check_triton(results, servers, files, rows)
