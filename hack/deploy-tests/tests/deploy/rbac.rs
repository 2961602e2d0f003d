//! The controller's rights are exactly the calls of its code: this file lists them by the files of
//! `cloud/fleet/src` and `cloud/runtime/src`. `hack/e2e/tests/e2e/rights.rs` tests that the
//! controller works with them and uses each.

use std::{collections::BTreeSet, fs, path::Path};

use deploy_tests::{OVERLAYS, objects, repository};
use serde_json::Value;

/// Group, resource, verbs. A comment above each names the file with the calls.
type Right = (&'static str, &'static str, &'static [&'static str]);

/// The rights of the controller in all namespaces.
const EVERYWHERE: [Right; 21] = [
    // cache/mod.rs: `Caches::watch` follows all of them; a watcher lists, then watches.
    // admission/reviewer.rs gets, by name, what a copy does not have yet.
    ("neptune.io", "jointinferenceservices", &["get", "list", "watch"]),
    ("sedna.io", "trainingmodels", &["get", "list", "watch"]),
    ("edgeai.io", "models", &["get", "list", "watch"]),
    ("edgeai.io", "datasets", &["get", "list", "watch"]),
    ("", "nodes", &["get", "list", "watch"]),
    // cache/node_views.rs follows them; kubernetes/edge_node_writes.rs creates those of Nodes, and
    // patches their statuses.
    ("neptune.io", "edgenodes", &["get", "list", "watch", "create"]),
    ("neptune.io", "edgenodes/status", &["patch"]),
    // slices/api.rs lists them, slices/deletions.rs follows their metadata, slices/write.rs creates and
    // replaces them.
    ("neptune.io", "nodereportslices", &["list", "watch", "create", "update"]),
    // log_requests/mod.rs follows them, patches their statuses, and deletes those that ended.
    ("neptune.io", "logrequests", &["list", "watch", "delete"]),
    ("neptune.io", "logrequests/status", &["patch"]),
    ("", "pods", &["list", "watch"]),
    // controllers/runtime/status_writer.rs: `save` patches a status with a merge patch. Only the
    // InferenceModels of services are created and changed.
    ("neptune.io", "jointinferenceservices/status", &["patch"]),
    ("sedna.io", "inferencemodels/status", &["patch"]),
    ("sedna.io", "trainingmodels/status", &["patch"]),
    ("edgeai.io", "models/status", &["patch"]),
    ("edgeai.io", "datasets/status", &["patch"]),
    // cache/mod.rs follows them; controllers/runtime/apply.rs: `put` gets what its copy does not
    // have and applies (a server-side apply of a missing object needs create), `prune` deletes.
    ("apps", "deployments", &["get", "list", "watch", "create", "patch", "delete"]),
    ("", "services", &["get", "list", "watch", "create", "patch", "delete"]),
    ("sedna.io", "inferencemodels", &["get", "list", "watch", "create", "patch", "delete"]),
    // The same file applies those of an exposed gateway.
    ("", "endpoints", &["get", "create", "patch"]),
    // kubernetes/history.rs records the specs of complete rollouts, and deletes the oldest.
    ("apps", "controllerrevisions", &["list", "create", "delete"]),
];

/// The rights of the controller in namespaces whose owner grants them.
const TRAINING: [Right; 2] = [
    // training/provision.rs gets the volume of an aggregator, and creates it once.
    ("", "persistentvolumeclaims", &["get", "create"]),
    // training/publish.rs applies the output Model.
    ("edgeai.io", "models", &["create", "patch"]),
];

/// The rights of the controller in namespaces whose owner grants them.
const CONFIG: [Right; 2] = [
    // controllers/runtime/config_reads.rs gets, by name, what workers at agents refer to.
    ("", "secrets", &["get"]),
    ("", "configmaps", &["get"]),
];

/// Also in all namespaces: an Event is in the namespace of its object.
// controllers/runtime/status_writer.rs calls controllers/runtime/events.rs:
// `publish_event` creates an Event and patches the one of the same thing.
const EVENTS: Right = ("events.k8s.io", "events", &["create", "patch"]);

/// In the controller's own namespace, of this name.
// cache/mod.rs: `Caches::watch` follows the one ConfigMap by a field selector on its name.
const TABLE: (Right, &str) = (("", "configmaps", &["list", "watch"]), "neptune-frameworks");

/// The keys of the nodes of earlier versions, in the same namespace, of this name.
// controllers/edge_nodes/migrate.rs gets it, and annotates it when its entries are in EdgeNodes.
const KEYS: (Right, &str) = (("", "configmaps", &["get", "patch"]), "neptune-node-keys");

/// The Lease of the leader, in the same namespace. An empty name stands for any.
// kubernetes/leader_election.rs gets it, creates it when it is missing, and patches it.
const LEASE: [(Right, &str); 2] = [
    (("coordination.k8s.io", "leases", &["create"]), ""),
    (("coordination.k8s.io", "leases", &["get", "patch"]), "neptune-cloud"),
];

