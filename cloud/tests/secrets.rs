//! Workers with Secrets and `ConfigMap`s, with agents that open what is sealed for them.
#![allow(clippy::unwrap_used, clippy::panic)]
// A test is one large future that is polled on its own.
#![allow(clippy::large_futures)]

mod harness;

use harness::{
    Agent, Harness, SERVICE,
    agent::{NodeKeys, key, worker},
    sample,
};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use neptune_api::JointInferenceService;
use neptune_link::{Link, LinkEvent, LinkEvents, LinkOptions};
use neptune_wire::{ObjectContent, Replica, RestartPolicy, Role, replica::ReplicaChange};
use serde_json::{Value, json};

/// The value of the Secret, and the next one. Both would be found in any text that has them.
const CANARY: &str = "rtsp://viewer:c4n4ry-0b7d9e51f2@10.0.0.9/main";
const ROTATED: &str = "rtsp://viewer:r0t4t3d-6a1c8e40d3@10.0.0.9/main";

const ALLOWED: &str = "allowed";

fn base64(text: &str) -> Value {
    serde_json::to_value(k8s_openapi::ByteString(text.as_bytes().to_vec())).unwrap()
}

async fn create_secret(harness: &Harness, labels: Value) {
    let secret = json!({"metadata": {"name": "camera", "labels": labels},
        "data": {"url": base64(CANARY), "other": base64("never sent 5d3f")}});
    let secret: Secret = serde_json::from_value(secret).unwrap();
    harness.api().create(&PostParams::default(), &secret).await.unwrap();
}

