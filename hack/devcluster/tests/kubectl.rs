//! What people do with kubectl, done to a devcluster with the real kubectl of the PATH (or of the variable KUBECTL).
#![allow(clippy::unwrap_used, clippy::panic)]

mod bed;

use std::ffi::OsStr;
use std::process::Stdio;
use std::time::Duration;

use bed::{Bed, WIDGET_CRD};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(30);

const WIDGET: &str = "\
apiVersion: devcluster.example/v1
kind: Widget
metadata:
  name: a
spec:
  size: 3
  ports:
  - port: 80
";

const DEPLOYMENT: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
spec:
  selector:
    matchLabels: {app: web}
  template:
    metadata:
      labels: {app: web}
    spec:
      containers:
      - name: main
        image: web:1
        ports:
        - containerPort: 80
";

/// kubectl with a kubeconfig and a home of its own.
struct Kubectl {
    _bed: Bed,
    home: TempDir,
}

/// What a run of kubectl printed.
#[derive(Debug)]
struct Ran {
    ok: bool,
    out: String,
    err: String,
}

impl Kubectl {
    async fn start() -> Self {
        let bed = Bed::start().await;
        let home = TempDir::new().unwrap();
        devcluster::kubeconfig::write(&home.path().join("config"), bed.address, "devcluster")
            .unwrap();
        Self { _bed: bed, home }
    }

    /// A cluster that serves widgets and has one.
    async fn with_widget() -> Self {
        let kubectl = Self::start().await;
        kubectl.good(&["apply", "-f", "-"], WIDGET_CRD).await;
        kubectl
            .good(&["wait", "--for=condition=established", "crd/widgets.devcluster.example"], "")
            .await;
        assert_eq!(
            kubectl.good(&["apply", "-f", "-"], WIDGET).await,
            "widget.devcluster.example/a created\n"
        );
        kubectl
    }