/// In the controller's own namespace, of this name.
// admission/certificate_store.rs: `follow` watches it by a field selector on its name, `save`
// replaces it. The manifest creates it.
const CERTIFICATE: (Right, &str) =
    (("", "secrets", &["list", "watch", "update"]), "neptune-webhook");

/// In the same namespace, of this name.
// training/controller_key.rs gets it, and replaces it while it is empty. The manifest creates it.
// (Only outside of the cluster, with another identity, is it made.)
const CONTROLLER_KEY: (Right, &str) =
    (("", "secrets", &["get", "update"]), "neptune-controller-key");

/// In the controller's own namespace, of the overlay `kubeedge`.
// transport/eventbus/rules/mod.rs follows both, and recreates them instead of changing them.
const RULES: [Right; 2] = [
    ("rules.kubeedge.io", "rules", &["list", "watch", "create", "delete"]),
    ("rules.kubeedge.io", "ruleendpoints", &["list", "watch", "create", "delete"]),
];

/// Cluster-scoped, of this name.
// admission/certificate_store.rs: `follow` watches it, `tell` patches its caBundle. (Only with
// --webhook-url, outside of the cluster and with another identity, is it made.)
const WEBHOOK: (Right, &str) = (
    (
        "admissionregistration.k8s.io",
        "validatingwebhookconfigurations",
        &["list", "watch", "patch"],
    ),
    "neptune",
);

/// The rights of the controller with `--ca-secret`: for all `EdgeNodes`.
// kubernetes/edge_node_writes.rs patches the spec of a node that joins.
const JOINED: [Right; 1] = [("neptune.io", "edgenodes", &["patch"])];

/// In the controller's own namespace, of these names.
// join/authority.rs gets it, and replaces it while it is empty. join/maintain.rs follows the others by
// their names, and replaces them.
const JOINS: [(Right, &str); 3] = [
    (("", "secrets", &["get", "update"]), "neptune-ca"),
    (("", "secrets", &["list", "watch", "update"]), "neptune-broker-tls"),
    (("", "configmaps", &["list", "watch", "update"]), "neptune-join-tokens"),
];

/// The rights of the join server everywhere, and in its namespace.
// join/request.rs gets both by name; join/authority.rs gets the Secret, and join/tokens.rs gets and
// replaces the ConfigMap.
const JOIN_SERVER: [Right; 2] = [("neptune.io", "edgenodes", &["get"]), ("", "nodes", &["get"])];
const JOIN_SERVER_OWN: [(Right, &str); 2] = [
    (("", "secrets", &["get"]), "neptune-ca"),
    (("", "configmaps", &["get", "update"]), "neptune-join-tokens"),
];

/// The right of the container that writes the files of the broker.
// cloud/src/commands/broker_files.rs follows it by its name.
const BROKER: (Right, &str) = (("", "secrets", &["list", "watch"]), "neptune-broker-tls");

/// The files that call the API server. Another file may need another right above.
const CALLERS: [&str; 22] = [
    "admission/certificate_store.rs",
    "admission/reviewer.rs",
    "cache/mod.rs",
    "cache/node_views.rs",
    "controllers/edge_nodes/migrate.rs",
    "controllers/runtime/apply.rs",
    "controllers/runtime/config_reads.rs",
    "controllers/runtime/events.rs",
    "controllers/runtime/status_writer.rs",
    "join/authority.rs",
    "join/maintain.rs",
    "join/request.rs",
    "join/tokens.rs",
    "kubernetes/edge_node_writes.rs",
    "kubernetes/history.rs",
    "kubernetes/leader_election.rs",
    "log_requests/mod.rs",
    "slices/write.rs",
    "training/controller_key.rs",
    "training/provision.rs",
    "training/publish.rs",
    "transport/eventbus/rules/mod.rs",
];

/// Group, resource, verb, name of the object (empty: all).
type Rule = (String, String, String, String);

fn expand<'a>(rights: impl IntoIterator<Item = &'a Right>, name: &str) -> BTreeSet<Rule> {
    let mut rules = BTreeSet::new();
    for (group, resource, verbs) in rights {
        for verb in *verbs {
            let [group, resource, verb] = [group, resource, verb].map(|text| (*text).to_owned());
            rules.insert((group, resource, verb, name.to_owned()));
        }
    }
    rules
}

