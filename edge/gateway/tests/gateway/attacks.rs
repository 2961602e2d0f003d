//! Clients that do not finish their requests concern only themselves.
#![allow(clippy::disallowed_methods)]

use std::time::Duration;

use neptune_harness::{
    Attack, Attackers,
    under_attack::{get, judge},
};
use serde_json::json;

use crate::{
    harness::{Server, Setup},
    oip::{INFER, edge_model, rows},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attackers_delay_neither_requests_nor_health() {
    let edge = Server::start(edge_model).await;
    // 32 connections, and 4 requests.
    let changes = json!({"limits": {"maxInFlight": 4}});
    let setup = Setup::start(edge.address, None, changes).await;
    let running = setup.running();
    let (setup_of, attacks) = (&setup, Attack::all(INFER));
    let request = || async move { setup_of.post(INFER, rows(&[0.9])).await.status == 200 };
    judge("gateway", (running.address, 16), &attacks, request).await;
    let pages = running.metrics_address.unwrap();
    judge("gateway, pages", (pages, 16), &attacks, || get(pages, "/healthz")).await;
    let metrics = setup.page("/metrics").await;
    for server in ["rest", "pages"] {
        let series = format!(
            "neptune_gateway_refused_connections_total{{server=\"{server}\",cause=\"pending_full\"}}"
        );
        assert!(metrics.text().contains(&series), "{series}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_bodies_take_no_place_of_a_request() {
    let edge = Server::start(edge_model).await;
    let changes = json!({"limits": {"maxInFlight": 4}, "timeouts": {"client": "60s"}});
    let setup = Setup::start(edge.address, None, changes).await;
    let slow = Attackers::start(&Attack::SlowBody(INFER), setup.running().address, 20);
    while slow.opened() < 20 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for _ in 0..20 {
        assert_eq!(setup.post(INFER, rows(&[0.9])).await.status, 200);
    }
}
