"""Checks of chat completions, with the client of OpenAI in front of llama.cpp."""

import asyncio
import json

import openai

from results import same_outcome
from servers import free_port, wait_for_signal
from wire import Relay

QUESTION = [{"role": "user", "content": "Write three sentences about the sea."}]
TOKENS = 48
# Log-probabilities in the form that the gateway asks for itself: it has nothing to add or to remove.
SCORES = {"logprobs": True, "top_logprobs": 2}
CLIENT = "openai"


def client(address):
    """A client without retries: each call is one request."""
    return openai.OpenAI(base_url=f"http://{address}/v1", api_key="none", max_retries=0, timeout=100)


def ask(address, model="small", **options):
    """One chat completion."""
    arguments = {"max_tokens": TOKENS, "temperature": 0, "seed": 1, "messages": QUESTION, **options}
    return client(address).chat.completions.create(model=model, **arguments)


def text(answer):
    """The text of an answer, also of a stream."""
    if hasattr(answer, "choices"):
        return answer.choices[0].message.content
    return "".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices)


def without(value, names):
    """The JSON without the members of these names, at any depth."""
    if isinstance(value, dict):
        return {key: without(member, names) for key, member in value.items() if key not in names}
    return [without(member, names) for member in value] if isinstance(value, list) else value


def events(body):
    """The JSON of each event of a stream."""
    lines = [line for line in body.decode().splitlines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]", lines[-1]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


class Chat:
    """The servers of the checks. Relays record what the edge and the cloud send to the gateway."""

    def __init__(self, servers):
        self.servers = servers
        self.edge, self.cloud = servers.llama("small"), servers.llama("big")
        self.edge_wire, self.cloud_wire = Relay(self.edge), Relay(self.cloud)
        self.easy = self.gateway("easy", 0.0001)
        self.hard = self.gateway("hard", 0.9999)

    def gateway(self, name, threshold, edge=None):
        """A gateway that finds every answer easy or hard by its threshold. Another `edge` may be away."""
        config = {
            "protocol": "openai",
            "streaming": "Prefix",
            "edge": {"address": edge or self.edge_wire.address, "model": "small"},
            "cloud": {"url": f"http://{self.cloud_wire.address}/v1", "modelName": "big"},
            "hardExample": {"algorithm": "LogProb", "threshold": threshold},
        }
        address, _, status = self.servers.gateway(f"chat-{name}", config)
        if edge is None:
            wait_for_signal(status)
        return address

    def record(self, gateway, call):
        """Runs `call` and returns its value and what the client received."""
        relay = Relay(gateway)
        self.edge_wire.clear()
        self.cloud_wire.clear()
        return call(relay.address), relay


def check_whole(results, chat):
    """Answers that are not streams."""
    with results.case("llama.cpp", CLIENT, "easy answer with logprobs asked for: same bytes") as notes:
        answer, front = chat.record(chat.easy, lambda to: ask(to, **SCORES))
        assert front.body() == chat.edge_wire.body(), front.body()
        assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 2
        assert text(answer) == text(ask(chat.edge, **SCORES))
        notes.append(f"{len(front.body())} bytes")
    with results.case("llama.cpp", CLIENT, "easy answer: the edge's without the logprobs that the gateway needs"):
        answer, front = chat.record(chat.easy, ask)
        assert answer.choices[0].logprobs is None and b"logprob" not in front.body()
        inner = json.loads(chat.edge_wire.body())
        assert "logprobs" in inner["choices"][0], "the gateway did not ask for log-probabilities"
        assert json.loads(front.body()) == without(inner, ["logprobs"])
    with results.case("llama.cpp", CLIENT, "hard answer is the cloud's") as notes:
        answer, front = chat.record(chat.hard, ask)
        status, headers, body = front.http()[0]
        assert status == 200 and headers["x-neptune-answered-by"] == "cloud", headers
        assert without(json.loads(body), ["logprobs"]) == without(json.loads(chat.cloud_wire.body()), ["logprobs"])
        assert answer.model == "big" and b"logprob" not in body, answer.model
        notes.append(f"confidence {headers['x-neptune-confidence']}")
    with results.case("llama.cpp", CLIENT, "pinned by the model name: stays at the edge"):
        answer, front = chat.record(chat.hard, lambda to: ask(to, model="small@edge"))
        assert front.http()[0][1]["x-neptune-decision"] == "pinned" and not chat.cloud_wire.http()
        assert text(answer) == text(ask(chat.edge))
    with results.case("llama.cpp", CLIENT, "completions, easy and hard"):
        for gateway, model in ((chat.easy, "small"), (chat.hard, "big")):
            create = client(gateway).completions.create
            answer = create(model="small", prompt="The sea is", max_tokens=8, temperature=0)
            assert answer.model == model and answer.choices[0].text and not answer.choices[0].logprobs, answer
    with results.case("llama.cpp", CLIENT, "AsyncOpenAI, four requests at a time"):
        for answer in asyncio.run(ask_four(chat.easy)):
            assert answer.model == "small" and answer.choices[0].message.content


