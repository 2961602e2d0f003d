//! `InferenceModel`s: applied, switched under load, with a broken version, deleted.

use std::{
    cell::RefCell,
    fs,
    time::{Duration, Instant},
};

use digits::samples::held_out;
use neptune_api::{InferenceModelStatus, TransitionStatus};
use neptune_e2e::{Fleet, ModelServer, Transport};
use neptune_harness::{docker::require_image, free_port, workspace::root};
use three_resources::client::Client;
use tokio::{sync::watch, task::JoinHandle};

over_each_transport!(
    model_switches_under_load_and_survives_a_broken_version,
    replaced_server_is_away_under_two_seconds_and_rolls_back,
);

pub const IMAGE: &str = "neptune/model-server:dev";
pub const EDGE: &str = "digits-edge";
pub const CLOUD: &str = "digits-cloud";

/// Serves the examples' models and an invalid one over HTTP.
pub async fn models(fleet: &Fleet) -> ModelServer {
    require_image(IMAGE, "hack/build-model-server-image.sh");
    let dir = fleet.dir().join("models");
    fs::create_dir(&dir).unwrap();
    for name in ["small.json", "big.json"] {
        fs::copy(root().join("examples/digits/models").join(name), dir.join(name)).unwrap();
    }
    fs::write(
        dir.join("broken.json"),
        r#"{"format": "neptune-digits/1", "pool": 2, "layers": []}"#,
    )
    .unwrap();
    ModelServer::start(&dir).await
}

/// Applies the table with the example's model server, with this reload mode.
pub fn apply_frameworks(fleet: &Fleet, reload: &str) {
    let namespace = format!("namespace: {}", fleet.namespace);
    let reload = format!("reload: {reload}");
    let table = [("namespace: neptune-system", &*namespace), ("reload: watch", &reload)];
    fleet.apply(&fleet.manifest("examples/three-resources/frameworks.yaml", &table));
}

/// Applies the two models of the example, with this target version for the edge's, and this reload
/// mode of the servers.
pub fn apply(fleet: &Fleet, models: &ModelServer, version: &str, reload: &str) {
    apply_frameworks(fleet, reload);
    let namespace = format!("namespace: {}", fleet.namespace);
    let target = format!("targetVersion: '{version}'");
    let ports = [free_port(), free_port()].map(|port| port.to_string());
    let replace = [
        ("namespace: default", &*namespace),
        ("${MODEL_SERVER}", &*models.url()),
        ("targetVersion: '3'", &target),
        ("8501", &ports[0]),
        ("8502", &ports[1]),
        ("startWithinSeconds: 20", "startWithinSeconds: 5"),
        ("probationSeconds: 5", "probationSeconds: 2"),
    ];
    fleet.apply(&fleet.manifest("examples/three-resources/models.yaml", &replace));
}

pub fn switch(fleet: &Fleet, name: &str, version: &str) {
    let patch = format!(r#"{{"spec":{{"targetVersion":"{version}"}}}}"#);
    fleet.kubectl(&["patch", "im", name, "--type=merge", "-p", &patch]);
}

/// Switches the edge's model to a version 5 that its server cannot load, and waits until it is
/// rolled back to 3.
async fn deploy_broken_version(fleet: &Fleet, models: &ModelServer) {
    let patch = format!(
        r#"[{{"op":"add","path":"/spec/manifest/-","value":{{"version":"5","downloadURL":"{}/broken.json"}}}},
            {{"op":"replace","path":"/spec/targetVersion","value":"5"}}]"#,
        models.url()
    );
    fleet.kubectl(&["patch", "im", EDGE, "--type=json", "-p", &patch]);
    is_rolled_back_to_3(fleet, EDGE).await;
}

pub async fn is_rolled_back_to_3(fleet: &Fleet, name: &str) {
    let blocked = |status: &InferenceModelStatus| {
        status.transition_status == Some(TransitionStatus::BlockedByFailedLoad)
            && status.serving_version.as_deref() == Some("3")
            && status.last_failure.as_ref().is_some_and(|failure| failure.version == "5")
    };
    let status = fleet.until_model(name, "blocked by 5, serving 3", blocked).await;
    assert!(has_message(&status, "returned to 3"), "{status:#?}");
    assert_eq!(status.last_failure.unwrap().reason, "HealthCheckFailed");
}

pub fn serves(version: &str) -> impl Fn(&InferenceModelStatus) -> bool {
    move |status| {
        status.serving_version.as_deref() == Some(version)
            && status.target_version.as_deref() == Some(version)
            && status.transition_status == Some(TransitionStatus::UpToDate)
    }
}

pub fn has_message(status: &InferenceModelStatus, text: &str) -> bool {
    status.conditions.iter().any(|condition| condition.message.contains(text))
}

pub fn client(status: &InferenceModelStatus, model: &str) -> Client {
    Client::new(status.url.as_deref().unwrap(), model).unwrap()
}

