//! An aggregator on the built agent, with real Docker, a real broker, and the real program.

#![allow(clippy::unwrap_used, clippy::panic)]

mod harness;

use std::{fs, path::PathBuf};

use harness::{Agent, Broker, Cloud, docker, eventually};
use neptune_harness::{docker::require_image, free_port};
use neptune_pinned_tls::TlsKey;
use neptune_wire::{AggregatorReport, aggregator::RunPhase};
use serde_json::{Value, json};

const IMAGE: &str = "neptune/aggregator:dev";
const MODEL: &str = "default/trainingmodels/m";
const UID: &str = "uid-of-m";

struct Fixture {
    _broker: Broker,
    agent: Agent,
    cloud: Cloud,
    port: u16,
}

impl Fixture {
    async fn start() -> Self {
        require_image(IMAGE, "hack/build-aggregator-image.sh");
        let broker = Broker::start().await;
        let mut agent = Agent::new(&broker.url());
        let cloud = Cloud::connect(&agent);
        cloud.subscribed().await;
        agent.start();
        Self { _broker: broker, agent, cloud, port: free_port() }
    }

    /// Sends the object with this run, and the index that names it alone.
    fn insert(&self, run: u32, may_start: bool) {
        let key = TlsKey::generate();
        let content = json!({"aggregator": {
            "container": format!("m-{}", self.port), "image": IMAGE, "port": self.port,
            "mayStart": may_start, "request": request(run, &key.pin().0),
        }});
        let entry = self.cloud.insert(MODEL, &content);
        self.cloud.index(&[(MODEL, &entry)]);
    }

    async fn report(
        &self,
        what: &str,
        matches: impl Fn(&AggregatorReport) -> bool,
    ) -> AggregatorReport {
        let is = |report: &neptune_wire::StatusReport| {
            report.aggregator.as_deref().is_some_and(&matches)
        };
        *self.cloud.status(MODEL, what, is).await.aggregator.unwrap()
    }

    async fn has_run(&self, run: u32) -> AggregatorReport {
        let is =
            |report: &AggregatorReport| report.state.as_ref().is_some_and(|state| state.run == run);
        self.report(&format!("run {run}"), is).await
    }

    /// The IDs of the aggregators of this node.
    fn containers(&self) -> Vec<String> {
        let label = format!("label=io.neptune.aggregator-node={}", self.agent.node);
        let ids = docker(&["ps", "-aq", "--no-trunc", "--filter", &label]);
        ids.lines().map(str::to_owned).collect()
    }

    fn directory(&self) -> PathBuf {
        self.agent.data_dir().join("aggregators").join(UID)
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.agent.kill();
        for id in self.containers() {
            docker(&["rm", "-f", &id]);
        }
    }
}

fn request(run: u32, pin: &str) -> Value {
    json!({
        "uid": UID, "run": run, "nodes": {"edge9": pin}, "settings": {
            "workers": {"a": {"node": "edge9", "dataset": "d"}}, "workload": "00", "rounds": 2,
            "minWorkers": 1, "onTooFewWorkers": "Wait", "fraction": 1.0, "seed": 1,
            "maxUpdateBytes": 1_000_000,
            "rule": {"maxWeight": 0.5, "clip": 2.0, "refuse": 5.0, "serverLearningRate": 1.0,
                "serverMomentum": 0.0},
        },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn aggregator_outlives_kills_of_the_agent_and_its_container() {
    let mut fixture = Fixture::start().await;
    fixture.insert(1, true);
    let first = fixture.has_run(1).await;
    assert_eq!(first.state.as_ref().unwrap().phase, RunPhase::Preparing);
    assert_eq!(first.state.as_ref().unwrap().tasks[0].worker, "a");
    let containers = fixture.containers();
    assert_eq!(containers.len(), 1);
    let inspected = docker(&["inspect", &containers[0]]);
    let inspected: Value = serde_json::from_str(&inspected).unwrap();
    assert_eq!(inspected[0]["HostConfig"]["ReadonlyRootfs"], true);
    assert_ne!(inspected[0]["Config"]["User"], "0:0");

    fixture.agent.kill();
    fixture.agent.start();
    fixture.insert(1, false);
    let again = fixture.has_run(1).await;
    assert_eq!((&again.pin, &again.state), (&first.pin, &first.state));
    assert_eq!(fixture.containers(), containers, "it is adopted");

    docker(&["kill", &containers[0]]);
    eventually("another container", || {
        fixture.containers().iter().any(|id| !containers.contains(id))
    })
    .await;
    fixture.insert(2, true);
    let next = fixture.has_run(2).await;
    assert_eq!(next.pin, first.pin, "its directory outlives the container");
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_training_leaves_neither_container_nor_files() {
    let mut fixture = Fixture::start().await;
    fixture.insert(1, true);
    fixture.has_run(1).await;
    assert!(fixture.directory().join("aggregator.db").exists());
    // The agent is away when it is deleted.
    fixture.agent.kill();
    fixture.cloud.delete(MODEL);
    fixture.cloud.index(&[]);
    fixture.agent.start();
    eventually("the removal", || fixture.containers().is_empty() && !fixture.directory().exists())
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn aggregator_that_lost_its_files_does_not_begin_its_run_again() {
    let mut fixture = Fixture::start().await;
    fixture.insert(1, true);
    let first = fixture.has_run(1).await;
    fixture.insert(1, false);
    fixture.agent.kill();
    // The container continues with files that nothing names any more.
    fs::remove_dir_all(fixture.directory()).unwrap();
    fixture.agent.start();
    let lost = fixture.has_run(0).await;
    assert_ne!(lost.pin, first.pin, "its key is lost too");
    fixture.insert(2, true);
    fixture.has_run(2).await;
}
