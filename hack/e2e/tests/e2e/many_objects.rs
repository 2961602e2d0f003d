//! More objects than rumqttd sends retained messages to a new subscription: index and sync repair
//! the difference, in both directions.

use std::{collections::BTreeSet, fmt::Write as _, fs};

use kube::{
    Api,
    api::{Patch, PatchParams},
};
use neptune_api::{Dataset, DatasetStatus};
use neptune_e2e::{Fleet, KillTarget, Transport};
use neptune_harness::MqttClient;
use serde_json::json;

const OBJECTS: usize = 300;
/// The most messages that rumqttd sends of the retained ones that match a new subscription with
/// wildcards and `QoS` 1.
const RETAINED: usize = 100;

async fn all_are_counted(fleet: &Fleet) {
    for number in 0..OBJECTS {
        let counted = |status: &DatasetStatus| status.number_of_samples == Some(3);
        fleet.until_dataset(&name(number), "counted", counted).await;
    }
}

fn name(number: usize) -> String {
    format!("d{number}")
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_beyond_the_retained_messages_of_rumqttd_are_repaired() {
    let mut fleet = Fleet::start(Transport::Rumqttd).await;
    let (port, node) = (fleet.broker.port(), fleet.edge.clone());
    let (downstream, upstream) =
        (format!("neptune/{node}/downstream/#"), format!("neptune/{node}/upstream/#"));
    fleet.stop_agent();
    let mut observer = MqttClient::connect(port, &[&downstream]).await;
    let file = fleet.data_dir().join("a.csv");
    fs::write(&file, "a\n1\n2\n3\n").unwrap();
    let manifest = (0..OBJECTS).fold(String::new(), |mut text, number| {
        writeln!(
            text,
            "---\napiVersion: edgeai.io/v1alpha1\nkind: Dataset\nmetadata: {{name: {}}}\n\
             spec: {{dataUrl: {}, format: csv, nodeName: {node}}}",
            name(number),
            file.display()
        )
        .unwrap();
        text
    });
    fleet.apply(&manifest);
    let mut published = BTreeSet::new();
    while published.len() < OBJECTS {
        let topic = observer.next().await.topic;
        published.extend(topic.contains("/datasets/").then_some(topic));
    }
    let retained = MqttClient::retained(port, &downstream).await.len();
    assert_eq!(retained, RETAINED, "the limit of rumqttd changed: correct its documentation");

    fleet.start_agent();
    all_are_counted(&fleet).await;

    // The next controller does not receive all reports, either.
    assert_eq!(MqttClient::retained(port, &upstream).await.len(), RETAINED);
    fleet.kill(KillTarget::Controller).await;
    let datasets: Api<Dataset> = Api::namespaced(fleet.cluster.client(), &fleet.namespace);
    let cleared = Patch::Merge(json!({"status": {"numberOfSamples": null}}));
    for number in 0..OBJECTS {
        let (name, params) = (name(number), PatchParams::default());
        let patched = datasets.patch_status(&name, &params, &cleared).await.unwrap();
        assert_eq!(patched.status.unwrap().number_of_samples, None);
    }
    all_are_counted(&fleet).await;
}
