//! Completions that are not streamed.

use serde_json::{Value, json};

use crate::harness::{Received, Script, Server, Setup, merge, ok, status};

pub const CHAT: &str = "/v1/chat/completions";
pub const TEXT: &str = "/v1/completions";

/// The probability of every token of the edge's answer: the question is it.
pub fn probability(body: &Value) -> Option<f64> {
    let question = body["messages"][0]["content"].as_str().or(body["prompt"].as_str())?;
    Some(question.parse().unwrap_or(0.9))
}

/// A server like llama.cpp's: it refuses what it does not know, and gives log-probabilities.
pub fn edge_model(request: &Received) -> Script {
    let body = request.json();
    let Some(p) = probability(&body) else {
        return status(400, json!({"error": {"message": "no question"}}));
    };
    let wants = body["logprobs"] == true || body["logprobs"].is_u64();
    if wants && body.get("tools").is_some() {
        return status(400, json!({"error": {"message": "logprobs is not supported with tools"}}));
    }
    let token = |text: &str| {
        let alternatives =
            json!([{"token": text, "logprob": p.ln()}, {"token": "x", "logprob": (1.0 - p).ln()}]);
        let top = if body["top_logprobs"].is_u64() { alternatives } else { json!([]) };
        json!({"token": text, "logprob": p.ln(), "top_logprobs": top})
    };
    let logprobs = json!({"content": [token("Par"), token("is")]});
    let mut choice = match &*request.path {
        CHAT => {
            json!({"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Paris"}})
        }
        TEXT => json!({"index": 0, "finish_reason": "stop", "text": "Paris"}),
        "/v1/models" => return ok(r#"{"object" :"list","data":[]}"#),
        _ => return status(404, json!({"error": {"message": "no such path"}})),
    };
    if wants {
        choice["logprobs"] = logprobs;
    }
    ok(json!({"id": "edge", "model": body["model"], "choices": [choice], "own_field": 1,
        "usage": {"prompt_tokens": 3, "completion_tokens": 2}}))
}

pub fn cloud_model(request: &Received) -> Script {
    let body = request.json();
    if body["model"] != "big" {
        return status(404, json!({"error": {"message": "no such model"}}));
    }
    match &*request.path {
        CHAT => {
            ok(json!({"id": "cloud", "choices": [{"index": 0, "message": {"content": "Paris!"}}]}))
        }
        TEXT => ok(json!({"id": "cloud", "choices": [{"index": 0, "text": "Paris!"}]})),
        _ => status(404, "{}"),
    }
}

pub fn question(p: f64) -> Value {
    json!({"model": "small", "messages": [{"role": "user", "content": p.to_string()}]})
}

pub async fn servers() -> (Server, Server) {
    (Server::start(edge_model).await, Server::start(cloud_model).await)
}

pub async fn setup(edge: &Server, cloud: &Server, changes: Value) -> Setup {
    let mut config = json!({
        "protocol": "openai", "hardExample": {"algorithm": "LogProb", "threshold": 0.5},
        "cloud": {"url": format!("http://{}/v1", cloud.address), "modelName": "big"},
    });
    merge(&mut config, changes);
    let setup = Setup::start(edge.address, None, config).await;
    setup.until("the probe", |status| status["signal"] != "Unknown").await;
    setup
}

#[tokio::test]
async fn server_that_imports_its_model_is_probed_again() {
    let (edge, cloud) = servers().await;
    edge.become_script(|_| status(404, json!({"error": "model \"small\" not found"})));
    let config = json!({
        "protocol": "openai", "hardExample": {"algorithm": "LogProb", "threshold": 0.5},
        "cloud": {"url": format!("http://{}/v1", cloud.address), "modelName": "big"},
    });
    let setup = Setup::start(edge.address, None, config).await;
    let asked = tokio::time::timeout(std::time::Duration::from_secs(20), async {
        while edge.received().len() < 4 {
            tokio::task::yield_now().await;
        }
    });
    asked.await.unwrap();
    assert_eq!(setup.status().await["signal"], "Unknown");
    edge.become_script(edge_model);
    setup.until("the next probe", |status| status["signal"] == "Top2").await;
    assert_eq!(setup.post(CHAT, question(0.3)).await.decision(), ("cloud", "hard"));
}

