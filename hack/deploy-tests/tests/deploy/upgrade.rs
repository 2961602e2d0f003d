//! Helm upgrades an installation with objects, and takes over what kubectl applied.

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use deploy_tests::{repository, text};
use serde_json::Value;

use crate::cluster::Installation;

/// The kinds of Neptune, and the Secrets that the controller writes.
const KINDS: &str = "jointinferenceservices,inferencemodels,trainingmodels,models,datasets,\
    edgenodes.neptune.io,logrequests,nodereportslices";
const SECRETS: [&str; 4] =
    ["neptune-ca", "neptune-broker-tls", "neptune-controller-key", "neptune-webhook"];

/// Where the CRD of `InferenceModels` describes `manifest[].files`.
const FIELD: &str = "/spec/versions/0/schema/openAPIV3Schema\
    /properties/spec/properties/manifest/items/properties/files";

/// Standard output of a command that has to print no error.
fn done((printed, stderr): (String, String)) -> String {
    assert_eq!(stderr, "");
    printed
}

/// Creates the samples of all kinds, a node that joined, and what a controller wrote into Secrets.
fn create_objects(cluster: &Installation) {
    let samples = repository("common/api/tests/samples");
    done(cluster.kubectl(&["apply", "-f", samples.to_str().unwrap()]));
    let node = r#"{"apiVersion": "neptune.io/v1alpha1", "kind": "EdgeNode",
        "metadata": {"name": "edge0", "labels": {"site": "west"}}, "spec": {}}"#;
    done(cluster.kubectl_with_input(&["create", "-f", "-"], node));
    let status = r#"{"status": {"metrics": [{"key": "inferenceNumber", "value": "7"}]}}"#;
    let patch = ["patch", "jis/assistant", "--subresource=status", "--type=merge", "-p", status];
    done(cluster.kubectl(&patch));
}

/// Writes a key into each Secret, as the controller does.
fn write_secrets(cluster: &Installation) {
    for secret in SECRETS {
        let data = r#"{"data": {"tls.key": "Zm9v"}}"#;
        done(cluster.kubectl(&["-n", "neptune-system", "patch", "secret", secret, "-p", data]));
    }
}

/// Identity, version and count of each object.
fn objects(cluster: &Installation) -> BTreeMap<String, String> {
    let columns = "custom-columns=KIND:.kind,NAME:.metadata.name,UID:.metadata.uid,\
        VERSION:.metadata.resourceVersion,COUNT:.status.metrics[0].value";
    let listed = done(cluster.kubectl(&["get", KINDS, "-A", "--no-headers", "-o", columns]));
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (words[..2].join("/"), words[2..].join(" "))
    };
    listed.lines().map(line).collect()
}

/// The keys that the controller wrote.
fn keys(cluster: &Installation) -> Vec<String> {
    let path = r"jsonpath={.data.tls\.key}";
    let key = |secret: &&str| {
        done(cluster.kubectl(&["-n", "neptune-system", "get", "secret", secret, "-o", path]))
    };
    SECRETS.iter().map(key).collect()
}

/// A copy of the chart whose CRD of `InferenceModels` has no `manifest[].files`.
fn earlier_chart(folder: &Path) -> String {
    let chart = folder.join("neptune");
    let mut copy = Command::new("cp");
    copy.arg("-rL").arg(repository("build/helm/neptune")).arg(&chart);
    assert!(copy.status().unwrap().success());
    let file = chart.join("files/crds/inferencemodels.sedna.io.yaml");
    let mut crd: Value = serde_saphyr::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let fields = crd.pointer_mut(FIELD.trim_end_matches("/files")).unwrap();
    assert!(fields.as_object_mut().unwrap().remove("files").is_some());
    fs::write(&file, serde_json::to_string(&crd).unwrap()).unwrap();
    chart.to_str().unwrap().to_owned()
}

/// Whether the API server knows the field that [`earlier_chart`] leaves out.
fn knows_files(cluster: &Installation) -> bool {
    let crd = done(cluster.kubectl(&["get", "crd/inferencemodels.sedna.io", "-o", "json"]));
    let crd: Value = serde_json::from_str(&crd).unwrap();
    crd.pointer(FIELD).is_some()
}