fn list(rule: &Value, field: &str) -> Vec<String> {
    let texts = rule[field].as_array().into_iter().flatten();
    texts.map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// What the roles of this kind with these names allow.
fn allowed(objects: &[Value], kind: &str, names: &[&str]) -> BTreeSet<Rule> {
    let mut rules = BTreeSet::new();
    let is_named = |role: &&Value| names.contains(&role["metadata"]["name"].as_str().unwrap());
    for role in objects.iter().filter(|object| object["kind"] == kind).filter(is_named) {
        for rule in role["rules"].as_array().unwrap() {
            assert!(rule.get("nonResourceURLs").is_none(), "{rule}");
            let mut names = list(rule, "resourceNames");
            if names.is_empty() {
                names.push(String::new());
            }
            for group in list(rule, "apiGroups") {
                for resource in list(rule, "resources") {
                    for verb in list(rule, "verbs") {
                        for name in &names {
                            rules.insert((
                                group.clone(),
                                resource.clone(),
                                verb.clone(),
                                name.clone(),
                            ));
                        }
                    }
                }
            }
        }
    }
    rules
}

#[test]
fn roles_allow_exactly_what_the_controller_calls() {
    for overlay in OVERLAYS {
        let objects = objects(overlay);
        let everywhere = expand(EVERYWHERE.iter().chain([&EVENTS]), "");
        let everywhere = &everywhere | &expand([&WEBHOOK.0], WEBHOOK.1);
        assert_eq!(allowed(&objects, "ClusterRole", &["neptune-cloud"]), everywhere, "{overlay}");
        let training = allowed(&objects, "ClusterRole", &["neptune-training"]);
        assert_eq!(training, expand(&TRAINING, ""), "{overlay}");
        let config = allowed(&objects, "ClusterRole", &["neptune-config"]);
        assert_eq!(config, expand(&CONFIG, ""), "{overlay}");
        let own = [TABLE, CERTIFICATE, CONTROLLER_KEY, KEYS].into_iter().chain(LEASE);
        let mut own: BTreeSet<_> = own.flat_map(|(right, name)| expand([&right], name)).collect();
        if overlay == "kubeedge" {
            own.append(&mut expand(&RULES, ""));
        }
        let roles = ["neptune-cloud", "neptune-cloud-rules"];
        assert_eq!(allowed(&objects, "Role", &roles), own, "{overlay}");
    }
}

#[test]
fn joins_have_the_rights_of_their_calls_and_no_more() {
    let objects = objects("mqtt");
    let own = |rights: &[(Right, &str)]| -> BTreeSet<Rule> {
        rights.iter().flat_map(|(right, name)| expand([right], name)).collect()
    };
    for (role, everywhere, here) in [
        ("neptune-cloud-joins", expand(&JOINED, ""), own(&JOINS)),
        ("neptune-join", expand(&JOIN_SERVER, ""), own(&JOIN_SERVER_OWN)),
        ("neptune-broker", BTreeSet::new(), own(&[BROKER])),
    ] {
        assert_eq!(allowed(&objects, "ClusterRole", &[role]), everywhere, "{role}");
        assert_eq!(allowed(&objects, "Role", &[role]), here, "{role}");
    }
}

#[test]
fn rights_are_bound_to_their_account_only() {
    for overlay in OVERLAYS {
        let objects = objects(overlay);
        for binding in objects.iter().filter(|o| o["kind"].as_str().unwrap().ends_with("Binding")) {
            let subjects = binding["subjects"].as_array().unwrap();
            assert_eq!(subjects.len(), 1, "{binding}");
            assert_eq!(subjects[0]["kind"], "ServiceAccount");
            assert_eq!(subjects[0]["namespace"], "neptune-system");
            let role = binding["roleRef"]["name"].as_str().unwrap();
            let account = match role {
                "neptune-cloud" | "neptune-cloud-rules" | "neptune-cloud-joins" => "neptune-cloud",
                "neptune-join" | "neptune-broker" => role,
                other => panic!("{other} is bound: {binding}"),
            };
            assert_eq!(subjects[0]["name"], account, "{binding}");
        }
        for object in &objects {
            let pod = &object["spec"]["template"]["spec"];
            let has_token = pod["automountServiceAccountToken"] != false;
            let name = &object["metadata"]["name"];
            assert!(
                pod.is_null() || has_token == (name == "neptune-cloud" || name == "neptune-join"),
                "{overlay}: {name}"
            );
        }
    }
}

#[test]
fn no_other_file_of_the_controller_calls_the_api_server() {
    let mut callers = BTreeSet::new();
    for root in ["cloud/fleet/src", "cloud/runtime/src", "cloud/src"].map(repository) {
        visit(&root, &mut |path, text| {
            // Commands have the rights of their user; the others are compiled for tests only.
            if path.starts_with(root.join("commands"))
                || path.ends_with("controllers/runtime/tests.rs")
                || path.ends_with("controllers/runtime/cost_tests.rs")
            {
                return;
            }
            if [
                "Api::namespaced(",
                "Api::namespaced_with(",
                "Api::all(",
                "Api::all_with(",
                "Api::default_namespaced(",
                // `Api::<Kind>::namespaced(`.
                ">::namespaced(",
                ">::all(",
            ]
            .iter()
            .any(|call| text.contains(call))
            {
                callers.insert(path.strip_prefix(&root).unwrap().display().to_string());
            }
        });
    }
    assert_eq!(
        callers,
        CALLERS.map(str::to_owned).into(),
        "read what the new ones call, correct this file's lists and build/deploy/base/rbac.yaml"
    );
}

fn visit(dir: &Path, see: &mut impl FnMut(&Path, &str)) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            visit(&path, see);
        } else {
            see(&path, &fs::read_to_string(&path).unwrap());
        }
    }
}
