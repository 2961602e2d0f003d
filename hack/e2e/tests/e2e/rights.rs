//! The controller works with the rights of `build/deploy` and uses each of them; kubectl's plugin
//! shows its work. devcluster authorizes by the shipped roles and logs every right that a request
//! needs.

use std::{collections::BTreeSet, fs, os::unix::fs::symlink, process::Command, time::Duration};

use deploy_tests::{object, objects};
use neptune_harness::{
    Broker, Cluster, Process, TIMEOUT, eventually, free_port,
    workspace::{program, root, run},
};
use serde_json::{Value, json};
use tempfile::TempDir;

const USER: &str = "system:serviceaccount:neptune-system:neptune-cloud";

/// Rights that are granted and not used here.
const NOT_SEEN: [&str; 27] = [
    // A repeated Event is patched; every Event here is new.
    "events.k8s.io events patch",
    // No agent is here, and no keys of an earlier version. cloud/tests/nodes.rs tests both.
    "neptune.io edgenodes create",
    "neptune.io edgenodes/status patch",
    // No node joins here. cloud/tests/join.rs tests that.
    "neptune.io edgenodes patch",
    " configmaps patch",
    // Nobody asks for a log here. cloud/tests/logs.rs tests that.
    "neptune.io logrequests delete",
    "neptune.io logrequests/status patch",
    // No service has more than 32 nodes here. cloud/tests/slices.rs tests those.
    "neptune.io nodereportslices create",
    "neptune.io nodereportslices update",
    // The webhook reads objects that the cache lacks. devcluster cannot reach a Service, so it is
    // not called here; cloud/tests/webhook.rs tests it.
    "edgeai.io datasets get",
    "edgeai.io models get",
    " nodes get",
    "neptune.io edgenodes get",
    "neptune.io jointinferenceservices get",
    // No service here has a gateway. cloud/tests/without_code.rs tests what they own.
    "sedna.io inferencemodels get",
    "sedna.io inferencemodels create",
    "sedna.io inferencemodels patch",
    "sedna.io inferencemodels delete",
    // No training ends here. cloud/tests/training_model.rs tests what it publishes.
    "sedna.io trainingmodels get",
    "edgeai.io models create",
    "edgeai.io models patch",
    " endpoints get",
    " endpoints create",
    " endpoints patch",
    // Only of rollouts; `undo` of cloud/tests/rollout.rs uses them.
    "apps controllerrevisions create",
    "apps controllerrevisions delete",
    "apps controllerrevisions list",
];

/// The roles that are bound to the controller, with that of a namespace with trainings.
const ROLES: [&str; 4] =
    ["neptune-cloud", "neptune-cloud-joins", "neptune-cloud-rules", "neptune-training"];

/// The namespaces with trainings. The owner of the second one has not bound the role yet.
const TRAINING: &str = "plant";
const UNBOUND: &str = "shop";

/// Group, resource and verb; and the resource name, if the right is restricted to one.
type Right = (String, String);

/// The rights that the overlay grants to the controller, with those for trainings.
fn granted(objects: &[Value]) -> BTreeSet<Right> {
    let texts = |rule: &Value, field: &str| -> Vec<String> {
        let texts = rule[field].as_array().into_iter().flatten();
        texts.map(|text| text.as_str().unwrap().to_owned()).collect()
    };
    let mut rights = BTreeSet::new();
    let is_role = |object: &&Value| {
        matches!(object["kind"].as_str(), Some("Role" | "ClusterRole"))
            && ROLES.contains(&object["metadata"]["name"].as_str().unwrap())
    };
    let roles = objects.iter().filter(is_role);
    for rule in roles.flat_map(|role| role["rules"].as_array().unwrap()) {
        let mut names = texts(rule, "resourceNames");
        if names.is_empty() {
            names.push(String::new());
        }
        for group in texts(rule, "apiGroups") {
            for resource in texts(rule, "resources") {
                for verb in texts(rule, "verbs") {
                    let right = format!("{group} {resource} {verb}");
                    rights.extend(names.iter().map(|name| (right.clone(), name.clone())));
                }
            }
        }
    }
    rights
}

