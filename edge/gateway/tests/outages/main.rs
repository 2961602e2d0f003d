//! Outages of the cloud under load: the gateway's own process, in front of real model servers and
//! behind a proxy that fails in all the ways that clouds and networks do.
//!
//! The tests have one short outage of each kind. `hack/test-gateway-faults.sh` has more and longer ones,
//! and judges the latencies as well.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "tests"
)]

mod load;
mod proxy;
mod rig;
mod streams;
mod table;

use serde_json::{Value, json};

use self::{
    load::Traffic,
    proxy::Fault,
    rig::{Rig, Sizes, model_server, schedule},
    table::judge,
};

/// Bodies of requests with one image each.
fn images() -> Vec<String> {
    let file = neptune_harness::workspace::root().join("examples/digits/data/test.csv");
    let text = std::fs::read_to_string(file).unwrap();
    let body = |line: &str| {
        let (pixels, _label) = line.rsplit_once(',').unwrap();
        format!(
            r#"{{"inputs":[{{"name":"pixels","shape":[1,64],"datatype":"FP32","data":[{pixels}]}}]}}"#
        )
    };
    text.lines().map(body).collect()
}

#[expect(clippy::unnecessary_wraps, reason = "a stream may be cut")]
fn is_whole(body: &[u8]) -> Option<bool> {
    let answer: Value = serde_json::from_slice(body).unwrap_or_default();
    let outputs = answer["outputs"].as_array().cloned().unwrap_or_default();
    let scores = outputs.iter().find(|output| output["name"] == "probabilities");
    let scores = scores.and_then(|output| output["data"].as_array());
    Some(scores.is_some_and(|scores| scores.len() == 10 && scores.iter().all(Value::is_f64)))
}

async fn run(mut rig: Rig, traffic: Traffic, kinds: &[Fault], sizes: &Sizes) {
    println!("seed {}, {} outages", sizes.seed, sizes.outages);
    let may_cut = traffic.cuts;
    let load = rig.load(traffic).await;
    let mut outages = Vec::new();
    for (fault, lasts) in schedule(kinds, sizes) {
        outages.push(rig.outage(&load, fault, sizes, lasts).await);
    }
    let samples = load.stop().await;
    let judgement = judge(&outages, &samples, &rig.proxy.received(), sizes, may_cut);
    println!("{}the gateway used at most {} MiB", judgement.table, rig.memory_mib());
    rig.stop().await;
    assert!(judgement.problems.is_empty(), "{}", judgement.problems.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_outage_of_the_cloud_fails_a_request_or_delays_an_easy_one() {
    let folder = tempfile::tempdir().unwrap();
    let sizes = Sizes::of_environment(Fault::WHOLE.len(), 1);
    let ((small, edge), (big, cloud)) =
        (model_server(&folder, "small"), model_server(&folder, "big"));
    let config = json!({
        "protocol": "oip", "cloud": {"modelName": "big"},
        "hardExample": {"output": "probabilities"},
    });
    let rig = Rig::start(folder, vec![small, big], (edge, cloud), &sizes, config).await;
    let images = images();
    let body = move |number: usize| images[number % images.len()].clone();
    let path = "/v2/models/small/infer";
    run(rig, Traffic { path, body: Box::new(body), is_whole, cuts: false }, &Fault::WHOLE, &sizes)
        .await;
}