/// Sends requests without a pause, and records which versions answer, in order.
pub struct Load {
    versions: watch::Receiver<Vec<String>>,
    task: JoinHandle<Outage>,
}

/// Failed requests of a load.
#[derive(Debug, Default)]
pub struct Outage {
    pub failed: u32,
    /// The longest time between two successful answers.
    longest: Duration,
}

impl Load {
    pub fn on(client: Client) -> Self {
        let (seen, versions) = watch::channel(Vec::<String>::new());
        let task = tokio::spawn(async move {
            let sample = &held_out()[0];
            let (mut outage, mut last) = (Outage::default(), Instant::now());
            while !seen.is_closed() {
                let Ok(answer) = client.infer(&[sample.pixels]).await else {
                    outage.failed += 1;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    continue;
                };
                outage.longest = outage.longest.max(last.elapsed());
                last = Instant::now();
                assert_eq!(answer.classifications[0].label, sample.label);
                let version = answer.version.unwrap();
                seen.send_if_modified(|versions| {
                    let is_new = versions.last() != Some(&version);
                    versions.extend(is_new.then_some(version));
                    is_new
                });
            }
            outage
        });
        Self { versions, task }
    }

    /// Waits until exactly these versions have answered, in this order.
    pub async fn answered(&mut self, wanted: &[&str]) {
        let waiting = self.versions.wait_for(|versions| versions == wanted);
        let answered = tokio::time::timeout(Duration::from_secs(30), waiting).await;
        assert!(matches!(answered, Ok(Ok(_))), "not {wanted:?}");
    }

    pub async fn end(self) -> Outage {
        drop(self.versions);
        self.task.await.expect("every answer is correct")
    }
}

async fn model_switches_under_load_and_survives_a_broken_version(transport: Transport) {
    let fleet = Fleet::start(transport).await;
    let models = models(&fleet).await;
    apply(&fleet, &models, "4", "watch");
    let seen = RefCell::new(Vec::new());
    let watched = |status: &InferenceModelStatus| {
        seen.borrow_mut().extend(status.transition_status);
        seen.borrow_mut().dedup();
        serves("4")(status)
    };
    let status = fleet.until_model(EDGE, "serving 4", watched).await;
    let transitions = [TransitionStatus::InProgress, TransitionStatus::UpToDate];
    assert!(seen.borrow().ends_with(&transitions), "{seen:?}");
    assert_eq!(status.node.as_deref(), Some(&*fleet.edge));
    let container = fleet.container(&fleet.edge);

    let mut load = Load::on(client(&status, "digits"));
    load.answered(&["4"]).await;
    switch(&fleet, EDGE, "3");
    // During the probation of 3 the server has both versions and answers with the higher one. The
    // status names it.
    let on_probation = |status: &InferenceModelStatus| {
        status.target_version.as_deref() == Some("3")
            && has_message(status, "3 is healthy and on probation")
    };
    let status = fleet.until_model(EDGE, "3 on probation", on_probation).await;
    assert_eq!(status.serving_version.as_deref(), Some("4"));
    fleet.until_model(EDGE, "serving 3", serves("3")).await;
    let answer = client(&status, "digits").infer(&[held_out()[0].pixels]).await.unwrap();
    assert_eq!(answer.version.as_deref(), Some("3"), "the status is correct");
    load.answered(&["4", "3"]).await;

    deploy_broken_version(&fleet, &models).await;
    switch(&fleet, EDGE, "4");
    fleet.until_model(EDGE, "serving 4 again", serves("4")).await;
    load.answered(&["4", "3", "4"]).await;
    let outage = load.end().await;
    assert_eq!(outage.failed, 0, "{outage:?}");
    assert_eq!(fleet.container(&fleet.edge), container, "the container was not replaced");

    fleet.kubectl(&["delete", "im", EDGE, CLOUD]);
    fleet.no_containers().await;
    fleet.nothing_retained(EDGE).await;
}

async fn replaced_server_is_away_under_two_seconds_and_rolls_back(transport: Transport) {
    let fleet = Fleet::start(transport).await;
    let models = models(&fleet).await;
    apply(&fleet, &models, "4", "replace");
    let status = fleet.until_model(EDGE, "serving 4", serves("4")).await;
    let container = fleet.container(&fleet.edge);
    let mut load = Load::on(client(&status, "digits"));
    load.answered(&["4"]).await;
    switch(&fleet, EDGE, "3");
    fleet.until_model(EDGE, "serving 3", serves("3")).await;
    load.answered(&["4", "3"]).await;
    let outage = load.end().await;
    assert!(outage.longest < Duration::from_secs(2), "{outage:?}");
    assert_ne!(fleet.container(&fleet.edge), container);

    deploy_broken_version(&fleet, &models).await;
    let answer = client(&status, "digits").infer(&[held_out()[0].pixels]).await.unwrap();
    assert_eq!(answer.version.as_deref(), Some("3"));
}