/// The rights that the controller's requests needed by the log of devcluster. `state` is `used` or
/// `missing`.
fn requested(log: &str, state: &str) -> BTreeSet<Right> {
    let begin = format!("right {state}: ");
    let lines = log.lines().filter_map(|line| Some(line.split_once(&begin)?.1));
    let right = |line: &str| {
        let request: Value = serde_json::from_str(line).unwrap();
        let text = |field: &str| request[field].as_str().unwrap().to_owned();
        let resource = match text("subresource").as_str() {
            "" => text("resource"),
            sub => format!("{}/{sub}", text("resource")),
        };
        (format!("{} {resource} {}", text("group"), text("verb")), text("name"))
    };
    lines.map(right).collect()
}

/// Rights that are granted and not used. A right for all names is used with any name.
fn superfluous(granted: &BTreeSet<Right>, used: &BTreeSet<Right>) -> BTreeSet<Right> {
    let is_used = |(right, name): &&Right| {
        used.iter().any(|(other, with)| other == right && (name.is_empty() || name == with))
    };
    granted.iter().filter(|right| !is_used(right)).cloned().collect()
}

const WORKLOAD: &str = r#"
apiVersion: v1
kind: Node
metadata: {name: edge0, labels: {node-role.kubernetes.io/edge: ""}}
---
apiVersion: v1
kind: Node
metadata: {name: cloud0}
---
apiVersion: edgeai.io/v1alpha1
kind: Model
metadata: {name: small, namespace: default}
spec: {modelUrl: /models/small.pb, format: pb}
---
apiVersion: edgeai.io/v1alpha1
kind: Model
metadata: {name: big, namespace: default}
spec: {modelUrl: /models/big.pb, format: pb}
---
apiVersion: edgeai.io/v1alpha1
kind: Dataset
metadata: {name: samples, namespace: default}
spec: {dataUrl: /data/samples.csv, format: csv, nodeName: edge0}
---
apiVersion: neptune.io/v1alpha1
kind: JointInferenceService
metadata: {name: watch, namespace: default}
spec:
  edgeWorker:
    name: edge
    model: {name: small}
    nodeName: edge0
    hardExampleAlgorithm: {name: IBT}
    workerSpec: &spec
      image: "none.invalid/none:1"
      frameworkType: container
      frameworkVersion: "1"
      scriptDir: /
      scriptBootFile: work
  cloudWorker:
    name: cloud
    model: {name: big}
    nodeName: cloud0
    workerSpec: *spec
---
apiVersion: sedna.io/v1alpha1
kind: InferenceModel
metadata: {name: served, namespace: default}
spec:
  modelName: served
  deployToLayer: cloud
  frameworkType: tensorflow
  image: "none.invalid/none:1"
  servingPort: 8501
  replicas: 1
"#;

/// A training in a namespace.
fn training(namespace: &str) -> String {
    format!(
        r#"
apiVersion: edgeai.io/v1alpha1
kind: Dataset
metadata: {{name: samples, namespace: {namespace}}}
spec: {{dataUrl: /data/samples.csv, format: csv, nodeName: edge0}}
---
apiVersion: sedna.io/v1alpha1
kind: TrainingModel
metadata: {{name: digits, namespace: {namespace}}}
spec:
  workerSpec: {{image: "none.invalid/none:1"}}
  trainingWorkers: [{{name: a, nodeName: edge0, dataset: {{name: samples}}}}]
  aggregation: {{rounds: 1}}
"#
    )
}

/// A cluster with all objects of an overlay, and the controller as a process with the same
/// arguments, settings and rights.
struct Shipped {
    objects: Vec<Value>,
    cluster: Cluster,
    dir: TempDir,
    _broker: Broker,
    _controller: Process,
}

