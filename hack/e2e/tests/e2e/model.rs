//! A `Model`: its metrics, users and nodes in the status, and a new version, which workers load
//! while they run or after a restart.

use std::{fs, process::Command};

use neptune_api::{Model, ModelNodeState, ModelStatus};
use neptune_e2e::{Fleet, ModelServer, Transport, is_running, totals};
use neptune_harness::{
    docker::require_image,
    workspace::{root, run},
};

use crate::digits::{self, NAME};

over_each_transport!(model_shows_metrics_users_and_nodes_and_reloads,);

const SMALL: &str = "digits-small";

/// Serves the example's models, and copies of both under other names.
async fn models(fleet: &Fleet) -> ModelServer {
    require_image("neptune/digits:dev", "hack/build-digits-image.sh");
    let dir = fleet.dir().join("models");
    fs::create_dir(&dir).unwrap();
    for (from, to) in [
        ("small.json", "small.json"),
        ("big.json", "big.json"),
        ("big.json", "better.json"),
        ("small.json", "again.json"),
    ] {
        fs::copy(root().join("examples/digits/models").join(from), dir.join(to)).unwrap();
    }
    ModelServer::start(&dir).await
}

async fn until(fleet: &Fleet, what: &str, matches: impl Fn(&ModelStatus) -> bool) -> ModelStatus {
    fleet.until_status::<Model>(SMALL, what, matches).await
}

fn accuracy(status: &ModelStatus) -> f64 {
    let reported = status.metrics.iter().find(|metric| metric.key == "accuracy");
    reported.map_or(0.0, |metric| metric.value.parse().unwrap())
}

fn is(status: &ModelStatus, type_: &str, reason: &str) -> bool {
    status.conditions.iter().any(|c| c.type_ == type_ && c.status == "True" && c.reason == reason)
}

/// Changes the Model's URL and digest.
fn change(fleet: &Fleet, models: &ModelServer, file: &str) {
    let folder = root().join("examples/digits/models");
    let source = if file == "better.json" { "big.json" } else { "small.json" };
    let sum = run(Command::new("sha256sum").arg(folder.join(source)));
    let sum = sum.split_whitespace().next().unwrap();
    let url = format!("{}/{file}", models.url());
    let patch = format!(r#"{{"spec":{{"modelUrl":"{url}","sha256sum":"{sum}"}}}}"#);
    fleet.kubectl(&["patch", "model", SMALL, "--type=merge", "-p", &patch]);
}

async fn model_shows_metrics_users_and_nodes_and_reloads(transport: Transport) {
    let fleet = Fleet::start(transport).await;
    let models = models(&fleet).await;
    fleet.apply(&digits::models_manifest(&fleet, &models));
    // It infers until the test ends.
    let service = digits::service_manifest(&fleet, 50, 0);
    let reloading = service.replacen(
        "image: \"neptune/digits:dev\"",
        "image: \"neptune/digits:dev\"\n      modelUpdate: Reload",
        1,
    );
    fleet.apply(&reloading);
    fleet.until(NAME, "running", is_running).await;
    let status = until(&fleet, "evaluated", |status| accuracy(status) > 0.0).await;
    assert!((0.85..0.93).contains(&accuracy(&status)), "{status:?}");
    assert_eq!(status.used_by, [format!("jointinferenceservices/{NAME}")]);
    let status = until(&fleet, "ready", |status| is(status, "Ready", "ModelPresent")).await;
    let [node] = &status.nodes[..] else { panic!("{status:?}") };
    assert_eq!((&node.node, node.state), (&fleet.edge, ModelNodeState::Present));
    let shown = fleet.kubectl(&["get", "model", SMALL]);
    let heading = shown.lines().next().unwrap();
    let columns: Vec<_> = heading.split_whitespace().collect();
    assert_eq!(columns, ["NAME", "UPDATEAGE", "METRICS", "NODES", "PLACED", "USEDBY"]);
    assert!(shown.contains("accuracy") && shown.contains("1/1"), "{shown}");
    assert!(shown.contains(&format!("jointinferenceservices/{NAME}")), "{shown}");

    let container = fleet.container(&fleet.edge);
    let before = totals(&fleet.until(NAME, "counters", |s| totals(s).inference > 0).await);
    change(&fleet, &models, "better.json");
    let status = until(&fleet, "the evaluation of the better model", |status| {
        accuracy(status) > 0.97 && is(status, "Evaluated", "MetricsCurrent")
    })
    .await;
    assert!(status.reported_by.unwrap().model_url.ends_with("/better.json"));
    let after =
        fleet.until(NAME, "more counters", |s| totals(s).inference > before.inference).await;
    assert!(is_running(&after));
    assert_eq!(fleet.container(&fleet.edge), container, "the container was not replaced");

    // A worker without reload is restarted for another version.
    fleet.apply(&service);
    let container = fleet.replaced(&fleet.edge, &container).await;
    change(&fleet, &models, "again.json");
    until(&fleet, "the evaluation of the first model", |status| {
        (0.85..0.93).contains(&accuracy(status)) && is(status, "Evaluated", "MetricsCurrent")
    })
    .await;
    fleet.replaced(&fleet.edge, &container).await;
    let counted = totals(&after).inference;
    fleet.until(NAME, "no lost count", |s| totals(s).inference > counted).await;
}