async def ask_four(address):
    """Four chat completions at a time."""
    async with openai.AsyncOpenAI(base_url=f"http://{address}/v1", api_key="none", max_retries=0) as connection:
        create = connection.chat.completions.create
        calls = [create(model="small", messages=QUESTION, max_tokens=8, temperature=0) for _ in range(4)]
        return await asyncio.gather(*calls)


def check_streams(results, chat):
    """Streams. The relays show when parts arrived."""
    cases = (("easy", chat.easy, chat.edge_wire, "small"), ("hard", chat.hard, chat.cloud_wire, "big"))
    for name, gateway, wire, model in cases:
        with results.case("llama.cpp", CLIENT, f"{name} stream: token by token, before its end") as notes:
            answer, front = chat.record(gateway, lambda to: list(ask(to, stream=True)))
            seen, sent = front.arrivals(b"data: "), wire.arrivals(b"data: ")
            assert seen[0] < sent[-1], "the first event arrived after the server had sent its last one"
            during = sum(1 for at in seen if at < sent[-1])
            assert during > 10, f"{during} parts arrived before the server had sent its last one"
            assert {chunk.model for chunk in answer} == {model}, answer
            assert b"logprob" not in front.body()
            inner = [without(event, ["logprobs"]) for event in events(wire.body())]
            assert [without(event, ["logprobs"]) for event in events(front.body())] == inner
            notes.append(f"{len(answer)} events, {during} parts before the end")
        with results.case("llama.cpp", CLIENT, f"{name} stream: the text of the direct answer"):
            direct = ask(chat.edge if name == "easy" else chat.cloud, stream=True)
            assert text(ask(gateway, stream=True)) == text(direct)
    with results.case("llama.cpp", CLIENT, "easy stream with logprobs asked for: same bytes") as notes:
        answer, front = chat.record(chat.easy, lambda to: list(ask(to, stream=True, **SCORES)))
        assert front.body() == chat.edge_wire.body()
        assert any(chunk.choices and chunk.choices[0].logprobs for chunk in answer)
        notes.append(f"{len(front.body())} bytes")
    with results.case("llama.cpp", CLIENT, "stream with usage: the last event has it"):
        *_, last = ask(chat.easy, stream=True, stream_options={"include_usage": True})
        assert last.usage.completion_tokens > 1, last


def check_others(results, chat):
    """Other paths, and errors."""
    calls = {
        "models.list": lambda to: client(to).models.list().data,
        "embeddings": lambda to: client(to).embeddings.create(model="small", input="sea"),
        "a model that is not decided": lambda to: text(ask(to, model="other", max_tokens=8)),
        "models.retrieve of an unknown model": lambda to: client(to).models.retrieve("absent"),
        "messages of a wrong type": lambda to: ask(to, messages="sea"),
        "max_tokens of a wrong type": lambda to: ask(to, max_tokens="many"),
    }
    for name, call in calls.items():
        with results.case("llama.cpp", CLIENT, f"{name}: as without the gateway") as notes:
            same_outcome(notes, call, chat.edge, chat.easy)
    long = chat.gateway("long", 0.0001, edge=chat.servers.llama("tiny", context=512))
    with results.case("llama.cpp", CLIENT, "prompt longer than the edge's context: the cloud answers") as notes:
        prompt = [{"role": "user", "content": "sea " * 300}]
        answer, front = chat.record(long, lambda to: ask(to, messages=prompt, max_tokens=8))
        assert answer.model == "big" and front.http()[0][1]["x-neptune-decision"] == "edge-error", answer
        *_, last = ask(long, messages=prompt, max_tokens=8, stream=True)
        assert last.model == "big", last
        notes.append(f"{answer.usage.prompt_tokens} tokens")
    with results.case("llama.cpp", CLIENT, "prompt longer than the edge's context, pinned: the edge's own error"):
        try:
            ask(long, messages=prompt, model="small@edge", max_tokens=8)
        except openai.BadRequestError as error:
            assert "context" in error.body["message"], error.body
        else:
            raise AssertionError("the request was answered")
    down = chat.gateway("down", 0.5, edge=f"127.0.0.1:{free_port()}")
    with results.case("llama.cpp", CLIENT, "edge does not answer: the cloud does"):
        answer, front = chat.record(down, lambda to: ask(to, max_tokens=8))
        assert answer.model == "big" and front.http()[0][1]["x-neptune-decision"] == "edge-down"
    with results.case("llama.cpp", CLIENT, "edge does not answer, pinned: error 503 with the reason") as notes:
        try:
            ask(down, model="small@edge", max_tokens=8)
        except openai.InternalServerError as error:
            assert error.status_code == 503 and error.body["message"], error.body
            notes.append(error.body["message"])
        else:
            raise AssertionError("the request was answered")


def check(results, servers):
    """All checks of llama.cpp."""
    chat = Chat(servers)
    check_whole(results, chat)
    check_streams(results, chat)
    check_others(results, chat)