impl Shipped {
    async fn start(overlay: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let cluster = Cluster::devcluster(dir.path()).await;
        let broker = Broker::start().await;
        let objects = objects(overlay);
        let rules = root().join("hack/eventbus/crds");
        cluster.kubectl(&["apply", "-f", rules.to_str().unwrap()]);
        cluster.kubectl(&["create", "namespace", "kubeedge"]);
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        cluster.kubectl_with_input(&["apply", "--server-side", "-f", "-"], &list.to_string());

        let deployment = object(&objects, "Deployment", "neptune-cloud");
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        let mut command = Command::new(program("neptune-cloud"));
        command.env_remove("KUBECONFIG").env("NEPTUNE_KUBECONFIG", cluster.kubeconfig_as(USER));
        for argument in container["args"].as_array().unwrap() {
            command.arg(argument.as_str().unwrap());
        }
        for variable in container["env"].as_array().unwrap() {
            if let Some(value) = variable["value"].as_str() {
                command.env(variable["name"].as_str().unwrap(), value);
            }
        }
        // Different from a Pod.
        for listen in ["NEPTUNE_LISTEN", "NEPTUNE_WEBHOOK_LISTEN", "NEPTUNE_UPSTREAM_LISTEN"] {
            command.env(listen, format!("127.0.0.1:{}", free_port()));
        }
        // The cloud worker's model is a file of its node.
        command.env("NEPTUNE_ALLOW_HOST_PATH", "/models");
        let token = dir.path().join("token");
        fs::write(&token, "0123456789abcdef0123456789abcdef").unwrap();
        match overlay {
            "kubeedge" => command.env("NEPTUNE_UPSTREAM_TOKEN_FILE", token),
            _ => command.env("NEPTUNE_MQTT_URL", broker.url()),
        };
        let controller = Process::start("neptune-cloud", dir.path(), &mut command);
        cluster.apply(WORKLOAD);
        cluster.kubectl(&["create", "namespace", TRAINING]);
        let account = "--serviceaccount=neptune-system:neptune-cloud";
        let role = "--clusterrole=neptune-training";
        let bind = ["-n", TRAINING, "create", "rolebinding", "neptune-training", role, account];
        cluster.kubectl(&bind);
        cluster.apply(&training(TRAINING));
        Self { objects, cluster, dir, _broker: broker, _controller: controller }
    }

