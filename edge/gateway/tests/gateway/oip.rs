//! Open Inference Protocol: easy answers, split batches, whole requests.

use hyper::Method;
use serde_json::{Value, json};

use crate::harness::{Received, Script, Server, Setup, ok, status};

pub const INFER: &str = "/v2/models/small/infer";

/// The body of a request whose rows have these probabilities of the first class.
pub fn rows(firsts: &[f64]) -> String {
    let data: Vec<[f64; 2]> = firsts.iter().map(|p| [*p, 7.0]).collect();
    json!({"inputs": [{"name": "x", "shape": [firsts.len(), 2], "datatype": "FP32", "data": data}]})
        .to_string()
}

fn firsts(request: &Received) -> Result<Vec<f64>, Script> {
    let body = request.json();
    let bad = |why: &str| Err(status(400, json!({"error": why})));
    let Some(input) = body["inputs"].get(0) else { return bad("no inputs") };
    let Some(data) = input["data"].as_array() else { return bad("no data") };
    let flat: Vec<f64> = data
        .iter()
        .flat_map(|row| row.as_array().cloned().unwrap_or_else(|| vec![row.clone()]))
        .filter_map(|number| number.as_f64())
        .collect();
    if input["shape"] != json!([flat.len() / 2, 2]) || input["datatype"] != "FP32" {
        return bad("the shape does not fit the data");
    }
    Ok(flat.chunks(2).map(|row| row[0]).collect())
}

/// A model whose confidence is its input. Other models do not exist.
pub fn model(name: &'static str, request: &Received, scores: impl Fn(f64) -> Vec<f64>) -> Script {
    if request.path != format!("/v2/models/{name}/infer") {
        return status(404, json!({"error": format!("no model at {}", request.path)}));
    }
    match firsts(request) {
        Err(refusal) => refusal,
        Ok(firsts) => {
            let data: Vec<Vec<f64>> = firsts.iter().map(|first| scores(*first)).collect();
            let shape = [data.len(), data[0].len()];
            let data: Vec<f64> = data.concat();
            // Unusual spaces: an easy answer has them too.
            ok(format!(
                r#"{{ "model_name":"{name}","model_version":"1", "outputs":[{{"name":"p","datatype":"FP64", "shape":{shape:?},"data":{data:?}}}]}}"#
            ))
        }
    }
}

pub fn edge_model(request: &Received) -> Script {
    model("small", request, |first| vec![first, 1.0 - first])
}

pub fn cloud_model(request: &Received) -> Script {
    model("big", request, |_| vec![0.0, 1.0])
}

pub async fn servers() -> (Server, Server, Value) {
    let (edge, cloud) = (Server::start(edge_model).await, Server::start(cloud_model).await);
    let url = format!("http://{}/", cloud.address);
    (edge, cloud, json!({"cloud": {"url": url, "modelName": "big"}}))
}

#[tokio::test]
async fn easy_answer_is_the_edges_byte_for_byte() {
    let (edge, cloud, config) = servers().await;
    let setup = Setup::start(edge.address, None, config).await;
    let answer = setup.post(INFER, rows(&[0.9, 0.05])).await;
    assert_eq!(answer.decision(), ("edge", "easy"));
    assert_eq!(answer.header("x-neptune-confidence"), "0.9000");
    assert_eq!(
        answer.text(),
        r#"{ "model_name":"small","model_version":"1", "outputs":[{"name":"p","datatype":"FP64", "shape":[2, 2],"data":[0.9, 0.09999999999999998, 0.05, 0.95]}]}"#
    );
    assert!(cloud.received().is_empty());
    assert_eq!(edge.received()[0].body, rows(&[0.9, 0.05]));
}

