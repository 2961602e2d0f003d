//! A training whose aggregator runs on a node: the final weights are those of one in the cloud, also
//! when its agent and its container are killed.

use std::path::PathBuf;

use neptune_api::{TrainingModel, TrainingModelStatus};
use neptune_e2e::{Fleet, KillTarget, Transport};
use neptune_harness::{
    docker::{aggregator_filter, docker, require_image},
    eventually, free_port,
};

use crate::{
    digits::NAME,
    federated::{Federated, apply_example, until_succeeded},
    training_kills::{delete, final_weights},
};

over_each_transport!(aggregator_on_a_node_computes_the_same_weights_despite_kills,);

const OUTPUT: &str = "on-node";

async fn aggregator_on_a_node_computes_the_same_weights_despite_kills(transport: Transport) {
    require_image("neptune/aggregator:dev", "hack/build-aggregator-image.sh");
    let mut fleet = Fleet::with_more_nodes(transport, 2).await;
    let in_the_cloud = {
        let _training = Federated::start(&fleet, "in-the-cloud", &[]).await;
        let digest = final_weights(&until_succeeded(&fleet).await);
        delete(&fleet).await;
        digest
    };
    let port = free_port();
    let edge = fleet.edge.clone();
    let aggregation = format!("nodeName: {edge}\n    service: {{address: \"127.0.0.1:{port}\"}}");
    let _scripts = apply_example(&fleet, OUTPUT, &[], &aggregation).await;
    let has_round =
        |round| move |status: &TrainingModelStatus| status.round.is_some_and(|it| it >= round);
    fleet.until_status::<TrainingModel>(NAME, "round 3", has_round(3)).await;
    let before = aggregators(&edge);
    assert_eq!(before.len(), 1, "one aggregator");
    fleet.kill(KillTarget::Agent).await;
    fleet.until_status::<TrainingModel>(NAME, "round 5", has_round(5)).await;
    assert_eq!(aggregators(&edge), before, "it outlives the agent");
    docker(&["kill", &before[0]]);
    let status = until_succeeded(&fleet).await;
    assert_eq!(final_weights(&status), in_the_cloud, "{status:#?}");
    assert_eq!((status.run, status.history.len()), (Some(1), 10), "{status:#?}");
    let aggregator = status.aggregator.clone().unwrap();
    assert_eq!(aggregator.node.as_deref(), Some(&*edge));
    println!("{transport:?}: {in_the_cloud} in the cloud and on {edge}");

    let model =
        fleet.kubectl(&["get", "models.edgeai.io", OUTPUT, "-o", "jsonpath={.spec.modelUrl}"]);
    let expected = format!("http://127.0.0.1:{port}/v1/content/");
    assert!(model.starts_with(&expected), "{model}");
    let uid = fleet.kubectl(&["get", "tm", NAME, "-o", "jsonpath={.metadata.uid}"]);
    let files: PathBuf = fleet.dir().join(&edge).join("aggregators").join(uid);
    assert!(files.exists(), "{}", files.display());
    delete(&fleet).await;
    eventually("the removal of the aggregator", || {
        aggregators(&edge).is_empty() && !files.exists()
    })
    .await;
}

/// The IDs of the aggregators of a node.
fn aggregators(node: &str) -> Vec<String> {
    let ids = docker(&["ps", "-aq", "--no-trunc", "--filter", &aggregator_filter(node)]);
    ids.lines().map(str::to_owned).collect()
}