#[tokio::test]
async fn easy_answer_is_the_edges_without_the_gateways_log_probabilities() {
    let (edge, cloud) = servers().await;
    let setup = setup(&edge, &cloud, json!({})).await;
    assert_eq!(setup.status().await["signal"], "Top2");
    for (path, body) in [(CHAT, question(0.9)), (TEXT, json!({"model": "small", "prompt": "0.9"}))]
    {
        let direct = {
            let address = edge.address;
            let direct = Setup::start(address, None, json!({})).await;
            direct.post(path, &body).await
        };
        let answer = setup.post(path, &body).await;
        assert_eq!(answer.decision(), ("edge", "easy"));
        assert_eq!(answer.header("x-neptune-confidence"), "0.9000");
        assert_eq!(answer.body, direct.body, "{path}");
    }
    let mut own = question(0.9);
    own["logprobs"] = json!(true);
    let own = setup.post(CHAT, own).await;
    assert_eq!(own.json()["choices"][0]["logprobs"]["content"].as_array().unwrap().len(), 2);
    let models = setup
        .send(hyper::Method::GET, "/v1/models", &[("content-type", "application/json")], "{}")
        .await;
    assert_eq!(models.status, 400, "the edge's own answer");
    assert!(cloud.received().is_empty());
    let metrics = setup.page("/metrics").await;
    assert!(
        metrics.text().contains(r#"neptune_gateway_tokens_total{side="edge",type="output"} 6"#),
        "{}",
        metrics.text()
    );
}

#[tokio::test]
async fn hard_question_goes_to_the_clouds_model_with_its_token_only() {
    let (edge, cloud) = servers().await;
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "secret-1\n").unwrap();
    let setup = setup(&edge, &cloud, json!({"cloud": {"tokenFile": token}})).await;
    for (path, mut body) in
        [(CHAT, question(0.2)), (TEXT, json!({"model": "small", "prompt": "0.2"}))]
    {
        body["seed"] = json!(7);
        let client =
            [("authorization", "Bearer client"), ("x-private", "1"), ("traceparent", "00-a-b-01")];
        let answer = setup.post_with(path, &client, &body).await;
        assert_eq!((answer.decision(), &answer.json()["id"]), (("cloud", "hard"), &json!("cloud")));
        let sent = cloud.received().pop().unwrap();
        body["model"] = json!("big");
        assert_eq!((&*sent.path, sent.json()), (path, body), "without log-probabilities");
        assert_eq!(sent.headers["authorization"], "Bearer secret-1");
        assert_eq!(
            (sent.headers.get("x-private"), &sent.headers["traceparent"]),
            (None, &"00-a-b-01".parse().unwrap())
        );
        assert_eq!(edge.received().pop().unwrap().headers["authorization"], "Bearer client");
    }
}

#[tokio::test]
async fn change_of_the_configuration_never_calls_without_the_token() {
    let (edge, cloud) = servers().await;
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "secret").unwrap();
    cloud.become_script(|request| {
        let has_token = request.headers.get("authorization").is_some();
        if has_token { cloud_model(request) } else { status(401, "{}") }
    });
    let mut setup = setup(&edge, &cloud, json!({"cloud": {"tokenFile": token}})).await;
    for threshold in [0.6, 0.7] {
        setup.reconfigure(json!({"hardExample": {"threshold": threshold}}));
        while setup.status().await["threshold"] != threshold {
            assert_eq!(setup.post(CHAT, question(0.2)).await.decision(), ("cloud", "hard"));
        }
    }
}