async fn patch_secret(harness: &Harness, patch: Value) {
    let api = harness.api::<Secret>();
    api.patch("camera", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

/// Applies the sample with a variable of the Secret `camera`.
async fn apply(harness: &Harness) {
    let mut service = sample();
    let program = service.spec.edge_worker.worker_spec.as_mut().unwrap();
    let env = json!([{"name": "RTSP_URL",
        "valueFrom": {"secretKeyRef": {"name": "camera", "key": "url"}}}]);
    program.env = serde_json::from_value(env).unwrap();
    harness.apply(service).await;
}

async fn reads_each_second() -> Harness {
    let mut harness = Harness::without_controller().await;
    harness.start_controller_with(&["--config-interval-seconds", "1"]);
    harness.models().await;
    harness
}

/// Waits for a reason with this text.
async fn reason(harness: &Harness, reason: &str, text: &str) {
    harness.status(reason, |s| s.reason == reason && s.message.contains(text)).await;
}

fn opened(keys: &NodeKeys, agent: &Agent, task: &ObjectContent) -> String {
    let values = keys.open(&agent.node, task, "camera");
    assert_eq!(values.len(), 1, "only the key that is used: {values:?}");
    String::from_utf8(values["url"].expose().to_vec()).unwrap()
}

fn version(task: &ObjectContent) -> String {
    worker(task, Role::Edge).program.secrets[0].version.clone()
}

/// All payloads of the broker.
struct Observer {
    _link: Link,
    events: LinkEvents,
    payloads: Vec<u8>,
}

impl Observer {
    async fn start(harness: &Harness) -> Self {
        let mut options =
            LinkOptions::new(harness.broker.url().parse().unwrap(), "observer".to_owned());
        options.subscriptions = vec!["#".to_owned()];
        let (link, mut events) = Link::start(options).unwrap();
        harness::within("the observer", async {
            while events.next().await != Some(LinkEvent::Up) {}
        })
        .await;
        Self { _link: link, events, payloads: Vec::new() }
    }

    /// Receives messages until one has this text.
    async fn until(&mut self, text: &str) {
        harness::within(text, async {
            loop {
                if let Some(LinkEvent::Message(message)) = self.events.next().await {
                    self.payloads.extend_from_slice(&message.payload);
                    self.payloads.push(b'\n');
                    if contains(&message.payload, text) {
                        return;
                    }
                }
            }
        })
        .await;
    }
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[tokio::test(flavor = "multi_thread")]
async fn secret_reaches_its_node_only_when_it_is_shared_and_follows_changes() {
    let harness = reads_each_second().await;
    let mut observer = Observer::start(&harness).await;
    let keys = NodeKeys::generate();
    let mut agent = Agent::sealing(&harness, "edge0", &keys, (1, Replica::default())).await;
    apply(&harness).await;
    reason(&harness, "SecretNotFound", "Secret camera not found").await;
    create_secret(&harness, json!({})).await;
    let text = "Secret camera may not leave the cluster; label it: kubectl label secret camera neptune.io/edge=allowed";
    reason(&harness, "SecretNotShared", text).await;
    patch_secret(&harness, json!({"metadata": {"labels": {"neptune.io/edge": ALLOWED}}})).await;
    let first = agent.task().await;
    assert_eq!(opened(&keys, &agent, &first), CANARY);
    let program = worker(&first, Role::Edge).program;
    assert_eq!((&*program.secret_env[0].name, program.env.get("RTSP_URL")), ("RTSP_URL", None));
    agent.report_running(&first, Some((10, 1)));
    harness.status("counters", |s| s.inference == 10).await;

    patch_secret(&harness, json!({"data": {"url": base64(ROTATED)}})).await;
    let before = version(&first);
    let second = agent.has(&key(), "the new value", |task| version(task) != before).await;
    assert_eq!(opened(&keys, &agent, &second), ROTATED);

    // What is in use stays on the node.
    harness.api::<Secret>().delete("camera", &DeleteParams::default()).await.unwrap();
    reason(&harness, "SecretNotFound", "Secret camera not found").await;
    agent.report_running(&second, Some((20, 2)));
    harness.status("its counters go on", |s| s.inference == 20).await;
    assert_eq!(agent.task().await, second);

    // Only the node can read the values.
    observer.until(&version(&second)).await;
    let service = harness.api::<JointInferenceService>().get(SERVICE).await.unwrap();
    let events = harness.api::<k8s_openapi::api::events::v1::Event>();
    let events = events.list(&ListParams::default()).await.unwrap();
    let texts = [
        observer.payloads.clone(),
        serde_json::to_vec(&service).unwrap(),
        serde_json::to_vec(&events).unwrap(),
        harness.log().into_bytes(),
    ];
    assert!(contains(&texts[0], "\"secretEnv\"") && contains(&texts[1], "SecretNotFound"));
    for value in [CANARY, ROTATED, "never sent 5d3f"] {
        let encoded = base64(value);
        for form in [&value[8..], encoded.as_str().unwrap()] {
            assert!(texts.iter().all(|text| !contains(text, form)), "{form}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_controller_seals_again_and_changes_nothing() {
    let mut harness = Harness::start().await;
    harness.models().await;
    create_secret(&harness, json!({"neptune.io/edge": ALLOWED})).await;
    let keys = NodeKeys::generate();
    let mut agent = Agent::sealing(&harness, "edge0", &keys, (1, Replica::default())).await;
    apply(&harness).await;
    let task = agent.task().await;
    agent.report_running(&task, Some((10, 1)));
    harness.status("counters", |s| s.inference == 10).await;
    let before = agent.changes.len();

    harness.kill_controller();
    harness.start_controller();
    agent.report_running(&task, Some((20, 2)));
    harness.status("the counters of the meantime", |s| s.inference == 20).await;
    // The messages of a node are in order: any earlier change would be seen before this one.
    harness.patch(json!({"edgeWorker": {"workerSpec": {"restartPolicy": "Always"}}})).await;
    let is_changed = |task: &ObjectContent| {
        worker(task, Role::Edge).restart_policy == Some(RestartPolicy::Always)
    };
    let patched = agent.has(&key(), "the change", is_changed).await;
    assert_eq!(opened(&keys, &agent, &patched), CANARY);
    let of_service = |change: &&ReplicaChange| {
        let (ReplicaChange::Set(it) | ReplicaChange::Renewed(it) | ReplicaChange::Removed(it)) =
            change
        else {
            return false;
        };
        *it == key()
    };
    let changes: Vec<_> = agent.changes[before..].iter().filter(of_service).collect();
    // What the restarted controller sealed again is unchanged; only the patch is a change.
    assert_eq!(changes, [&ReplicaChange::Renewed(key()), &ReplicaChange::Set(key())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_key_of_a_node_gets_no_secret_until_a_person_trusts_it() {
    let harness = Harness::start().await;
    harness.models().await;
    create_secret(&harness, json!({"neptune.io/edge": ALLOWED})).await;
    let keys = NodeKeys::generate();
    let mut agent = Agent::sealing(&harness, "edge0", &keys, (1, Replica::default())).await;
    apply(&harness).await;
    let task = agent.task().await;
    assert_eq!(opened(&keys, &agent, &task), CANARY);
    drop(agent);

    // Who has the MQTT password of the node reports keys of their own.
    let others = NodeKeys::generate();
    let mut agent = Agent::sealing(&harness, "edge0", &others, (2, Replica::default())).await;
    let text = "the key of node edge0 changed; check it and run: kubectl neptune trust edge0";
    reason(&harness, "NodeKeyUntrusted", text).await;
    let is_recorded = |it: &neptune_api::EdgeNode| {
        it.status.as_ref().and_then(|it| it.trusted_key.clone()) == Some(others.tls.pin().0.clone())
    };
    let object = harness.until_edge_node("edge0", "the new key", is_recorded).await;
    let secrets_key = object.status.unwrap().secrets_key;
    assert_eq!(secrets_key, Some(keys.tls.pin().0.clone()), "the first one");
    let kept = agent.task().await;
    assert_eq!(kept.workers[0].program.secrets[0].seal_key, keys.seal.public_key().id());

    harness.neptune(&["trust", "edge0"]);
    let id = others.seal.public_key().id();
    let sealed = |task: &ObjectContent| task.workers[0].program.secrets[0].seal_key == id;
    let task = agent.has(&key(), "what is sealed to the trusted key", sealed).await;
    assert_eq!(opened(&others, &agent, &task), CANARY);
}

#[tokio::test(flavor = "multi_thread")]
async fn config_map_needs_no_label_and_no_key_of_the_node() {
    let harness = reads_each_second().await;
    let mut agent = Agent::connect(&harness, "edge0", "a", 1).await;
    let object =
        json!({"metadata": {"name": "counter"}, "data": {"LINE": "7", "no-variable": "x"}});
    let object: ConfigMap = serde_json::from_value(object).unwrap();
    harness.api().create(&PostParams::default(), &object).await.unwrap();
    let mut service = sample();
    let program = service.spec.edge_worker.worker_spec.as_mut().unwrap();
    let from = json!([{"configMapRef": {"name": "counter"}}]);
    program.env_from = serde_json::from_value(from).unwrap();
    harness.apply(service).await;
    let task = agent.task().await;
    let program = worker(&task, Role::Edge).program;
    assert_eq!((program.env["LINE"].as_str(), program.env.get("no-variable")), ("7", None));
    let patch = Patch::Merge(json!({"data": {"LINE": "8"}}));
    let api = harness.api::<ConfigMap>();
    api.patch("counter", &PatchParams::default(), &patch).await.unwrap();
    let is_changed = |task: &ObjectContent| worker(task, Role::Edge).program.env["LINE"] == "8";
    agent.has(&key(), "the new value", is_changed).await;
}

/// The roles of the controller but the one for Secrets and `ConfigMap`s, and that one, which nothing
/// binds.
const RIGHTS: &str = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: cloud}
rules:
  - {apiGroups: [neptune.io, sedna.io, edgeai.io, apps, events.k8s.io], resources: ["*"], verbs: ["*"]}
  - {apiGroups: [""], resources: [nodes, pods, services, endpoints], verbs: ["*"]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: cloud}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cloud}
subjects: [{kind: ServiceAccount, name: cloud, namespace: neptune-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: cloud, namespace: neptune-system}
rules:
  - {apiGroups: [""], resources: [configmaps, secrets], verbs: ["*"]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: cloud, namespace: neptune-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: cloud}
subjects: [{kind: ServiceAccount, name: cloud, namespace: neptune-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: neptune-config}
rules:
  - {apiGroups: [""], resources: [secrets, configmaps], verbs: [get]}
"#;

#[tokio::test(flavor = "multi_thread")]
async fn secret_of_a_namespace_without_the_binding_is_forbidden_until_it_is_bound() {
    let mut harness = Harness::without_controller().await;
    harness.models().await;
    create_secret(&harness, json!({"neptune.io/edge": ALLOWED})).await;
    let applied = harness.kubectl(&["apply", "-f", "-"], RIGHTS);
    assert!(applied.ok, "{applied:?}");
    harness.act_as("system:serviceaccount:neptune-system:cloud");
    let interval = ["--config-interval-seconds", "1"];
    harness.start_controller_with(&[&interval[..], &["--service-account", "cloud"]].concat());
    let keys = NodeKeys::generate();
    let mut agent = Agent::sealing(&harness, "edge0", &keys, (1, Replica::default())).await;
    apply(&harness).await;
    let command = "kubectl -n default create rolebinding neptune --clusterrole=neptune-config --serviceaccount=neptune-system:cloud";
    let text = format!("may not read Secret default/camera; {command}");
    reason(&harness, "SecretForbidden", &text).await;
    let arguments: Vec<_> = command.split(' ').skip(1).collect();
    let bound = harness.kubectl(&arguments, "");
    assert!(bound.ok, "{bound:?}");
    let task = agent.task().await;
    assert_eq!(opened(&keys, &agent, &task), CANARY);
}
