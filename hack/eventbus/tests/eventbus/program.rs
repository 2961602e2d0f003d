//! The program: rules from a cluster, faults over HTTP.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams,
};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::Value;
use tokio::sync::oneshot;

use crate::bed::{self, Broker, NODE, UP, down_rule, endpoints, until, until_asked, up_rule};

struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

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
            // The definition is not served yet.
            Err(kube::Error::Api(status)) if status.code == 404 => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
    panic!("{kind:?} is not served");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_takes_rules_from_a_cluster_and_faults_over_http() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = dir.path().join("kubeconfig");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    devcluster::kubeconfig::write(&kubeconfig, listener.local_addr().unwrap(), "dev").unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let cluster = tokio::spawn(devcluster::serve(listener, async move { drop(stopped.await) }));
    let read = Kubeconfig::read_from(&kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.unwrap();
    let client = Client::try_from(config).unwrap();

    let broker = Broker::start().await;
    let mut agent = bed::Client::start(&broker).await;
    let receiver = bed::Receiver::start(axum::http::StatusCode::OK).await;
    let mut process = Command::new(env!("CARGO_BIN_EXE_eventbus-emulator"))
        .args(["run", "--scale", "0.02", "--node", &format!("{NODE}={}", broker.url())])
        .arg("--kubeconfig")
        .arg(&kubeconfig)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let _program = Program(process);
    let mut address = |prefix: &str| {
        lines.next().unwrap().unwrap().strip_prefix(prefix).expect("the two addresses").to_owned()
    };
    let (router, control) = (address("router="), address("control="));

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
    let control = |deed: &str| http.post(format!("{control}/control/{deed}")).send();
    assert_eq!(control("await/edge0").await.unwrap().status(), 204);
    let post = || http.post(format!("{router}/edge0/neptune-system/neptune/a")).body("body").send();
    let is_answered =
        async |status: u16| post().await.is_ok_and(|answer| answer.status() == status);
    until_asked("the rules are there", async || is_answered(200).await).await;
    assert_eq!(agent.next().await.topic, "neptune/a");
    agent.publish(UP, "up").await;
    until("it arrives", || receiver.count() == 1).await;

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
    until_asked("the rule is gone", async || is_answered(404).await).await;
    drop(stop);
    until("the cluster ends", || cluster.is_finished()).await;
}