#[tokio::test]
async fn refused_token_opens_the_breaker_until_the_file_changes() {
    let (edge, cloud) = servers().await;
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "old").unwrap();
    cloud.become_script(|request| {
        let is_new =
            request.headers.get("authorization").is_some_and(|token| token == "Bearer new");
        if is_new { cloud_model(request) } else { status(401, "{}") }
    });
    let setup = setup(&edge, &cloud, json!({"cloud": {"tokenFile": token}})).await;
    for _ in 0..5 {
        assert_eq!(setup.post(CHAT, question(0.2)).await.decision(), ("edge", "fallback"));
    }
    assert_eq!(
        (cloud.received().len(), &setup.status().await["cloud"]),
        (1, &json!("TokenRefused"))
    );
    std::fs::write(&token, "new").unwrap();
    setup.until("the new token", |status| status["cloud"] == "Unknown").await;
    assert_eq!(setup.post(CHAT, question(0.2)).await.decision(), ("cloud", "hard"));
}

#[tokio::test]
async fn server_without_log_probabilities_keeps_every_sample_at_the_edge() {
    let (edge, cloud) = servers().await;
    edge.become_script(|request| {
        let mut request = request.clone();
        let mut body = request.json();
        body.as_object_mut().unwrap().remove("logprobs");
        request.body = body.to_string().into();
        edge_model(&request)
    });
    let setup = setup(&edge, &cloud, json!({})).await;
    assert_eq!(setup.status().await["signal"], "None");
    let asked = edge.received().len();
    assert_eq!(setup.post(CHAT, question(0.2)).await.decision(), ("edge", "unjudged"));
    assert_eq!(edge.received()[asked].json(), question(0.2), "nothing is added");
    assert!(cloud.received().is_empty());
}

#[tokio::test]
async fn request_that_refuses_log_probabilities_is_sent_again_without() {
    let (edge, cloud) = servers().await;
    let setup = setup(&edge, &cloud, json!({})).await;
    let mut body = question(0.2);
    body["tools"] = json!([]);
    let answer = setup.post(CHAT, &body).await;
    assert_eq!((answer.status.as_u16(), answer.decision()), (200, ("edge", "unjudged")));
    let bad = setup.post(CHAT, r#"{"model":"small"}"#).await;
    assert_eq!((bad.status.as_u16(), &*bad.error()), (400, "no question"));
}

#[tokio::test]
async fn suffix_of_the_model_keeps_a_question_at_the_edge() {
    let (edge, cloud) = servers().await;
    let setup = setup(&edge, &cloud, json!({})).await;
    let mut body = question(0.2);
    body["model"] = json!("small@edge");
    let answer = setup.post(CHAT, &body).await;
    assert_eq!((answer.decision(), &answer.json()["model"]), (("edge", "pinned"), &json!("small")));
    assert!(cloud.received().is_empty());
}

#[tokio::test]
async fn rules_for_alternatives_are_given_them() {
    let (edge, cloud) = servers().await;
    let setup = setup(&edge, &cloud, json!({"hardExample": {"tokens": "margin"}})).await;
    let answer = setup.post(CHAT, question(0.9)).await;
    assert_eq!(
        (answer.decision(), answer.header("x-neptune-confidence")),
        (("edge", "easy"), "0.8000")
    );
    assert_eq!(setup.post(CHAT, question(0.6)).await.decision(), ("cloud", "hard"));
}

#[tokio::test]
async fn embeddings_are_never_exchanged() {
    let (edge, cloud) = servers().await;
    edge.become_script(|_| ok(r#"{"data":[]}"#));
    let setup = Setup::start(
        edge.address,
        Some(cloud.address),
        json!({"protocol": "openai", "hardExample": {"algorithm": "CloudOnly"}}),
    )
    .await;
    let answer = setup.post("/v1/embeddings", r#"{"input":"a"}"#).await;
    assert_eq!(answer.decision(), ("edge", "unjudged"));
    assert_eq!(
        answer.header("x-neptune-info"),
        "embeddings of two models cannot be exchanged: this path goes to the edge only"
    );
    assert!(cloud.received().is_empty());
}
