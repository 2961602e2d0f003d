//! Gateways in a chain: the cloud of one is the next one.

use std::time::Duration;

use serde_json::json;

use crate::{
    harness::{Server, Setup, ok, status},
    oip::{INFER, edge_model, rows},
};

/// A gateway with this identity whose model answers with this confidence at most.
async fn gateway(id: &str, edge: &Server, cloud: std::net::SocketAddr) -> Setup {
    let changes = json!({
        "id": id, "cloud": {"modelName": "small"}, "hardExample": {"maxUploadRatio": 1},
        "timeouts": {"cloudTotal": "5s", "cloudFirstByte": "5s"},
    });
    Setup::start(edge.address, Some(cloud), changes).await
}

#[tokio::test]
async fn three_tiers_answer_each_sample_once_within_its_deadline() {
    let edges = [Server::start(edge_model).await, Server::start(edge_model).await];
    let top = Server::start(|request| {
        ok(json!({"outputs": [{"name": "p", "datatype": "FP64", "shape": [1, 2], "data": [0.0, 1.0]}],
            "via": request.headers["x-neptune-via"].to_str().unwrap()}))
    })
    .await;
    let middle = gateway("middle", &edges[1], top.address).await;
    let low = gateway("low", &edges[0], middle.running().address).await;
    let limits = [("x-request-timeout-ms", "3000"), ("x-request-id", "7")];
    let answer = low.post_with(INFER, &limits, rows(&[0.9, 0.6, 0.95])).await;
    assert_eq!(answer.decision(), ("edge,cloud,edge", "easy,hard,easy"));
    let [received] = &top.received()[..] else { panic!("{:?}", top.received()) };
    assert_eq!(received.headers["x-neptune-via"], "low,middle");
    assert_eq!(received.headers["x-request-id"], "7");
    let left = |headers: &hyper::HeaderMap| -> u64 {
        headers["x-request-timeout-ms"].to_str().unwrap().parse().unwrap()
    };
    let at_middle = &edges[1].received()[0].headers;
    assert!(left(&received.headers) <= left(at_middle) && left(at_middle) <= 3_000);
    for (setup, samples) in [(&low, 3), (&middle, 1)] {
        assert_eq!(setup.status().await["samples"]["inference"], samples);
    }
    // Without the top the middle answers, so that the low tier has no fallback of its own.
    top.become_script(|_| status(500, "broken"));
    let answer = low.post(INFER, rows(&[0.6])).await;
    assert_eq!((answer.status.as_u16(), answer.decision()), (200, ("cloud", "hard")));
    assert_eq!(middle.status().await["samples"]["fallback"], 1);
}

#[tokio::test]
async fn loop_of_gateways_is_refused_and_the_edge_answers() {
    let edge = Server::start(edge_model).await;
    let unused = Server::start(|_| status(500, "unused")).await;
    let mut first = gateway("first", &edge, unused.address).await;
    let second = gateway("second", &edge, first.running().address).await;
    first.reconfigure(json!({"cloud": {"url": format!("http://{}", second.running().address)}}));
    let answered = tokio::time::timeout(Duration::from_secs(20), async {
        while first.post(INFER, rows(&[0.6])).await.decision() != ("cloud", "hard") {}
    });
    answered.await.unwrap();
    // The second one fell back, because the first one refused.
    assert!(second.status().await["samples"]["fallback"].as_u64().unwrap() > 0);
    let returned = [("x-neptune-via", "first,second")];
    let refused = first.post_with(INFER, &returned, rows(&[0.9])).await;
    assert_eq!(refused.status.as_u16(), 508);
    assert_eq!(
        refused.error(),
        "this request came back over first, second: the services are a loop; point \
         cloudWorker.service of one of them elsewhere"
    );
    let long = [("x-neptune-via", "a,b,c,d,e,f,g,h,i")];
    let refused = first.post_with(INFER, &long, rows(&[0.9])).await;
    assert!(refused.error().contains("passed 9 gateways, and at most 8"), "{}", refused.error());
}

#[tokio::test]
async fn shadow_of_another_gateway_is_answered_and_is_no_sample() {
    let edges = [Server::start(edge_model).await, Server::start(edge_model).await];
    let top = Server::start(|_| status(500, "unused")).await;
    let middle = gateway("middle", &edges[1], top.address).await;
    let mut low = gateway("low", &edges[0], middle.running().address).await;
    low.reconfigure(json!({"hardExample": {"shadowRatio": 1}}));
    let compared = tokio::time::timeout(Duration::from_secs(20), async {
        while low.status().await["samples"]["shadow"] == 0 {
            assert_eq!(low.post(INFER, rows(&[0.9])).await.decision(), ("edge", "easy"));
        }
    });
    compared.await.unwrap();
    let shadow = [("x-neptune-purpose", "shadow")];
    let hard = middle.post_with(INFER, &shadow, rows(&[0.6])).await;
    assert_eq!((hard.status.as_u16(), hard.decision()), (200, ("edge", "pinned")));
    assert_eq!(middle.status().await["samples"]["inference"], 0);
    assert!(top.received().is_empty());
}
