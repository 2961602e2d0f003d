//! The use of kubectl by a person, with the kubectl of the PATH or of the variable KUBECTL (1.20
//! and later).
#![allow(clippy::unwrap_used, clippy::panic)]

mod harness;

use std::ffi::OsStr;
use std::process::Stdio;
use std::time::Duration;

use harness::{TestServer, WIDGET_CRD};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

const TIMEOUT: Duration = Duration::from_secs(30);

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

/// kubectl with its own kubeconfig and home directory.
struct Kubectl {
    _server: TestServer,
    home: TempDir,
}

/// The result of one kubectl command.
#[derive(Debug)]
struct Run {
    ok: bool,
    out: String,
    err: String,
}

impl Kubectl {
    async fn start() -> Self {
        let server = TestServer::start().await;
        let home = TempDir::new().unwrap();
        devcluster::kubeconfig::write(&home.path().join("config"), server.address, "devcluster")
            .unwrap();
        Self { _server: server, home }
    }

    /// A server with the widget definition and one widget.
    async fn with_widget() -> Self {
        let kubectl = Self::start().await;
        kubectl.succeed(&["apply", "-f", "-"], WIDGET_CRD).await;
        kubectl
            .succeed(&["wait", "--for=condition=established", "crd/widgets.devcluster.example"], "")
            .await;
        assert_eq!(
            kubectl.succeed(&["apply", "-f", "-"], WIDGET).await,
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

    async fn run(&self, arguments: &[&str], input: &str) -> Run {
        self.finish(self.command(arguments), input).await
    }

    async fn finish(&self, mut command: Command, input: &str) -> Run {
        let mut child = command
            .spawn()
            .expect("these tests need kubectl in the PATH, or its path in the variable KUBECTL");
        let mut stdin = child.stdin.take().unwrap();
        // kubectl may exit without reading its input.
        let _ = stdin.write_all(input.as_bytes()).await;
        drop(stdin);
        let output = timeout(TIMEOUT, child.wait_with_output())
            .await
            .expect("kubectl exits in time")
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Run { ok: output.status.success(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// Runs a command that must succeed, and returns its output.
    async fn succeed(&self, arguments: &[&str], input: &str) -> String {
        let ran = self.run(arguments, input).await;
        assert!(ran.ok, "kubectl {arguments:?}: {ran:?}");
        ran.out
    }

    /// Runs a command that must fail, and returns its errors.
    async fn fail(&self, arguments: &[&str], input: &str) -> String {
        let ran = self.run(arguments, input).await;
        assert!(!ran.ok, "kubectl {arguments:?}: {ran:?}");
        ran.err
    }

    /// The minor version of this kubectl.
    async fn minor(&self) -> u32 {
        let version = self.succeed(&["version", "--client", "-o", "json"], "").await;
        let version: serde_json::Value = serde_json::from_str(&version).unwrap();
        let minor =
            version["clientVersion"]["minor"].as_str().unwrap().trim_end_matches('+').to_owned();
        minor.parse().unwrap()
    }
}

/// The columns of each line of a table.
fn rows(table: &str) -> Vec<Vec<&str>> {
    table.lines().map(|line| line.split_whitespace().collect()).collect()
}

#[tokio::test]
async fn repeated_apply_changes_nothing() {
    let kubectl = Kubectl::with_widget().await;
    assert_eq!(
        kubectl.succeed(&["apply", "-f", "-"], WIDGET).await,
        "widget.devcluster.example/a unchanged\n"
    );
    assert_eq!(
        kubectl.succeed(&["apply", "-f", "-"], WIDGET_CRD).await,
        "customresourcedefinition.apiextensions.k8s.io/widgets.devcluster.example unchanged\n"
    );
    let less = WIDGET.replace("  ports:\n  - port: 80\n", "");
    assert_eq!(
        kubectl.succeed(&["apply", "-f", "-"], &less).await,
        "widget.devcluster.example/a configured\n"
    );
    assert_eq!(
        kubectl.succeed(&["get", "wg", "a", "-o", "jsonpath={.spec}"], "").await,
        r#"{"mode":"slow","size":3}"#
    );
}

#[tokio::test]
async fn tables_have_the_columns_of_the_definition() {
    let kubectl = Kubectl::with_widget().await;
    let table = kubectl.succeed(&["get", "wg"], "").await;
    assert_eq!(rows(&table)[0], ["NAME", "PHASE", "REPLICAS", "AGE"]);
    let table = kubectl.succeed(&["get", "widgets", "-A", "-o", "wide"], "").await;
    assert_eq!(rows(&table)[0], ["NAMESPACE", "NAME", "PHASE", "REPLICAS", "MODE", "AGE"]);
    assert_eq!(rows(&table)[1][..3], ["default", "a", "slow"]);
    let all = kubectl.succeed(&["get", "all"], "").await;
    assert!(all.contains("widget.devcluster.example/a"), "{all}");
    let node = "apiVersion: v1\nkind: Node\nmetadata:\n  name: edge0\n  labels: {node-role.kubernetes.io/edge: ''}\n";
    kubectl.succeed(&["apply", "-f", "-"], node).await;
    assert_eq!(
        rows(&kubectl.succeed(&["get", "nodes"], "").await)[1][..3],
        ["edge0", "Unknown", "edge"]
    );
}

#[tokio::test]
async fn get_watch_prints_a_row_per_change() {
    let kubectl = Kubectl::with_widget().await;
    let mut child = kubectl.command(&["get", "wg", "-w"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = async || timeout(TIMEOUT, lines.next_line()).await.unwrap().unwrap().unwrap();
    assert!(next().await.starts_with("NAME"));
    assert!(next().await.starts_with("a "));
    kubectl
        .succeed(&["patch", "wg", "a", "--type=merge", "-p", r#"{"spec":{"replicas":4}}"#], "")
        .await;
    assert_eq!(next().await.split_whitespace().nth(1), Some("4"));
    child.kill().await.unwrap();
}

#[tokio::test]
async fn unknown_fields_and_schema_violations_are_refused() {
    let kubectl = Kubectl::with_widget().await;
    let typo = WIDGET.replace("size: 3", "size: 3\n  sice: 4").replace("name: a", "name: b");
    if kubectl.minor().await >= 27 {
        let error = kubectl.fail(&["apply", "-f", "-"], &typo).await;
        assert_eq!(
            error,
            "Error from server (BadRequest): error when creating \"STDIN\": Widget in version \"v1\" cannot be handled as a Widget: strict decoding error: unknown field \"spec.sice\"\n"
        );
        let ran = kubectl.run(&["apply", "--validate=warn", "-f", "-"], &typo).await;
        assert!(ran.ok && ran.err.contains("Warning: unknown field \"spec.sice\""), "{ran:?}");
        let outside =
            WIDGET_CRD.replace("      additionalPrinterColumns:", "      printerColumns:");
        let error = kubectl.fail(&["apply", "-f", "-"], &outside).await;
        assert!(
            error.contains(
                r#"strict decoding error: unknown field "spec.versions[0].printerColumns""#
            ),
            "{error}"
        );
    }
    let wrong = WIDGET.replace("size: 3", "size: 0").replace("name: a", "name: c");
    let error = kubectl.fail(&["create", "-f", "-"], &wrong).await;
    assert_eq!(
        error,
        "The Widget \"c\" is invalid: spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1\n"
    );
    let error = kubectl.fail(&["create", "-f", "-"], WIDGET).await;
    assert_eq!(
        error,
        "Error from server (AlreadyExists): error when creating \"STDIN\": widgets.devcluster.example \"a\" already exists\n"
    );
    let error = kubectl.fail(&["get", "wg", "none"], "").await;
    assert_eq!(
        error,
        "Error from server (NotFound): widgets.devcluster.example \"none\" not found\n"
    );
}

#[tokio::test]
async fn describe_edit_label_annotate_and_explain_work() {
    let kubectl = Kubectl::with_widget().await;
    let text = kubectl.succeed(&["describe", "wg", "a"], "").await;
    assert!(text.contains("Kind:         Widget") && text.contains("Size:    3"), "{text}");
    let mut edit = kubectl.command(&["edit", "wg", "a"]);
    edit.env("EDITOR", "sed -i s/size:.3/size:\\ 5/");
    let ran = kubectl.finish(edit, "").await;
    assert!(ran.ok, "{ran:?}");
    assert_eq!(ran.out, "widget.devcluster.example/a edited\n");
    kubectl.succeed(&["label", "wg", "a", "team=x"], "").await;
    kubectl.succeed(&["annotate", "wg", "a", "note=y"], "").await;
    let shown = kubectl
        .succeed(
            &[
                "get",
                "wg",
                "-l",
                "team=x",
                "-o",
                "jsonpath={.items[0].spec.size} {.items[0].metadata.annotations.note}",
            ],
            "",
        )
        .await;
    assert_eq!(shown, "5 y");
    let text = kubectl.succeed(&["explain", "wg.spec.size"], "").await;
    assert!(text.contains("The size, at least 1."), "{text}");
    let text = kubectl.succeed(&["explain", "deployment.spec.replicas"], "").await;
    assert!(text.contains("Number of desired pods."), "{text}");
}

#[tokio::test]
async fn server_side_apply_reports_conflicts() {
    let kubectl = Kubectl::with_widget().await;
    let other = WIDGET.replace("size: 3", "size: 9").replace("  name: a", "  name: b");
    kubectl.succeed(&["apply", "--server-side", "--field-manager=one", "-f", "-"], &other).await;
    let other = other.replace("size: 9", "size: 8");
    let error =
        kubectl.fail(&["apply", "--server-side", "--field-manager=two", "-f", "-"], &other).await;
    assert!(
        error.contains("Apply failed with 1 conflict: conflict with \"one\": .spec.size"),
        "{error}"
    );
    let out = kubectl
        .succeed(
            &["apply", "--server-side", "--force-conflicts", "--field-manager=two", "-f", "-"],
            &other,
        )
        .await;
    assert_eq!(out, "widget.devcluster.example/b serverside-applied\n");
    let minor = kubectl.minor().await;
    let show: &[&str] = if minor >= 21 { &["--show-managed-fields"] } else { &[] };
    let fields = kubectl.succeed(&[&["get", "wg", "b", "-o", "json"], show].concat(), "").await;
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
async fn apply_and_patch_change_built_in_kinds() {
    let kubectl = Kubectl::start().await;
    kubectl.succeed(&["apply", "-f", "-"], DEPLOYMENT).await;
    kubectl.succeed(&["set", "env", "deployment/web", "A=1"], "").await;
    kubectl.succeed(&["apply", "-f", "-"], &DEPLOYMENT.replace("web:1", "web:2")).await;
    kubectl.succeed(&["rollout", "restart", "deployment/web"], "").await;
    let path = "jsonpath={.spec.replicas} {.spec.template.spec.containers[0].image} {.spec.template.spec.containers[0].env[0].name} {.metadata.generation}";
    assert_eq!(kubectl.succeed(&["get", "deployment", "web", "-o", path], "").await, "1 web:2 A 4");
    let ran = kubectl.run(&["diff", "-f", "-"], &DEPLOYMENT.replace("web:1", "web:3")).await;
    assert!(ran.out.contains("image: web:3"), "diff uses a dry run: {ran:?}");
    let error = kubectl
        .fail(
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
async fn delete_waits_until_objects_are_deleted() {
    let kubectl = Kubectl::with_widget().await;
    kubectl.succeed(&["create", "namespace", "n"], "").await;
    kubectl.succeed(&["-n", "n", "create", "configmap", "m", "--from-literal=k=v"], "").await;
    kubectl.succeed(&["delete", "namespace", "n"], "").await;
    assert_eq!(kubectl.succeed(&["get", "configmaps", "-A", "-o", "name"], "").await, "");
    let deleted = kubectl.succeed(&["delete", "-f", "-"], WIDGET).await;
    assert!(deleted.starts_with("widget.devcluster.example \"a\" deleted"), "{deleted}");
    kubectl.succeed(&["apply", "-f", "-"], WIDGET).await;
    kubectl.succeed(&["delete", "crd", "widgets.devcluster.example"], "").await;
    let error = kubectl.fail(&["get", "wg"], "").await;
    assert!(
        error.contains("the server doesn't have a resource type \"wg\"")
            || error.contains("could not find the requested resource"),
        "{error}"
    );
}

#[tokio::test]
async fn impersonated_user_has_the_rights_of_its_roles() {
    const ROLE: &str = "\
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader}
rules: [{apiGroups: [''], resources: [configmaps], verbs: [get, list, patch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader}
subjects: [{kind: ServiceAccount, name: reader, namespace: default}]
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
";
    let kubectl = Kubectl::start().await;
    let as_reader = |arguments: &[&'static str]| -> Vec<&'static str> {
        [&["--as", "system:serviceaccount:default:reader"], arguments].concat()
    };
    let error = kubectl.fail(&as_reader(&["get", "configmaps"]), "").await;
    assert!(
        error.contains(r#"configmaps is forbidden: User "system:serviceaccount:default:reader" cannot list resource "configmaps" in API group "" in the namespace "default""#),
        "{error}"
    );
    kubectl.succeed(&["apply", "-f", "-"], ROLE).await;
    kubectl.succeed(&as_reader(&["get", "configmaps"]), "").await;
    kubectl.fail(&as_reader(&["get", "configmaps", "-n", "kube-system"]), "").await;
    kubectl.fail(&as_reader(&["get", "configmaps", "-A"]), "").await;
    // An apply needs the right to create a missing object, and to patch an existing one.
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata: {a: b}\n";
    let apply = ["apply", "--server-side", "-f", "-"];
    let error = kubectl.fail(&as_reader(&apply), map).await;
    assert!(error.contains("cannot create resource"), "{error}");
    kubectl.succeed(&["create", "configmap", "m"], "").await;
    kubectl.succeed(&as_reader(&apply), map).await;
    let error = kubectl.fail(&as_reader(&["delete", "configmap", "m"]), "").await;
    assert!(error.contains(r#"configmaps "m" is forbidden"#), "{error}");
}

#[tokio::test]
async fn create_commands_of_the_installation_succeed() {
    let kubectl = Kubectl::start().await;
    kubectl.succeed(&["create", "namespace", "n"], "").await;
    for arguments in [
        ["create", "configmap", "ca", "--from-literal=ca.crt=x"].as_slice(),
        &["create", "secret", "generic", "passwords", "--from-literal=passwords=a"],
        &["create", "serviceaccount", "agent"],
    ] {
        kubectl.succeed(&[&["-n", "n"], arguments].concat(), "").await;
    }
    let path = "jsonpath={.data.passwords} {.type}";
    let shown = kubectl.succeed(&["-n", "n", "get", "secret", "passwords", "-o", path], "").await;
    assert_eq!(shown, "YQ== Opaque");
}

#[tokio::test(flavor = "multi_thread")]
async fn scale_subresource_reads_and_changes_the_replicas() {
    let kubectl = Kubectl::with_widget().await;
    let path = "/apis/devcluster.example/v1/namespaces/default/widgets/a/scale";
    let error = kubectl.fail(&["get", "--raw", path], "").await;
    assert!(error.contains("the spec replicas field \".spec.replicas\" does not exist"), "{error}");
    kubectl
        .succeed(&["patch", "wg/a", "--type=merge", "-p", r#"{"spec":{"replicas":1}}"#], "")
        .await;

    kubectl.succeed(&["scale", "wg/a", "--replicas=3"], "").await;
    let jsonpath = "-o=jsonpath={.spec.replicas} {.metadata.generation}";
    assert_eq!(kubectl.succeed(&["get", "wg/a", jsonpath], "").await, "3 3");
    kubectl.succeed(&["scale", "wg/a", "--current-replicas=3", "--replicas=0"], "").await;
    assert_eq!(kubectl.succeed(&["get", "wg/a", jsonpath], "").await, "0 4");
    let error = kubectl.fail(&["scale", "wg/a", "--current-replicas=3", "--replicas=5"], "").await;
    assert!(error.to_lowercase().contains("expected replicas to be 3, was 0"), "{error}");
    let error = kubectl.fail(&["scale", "wg/a", "--resource-version=1", "--replicas=5"], "").await;
    assert!(error.contains("xpected resource version to be 1"), "{error}");

    let scale = r#"{"kind":"Scale","apiVersion":"autoscaling/v1","metadata":{"name":"a","namespace":"default"},"spec":{"replicas":2}}"#;
    kubectl.succeed(&["replace", "--raw", path, "-f", "-"], scale).await;
    let shown = kubectl.succeed(&["get", "--raw", path], "").await;
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((&shown["kind"], &shown["spec"]["replicas"]), (&"Scale".into(), &2.into()));
    assert_eq!(shown["status"], serde_json::json!({"replicas": 0}));
    let error =
        kubectl.fail(&["replace", "--raw", path, "-f", "-"], &scale.replace(":2}", ":-1}")).await;
    assert!(error.contains("spec.replicas: Invalid value"), "{error}");
    let outdated = scale.replace("\"name\":\"a\"", "\"name\":\"a\",\"resourceVersion\":\"1\"");
    let error = kubectl.fail(&["replace", "--raw", path, "-f", "-"], &outdated).await;
    assert!(error.contains("has been modified"), "{error}");
}
