//! Who may do what after the default installation, as a table. Answered from the manifests, and with
//! `KUBECONFIG` also by the API server of that cluster.

use std::fmt::Write as _;

use deploy_tests::{OVERLAYS, chart, objects};
use neptune_harness::{Cluster, eventually, unique};
use serde_json::{Value, json};

use crate::can_i::{Question, can_i};

/// The subjects of the table. Viewer, editor and owner have the roles view, edit and admin in the
/// namespace `shop`, in which the owner has also bound `neptune-training` and `neptune-config` to the
/// controller, and `neptune-logs` to the reader.
const CONTROLLER: &str = "controller";
const AGENT: &str = "agent";
const STRANGER: &str = "stranger";
const VIEWER: &str = "viewer";
const EDITOR: &str = "editor";
const OWNER: &str = "owner";
const READER: &str = "reader";

/// The namespaces of the table.
const ALL: &str = "all namespaces";
const SYSTEM: &str = "neptune-system";
const SHOP: &str = "shop";
const OTHER: &str = "other";

const KINDS: &str = "jointinferenceservices.neptune.io inferencemodels.sedna.io trainingmodels.sedna.io models.edgeai.io datasets.edgeai.io";
const STATUSES: &str = "jointinferenceservices.neptune.io:status inferencemodels.sedna.io:status trainingmodels.sedna.io:status models.edgeai.io:status datasets.edgeai.io:status";
const ANY_VERB: &str = "get list watch create update patch delete";

/// Subjects, verbs, resources (`RESOURCE.GROUP[:SUBRESOURCE][/NAME]`), namespaces, and the answer to
/// each combination.
type Row = (&'static [&'static str], &'static str, &'static str, &'static [&'static str], bool);