#[tokio::test]
async fn upgrade_changes_crds_and_no_object_and_no_secret() {
    let cluster = Installation::start().await;
    let folder = tempfile::tempdir().unwrap();
    let (earlier, chart) = (earlier_chart(folder.path()), repository("build/helm/neptune"));
    let chart = chart.to_str().unwrap();
    done(cluster.helm(&["install", "neptune", &earlier, "--set", "join.address={a.example}"]));
    create_objects(&cluster);
    write_secrets(&cluster);
    let before = objects(&cluster);
    assert!(before.len() >= 7, "{before:?}");
    assert!(before["JointInferenceService/assistant"].ends_with(" 7"), "{before:?}");
    assert!(!knows_files(&cluster));

    // The documented command.
    let command = "helm upgrade neptune build/helm/neptune -n neptune-system";
    assert!(text("docs/install.md").contains(&format!("{command} --reset-then-reuse-values")));
    let value = "controller.env.NEPTUNE_LOG_FILTER=debug";
    done(cluster.helm(&["upgrade", "neptune", chart, "--reset-then-reuse-values", "--set", value]));

    assert!(knows_files(&cluster));
    assert_eq!(objects(&cluster), before);
    assert_eq!(keys(&cluster), ["Zm9v"; 4]);
    let env = r"jsonpath={range .spec.template.spec.containers[0].env[*]}{.name}={.value} {end}";
    let controller = ["-n", "neptune-system", "get", "deployment/neptune-cloud", "-o", env];
    let env = done(cluster.kubectl(&controller));
    assert!(env.contains("NEPTUNE_LOG_FILTER=debug"), "{env}");
    assert!(env.contains("NEPTUNE_BROKER_ADDRESS=a.example"), "values of before are kept: {env}");
}

#[tokio::test]
async fn crds_that_kubectl_applied_stay_the_users_unless_helm_takes_them_over() {
    let cluster = Installation::start().await;
    let chart = repository("build/helm/neptune");
    let chart = chart.to_str().unwrap();
    done(cluster.kubectl(&["apply", "-f", repository("crds").to_str().unwrap()]));
    create_objects(&cluster);
    let before = objects(&cluster);

    let (_, refused) = cluster.helm(&["install", "neptune", chart]);
    assert!(refused.contains("invalid ownership metadata"), "{refused}");
    done(cluster.helm(&["install", "neptune", chart, "--set", "crds.install=false"]));
    done(cluster.helm(&["upgrade", "neptune", chart, "--take-ownership"]));
    // Helm forgets them, and deletes neither them nor the objects.
    let _ = cluster.helm(&["upgrade", "neptune", chart, "--set", "crds.install=false"]);
    assert_eq!(objects(&cluster), before);
}

#[tokio::test]
async fn helm_takes_over_what_kubectl_applied() {
    let cluster = Installation::start().await;
    let (overlay, chart) = (repository("build/deploy/mqtt"), repository("build/helm/neptune"));
    let (overlay, chart) = (overlay.to_str().unwrap(), chart.to_str().unwrap());
    done(cluster.kubectl(&["apply", "-f", repository("crds").to_str().unwrap()]));
    create_objects(&cluster);
    // It warns of the namespace, which another command made.
    let (applied, stderr) = cluster.kubectl(&["apply", "-k", overlay]);
    assert!(applied.contains("deployment.apps/neptune-cloud created"), "{stderr}");
    write_secrets(&cluster);
    let before = objects(&cluster);

    let (_, refused) = cluster.helm(&["install", "neptune", chart]);
    assert!(refused.contains("invalid ownership metadata"), "{refused}");
    done(cluster.helm(&["install", "neptune", chart, "--take-ownership"]));

    assert_eq!(objects(&cluster), before);
    assert_eq!(keys(&cluster), ["Zm9v"; 4]);
    // What the two name differently is left over.
    let leftover = "app.kubernetes.io/part-of=neptune,app.kubernetes.io/managed-by=kustomize";
    let kinds = "deployments,daemonsets,services,configmaps,secrets,serviceaccounts,roles,\
        rolebindings,poddisruptionbudgets,networkpolicies,clusterroles,clusterrolebindings,\
        validatingwebhookconfigurations";
    let left = done(cluster.kubectl(&["get", kinds, "-A", "-l", leftover, "-o", "name"]));
    let left: Vec<&str> = left.lines().collect();
    let [map] = left[..] else { panic!("{left:?}") };
    assert!(map.starts_with("configmap/neptune-mosquitto-"), "{map}");
    assert!(text("docs/install.md").contains(&format!("delete configmap -l {leftover}")));

    // The release is a usual one: it is upgraded, and its end leaves objects and CRDs.
    done(cluster.helm(&["upgrade", "neptune", chart]));
    let _ = cluster.helm(&["uninstall", "neptune"]);
    assert_eq!(objects(&cluster), before);
    let left = done(cluster.kubectl(&["get", "deployments,daemonsets", "-A", "-o", "name"]));
    assert_eq!(left, "");
}