    /// Number of objects of a kind in the default namespace.
    fn count(&self, what: &str) -> usize {
        let output =
            self.cluster.kubectl_command().args(["get", what, "-o", "name"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().lines().count()
    }

    /// The reason and the message of the condition Degraded of the training in a namespace.
    fn degraded(&self, namespace: &str) -> (String, String) {
        let get = |field: &str| {
            let path = format!("jsonpath={{.status.conditions[?(@.type==\"Degraded\")].{field}}}");
            self.cluster.kubectl(&["-n", namespace, "get", "tm", "digits", "-o", &path])
        };
        (get("reason"), get("message"))
    }

    /// Waits until every right was used, and checks that none was missing.
    async fn uses_exactly_its_rights(&self) {
        let granted = granted(&self.objects);
        let unused = || -> BTreeSet<Right> {
            let unused = superfluous(&granted, &requested(&self.cluster.log(), "used"));
            unused.into_iter().filter(|(right, _)| !NOT_SEEN.contains(&right.as_str())).collect()
        };
        // The Lease is renewed every few seconds.
        let all_used = tokio::time::timeout(TIMEOUT, async {
            while !unused().is_empty() {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        });
        let all_used = all_used.await.is_ok();
        assert!(all_used, "granted in build/deploy and not used: {:?}", unused());
        let missing = requested(&self.cluster.log(), "missing");
        assert!(missing.is_empty(), "missing in build/deploy: {missing:?}");
    }

    /// Moves the model to the edge, and waits until its workload in the cluster is removed.
    async fn move_to_the_edge(&self) {
        eventually("the Deployments of both", || self.count("deployments") == 2).await;
        eventually("the Services of both", || self.count("services") == 2).await;
        let moved = r#"{"spec": {"deployToLayer": "edge", "nodeName": "edge0"}}"#;
        self.cluster.kubectl(&["patch", "im", "served", "--type", "merge", "-p", moved]);
        eventually("one Deployment less", || self.count("deployments") == 1).await;
        eventually("one Service less", || self.count("services") == 1).await;
    }
}

#[tokio::test]
async fn controller_uses_exactly_its_rights() {
    let shipped = Shipped::start("mqtt").await;
    shipped.move_to_the_edge().await;
    shipped.uses_exactly_its_rights().await;
}

#[tokio::test]
async fn controller_over_eventbus_uses_exactly_its_rights() {
    let shipped = Shipped::start("kubeedge").await;
    shipped.move_to_the_edge().await;
    // The Rules are in the controller's namespace.
    let rules = || {
        let all = ["-n", "neptune-system", "get", "rules.rules.kubeedge.io", "-o", "name"];
        let output = shipped.cluster.kubectl_command().args(all).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    eventually("a Rule of the node", || rules().contains("neptune-upstream-edge0")).await;
    // A changed endpoint is recreated.
    let other = r#"{"spec": {"ruleEndpointType": "servicebus"}}"#;
    shipped.cluster.kubectl(&[
        "-n",
        "neptune-system",
        "patch",
        "ruleendpoint",
        "neptune-rest",
        "--type",
        "merge",
        "-p",
        other,
    ]);
    shipped.cluster.kubectl(&["delete", "node", "edge0"]);
    eventually("no Rule of the node that is gone", || !rules().contains("neptune-upstream-edge0"))
        .await;
    shipped.uses_exactly_its_rights().await;
}

#[tokio::test]
async fn training_waits_for_the_binding_that_its_finding_names() {
    let shipped = Shipped::start("mqtt").await;
    shipped.cluster.kubectl(&["create", "namespace", UNBOUND]);
    shipped.cluster.apply(&training(UNBOUND));
    let is_unbound = || shipped.degraded(UNBOUND).0 == "RoleBindingMissing";
    eventually("the finding", is_unbound).await;
    let (_, message) = shipped.degraded(UNBOUND);
    let command = &message[message.find("kubectl ").unwrap()..];
    assert_eq!(
        command,
        "kubectl -n shop create rolebinding neptune-training --clusterrole=neptune-training --serviceaccount=neptune-system:neptune-cloud"
    );
    let made = |namespace: &str| {
        let all = ["-n", namespace, "get", "pvc,deployments,secrets", "-o", "name"];
        shipped.cluster.kubectl(&all).lines().count()
    };
    assert_eq!(made(UNBOUND), 0);
    // The command of the message, as a user runs it.
    let arguments: Vec<_> = command.split(' ').skip(1).collect();
    shipped.cluster.kubectl(&arguments);
    eventually("the volume and the Deployment", || made(UNBOUND) == 2).await;
    eventually("the finding to end", || !is_unbound()).await;
    assert_eq!(made(TRAINING), 2, "and no Secret");
}

#[tokio::test]
async fn kubectl_plugin_shows_one_page() {
    let shipped = Shipped::start("mqtt").await;
    let bin = shipped.dir.path().join("bin");
    fs::create_dir(&bin).unwrap();
    symlink(program("neptune-cloud"), bin.join("kubectl-neptune")).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let plugin = |args: &[&str]| {
        let mut command = shipped.cluster.kubectl_command();
        command.env("PATH", &path).args(["neptune", "status"]).args(args);
        command
    };
    eventually("a Deployment", || shipped.count("deployments") == 2).await;
    let json = || run(&mut plugin(&["watch", "-o", "json"]));
    eventually("a written status", || json().contains("\"state\": \"Pending\"")).await;
    let page = run(&mut plugin(&["watch"]));
    for line in [
        "JointInferenceService default/watch: Pending (AwaitingAgent), for ",
        "edge    edge     edge0    agent        -           small   no sha256sum",
        "cloud   cloud    cloud0   Deployment   0/1 ready   big     no sha256sum",
    ] {
        assert!(page.contains(line), "{line} is not in:\n{page}");
    }
    let page = || run(&mut plugin(&["im/served", "-n", "default"]));
    eventually("a page of the model", || page().contains("default/served: InProgress")).await;
    let missing = plugin(&["nothing"]).output().unwrap();
    let stderr = String::from_utf8(missing.stderr).unwrap();
    assert!(!missing.status.success() && stderr.contains("\"nothing\" not found"), "{stderr}");
}
