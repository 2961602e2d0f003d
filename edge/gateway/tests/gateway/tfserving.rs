//! TensorFlow Serving: the row form is split, the column form is not.

use serde_json::{Value, json};

use crate::harness::{Received, Script, Server, Setup, ok, status};

/// Answers both forms; each instance is its score.
fn predict(path: &str, request: &Received, score: impl Fn(f64) -> f64) -> Script {
    if request.path != path {
        return status(404, json!({"error": "Servable not found for request"}));
    }
    let body = request.json();
    let scores = |list: &Value| -> Vec<[f64; 2]> {
        let numbers = list.as_array().unwrap().iter().map(|number| score(number.as_f64().unwrap()));
        numbers.map(|score| [score, 1.0 - score]).collect()
    };
    match (body.get("instances"), body.get("inputs")) {
        (Some(rows), None) => ok(json!({"predictions": scores(rows)})),
        (None, Some(columns)) => ok(json!({"outputs": scores(columns)})),
        _ => status(400, json!({"error": "Missing 'inputs' or 'instances' key"})),
    }
}

async fn setup() -> (Setup, Server, Server) {
    let edge = Server::start(|request| predict("/v1/models/small:predict", request, |x| x)).await;
    let cloud = Server::start(|request| predict("/v1/models/big:predict", request, |_| 0.0)).await;
    let config = json!({
        "protocol": "tfserving",
        "cloud": {"url": format!("http://{}", cloud.address), "modelName": "big"},
    });
    (Setup::start(edge.address, None, config).await, edge, cloud)
}

#[tokio::test]
async fn rows_are_split_and_columns_are_answered_as_a_whole() {
    let (setup, _edge, cloud) = setup().await;
    let path = "/v1/models/small:predict";
    for (body, decision, uploaded, answer) in [
        (
            json!({"instances": [0.875, 0.125]}),
            ("edge", "easy"),
            None,
            json!({"predictions": [[0.875, 0.125], [0.125, 0.875]]}),
        ),
        (
            json!({"instances": [0.875, 0.5, 1], "signature_name": "s"}),
            ("edge,cloud,edge", "easy,hard,easy"),
            Some(json!({"instances": [0.5], "signature_name": "s"})),
            json!({"predictions": [[0.875, 0.125], [0.0, 1.0], [1.0, 0.0]]}),
        ),
        (
            json!({"inputs": [0.875, 0.5]}),
            ("cloud", "hard"),
            Some(json!({"inputs": [0.875, 0.5]})),
            json!({"outputs": [[0.0, 1.0], [0.0, 1.0]]}),
        ),
    ] {
        let before = cloud.received().len();
        let answered = setup.post(path, &body).await;
        assert_eq!(answered.decision(), decision, "{body}");
        assert_eq!(cloud.received().get(before).map(Received::json), uploaded, "{body}");
        assert_eq!(answered.json(), answer, "{body}");
    }
    let refused = setup.post(path, "{}").await;
    assert_eq!(
        (refused.status.as_u16(), &*refused.error()),
        (400, "Missing 'inputs' or 'instances' key")
    );
    let versioned = setup.post("/v1/models/small/versions/3:predict", r#"{"instances":[1]}"#).await;
    assert_eq!(versioned.status, 404);
}