    fn command<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Command {
        let program = std::env::var("KUBECTL").unwrap_or_else(|_| "kubectl".to_owned());
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("KUBECONFIG", self.home.path().join("config"))
            .env("HOME", self.home.path());
        command
            .kill_on_drop(true)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    async fn run(&self, arguments: &[&str], input: &str) -> Ran {
        self.finish(self.command(arguments), input).await
    }

    async fn finish(&self, mut command: Command, input: &str) -> Ran {
        let mut child = command
            .spawn()
            .expect("these tests need kubectl in the PATH, or its path in the variable KUBECTL");
        let mut stdin = child.stdin.take().unwrap();
        // kubectl may end without reading what it does not need.
        let _ = stdin.write_all(input.as_bytes()).await;
        drop(stdin);
        let output = timeout(PATIENCE, child.wait_with_output())
            .await
            .expect("kubectl ends in time")
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Ran { ok: output.status.success(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// The output of a run that must work.
    async fn good(&self, arguments: &[&str], input: &str) -> String {
        let ran = self.run(arguments, input).await;
        assert!(ran.ok, "kubectl {arguments:?}: {ran:?}");
        ran.out
    }

    /// The errors of a run that must not work.
    async fn bad(&self, arguments: &[&str], input: &str) -> String {
        let ran = self.run(arguments, input).await;
        assert!(!ran.ok, "kubectl {arguments:?}: {ran:?}");
        ran.err
    }

    /// The minor version of this kubectl.
    async fn minor(&self) -> u32 {
        let version = self.good(&["version", "--client", "-o", "json"], "").await;
        let version: serde_json::Value = serde_json::from_str(&version).unwrap();
        let minor =
            version["clientVersion"]["minor"].as_str().unwrap().trim_end_matches('+').to_owned();
        minor.parse().unwrap()
    }
}

/// The words of each line of a table.
fn rows(table: &str) -> Vec<Vec<&str>> {
    table.lines().map(|line| line.split_whitespace().collect()).collect()
}

#[tokio::test]
async fn apply_is_stable_and_changes_only_what_changed() {
    let kubectl = Kubectl::with_widget().await;
    assert_eq!(
        kubectl.good(&["apply", "-f", "-"], WIDGET).await,
        "widget.devcluster.example/a unchanged\n"
    );
    assert_eq!(
        kubectl.good(&["apply", "-f", "-"], WIDGET_CRD).await,
        "customresourcedefinition.apiextensions.k8s.io/widgets.devcluster.example unchanged\n"
    );
    let less = WIDGET.replace("  ports:\n  - port: 80\n", "");
    assert_eq!(
        kubectl.good(&["apply", "-f", "-"], &less).await,
        "widget.devcluster.example/a configured\n"
    );
    assert_eq!(
        kubectl.good(&["get", "wg", "a", "-o", "jsonpath={.spec}"], "").await,
        r#"{"mode":"slow","size":3}"#
    );
}

#[tokio::test]
async fn tables_have_the_columns_of_the_definition() {
    let kubectl = Kubectl::with_widget().await;
    let table = kubectl.good(&["get", "wg"], "").await;
    assert_eq!(rows(&table)[0], ["NAME", "PHASE", "REPLICAS", "AGE"]);
    let table = kubectl.good(&["get", "widgets", "-A", "-o", "wide"], "").await;
    assert_eq!(rows(&table)[0], ["NAMESPACE", "NAME", "PHASE", "REPLICAS", "MODE", "AGE"]);
    assert_eq!(rows(&table)[1][..3], ["default", "a", "slow"]);
    let all = kubectl.good(&["get", "all"], "").await;
    assert!(all.contains("widget.devcluster.example/a"), "{all}");
    let node = "apiVersion: v1\nkind: Node\nmetadata:\n  name: edge0\n  labels: {node-role.kubernetes.io/edge: ''}\n";
    kubectl.good(&["apply", "-f", "-"], node).await;
    assert_eq!(
        rows(&kubectl.good(&["get", "nodes"], "").await)[1][..3],
        ["edge0", "Unknown", "edge"]
    );
}

#[tokio::test]
async fn a_watch_prints_each_change_as_a_row() {
    let kubectl = Kubectl::with_widget().await;
    let mut child = kubectl.command(&["get", "wg", "-w"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = async || timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap().unwrap();
    assert!(next().await.starts_with("NAME"));
    assert!(next().await.starts_with("a "));
    kubectl
        .good(&["patch", "wg", "a", "--type=merge", "-p", r#"{"spec":{"replicas":4}}"#], "")
        .await;
    assert_eq!(next().await.split_whitespace().nth(1), Some("4"));
    child.kill().await.unwrap();
}

#[tokio::test]
async fn unknown_fields_and_schema_violations_are_refused() {
    let kubectl = Kubectl::with_widget().await;
    let typo = WIDGET.replace("size: 3", "size: 3\n  sice: 4").replace("name: a", "name: b");
    if kubectl.minor().await >= 27 {
        let error = kubectl.bad(&["apply", "-f", "-"], &typo).await;
        assert_eq!(
            error,
            "Error from server (BadRequest): error when creating \"STDIN\": Widget in version \"v1\" cannot be handled as a Widget: strict decoding error: unknown field \"spec.sice\"\n"
        );
        let ran = kubectl.run(&["apply", "--validate=warn", "-f", "-"], &typo).await;
        assert!(ran.ok && ran.err.contains("Warning: unknown field \"spec.sice\""), "{ran:?}");
        let outside =
            WIDGET_CRD.replace("      additionalPrinterColumns:", "      printerColumns:");
        let error = kubectl.bad(&["apply", "-f", "-"], &outside).await;
        assert!(
            error.contains(
                r#"strict decoding error: unknown field "spec.versions[0].printerColumns""#
            ),
            "{error}"
        );
    }
    let wrong = WIDGET.replace("size: 3", "size: 0").replace("name: a", "name: c");
    let error = kubectl.bad(&["create", "-f", "-"], &wrong).await;
    assert_eq!(
        error,
        "The Widget \"c\" is invalid: spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1\n"
    );
    let error = kubectl.bad(&["create", "-f", "-"], WIDGET).await;
    assert_eq!(
        error,
        "Error from server (AlreadyExists): error when creating \"STDIN\": widgets.devcluster.example \"a\" already exists\n"
    );
    let error = kubectl.bad(&["get", "wg", "none"], "").await;
    assert_eq!(
        error,
        "Error from server (NotFound): widgets.devcluster.example \"none\" not found\n"
    );
}

#[tokio::test]
async fn describe_edit_label_annotate_and_explain_work() {
    let kubectl = Kubectl::with_widget().await;
    let text = kubectl.good(&["describe", "wg", "a"], "").await;
    assert!(text.contains("Kind:         Widget") && text.contains("Size:    3"), "{text}");
    let mut edit = kubectl.command(&["edit", "wg", "a"]);
    edit.env("EDITOR", "sed -i s/size:.3/size:\\ 5/");
    let ran = kubectl.finish(edit, "").await;
    assert!(ran.ok, "{ran:?}");
    assert_eq!(ran.out, "widget.devcluster.example/a edited\n");
    kubectl.good(&["label", "wg", "a", "team=x"], "").await;
    kubectl.good(&["annotate", "wg", "a", "note=y"], "").await;
    let shown = kubectl
        .good(
            &[
                "get",
                "wg",
                "-l",
                "team in (x)",
                "-o",
                "jsonpath={.items[0].spec.size} {.items[0].metadata.annotations.note}",
            ],
            "",
        )
        .await;
    assert_eq!(shown, "5 y");
    let text = kubectl.good(&["explain", "wg.spec.size"], "").await;
    assert!(text.contains("How big it is."), "{text}");
    let text = kubectl.good(&["explain", "deployment.spec.replicas"], "").await;
    assert!(text.contains("Number of desired pods."), "{text}");
}

#[tokio::test]
async fn server_side_apply_tells_conflicts() {
    let kubectl = Kubectl::with_widget().await;
    let other = WIDGET.replace("size: 3", "size: 9").replace("  name: a", "  name: b");
    kubectl.good(&["apply", "--server-side", "--field-manager=one", "-f", "-"], &other).await;
    let other = other.replace("size: 9", "size: 8");
    let error =
        kubectl.bad(&["apply", "--server-side", "--field-manager=two", "-f", "-"], &other).await;
    assert!(
        error.contains("Apply failed with 1 conflict: conflict with \"one\": .spec.size"),
        "{error}"
    );
    let out = kubectl
        .good(
            &["apply", "--server-side", "--force-conflicts", "--field-manager=two", "-f", "-"],
            &other,
        )
        .await;
    assert_eq!(out, "widget.devcluster.example/b serverside-applied\n");
    let minor = kubectl.minor().await;
    let show: &[&str] = if minor >= 21 { &["--show-managed-fields"] } else { &[] };
    let fields = kubectl.good(&[&["get", "wg", "b", "-o", "json"], show].concat(), "").await;
    let fields: serde_json::Value = serde_json::from_str(&fields).unwrap();
    let owners: Vec<&str> = fields["metadata"]["managedFields"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["manager"].as_str().unwrap())
        .collect();
    assert_eq!(owners, ["one", "two"]);
}

#[tokio::test]
async fn built_in_kinds_take_strategic_patches() {
    let kubectl = Kubectl::start().await;
    kubectl.good(&["apply", "-f", "-"], DEPLOYMENT).await;
    kubectl.good(&["set", "env", "deployment/web", "A=1"], "").await;
    kubectl.good(&["apply", "-f", "-"], &DEPLOYMENT.replace("web:1", "web:2")).await;
    kubectl.good(&["scale", "deployment/web", "--replicas=3"], "").await;
    let path = "jsonpath={.spec.replicas} {.spec.template.spec.containers[0].image} {.spec.template.spec.containers[0].env[0].name} {.metadata.generation}";
    assert_eq!(kubectl.good(&["get", "deployment", "web", "-o", path], "").await, "3 web:2 A 4");
    let ran = kubectl.run(&["diff", "-f", "-"], &DEPLOYMENT.replace("web:1", "web:3")).await;
    assert!(ran.out.contains("image: web:3"), "diff asks for a dry run: {ran:?}");
    let error = kubectl
        .bad(
            &["apply", "-f", "-"],
            &DEPLOYMENT.replace("matchLabels: {app: web}", "matchLabels: {app: x}"),
        )
        .await;
    assert!(
        error.contains("`selector` does not match template `labels`")
            && error.contains("field is immutable"),
        "{error}"
    );
}

#[tokio::test]
async fn deletes_wait_until_the_objects_are_gone() {
    let kubectl = Kubectl::with_widget().await;
    kubectl.good(&["create", "namespace", "n"], "").await;
    kubectl.good(&["-n", "n", "create", "configmap", "m", "--from-literal=k=v"], "").await;
    kubectl.good(&["delete", "namespace", "n"], "").await;
    assert_eq!(kubectl.good(&["get", "configmaps", "-A", "-o", "name"], "").await, "");
    let deleted = kubectl.good(&["delete", "-f", "-"], WIDGET).await;
    assert!(deleted.starts_with("widget.devcluster.example \"a\" deleted"), "{deleted}");
    kubectl.good(&["apply", "-f", "-"], WIDGET).await;
    kubectl.good(&["delete", "crd", "widgets.devcluster.example"], "").await;
    let error = kubectl.bad(&["get", "wg"], "").await;
    assert!(
        error.contains("the server doesn't have a resource type \"wg\"")
            || error.contains("could not find the requested resource"),
        "{error}"
    );
}

#[tokio::test]
async fn who_impersonates_a_user_may_do_what_the_roles_allow() {
    let kubectl = Kubectl::start().await;
    let as_reader = |arguments: &[&'static str]| -> Vec<&'static str> {
        [&["--as", "system:serviceaccount:default:reader"], arguments].concat()
    };
    let error = kubectl.bad(&as_reader(&["get", "configmaps"]), "").await;
    assert!(
        error.contains(r#"configmaps is forbidden: User "system:serviceaccount:default:reader" cannot list resource "configmaps" in API group "" in the namespace "default""#),
        "{error}"
    );
    kubectl
        .good(&["create", "role", "reader", "--verb=get,list,patch", "--resource=configmaps"], "")
        .await;
    kubectl
        .good(
            &[
                "create",
                "rolebinding",
                "reader",
                "--role=reader",
                "--serviceaccount=default:reader",
            ],
            "",
        )
        .await;
    kubectl.good(&as_reader(&["get", "configmaps"]), "").await;
    kubectl.bad(&as_reader(&["get", "configmaps", "-n", "kube-system"]), "").await;
    kubectl.bad(&as_reader(&["get", "configmaps", "-A"]), "").await;
    // An apply of what is not there makes it; of what is there, it patches.
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata: {a: b}\n";
    let apply = ["apply", "--server-side", "-f", "-"];
    let error = kubectl.bad(&as_reader(&apply), map).await;
    assert!(error.contains("cannot create resource"), "{error}");
    kubectl.good(&["create", "configmap", "m"], "").await;
    kubectl.good(&as_reader(&apply), map).await;
    let error = kubectl.bad(&as_reader(&["delete", "configmap", "m"]), "").await;
    assert!(error.contains(r#"configmaps "m" is forbidden"#), "{error}");
}

#[tokio::test]
async fn daemon_sets_policies_and_budgets_are_checked_and_shown() {
    const OBJECTS: &str = "\
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec:
      nodeSelector: {role: edge}
      containers: [{name: main, image: agent:1}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: only-one}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress:
  - from: [{namespaceSelector: {matchLabels: {team: one}}}]
    ports: [{port: 8081}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec:
  maxUnavailable: 1
  selector: {matchLabels: {app: web}}
";
    let kubectl = Kubectl::start().await;
    kubectl.good(&["apply", "--validate=strict", "--dry-run=server", "-f", "-"], OBJECTS).await;
    assert_eq!(rows(&kubectl.good(&["get", "ds,netpol,pdb"], "").await), Vec::<Vec<&str>>::new());
    kubectl.good(&["apply", "--validate=strict", "-f", "-"], OBJECTS).await;
    let again = kubectl.good(&["apply", "--validate=strict", "-f", "-"], OBJECTS).await;
    assert!(again.starts_with("daemonset.apps/agent unchanged\n"), "{again}");
    let table = kubectl.good(&["get", "ds"], "").await;
    assert_eq!(rows(&table)[1][..7], ["agent", "0", "0", "0", "0", "0", "role=edge"], "{table}");
    let table = kubectl.good(&["get", "netpol"], "").await;
    assert_eq!(rows(&table)[1][..2], ["only-one", "app=web"], "{table}");
    let table = kubectl.good(&["get", "pdb"], "").await;
    assert_eq!(rows(&table)[1][..4], ["web", "N/A", "1", "0"], "{table}");
    for (right, wrong, why) in [
        (
            "labels: {app: agent}}\n    spec",
            "labels: {app: x}}\n    spec",
            "does not match template",
        ),
        ("  maxUnavailable: 1", "  maxUnavailable: 1\n  minAvailable: 1", "cannot be both set"),
        (
            "from: [{namespaceSelector: {matchLabels: {team: one}}}]",
            "from: [{}]",
            "must specify a peer",
        ),
        ("port: 8081", "port: 0", "between 1 and 65535"),
    ] {
        assert!(OBJECTS.contains(right), "{right}");
        let error = kubectl.bad(&["apply", "-f", "-"], &OBJECTS.replace(right, wrong)).await;
        assert!(error.contains(why), "{error}");
    }
}
