//! A copy of a Dataset whose data does not change makes no Event, over a real `KubeEdge`.

use std::{collections::BTreeMap, fs, time::Duration};

use k8s_openapi::api::events::v1::Event;
use kube::{Api, ResourceExt as _, api::ListParams, runtime::wait::await_condition};
use neptune_api::{Dataset, DatasetStatus};
use neptune_e2e::{Fleet, NodeBroker, Transport};
use neptune_harness::environment::number;

const NAME: &str = "log";

/// How long the fleet is idle. `hack/real-kubeedge.sh` names the variable.
fn idle_time() -> Duration {
    Duration::from_secs(number("NEPTUNE_IDLE_SECONDS").unwrap_or(120))
}

fn is_replicated(status: &DatasetStatus) -> bool {
    status.conditions.iter().any(|it| it.reason == "ReplicasInSync")
}

/// The versions of the Events of the fleet, by name. A repeated Event gets another version.
async fn events(fleet: &Fleet) -> BTreeMap<String, String> {
    let events: Api<Event> = Api::namespaced(fleet.cluster.client(), &fleet.namespace);
    let events = events.list(&ListParams::default()).await.unwrap().items;
    let version = |event: Event| {
        let version = event.resource_version().unwrap();
        (format!("{} {:?}", event.name_any(), event.reason), version)
    };
    events.into_iter().map(version).collect()
}

mod kubeedge {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    #[ignore = "needs cloudcore and edgecore: ./hack/real-kubeedge.sh"]
    async fn idle_copy_stays_in_sync_without_an_event() {
        let fleet = Fleet::with_peers(Transport::KubeEdge(NodeBroker::Mosquitto), 1).await;
        let dir = fleet.data_dir().join(NAME);
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("log.jsonl"), "{\"a\": 1}\n".repeat(1000)).unwrap();
        fleet.apply(&format!(
            "apiVersion: edgeai.io/v1alpha1\nkind: Dataset\nmetadata: {{name: {NAME}}}\n\
             spec: {{dataUrl: {}, format: jsonl, nodeName: {}, replicas: {{nodeNames: [{}]}}}}\n",
            dir.display(),
            fleet.edge,
            fleet.other(0),
        ));
        fleet.until_dataset(NAME, "replicated", is_replicated).await;

        let before = events(&fleet).await;
        let datasets: Api<Dataset> = Api::namespaced(fleet.cluster.client(), &fleet.namespace);
        let flaps = |object: Option<&Dataset>| {
            object.and_then(|it| it.status.as_ref()).is_some_and(|status| !is_replicated(status))
        };
        let flapped = tokio::time::timeout(idle_time(), await_condition(datasets, NAME, flaps));
        if let Ok(flapped) = flapped.await {
            panic!("not in sync: {:#?}", flapped.unwrap().and_then(|it| it.status));
        }
        let after = events(&fleet).await;
        println!(
            "idle for {:?}: {} Events before, {} after",
            idle_time(),
            before.len(),
            after.len()
        );
        assert_eq!(after, before);
    }
}