const TABLE: &[Row] = &[
    // Secrets.
    (&[CONTROLLER, AGENT, STRANGER], ANY_VERB, "secrets", &[ALL, "kube-system", OTHER], false),
    (&[AGENT, STRANGER], ANY_VERB, "secrets", &[SHOP], false),
    // Of workers at agents: what the owner of a namespace grants.
    (&[CONTROLLER], "get", "secrets configmaps", &[SHOP], true),
    (
        &[CONTROLLER],
        "list watch create update patch delete",
        "secrets configmaps",
        &[SHOP, OTHER],
        false,
    ),
    (&[CONTROLLER], "get", "configmaps", &[ALL, OTHER], false),
    (
        &[CONTROLLER, AGENT, STRANGER],
        "create",
        "serviceaccounts:token",
        &[ALL, SYSTEM, SHOP],
        false,
    ),
    (&[CONTROLLER], ANY_VERB, "secrets", &[SYSTEM], false),
    (&[CONTROLLER], ANY_VERB, "secrets/neptune-cloud", &[SYSTEM], false),
    (&[CONTROLLER], "get update", "secrets/neptune-controller-key", &[SYSTEM], true),
    (
        &[CONTROLLER],
        "list watch create patch delete",
        "secrets/neptune-controller-key",
        &[SYSTEM],
        false,
    ),
    (&[CONTROLLER], "list watch update", "secrets/neptune-webhook", &[SYSTEM], true),
    (&[CONTROLLER], "get create patch delete", "secrets/neptune-webhook", &[SYSTEM], false),
    (
        &[AGENT, STRANGER],
        ANY_VERB,
        "secrets/neptune-controller-key secrets/neptune-webhook",
        &[SYSTEM],
        false,
    ),
    (&[VIEWER], ANY_VERB, "secrets", &[SHOP, SYSTEM], false),
    // Trainings: what the owner of a namespace grants.
    (&[CONTROLLER], "get create", "persistentvolumeclaims", &[SHOP], true),
    (&[CONTROLLER], "create patch", "models.edgeai.io", &[SHOP], true),
    (&[CONTROLLER], "update patch delete list", "persistentvolumeclaims", &[SHOP], false),
    (&[CONTROLLER], "get create", "persistentvolumeclaims", &[ALL, OTHER, SYSTEM], false),
    (&[CONTROLLER], "create patch", "models.edgeai.io", &[ALL, OTHER, SYSTEM], false),
    // What the controller has everywhere.
    (&[CONTROLLER], "get list watch", KINDS, &[ALL], true),
    (&[CONTROLLER], "patch", STATUSES, &[ALL], true),
    (&[CONTROLLER], "create patch delete", "deployments.apps services", &[ALL], true),
    (&[CONTROLLER], "list create delete", "controllerrevisions.apps", &[ALL], true),
    (&[CONTROLLER], "update patch", "controllerrevisions.apps", &[ALL], false),
    (
        &[CONTROLLER],
        "update patch delete",
        "trainingmodels.sedna.io jointinferenceservices.neptune.io datasets.edgeai.io",
        &[ALL, SHOP],
        false,
    ),
    (&[CONTROLLER], "create update patch delete", "pods nodes serviceaccounts", &[ALL], false),
    (&[CONTROLLER], "create", "pods:exec pods:attach pods:portforward", &[ALL, SHOP], false),
    (
        &[CONTROLLER],
        "create update patch bind escalate",
        "roles.rbac.authorization.k8s.io clusterroles.rbac.authorization.k8s.io",
        &[ALL],
        false,
    ),
    (
        &[CONTROLLER],
        "create",
        "rolebindings.rbac.authorization.k8s.io clusterrolebindings.rbac.authorization.k8s.io",
        &[ALL, SHOP],
        false,
    ),
    (&[CONTROLLER], "impersonate", "users serviceaccounts", &[ALL], false),
    // EdgeNodes: who may patch them decides which keys are trusted.
    (&[CONTROLLER], "get list watch create", "edgenodes.neptune.io", &[ALL], true),
    (&[CONTROLLER], "patch", "edgenodes.neptune.io:status", &[ALL], true),
    // With joins it may also patch them.
    (&[CONTROLLER], "update delete", "edgenodes.neptune.io", &[ALL], false),
    (
        &[AGENT, STRANGER, VIEWER, EDITOR, OWNER],
        "create update patch delete",
        "edgenodes.neptune.io edgenodes.neptune.io:status",
        &[ALL],
        false,
    ),
    // Who may write NodeReportSlices decides what counts.
    (&[CONTROLLER], "list watch create update", "nodereportslices.neptune.io", &[ALL, SHOP], true),
    (&[CONTROLLER], "patch delete", "nodereportslices.neptune.io", &[ALL, SHOP], false),
    (
        &[AGENT, STRANGER, VIEWER, EDITOR, OWNER],
        "create update patch delete",
        "nodereportslices.neptune.io",
        &[ALL, SHOP],
        false,
    ),
    (&[VIEWER, EDITOR, OWNER], "get list watch", "nodereportslices.neptune.io", &[SHOP], true),
    // Logs: of those who may create requests. Everybody else, also who may edit, cannot read them.
    (&[CONTROLLER], "list watch delete", "logrequests.neptune.io", &[ALL, SHOP], true),
    (&[CONTROLLER], "patch", "logrequests.neptune.io:status", &[ALL, SHOP], true),
    (&[CONTROLLER], "create update patch", "logrequests.neptune.io", &[ALL, SHOP], false),
    (&[READER], "create get watch delete", "logrequests.neptune.io", &[SHOP], true),
    (&[READER], "list update patch", "logrequests.neptune.io", &[SHOP], false),
    (&[READER], ANY_VERB, "logrequests.neptune.io:status secrets pods", &[SHOP], false),
    (&[READER], ANY_VERB, "logrequests.neptune.io", &[ALL, OTHER], false),
    (
        &[AGENT, STRANGER, VIEWER, EDITOR, OWNER],
        ANY_VERB,
        "logrequests.neptune.io logrequests.neptune.io:status",
        &[ALL, SHOP],
        false,
    ),
    // The agent, and a ServiceAccount that nobody gave anything.
    (&[AGENT, STRANGER], "get create patch", KINDS, &[ALL, SHOP], false),
    (&[AGENT, STRANGER], "patch", STATUSES, &[ALL, SHOP], false),
    (&[AGENT, STRANGER], "get list", "nodes pods configmaps", &[ALL, SYSTEM, SHOP], false),
    // Users.
    (&[VIEWER, EDITOR, OWNER], "get list watch", KINDS, &[SHOP], true),
    (&[VIEWER, EDITOR, OWNER], "get", STATUSES, &[SHOP], true),
    (&[VIEWER, EDITOR, OWNER], "update patch", STATUSES, &[SHOP], false),
    (&[VIEWER, EDITOR, OWNER], "get create", KINDS, &[ALL, OTHER], false),
    // The pin of an aggregator is in the status of its Pod.
    (&[VIEWER, EDITOR, OWNER], "update patch", "pods:status", &[SHOP], false),
    (&[VIEWER], "create update patch delete deletecollection", KINDS, &[SHOP], false),
    (&[EDITOR, OWNER], "create update patch delete deletecollection", KINDS, &[SHOP], true),
    (&[VIEWER], "patch", "inferencemodels.sedna.io:scale", &[SHOP], false),
    (&[EDITOR, OWNER], "get update patch", "inferencemodels.sedna.io:scale", &[SHOP], true),
];

