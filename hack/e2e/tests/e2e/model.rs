//! A `Model` as a user meets it: how good its workers find it, who uses it and where it is; and another
//! version of it, which workers load while they run, or after a restart.

use std::{fs, process::Command};

use kube::{Api, runtime::wait::await_condition};
use neptune_api::{Model, ModelNodeState, ModelStatus};
use neptune_e2e::{Fleet, ModelServer, Transport, is_running, need_image, root, run, totals};

use crate::digits::{self, NAME};

over_each_transport!(
    a_model_shows_its_metrics_its_users_and_its_nodes_and_changes_without_a_restart,
);

const SMALL: &str = "digits-small";

/// The example's models, and both again under other names.
async fn models(fleet: &Fleet) -> ModelServer {
    need_image("neptune/digits:dev", "hack/build-digits-image.sh");
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

async fn until(fleet: &Fleet, what: &str, so: impl Fn(&ModelStatus) -> bool) -> ModelStatus {
    let models: Api<Model> = Api::namespaced(fleet.cluster.client(), &fleet.namespace);
    let condition =
        |model: Option<&Model>| model.and_then(|model| model.status.as_ref()).is_some_and(&so);
    let waiting = await_condition(models.clone(), SMALL, condition);
    let patience = std::time::Duration::from_secs(90);
    let Ok(found) = tokio::time::timeout(patience, waiting).await else {
        let seen = models.get_opt(SMALL).await;
        panic!("{SMALL} did not become: {what}. It is: {seen:#?}\n{}", fleet.containers());
    };
    found.unwrap().and_then(|model| model.status).expect("the condition saw a status")
}

fn accuracy(status: &ModelStatus) -> f64 {
    let found = status.metrics.iter().find(|metric| metric.key == "accuracy");
    found.map_or(0.0, |metric| metric.value.parse().unwrap())
}

fn is(status: &ModelStatus, type_: &str, reason: &str) -> bool {
    status.conditions.iter().any(|c| c.type_ == type_ && c.status == "True" && c.reason == reason)
}

/// Gives the Model another file.
fn change(fleet: &Fleet, models: &ModelServer, file: &str) {
    let folder = root().join("examples/digits/models");
    let source = if file == "better.json" { "big.json" } else { "small.json" };
    let sum = run(Command::new("sha256sum").arg(folder.join(source)));
    let sum = sum.split_whitespace().next().unwrap();
    let url = format!("{}/{file}", models.url());
    let patch = format!(r#"{{"spec":{{"modelUrl":"{url}","sha256sum":"{sum}"}}}}"#);
    fleet.kubectl(&["patch", "model", SMALL, "--type=merge", "-p", &patch]);
}

async fn a_model_shows_its_metrics_its_users_and_its_nodes_and_changes_without_a_restart(
    transport: Transport,
) {
    let fleet = Fleet::start(transport).await;
    let models = models(&fleet).await;
    fleet.apply(&digits::models_manifest(&fleet, &models));
    // It infers for as long as the test takes.
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
    assert_eq!(columns, ["NAME", "UPDATEAGE", "METRICS", "NODES", "USEDBY"]);
    assert!(shown.contains("accuracy") && shown.contains("1/1"), "{shown}");
    assert!(shown.contains(&format!("jointinferenceservices/{NAME}")), "{shown}");

    let container = fleet.container(&fleet.edge);
    let before = totals(&fleet.until(NAME, "it counts", |s| totals(s).inference > 0).await);
    change(&fleet, &models, "better.json");
    let status = until(&fleet, "the better one is evaluated", |status| {
        accuracy(status) > 0.97 && is(status, "Evaluated", "MetricsCurrent")
    })
    .await;
    assert!(status.reported_by.unwrap().model_url.ends_with("/better.json"));
    let after = fleet.until(NAME, "it counts on", |s| totals(s).inference > before.inference).await;
    assert!(is_running(&after));
    assert_eq!(fleet.container(&fleet.edge), container, "the same container");

    // Without having asked for it, the worker is restarted with another version.
    fleet.apply(&service);
    let container = fleet.replaced(&fleet.edge, &container).await;
    change(&fleet, &models, "again.json");
    until(&fleet, "the first one is evaluated again", |status| {
        (0.85..0.93).contains(&accuracy(status)) && is(status, "Evaluated", "MetricsCurrent")
    })
    .await;
    fleet.replaced(&fleet.edge, &container).await;
    let counted = totals(&after).inference;
    fleet.until(NAME, "nothing counted is lost", |s| totals(s).inference > counted).await;
}
