//! Gateways in a chain: the cloud of one is the next one.

use std::time::Duration;

use serde_json::json;

use crate::{
    grpc_server::{self, GrpcServer},
    harness::{Script, Server, Setup, ok, status},
    oip::{INFER, edge_model, rows},
};

/// A gateway with this identity whose model answers with this confidence at most.
async fn gateway(id: &str, edge: &Server, cloud: std::net::SocketAddr) -> Setup {
    Setup::start(edge.address, Some(cloud), changes(id)).await
}

fn changes(id: &str) -> serde_json::Value {
    json!({
        "id": id, "service": id, "cloud": {"modelName": "small"},
        "hardExample": {"maxUploadRatio": 1},
        "timeouts": {"cloudTotal": "5s", "cloudFirstByte": "5s"},
    })
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
    assert_eq!(answer.header("x-neptune-path"), "low=easy;low=hard,middle=hard;low=easy");
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
    // Without the top the middle answers, so that the low tier does not use its own row. It counts
    // a fallback, because no tier was sure.
    top.become_script(|_| status(500, "broken"));
    let answer = low.post(INFER, rows(&[0.6])).await;
    assert_eq!((answer.status.as_u16(), answer.decision()), (200, ("cloud", "fallback")));
    assert_eq!(answer.header("x-neptune-path"), "low=fallback,middle=fallback");
    assert_eq!(middle.status().await["samples"]["fallback"], 1);
    let samples = low.status().await["samples"].clone();
    assert_eq!((&samples["fallback"], &samples["cloud"]), (&json!(1), &json!(1)));
    assert_eq!(samples["tiers"], json!([1, 1]), "the middle answered one, the top the other");
    let page = low.page("/metrics").await;
    for line in [
        "neptune_gateway_tier_samples_total{tier=\"low\",decision=\"easy\"} 2",
        "neptune_gateway_tier_samples_total{tier=\"middle\",decision=\"hard\"} 1",
        "neptune_gateway_tier_samples_total{tier=\"middle\",decision=\"fallback\"} 1",
    ] {
        assert!(page.text().lines().any(|other| other == line), "{line} in {}", page.text());
    }
}

