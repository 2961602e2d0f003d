//! Completions that the gateway streams to the client.

use std::{sync::atomic::Ordering, time::Duration};

use serde_json::{Value, json};

use crate::{
    completions::{CHAT, edge_model, probability, question, setup},
    harness::{Received, Script, Server, Setup, merge, status, stream},
};

fn event(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// The edge's events: one per token, each with the probability in the question.
fn events(body: &Value, tokens: usize) -> Vec<String> {
    let p = probability(body).unwrap();
    let mut events: Vec<String> = (0..tokens)
        .map(|index| {
            let text = format!("e{index} ");
            let mut choice = json!({"index": 0, "delta": {"content": text}});
            if body["logprobs"] == true {
                choice["logprobs"] = json!({"content": [{"token": text, "logprob": p.ln()}]});
            }
            event(&json!({"id": "edge", "choices": [choice]}))
        })
        .collect();
    events.push("data: [DONE]\n\n".to_owned());
    events
}

fn streaming(request: &Received, tokens: usize, pause: Duration) -> Script {
    let body = request.json();
    if body["stream"] != true {
        return edge_model(request);
    }
    let pieces = events(&body, tokens).into_iter().map(|event| (pause, event)).collect();
    Script::Stream { pieces, breaks: false }
}

fn cloud_stream(request: &Received) -> Script {
    if request.json()["model"] != "big" {
        return status(404, "{}");
    }
    stream([event(&json!({"id": "cloud"})), "data: [DONE]\n\n".to_owned()])
}

pub async fn start(changes: Value) -> (Setup, Server, Server) {
    let edge = Server::start(|request| streaming(request, 20, Duration::from_millis(1))).await;
    let cloud = Server::start(cloud_stream).await;
    let setup = setup(&edge, &cloud, changes).await;
    (setup, edge, cloud)
}

pub fn ask(p: f64, more: Value) -> Value {
    let mut body = question(p);
    body["stream"] = json!(true);
    merge(&mut body, more);
    body
}

#[tokio::test]
async fn easy_stream_is_the_edges_byte_for_byte() {
    for streaming in ["Buffer", "Prefix", "Auto", "EdgeOnly"] {
        let (setup, _edge, cloud) = start(json!({"streaming": streaming})).await;
        for more in [json!({}), json!({"logprobs": true})] {
            let body = ask(0.9, more);
            let answer = setup.post(CHAT, &body).await;
            let decision = if streaming == "EdgeOnly" { "pinned" } else { "easy" };
            assert_eq!(answer.decision(), ("edge", decision), "{streaming}");
            assert_eq!(answer.header("content-type"), "text/event-stream");
            assert_eq!(answer.text(), events(&body, 20).concat(), "{streaming}");
        }
        assert!(cloud.received().is_empty());
    }
}

#[tokio::test]
async fn hard_stream_is_the_clouds_alone() {
    for streaming in ["Buffer", "Prefix"] {
        let (setup, _edge, cloud) = start(json!({"streaming": streaming})).await;
        let body = ask(0.2, json!({"seed": 7}));
        let answer = setup.post(CHAT, &body).await;
        assert_eq!(answer.decision(), ("cloud", "hard"), "{streaming}");
        assert_eq!(answer.text(), "data: {\"id\":\"cloud\"}\n\ndata: [DONE]\n\n");
        let mut expected = body;
        expected["model"] = json!("big");
        assert_eq!(cloud.received()[0].json(), expected);
    }
}

#[tokio::test]
async fn edges_stream_is_closed_when_the_cloud_answers() {
    let (setup, edge, _cloud) = start(json!({"streaming": "Prefix"})).await;
    edge.become_script(|request| streaming(request, 2_000, Duration::from_millis(10)));
    let answer = setup.post(CHAT, ask(0.2, json!({}))).await;
    assert_eq!(answer.decision(), ("cloud", "hard"));
    let closed = tokio::time::timeout(Duration::from_secs(5), async {
        while edge.abandoned.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(closed.await.is_ok(), "the edge is still generating");
}

#[tokio::test]
async fn stream_falls_back_to_the_edge_when_the_cloud_fails() {
    for streaming in ["Buffer", "Prefix"] {
        let (setup, _edge, cloud) = start(json!({"streaming": streaming})).await;
        for script in [
            (|| Script::Never) as fn() -> Script,
            || status(500, "{}"),
            || crate::harness::ok("{}"),
            || Script::Reset,
        ] {
            cloud.become_script(move |_| script());
            let body = ask(0.2, json!({}));
            let answer = setup.post(CHAT, &body).await;
            assert_eq!(answer.decision(), ("edge", "fallback"), "{streaming}");
            assert_eq!(answer.text(), events(&body, 20).concat(), "{streaming}");
        }
    }
}

#[tokio::test]
async fn cloud_whose_streams_break_is_left_alone() {
    let (setup, _edge, cloud) = start(json!({"streaming": "Prefix"})).await;
    cloud.become_script(|_| Script::Stream {
        pieces: vec![(Duration::ZERO, event(&json!({"id": "cloud"})))],
        breaks: true,
    });
    for _ in 0..3 {
        let answer = setup.post(CHAT, ask(0.2, json!({}))).await;
        assert_eq!(answer.decision(), ("cloud", "hard"));
        assert!(answer.text().contains("\"error\":{\"message\":\"the stream broke"));
    }
    let body = ask(0.2, json!({}));
    let answer = setup.post(CHAT, &body).await;
    assert_eq!(answer.decision(), ("edge", "fallback"));
    assert_eq!(answer.text(), events(&body, 20).concat());
    assert_eq!(setup.status().await["cloud"], "LeftAlone");
    // After the pause a stream that ends is an answer.
    cloud.become_script(cloud_stream);
    let used = tokio::time::timeout(Duration::from_secs(10), async {
        while setup.post(CHAT, ask(0.2, json!({}))).await.decision() != ("cloud", "hard") {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    assert!(used.await.is_ok());
    setup.until("the end of the stream", |status| status["cloud"] == "Reachable").await;
}

#[tokio::test]
async fn cloud_that_stops_within_its_first_event_is_no_answer() {
    let (setup, _edge, cloud) = start(json!({"streaming": "Prefix"})).await;
    for pieces in [&["da"][..], &[": waiting\n\n", "data: {"], &["d", "a", "t", "a"]] {
        let list: Vec<_> =
            pieces.iter().map(|piece| (Duration::from_millis(20), (*piece).to_owned())).collect();
        cloud.become_script(move |_| {
            let mut pieces = list.clone();
            pieces.push((Duration::from_secs(60), event(&json!({"id": "cloud"}))));
            Script::Stream { pieces, breaks: false }
        });
        let body = ask(0.2, json!({}));
        let answer = setup.post(CHAT, &body).await;
        assert_eq!(answer.decision(), ("edge", "fallback"), "{pieces:?}");
        assert_eq!(answer.text(), events(&body, 20).concat(), "{pieces:?}");
    }
}

#[tokio::test]
async fn first_event_of_the_cloud_needs_room_among_the_answers() {
    // The beginning of the edge's stream is kept beside it until the cloud answers.
    let padding = "x".repeat(6_000);
    let limits = |bytes: usize| json!({"maxBodyBytes": 10_000, "maxAnswerBytes": bytes});
    for (bytes, decision) in [(10_000, ("edge", "fallback")), (30_000, ("cloud", "hard"))] {
        let changes = json!({"streaming": "Prefix", "limits": limits(bytes)});
        let (setup, edge, cloud) = start(changes).await;
        let text = padding.clone();
        edge.become_script(move |request| {
            let comment = format!(": {text}\n\n");
            let Script::Stream { mut pieces, breaks } = streaming(request, 3, Duration::ZERO)
            else {
                return edge_model(request);
            };
            pieces.insert(0, (Duration::ZERO, comment));
            Script::Stream { pieces, breaks }
        });
        let event = event(&json!({"id": "cloud", "text": padding}));
        cloud.become_script(move |_| stream([event.clone(), "data: [DONE]\n\n".to_owned()]));
        let answer = setup.post(CHAT, ask(0.2, json!({}))).await;
        assert_eq!(answer.decision(), decision, "{bytes}");
        assert_eq!(cloud.received().len(), 1);
    }
}

#[tokio::test]
async fn stream_that_breaks_after_its_first_byte_is_not_switched() {
    let (setup, edge, cloud) = start(json!({"streaming": "Prefix"})).await;
    edge.become_script(|request| {
        let pieces = events(&request.json(), 18).into_iter().take(18);
        Script::Stream {
            pieces: pieces.map(|piece| (Duration::from_millis(2), piece)).collect(),
            breaks: true,
        }
    });
    let answer = setup.post(CHAT, ask(0.9, json!({}))).await;
    assert_eq!(answer.decision(), ("edge", "easy"));
    let expected = events(&ask(0.9, json!({})), 18)[..18].concat();
    assert!(answer.text().starts_with(&expected), "{}", answer.text());
    assert!(
        answer.text().contains("\"error\":{\"message\":\"the stream broke"),
        "{}",
        answer.text()
    );
    assert!(cloud.received().is_empty());
}

#[tokio::test]
async fn stream_that_breaks_before_the_decision_is_answered_by_the_cloud() {
    let (setup, edge, _cloud) = start(json!({"streaming": "Buffer"})).await;
    edge.become_script(|request| {
        let pieces = events(&request.json(), 3).into_iter().take(3);
        Script::Stream {
            pieces: pieces.map(|piece| (Duration::ZERO, piece)).collect(),
            breaks: true,
        }
    });
    let answer = setup.post(CHAT, ask(0.9, json!({}))).await;
    assert_eq!(answer.decision(), ("cloud", "edge-down"));
    assert_eq!(answer.text(), "data: {\"id\":\"cloud\"}\n\ndata: [DONE]\n\n");
    edge.become_script(|_| status(503, "loading"));
    let answer = setup.post(CHAT, ask(0.9, json!({}))).await;
    assert_eq!(answer.decision(), ("cloud", "edge-down"));
}

#[tokio::test]
async fn long_wait_is_filled_with_comments_and_the_verdict_follows() {
    let (setup, edge, _cloud) = start(json!({"streaming": "Buffer"})).await;
    edge.become_script(|request| {
        let mut pieces: Vec<_> =
            events(&request.json(), 2).into_iter().map(|piece| (Duration::ZERO, piece)).collect();
        pieces[1].0 = Duration::from_secs(11);
        Script::Stream { pieces, breaks: false }
    });
    // The edge's limit of the harness is 2 s.
    let mut setup = setup;
    setup.reconfigure(json!({"timeouts": {"edge": "60s"}}));
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let answer = setup.post(CHAT, ask(0.2, json!({}))).await;
    assert_eq!(answer.header("x-neptune-decision"), "pending");
    assert_eq!(
        answer.text(),
        ": waiting\n\n: answered-by=cloud decision=hard confidence=0.2000\n\ndata: {\"id\":\"cloud\"}\n\ndata: [DONE]\n\n"
    );
}
