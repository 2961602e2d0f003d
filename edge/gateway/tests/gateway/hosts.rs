//! Which hosts and origins a listener on loopback answers: a page that a browser on the node shows
//! must not spend the budget of uploads.

use std::net::SocketAddr;

use hyper::Method;
use serde_json::json;
use tonic::Code;

use crate::{
    grpc_server::{self, GrpcServer},
    harness::{Answered, Script, Server, Setup},
    oip::{INFER, edge_model, rows},
};

async fn setup(changes: serde_json::Value) -> (Setup, Server) {
    let edge = Server::start(edge_model).await;
    (Setup::start(edge.address, None, changes).await, edge)
}

async fn from_host(setup: &Setup, host: &str) -> Answered {
    setup.post_with(INFER, &[("host", host)], rows(&[0.9])).await
}

#[tokio::test]
async fn request_with_a_foreign_host_is_refused_on_loopback() {
    let (setup, edge) = setup(json!({})).await;
    for host in ["localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:8080", "[::1]:8080"] {
        assert_eq!(from_host(&setup, host).await.status, 200, "{host}");
    }
    let answered = edge.received().len();
    for host in ["evil.example", "evil.example:8080", "localhost.evil.example", "192.0.2.1"] {
        let answer = from_host(&setup, host).await;
        assert_eq!(answer.status, 403, "{host}");
        let name = host.split(':').next().unwrap();
        let text = answer.error();
        assert!(text.contains(name) && text.contains("allowedHosts"), "{text}");
    }
    assert_eq!(edge.received().len(), answered, "no server got them");
    let page = setup.page("/metrics").await;
    for line in [
        r#"neptune_gateway_refused_connections_total{server="rest",cause="foreign_host"} 4"#,
        r#"neptune_gateway_requests_total{service="test",protocol="oip",code="403"} 4"#,
    ] {
        assert!(page.text().contains(line), "{line}: {}", page.text());
    }
}

#[tokio::test]
async fn pages_for_machines_are_refused_to_a_foreign_host() {
    let (setup, _edge) = setup(json!({})).await;
    let address = setup.running().metrics_address.unwrap();
    let answer = setup.to(address, Method::GET, "/status", &[("host", "evil.example")], "").await;
    assert_eq!(answer.status, 403);
    assert!(answer.error().contains("evil.example"), "{}", answer.text());
}

#[tokio::test]
async fn host_that_the_configuration_allows_is_answered() {
    let (mut setup, _edge) = setup(json!({"allowedHosts": ["edge0.example"]})).await;
    assert_eq!(from_host(&setup, "edge0.example:8080").await.status, 200);
    assert_eq!(from_host(&setup, "edge1.example").await.status, 403);
    setup.reconfigure(json!({
        "allowedHosts": ["edge1.example"], "hardExample": {"threshold": 0.7},
    }));
    setup.until("the reload", |status| status["threshold"] == 0.7).await;
    assert_eq!(from_host(&setup, "edge0.example").await.status, 403);
    assert_eq!(from_host(&setup, "edge1.example").await.status, 200);
}

#[tokio::test]
async fn listener_on_another_address_answers_every_host_unless_some_are_listed() {
    let loopback = |address: SocketAddr| SocketAddr::from(([127, 0, 0, 1], address.port()));
    for (changes, code) in [
        (json!({"listen": "0.0.0.0:0"}), 200),
        (json!({"listen": "0.0.0.0:0", "allowedHosts": ["edge0.example"]}), 403),
    ] {
        let (setup, _edge) = setup(changes).await;
        let headers = [("content-type", "application/json"), ("host", "container-name:8080")];
        let address = loopback(setup.running().address);
        let answer = setup.to(address, Method::POST, INFER, &headers, rows(&[0.9])).await;
        assert_eq!(answer.status, code);
    }
}

#[tokio::test]
async fn page_of_a_foreign_origin_is_refused_and_gets_no_cors_headers() {
    let edge = Server::start(|_| Script::Cors("{}".to_owned())).await;
    let setup = Setup::start(edge.address, None, json!({})).await;
    for origin in ["https://evil.example", "http://localhost.evil.example:80", "null", "?"] {
        let answer = setup.post_with("/v2", &[("origin", origin)], "{}").await;
        assert_eq!(answer.status, 403, "{origin}");
        assert!(answer.error().contains(origin), "{}", answer.text());
        assert_eq!(answer.header("access-control-allow-origin"), "");
    }
    assert!(edge.received().is_empty(), "no server got them");
    for (origin, allowed) in
        [("http://localhost:3000", "*"), ("https://127.0.0.1", "*"), ("http://[::1]:3000", "*")]
    {
        let answer = setup.post_with("/v2", &[("origin", origin)], "{}").await;
        assert_eq!(
            (answer.status.as_u16(), answer.header("access-control-allow-origin")),
            (200, allowed)
        );
    }
    let answer = setup.post("/v2", "{}").await;
    assert_eq!((answer.status.as_u16(), answer.header("access-control-allow-origin")), (200, ""));
    let page = setup.page("/metrics").await;
    let line =
        r#"neptune_gateway_refused_connections_total{server="rest",cause="foreign_origin"} 4"#;
    assert!(page.text().contains(line), "{}", page.text());
}

#[tokio::test]
async fn call_of_grpc_with_a_foreign_host_is_refused_on_loopback() {
    let (edge, cloud) = (
        GrpcServer::start(grpc_server::edge_model).await,
        GrpcServer::start(grpc_server::cloud_model).await,
    );
    let setup = grpc_server::setup(edge.address, cloud.address, json!({})).await;
    let rows = grpc_server::rows(&[0.9], true);
    assert!(grpc_server::infer(&setup, &[], rows.clone()).await.is_ok());
    let port = setup.running().grpc_address.unwrap().port();
    let refused = grpc_server::infer_at(&setup, &format!("http://evil.example:{port}"), rows).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().contains("evil.example"), "{}", refused.message());
    assert_eq!(edge.received().len(), 1);
}