#[tokio::test]
async fn loop_of_gateways_is_refused_and_the_edge_answers() {
    let edge = Server::start(edge_model).await;
    let unused = Server::start(|_| status(500, "unused")).await;
    let mut first = gateway("first", &edge, unused.address).await;
    let second = gateway("second", &edge, first.running().address).await;
    first.reconfigure(json!({"cloud": {"url": format!("http://{}", second.running().address)}}));
    let answered = tokio::time::timeout(Duration::from_secs(20), async {
        while first.post(INFER, rows(&[0.6])).await.decision() != ("cloud", "fallback") {}
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
    let problems = first.status().await["problems"].clone();
    let text = problems[0]["message"].as_str().unwrap();
    assert_eq!(problems[0]["reason"], "RequestLoop");
    assert!(text.starts_with("this request came back over first, second"), "{text}");
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

#[tokio::test]
async fn tier_whose_cloud_is_away_answers_and_the_lower_one_keeps_its_budget() {
    let edges = [Server::start(edge_model).await, Server::start(edge_model).await];
    let top = Server::start(|_| status(500, "broken")).await;
    let middle = gateway("middle", &edges[1], top.address).await;
    let low = gateway("low", &edges[0], middle.running().address).await;
    for _ in 0..3 {
        low.post(INFER, rows(&[0.6])).await;
    }
    // Now the breaker of the middle is open, and that of the low tier is not.
    let answer = low.post(INFER, rows(&[0.6, 0.9])).await;
    assert_eq!(answer.decision(), ("cloud,edge", "fallback,easy"));
    assert_eq!(answer.header("x-neptune-upper"), "", "only a gateway gets it");
    let via = [("x-neptune-via", "low")];
    let of_middle = middle.post_with(INFER, &via, rows(&[0.9])).await;
    assert_eq!(of_middle.header("x-neptune-upper"), "away");
    let state = low.status().await;
    assert_eq!(state["cloud"], "Reachable", "{state}");
    assert_eq!(state["problems"][0]["reason"], "UpperAway", "{state}");
    assert_eq!(state["samples"]["fallback"], 4);
}

#[tokio::test]
async fn sample_without_the_time_of_the_cloud_stays_at_the_edge() {
    let edge = Server::start(edge_model).await;
    let pause = Duration::from_millis(120);
    let slow = Server::start(move |request| Script::Late(pause, edge_model(request).into())).await;
    let low = gateway("low", &edge, slow.address).await;
    for _ in 0..8 {
        assert_eq!(low.post(INFER, rows(&[0.6])).await.decision(), ("cloud", "hard"));
    }
    let asked = slow.received().len();
    let short = [("x-request-timeout-ms", "60")];
    let answer = low.post_with(INFER, &short, rows(&[0.6, 0.9])).await;
    assert_eq!((answer.status.as_u16(), answer.decision()), (200, ("edge", "deadline,easy")));
    assert_eq!(slow.received().len(), asked, "the cloud is not asked");
    let long = [("x-request-timeout-ms", "3000")];
    assert_eq!(low.post_with(INFER, &long, rows(&[0.6])).await.decision(), ("cloud", "hard"));
    let samples = low.status().await["samples"].clone();
    assert_eq!((&samples["deadline"], &samples["hard"]), (&json!(1), &json!(10)));
}

#[tokio::test]
async fn deadline_that_passes_in_the_tier_above_is_no_failure_of_it() {
    let edges = [Server::start(edge_model).await, Server::start(|_| Script::Never).await];
    let top = Server::start(|_| status(500, "unused")).await;
    let middle = gateway("middle", &edges[1], top.address).await;
    let low = gateway("low", &edges[0], middle.running().address).await;
    for _ in 0..4 {
        // The middle gives up after four fifths of it.
        let short = [("x-request-timeout-ms", "300")];
        let answer = low.post_with(INFER, &short, rows(&[0.6])).await;
        assert_eq!(answer.decision().0, "edge");
    }
    assert_eq!(low.status().await["cloud"], "Unknown", "no call had a result");
    assert!(top.received().is_empty());
}

#[tokio::test]
async fn answer_that_is_too_large_in_the_tier_above_is_no_failure_of_it() {
    let large = |_: &_| ok(format!("{{\"outputs\": \"{}\"}}", "x".repeat(6_000)));
    let edges = [Server::start(edge_model).await, Server::start(large).await];
    let top = Server::start(|_| status(500, "unused")).await;
    let mut limited = changes("middle");
    limited["limits"] = json!({"maxBodyBytes": 5_000});
    let middle = Setup::start(edges[1].address, Some(top.address), limited).await;
    let low = gateway("low", &edges[0], middle.running().address).await;
    for _ in 0..5 {
        let answer = low.post(INFER, rows(&[0.6])).await;
        assert_eq!((answer.status.as_u16(), answer.decision()), (200, ("edge", "fallback")));
    }
    assert_eq!(edges[1].received().len(), 5, "it is asked each time, and once");
    assert_eq!(low.status().await["cloud"], "RequestsRefused", "it works, and answered none");
}

#[tokio::test]
async fn path_deadline_and_loop_work_over_grpc() {
    let edge = GrpcServer::start(grpc_server::edge_model).await;
    let sure = |first: f32| if first > 0.6 { 0.95 } else { first };
    let near = GrpcServer::start(move |request| grpc_server::model("small", request, sure)).await;
    let top = GrpcServer::start(grpc_server::cloud_model).await;
    let config = |id: &str, model: &str| {
        json!({"id": id, "service": id, "cloud": {"modelName": model},
            "hardExample": {"maxUploadRatio": 1}})
    };
    let middle = grpc_server::setup(near.address, top.address, config("middle", "big")).await;
    let address = middle.running().grpc_address.unwrap();
    let low = grpc_server::setup(edge.address, address, config("low", "small")).await;
    let request = grpc_server::rows(&[0.875, 0.5, 0.625], true);
    let limit = [("grpc-timeout", "3000m")];
    let answer = grpc_server::infer(&low, &limit, request.clone()).await.unwrap();
    let path = answer.metadata().get("x-neptune-path").unwrap();
    assert_eq!(path, "low=easy;low=hard,middle=hard;low=hard,middle=easy");
    assert_eq!(low.status().await["samples"]["tiers"], json!([1, 1]));
    let left = |headers: &hyper::HeaderMap| -> u64 {
        headers["grpc-timeout"].to_str().unwrap().trim_end_matches('m').parse().unwrap()
    };
    let (at_middle, at_top) = (&near.received()[0].0, &top.received()[0].0);
    assert!(left(at_middle) <= 3_000 && left(at_top) <= 2_400, "a fifth is kept");
    assert_eq!(at_top["x-neptune-via"], "low,middle");
    let refused = grpc_server::infer(&low, &[("x-neptune-via", "low,middle")], request).await;
    assert_eq!(refused.unwrap_err().code(), tonic::Code::FailedPrecondition);
}