#[tokio::test]
async fn batch_of_32_with_7_hard_rows_uploads_7() {
    let (edge, cloud, config) = servers().await;
    let setup = Setup::start(edge.address, None, config).await;
    let hard = [0, 3, 4, 17, 20, 30, 31];
    let firsts: Vec<f64> = (0..32).map(|row| if hard.contains(&row) { 0.6 } else { 0.9 }).collect();
    let answer = setup.post(INFER, rows(&firsts)).await;
    let uploaded = cloud.received();
    assert_eq!(uploaded.len(), 1);
    assert_eq!(uploaded[0].path, "/v2/models/big/infer");
    assert_eq!(uploaded[0].json()["inputs"][0]["shape"], json!([7, 2]));
    assert_eq!(uploaded[0].json()["inputs"][0]["data"], json!(vec![[0.6, 7.0]; 7]));
    let body = answer.json();
    let data = body["outputs"][0]["data"].as_array().unwrap();
    let sides: Vec<&str> =
        (0..32).map(|row| if hard.contains(&row) { "cloud" } else { "edge" }).collect();
    for row in 0..32 {
        let expected = if hard.contains(&row) { 0.0 } else { 0.9 };
        assert_eq!(data[2 * row], json!(expected), "{row}");
    }
    assert_eq!(answer.header("x-neptune-answered-by"), sides.join(","));
    assert_eq!(body["parameters"]["neptune_answered_by"], sides.join(","));
    assert_eq!(body["model_name"], "small");
    let samples = &setup.status().await["samples"];
    assert_eq!((&samples["inference"], &samples["cloud"]), (&json!(32), &json!(7)));
    let metrics = setup.page("/metrics").await;
    for line in [
        r#"neptune_gateway_samples_total{decision="hard"} 7"#,
        r#"neptune_gateway_samples_total{decision="easy"} 25"#,
        r#"neptune_gateway_requests_total{service="test",protocol="oip",code="200"} 1"#,
        r#"neptune_gateway_upload_ratio{window="1000"} 0.21875"#,
        "neptune_gateway_threshold 0.8",
        "neptune_gateway_breaker_open 0",
        "neptune_gateway_added_seconds_count 1",
        r#"neptune_gateway_upstream_seconds_count{side="cloud"} 1"#,
        "neptune_gateway_upload_bytes_total",
    ] {
        assert!(metrics.text().contains(line), "{line}\n{}", metrics.text());
    }
}

#[tokio::test]
async fn pinned_request_never_reaches_the_cloud() {
    let (edge, cloud, config) = servers().await;
    let setup = Setup::start(edge.address, None, config).await;
    let by_header = setup.post_with(INFER, &[("x-neptune-route", "edge")], rows(&[0.6])).await;
    let by_name = setup.post("/v2/models/small@edge/infer", rows(&[0.6])).await;
    for answer in [by_header, by_name] {
        assert_eq!((answer.status.as_u16(), answer.decision()), (200, ("edge", "pinned")));
    }
    assert_eq!(edge.received()[1].path, INFER);
    edge.close();
    edge.become_script(|_| status(503, "loading"));
    let answer = setup.post_with(INFER, &[("x-neptune-route", "edge")], rows(&[0.6])).await;
    assert_eq!(answer.status, 503);
    assert_eq!(
        answer.error(),
        "this request is pinned to the edge, whose model server does not answer"
    );
    assert!(cloud.received().is_empty());
}

#[tokio::test]
async fn models_with_other_outputs_answer_requests_as_a_whole() {
    let (edge, cloud, config) = servers().await;
    cloud.become_script(|request| model("big", request, |_| vec![0.0, 0.0, 1.0]));
    let setup = Setup::start(edge.address, None, config).await;
    let first = setup.post(INFER, rows(&[0.9, 0.6])).await;
    assert_eq!(first.decision(), ("edge", "easy,fallback"), "found out by this answer");
    let second = setup.post(INFER, rows(&[0.9, 0.6])).await;
    assert_eq!(second.decision(), ("cloud", "hard"));
    assert_eq!(second.json()["outputs"][0]["shape"], json!([2, 3]));
    assert_eq!(cloud.received()[1].body, rows(&[0.9, 0.6]));
    assert_eq!(setup.post(INFER, rows(&[0.9, 0.95])).await.decision(), ("edge", "easy"));
}

#[tokio::test]
async fn metadata_of_both_models_is_compared_at_the_start() {
    let metadata = |columns: u32| {
        ok(
            json!({"name": "m", "outputs": [{"name": "p", "datatype": "FP64", "shape": [-1, columns]}]}),
        )
    };
    let edge = Server::start(move |request| {
        if request.method == Method::GET { metadata(2) } else { edge_model(request) }
    })
    .await;
    let cloud = Server::start(move |request| match &*request.path {
        "/v2/models/big" => metadata(3),
        _ => model("big", request, |_| vec![0.0, 0.0, 1.0]),
    })
    .await;
    let config = json!({"edge": {"model": "small"}, "cloud": {"modelName": "big"}});
    let setup = Setup::start(edge.address, Some(cloud.address), config).await;
    setup.until("the comparison", |status| status["isWhole"] == true).await;
    assert_eq!(setup.post(INFER, rows(&[0.9, 0.6])).await.decision(), ("cloud", "hard"));
}

