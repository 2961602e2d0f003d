//! The program: it follows the Rules of a cluster, and its HTTP API causes faults.

use std::process::Command;
use std::time::Duration;

use kube::Client;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams,
};
use neptune_harness::{Broker, Cluster, MqttClient, Process, eventually, eventually_async};
use serde_json::Value;

use crate::harness::{NODE, Receiver, UP, down_rule, endpoints, up_rule};

async fn apply(client: &Client, object: &Value) -> Api<DynamicObject> {
    let (group, version) = object["apiVersion"].as_str().unwrap().split_once('/').unwrap();
    let kind = GroupVersionKind::gvk(group, version, object["kind"].as_str().unwrap());
    let resource = ApiResource::from_gvk(&kind);
    let api = match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let name = object["metadata"]["name"].as_str().unwrap();
    let parameters = PatchParams::apply("test").force();
    for _ in 0..100 {
        match api.patch(name, &parameters, &Patch::Apply(object)).await {
            Ok(_) => return api,
            // The CRD is not served yet.
            Err(kube::Error::Api(status)) if status.code == 404 => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
    panic!("{kind:?} is not served");
}

#[tokio::test(flavor = "multi_thread")]
async fn program_follows_cluster_rules_and_http_faults() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::in_process(dir.path()).await;
    let client = cluster.client();

    let broker = Broker::start().await;
    let mut agent = MqttClient::connect(broker.port(), &["#"]).await;
    let receiver = Receiver::start(axum::http::StatusCode::OK).await;
    let mut command = Command::new(env!("CARGO_BIN_EXE_eventbus-emulator"));
    command
        .args(["run", "--scale", "0.02", "--node", &format!("{NODE}={}", broker.url())])
        .arg("--kubeconfig")
        .arg(cluster.kubeconfig());
    let mut program = Process::start("eventbus-emulator", dir.path(), &mut command);
    let mut address = async |prefix: &str| {
        program.next_line().await.strip_prefix(prefix).expect("the two addresses").to_owned()
    };
    let (router, control) = (address("router=").await, address("control=").await);

    let crds: Vec<Value> = serde_saphyr::from_multiple(eventbus_emulator::CRDS).unwrap();
    for crd in &crds {
        apply(&client, crd).await;
    }
    let namespace = serde_json::json!({"metadata": {"name": "neptune-system"}});
    let namespace = serde_json::from_value(namespace).unwrap();
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client.clone());
    namespaces.create(&kube::api::PostParams::default(), &namespace).await.unwrap();
    for endpoint in endpoints() {
        apply(&client, &endpoint).await;
    }
    let rules = apply(&client, &down_rule()).await;
    apply(&client, &up_rule("up", "user/neptune/upstream", &receiver.url(NODE))).await;

    let http = reqwest::Client::new();
    let control = |action: &str| http.post(format!("{control}/control/{action}")).send();
    assert_eq!(control("await/edge0").await.unwrap().status(), 204);
    let post = || http.post(format!("{router}/edge0/neptune-system/neptune/a")).body("body").send();
    let is_answered =
        async |status: u16| post().await.is_ok_and(|answer| answer.status() == status);
    eventually_async("the rules", async || is_answered(200).await).await;
    assert_eq!(agent.next().await.topic, "neptune/a");
    agent.publish(UP, "up").await;
    eventually("the message to arrive", || receiver.count() == 1).await;

    assert_eq!(control("cut/edge0").await.unwrap().status(), 204);
    assert_eq!(post().await.unwrap().status(), 500);
    assert_eq!(control("heal/edge0").await.unwrap().status(), 204);
    assert_eq!(post().await.unwrap().status(), 200);
    assert_eq!(control("cut/edge9").await.unwrap().status(), 404);
    assert_eq!(control("bend/edge0").await.unwrap().status(), 400);
    assert_eq!(control("restart-edgecore/edge0").await.unwrap().status(), 204);
    assert_eq!(control("restart-cloudcore").await.unwrap().status(), 204);
    assert_eq!(control("await/edge0").await.unwrap().status(), 204);
    assert_eq!(post().await.unwrap().status(), 200);

    rules.delete("neptune-downstream", &DeleteParams::default()).await.unwrap();
    eventually_async("the rule to be deleted", async || is_answered(404).await).await;
}