/// The names of one run of the table in a cluster.
struct Place {
    shop: String,
    other: String,
}

impl Place {
    fn user(&self, subject: &str) -> String {
        match subject {
            CONTROLLER => "system:serviceaccount:neptune-system:neptune-cloud".to_owned(),
            AGENT => "system:serviceaccount:neptune-system:neptune-edge".to_owned(),
            STRANGER => format!("system:serviceaccount:{}:default", self.other),
            person => format!("{}-{person}", self.shop),
        }
    }

    fn namespace(&self, namespace: &str) -> Option<String> {
        match namespace {
            ALL => None,
            SHOP => Some(self.shop.clone()),
            OTHER => Some(self.other.clone()),
            given => Some(given.to_owned()),
        }
    }

    /// The questions of a row.
    fn questions(&self, (subjects, verbs, resources, namespaces, _): &Row) -> Vec<Question> {
        let mut questions = Vec::new();
        for subject in *subjects {
            for resource in resources.split(' ') {
                for namespace in *namespaces {
                    let (kind, name) = split(resource, '/');
                    let (kind, sub) = split(kind, ':');
                    questions.extend(verbs.split(' ').map(|verb| Question {
                        user: self.user(subject),
                        verb: verb.to_owned(),
                        resource: kind.to_owned(),
                        subresource: sub.map(str::to_owned),
                        name: name.map(str::to_owned),
                        namespace: self.namespace(namespace),
                    }));
                }
            }
        }
        questions
    }

    /// What the owner of the namespace `shop` and its administrator create.
    fn bindings(&self) -> Vec<Value> {
        let binding = |role: &str, subject: Value| {
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
                "metadata": {"name": role, "namespace": self.shop},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
                "subjects": [subject]})
        };
        let person = |subject: &str| json!({"kind": "User", "name": self.user(subject), "apiGroup": "rbac.authorization.k8s.io"});
        let controller =
            json!({"kind": "ServiceAccount", "namespace": SYSTEM, "name": "neptune-cloud"});
        vec![
            binding("view", person(VIEWER)),
            binding("edit", person(EDITOR)),
            binding("admin", person(OWNER)),
            binding("neptune-logs", person(READER)),
            binding("neptune-training", controller.clone()),
            binding("neptune-config", controller),
        ]
    }
}

fn split(text: &str, at: char) -> (&str, Option<&str>) {
    text.split_once(at).map_or((text, None), |(before, after)| (before, Some(after)))
}

/// Checks each answer of the table, and returns the table as text.
fn judge(place: &Place, mut answer: impl FnMut(&Question) -> bool) -> String {
    let (mut text, mut wrong, mut count) = (String::new(), Vec::new(), 0);
    for row in TABLE {
        let (subjects, verbs, resources, namespaces, expected) = row;
        for question in place.questions(row) {
            count += 1;
            if answer(&question) != *expected {
                wrong.push(format!("{question:?} is not {expected}"));
            }
        }
        let (subjects, namespaces) = (subjects.join(", "), namespaces.join(", "));
        let answer = if *expected { "yes" } else { "no" };
        writeln!(text, "{answer:<3} | {subjects} | {verbs} | {resources} | {namespaces}").unwrap();
    }
    assert!(wrong.is_empty(), "{}\n{text}", wrong.join("\n"));
    format!("{text}{count} questions\n")
}