#[tokio::test]
async fn other_requests_and_errors_of_the_edge_pass_unchanged() {
    let (edge, cloud, config) = servers().await;
    edge.become_script(|request| match &*request.path {
        "/v2/models/small?x=1" => ok(r#"{"name" :"small"}"#),
        "/v2/models/small/generate" => ok("{}"),
        _ => edge_model(request),
    });
    let setup = Setup::start(edge.address, None, config).await;
    let metadata = setup.send(Method::GET, "/v2/models/small?x=1", &[], "").await;
    assert_eq!((metadata.text(), metadata.decision()), (r#"{"name" :"small"}"#, ("", "")));
    let other = setup.post("/v2/models/small/generate", "{}").await;
    assert_eq!(other.decision(), ("edge", "unjudged"));
    let bad = r#"{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP64","data":[0.6,7]}]}"#;
    let refused = setup.post(INFER, bad).await;
    assert_eq!(
        (refused.status.as_u16(), &*refused.error()),
        (400, "the shape does not fit the data")
    );
    let plain =
        setup.send(Method::POST, INFER, &[("content-type", "text/plain")], rows(&[0.6])).await;
    assert_eq!(plain.status, 415);
    let unequal = r#"{"inputs":[{"name":"pixels","shape":[10,2]},{"name":"mask","shape":[9]}]}"#;
    let unequal = setup.post(INFER, unequal).await;
    assert_eq!(unequal.status, 400);
    assert_eq!(
        unequal.error(),
        "input \"pixels\" has 10 rows, \"mask\" has 9: they have to be equal"
    );
    assert!(cloud.received().is_empty());
    let memory = setup.send(Method::GET, "/v2/systemsharedmemory/status", &[], "").await;
    assert_eq!(memory.status, 501);
    assert_eq!(memory.error(), "shared memory of Triton is not supported");
    assert_eq!(setup.status().await["samples"]["unjudged"], 1);
}

#[tokio::test]
async fn other_models_than_the_configured_one_pass() {
    let (edge, cloud, mut config) = servers().await;
    crate::harness::merge(&mut config, json!({"edge": {"model": "another"}}));
    let setup = Setup::start(edge.address, None, config).await;
    assert_eq!(setup.post(INFER, rows(&[0.6])).await.decision(), ("edge", "unjudged"));
    assert!(cloud.received().iter().all(|request| request.method == Method::GET));
}

#[tokio::test]
async fn shadows_are_compared_after_the_answer() {
    let (edge, cloud, config) = servers().await;
    let mut config = config;
    crate::harness::merge(&mut config, json!({"hardExample": {"shadowRatio": 1}}));
    let setup = Setup::start(edge.address, None, config).await;
    // The cloud answers the second class: the first row disagrees.
    let answer = setup.post(INFER, rows(&[0.9, 0.05, 0.1])).await;
    assert_eq!(answer.decision(), ("edge", "easy"));
    setup.until("three shadows", |status| status["samples"]["shadow"] == 3).await;
    let status = setup.status().await;
    assert_eq!(status["samples"]["agreed"], 2);
    assert_eq!(status["agreement"]["shadows"], 3);
    assert_eq!(cloud.received().len(), 1);
}

#[tokio::test]
async fn another_version_of_the_model_is_learnt_again() {
    let (edge, _cloud, mut config) = servers().await;
    crate::harness::merge(
        &mut config,
        json!({"hardExample": {"goal": {"uploadRatio": 0.2}, "threshold": 0.5}}),
    );
    let setup = Setup::start(edge.address, None, config).await;
    let many: Vec<f64> = (0..100).map(|row| 0.5 + f64::from(row) / 200.0).collect();
    setup.post(INFER, rows(&many)).await;
    let learnt = setup.status().await["threshold"].as_f64().unwrap();
    assert!(learnt > 0.55, "{learnt}");
    edge.become_script(|request| match edge_model(request) {
        Script::Answer(code, kind, body) => Script::Answer(
            code,
            kind,
            body.replace(r#""model_version":"1""#, r#""model_version":"2""#),
        ),
        other => other,
    });
    setup.post(INFER, rows(&[0.9])).await;
    assert!(
        setup.status().await["threshold"].as_f64().unwrap() > 0.55,
        "one answer is no roll-out"
    );
    for _ in 0..15 {
        setup.post(INFER, rows(&[0.9])).await;
    }
    assert_eq!(setup.status().await["threshold"], 0.5);
}
