//! The bound of bytes that answers and shadows share.

use std::{sync::Arc, time::Duration};

use hyper::StatusCode;
use serde_json::json;

use crate::{
    harness::{Answered, Script, Server, Setup, ok},
    oip::{INFER, edge_model, rows},
};

/// The model's answer with so many bytes more.
fn padded(request: &crate::harness::Received, padding: usize) -> Script {
    match edge_model(request) {
        Script::Answer(code, kind, body) => {
            Script::Answer(code, kind, format!("{body}{}", " ".repeat(padding)))
        }
        other => other,
    }
}

fn limits(bytes: usize) -> serde_json::Value {
    json!({"limits": {"maxBodyBytes": bytes, "maxAnswerBytes": bytes}})
}

async fn dropped(setup: &Setup) -> u64 {
    let page = setup.page("/metrics").await;
    let series = "neptune_gateway_dropped_shadows_total ";
    let line = page.text().lines().find_map(|line| line.strip_prefix(series)).map(str::to_owned);
    line.unwrap().parse().unwrap()
}

#[tokio::test]
async fn request_without_room_for_its_answer_is_asked_to_come_back() {
    // The first answer fills the room, and waits for the cloud.
    let edge = Server::start(|request| padded(request, 6_000)).await;
    let cloud = Server::start(|_| Script::Never).await;
    let mut changes = limits(10_000);
    changes["timeouts"] = json!({"cloudFirstByte": "20s", "cloudTotal": "20s"});
    let setup = Arc::new(Setup::start(edge.address, Some(cloud.address), changes).await);
    let first = tokio::spawn({
        let setup = Arc::clone(&setup);
        async move { setup.post(INFER, rows(&[0.6])).await }
    });
    while cloud.received().is_empty() {
        tokio::task::yield_now().await;
    }
    let refused: Answered = setup.post(INFER, rows(&[0.9])).await;
    assert_eq!(
        (refused.status, refused.header("retry-after")),
        (StatusCode::SERVICE_UNAVAILABLE, "1")
    );
    assert!(refused.error().contains("bytes of answers"), "{}", refused.text());
    let problems = setup.status().await["problems"].to_string();
    assert!(!problems.contains("ModelServerDown"), "{problems}");
    first.abort();
    // The first request ends with its timeouts or its connection; then there is room again.
    cloud.close();
    let answered = async {
        edge.become_script(|request| padded(request, 3_000));
        while setup.post(INFER, rows(&[0.9])).await.status != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(20), answered).await.is_ok());
}

#[tokio::test]
async fn shadows_that_wait_make_room_for_answers() {
    let edge = Server::start(|request| padded(request, 3_000)).await;
    let cloud = Server::start(|_| Script::Never).await;
    let mut changes = limits(10_000);
    changes["timeouts"] = json!({"cloudFirstByte": "20s", "cloudTotal": "20s"});
    changes["hardExample"] = json!({"shadowRatio": 1.0, "maxUploadRatio": 1.0});
    let setup = Setup::start(edge.address, Some(cloud.address), changes).await;
    // A body with a long text, which each shadow keeps.
    let body = rows(&[0.9]).replacen('{', &format!("{{\"id\":\"{}\",", "x".repeat(2_000)), 1);
    for _ in 0..8 {
        assert_eq!(setup.post(INFER, &body).await.status, 200);
    }
    assert!(dropped(&setup).await > 0);
    assert_eq!(cloud.received().len(), 1, "the first one is being compared");
}

#[tokio::test]
async fn answer_of_the_cloud_without_room_falls_back_to_the_edges() {
    let edge = Server::start(|request| padded(request, 6_000)).await;
    let cloud = Server::start(|request| padded(request, 6_000)).await;
    let setup = Setup::start(edge.address, Some(cloud.address), limits(10_000)).await;
    for _ in 0..4 {
        let answer = setup.post(INFER, rows(&[0.6])).await;
        assert_eq!((answer.status.as_u16(), answer.decision()), (200, ("edge", "fallback")));
    }
    assert_eq!(cloud.received().len(), 4, "its breaker is closed");
    cloud.become_script(|_| ok("{}"));
}