/// Kubernetes' own roles for users, without the rules that it has of its own.
fn roles_of_users() -> Vec<Value> {
    let role = |name: &str| {
        let label = format!("rbac.authorization.k8s.io/aggregate-to-{name}");
        json!({"kind": "ClusterRole", "metadata": {"name": name},
            "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {label: "true"}}]}})
    };
    ["view", "edit", "admin"].map(role).into()
}

#[test]
fn manifests_give_each_subject_its_rights_and_no_more() {
    let place = Place { shop: SHOP.to_owned(), other: OTHER.to_owned() };
    let mut shown = String::new();
    let overlays = OVERLAYS.map(|overlay| (overlay, objects(overlay)));
    let charts = ["transport=mqtt", "transport=eventbus"].map(|value| (value, chart(&[value])));
    for (name, mut objects) in overlays.into_iter().chain(charts) {
        objects.extend(roles_of_users());
        objects.extend(place.bindings());
        shown = format!("{name}:\n{}", judge(&place, |question| can_i(&objects, question)));
    }
    println!("{shown}");
}

#[test]
fn only_the_role_that_nothing_binds_reaches_a_secret_without_its_name() {
    let secret = |rule: &Value| {
        let has = |field: &str, wanted: [&str; 2]| {
            rule[field].as_array().unwrap().iter().any(|it| wanted.contains(&it.as_str().unwrap()))
        };
        has("apiGroups", ["", "*"]) && has("resources", ["secrets", "*"])
    };
    let everything = &["trainingNamespaces={*}", "workerReports.enabled=true"];
    let overlays = OVERLAYS.into_iter().map(objects);
    for object in overlays.chain([chart(everything)]).flatten() {
        assert_ne!(object["roleRef"]["name"], "neptune-config", "bound: {object}");
        let is_config = object["metadata"]["name"] == "neptune-config";
        let rules = object["rules"].as_array().into_iter().flatten();
        for rule in rules.into_iter().filter(|_| object["kind"].as_str().unwrap().ends_with("Role"))
        {
            if secret(rule) && is_config {
                assert_eq!(rule["verbs"], json!(["get"]));
            } else if secret(rule) {
                assert_eq!(
                    (&object["kind"], &object["metadata"]["namespace"]),
                    (&"Role".into(), &SYSTEM.into())
                );
                assert!(
                    rule["resourceNames"].as_array().is_some_and(|names| !names.is_empty()),
                    "{rule}"
                );
                assert!(!rule["verbs"].as_array().unwrap().contains(&"create".into()), "{rule}");
            }
        }
    }
}

/// What an installation creates that decides rights.
fn rights() -> Vec<Value> {
    let is_needed = |object: &Value| {
        let kind = object["kind"].as_str().unwrap();
        kind.contains("Role")
            || ["Namespace", "ServiceAccount", "CustomResourceDefinition"].contains(&kind)
    };
    objects("mqtt").into_iter().filter(is_needed).collect()
}

fn list(items: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

/// The cluster of `KUBECONFIG` keeps what was installed; without an installation it gets the roles.
#[tokio::test]
async fn api_server_answers_as_the_manifests_define() {
    let Some(kubeconfig) = std::env::var_os("KUBECONFIG").filter(|path| !path.is_empty()) else {
        return println!("not asked: KUBECONFIG names no cluster");
    };
    let cluster = Cluster::external(kubeconfig.into()).await.unwrap();
    if !cluster.try_kubectl(&["get", "clusterrole", "neptune-training"], "").ok {
        let apply = ["apply", "--server-side", "-f", "-"];
        let (namespace, others): (Vec<_>, Vec<_>) =
            rights().into_iter().partition(|object| object["kind"] == "Namespace");
        cluster.kubectl_with_input(&apply, &list(&namespace));
        cluster.kubectl_with_input(&apply, &list(&others));
    }
    let place = Place { shop: unique("shop"), other: unique("other") };
    for namespace in [&place.shop, &place.other] {
        cluster.kubectl(&["create", "namespace", namespace]);
    }
    cluster.kubectl_with_input(&["apply", "-f", "-"], &list(&place.bindings()));
    eventually("Kubernetes to aggregate the roles", || {
        ["view", "edit", "admin"].iter().all(|role| {
            let rules = cluster.kubectl(&["get", "clusterrole", role, "-o", "jsonpath={.rules}"]);
            rules.contains("jointinferenceservices")
        })
    })
    .await;
    let ask = |question: &Question| {
        let arguments = question.arguments();
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let output = cluster.try_kubectl(&arguments, "");
        match output.stdout.trim() {
            "yes" => true,
            answer if answer == "no" || answer.starts_with("no - ") => false,
            answer => panic!("{arguments:?}: {answer:?} {}", output.stderr),
        }
    };
    let shown = judge(&place, ask);
    // The owner grants what the controller asks for, without an administrator of the cluster.
    let bind = |subject: &str| {
        let user = format!("--as={}", place.user(subject));
        let command = ["create", "rolebinding", "again", "--clusterrole=neptune-training"];
        let account = "--serviceaccount=neptune-system:neptune-cloud";
        let rest = ["--namespace", &place.shop, account, "--dry-run=server", &user];
        cluster.try_kubectl(&[&command[..], &rest].concat(), "").ok
    };
    assert_eq!([OWNER, EDITOR, VIEWER, CONTROLLER].map(bind), [true, false, false, false]);
    for namespace in [&place.shop, &place.other] {
        cluster.kubectl(&["delete", "namespace", namespace, "--wait=false"]);
    }
    let version = cluster.kubectl(&["version"]);
    println!(
        "{version}{shown}the owner of a namespace may bind neptune-training, and no other user of it"
    );
}
