//! The chart renders the same objects as the overlays, and its values have their documented effect.

use std::collections::BTreeMap;

use deploy_tests::{chart, helm, object, objects, objects_with, repository, text, without_notes};
use serde_json::{Value, json};

use crate::{cluster::Installation, manifests::whole_numbers};

/// Kind, namespace and name.
type Key = (String, String, String);

/// The objects without the parts that are specific to helm or kustomize: labels with the tool's
/// name, and the trigger of a new Pod when the broker's configuration changes. A chart does not
/// create its namespace.
fn comparable(objects: &[Value]) -> BTreeMap<Key, Value> {
    // kustomize appends a hash of the content to this name.
    let is_hashed = |name: &&str| name.starts_with("neptune-mosquitto-");
    let maps = objects.iter().filter(|object| object["kind"] == "ConfigMap");
    let hashed = maps.filter_map(|map| map["metadata"]["name"].as_str()).find(is_hashed);
    let hashed = hashed.map(|name| format!("\"{name}\""));
    let mut comparables = BTreeMap::new();
    for object in objects {
        let mut text = object.to_string();
        if let Some(hashed) = &hashed {
            text = text.replace(hashed, "\"neptune-mosquitto\"");
        }
        let mut object = whole_numbers(serde_json::from_str(&text).unwrap());
        sort_by_name(&mut object);
        let kind = object["kind"].as_str().unwrap().to_owned();
        if kind == "Namespace" {
            continue;
        }
        let metadata = object["metadata"].as_object_mut().unwrap();
        let labels = metadata.entry("labels").or_insert(json!({})).as_object_mut().unwrap();
        for label in ["managed-by", "instance"] {
            labels.remove(&format!("app.kubernetes.io/{label}"));
        }
        labels.remove("helm.sh/chart");
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut)
            && annotations.remove("helm.sh/resource-policy").is_some()
            && annotations.is_empty()
        {
            metadata.remove("annotations");
        }
        let labels = metadata["labels"].as_object_mut().unwrap();
        if kind == "CustomResourceDefinition" {
            // Helm copies them unchanged.
            labels.remove("app.kubernetes.io/part-of");
        }
        if let Some(template) = object.pointer_mut("/spec/template/metadata")
            && let Some(annotations) = template.as_object_mut().unwrap().remove("annotations")
        {
            let names: Vec<_> = annotations.as_object().unwrap().keys().collect();
            assert_eq!(names, ["checksum/config"]);
        }
        let part = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        let key = (kind, part("namespace"), part("name"));
        assert!(comparables.insert(key.clone(), object).is_none(), "{key:?} is made twice");
    }
    comparables
}

/// Sorts lists: a patch of kustomize adds to a list in another place than the chart.
fn sort_by_name(value: &mut Value) {
    match value {
        Value::Array(items) => {
            items.iter_mut().for_each(sort_by_name);
            if items.iter().all(|item| item["name"].is_string()) {
                items.sort_by_key(|item| (item["name"].to_string(), item.to_string()));
            }
        }
        Value::Object(fields) => fields.values_mut().for_each(sort_by_name),
        _ => {}
    }
}

/// The first path at which two values differ, and both values.
fn difference(path: &str, left: &Value, right: &Value) -> Option<String> {
    let pairs: Vec<(String, &Value, &Value)> = match (left, right) {
        (Value::Object(l), Value::Object(r)) if l.keys().eq(r.keys()) => {
            l.iter().map(|(name, value)| (name.clone(), value, &r[name])).collect()
        }
        (Value::Array(l), Value::Array(r)) if l.len() == r.len() => {
            let places = l.iter().zip(r).enumerate();
            places.map(|(index, (l, r))| (index.to_string(), l, r)).collect()
        }
        _ if left == right => return None,
        _ => return Some(format!("{path}: {left} is not {right}")),
    };
    pairs.into_iter().find_map(|(part, l, r)| difference(&format!("{path}/{part}"), l, r))
}

#[test]
fn chart_renders_the_same_objects_as_each_overlay() {
    let reports = "worker-reports";
    for (overlay, shipped, values) in [
        ("mqtt", objects("mqtt"), &[][..]),
        ("kubeedge", objects("kubeedge"), &["transport=eventbus"]),
        ("base", objects("base"), &["broker.enabled=false"]),
        ("mqtt", objects_with("mqtt", reports), &["workerReports.enabled=true"]),
        ("mqtt", objects_with("mqtt", "broker-passwords"), &["broker.passwords.enabled=true"]),
        (
            "kubeedge",
            objects_with("kubeedge", reports),
            &["transport=eventbus", "workerReports.enabled=true"],
        ),
    ] {
        let (shipped, made) = (comparable(&shipped), comparable(&chart(values)));
        let names = |objects: &BTreeMap<Key, Value>| objects.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&made), names(&shipped), "{overlay}");
        for (key, object) in &shipped {
            assert_eq!(difference("", &made[key], object), None, "{overlay}: {key:?}");
        }
    }
}

#[test]
fn worker_reports_are_off_until_one_setting_turns_them_on() {
    let service = |objects: &[Value]| {
        objects.iter().any(|object| object["metadata"]["name"] == "neptune-worker-reports")
    };
    let program = text("cloud/src/cli/run.rs");
    for transport in ["transport=mqtt", "transport=eventbus"] {
        let without = chart(&[transport]);
        assert!(!service(&without) && !Value::from(without).to_string().contains("WORKER_REPORT"));
        let with = chart(&[transport, "workerReports.enabled=true"]);
        assert!(service(&with));
        let pod = &object(&with, "Deployment", "neptune-cloud")["spec"]["template"]["spec"];
        let controller = &pod["containers"][0];
        let env = controller["env"].as_array().unwrap().iter();
        let set: Vec<_> = env.filter_map(|variable| variable["name"].as_str()).collect();
        let reports = set.iter().filter(|name| name.starts_with("NEPTUNE_WORKER_REPORT"));
        assert_eq!(reports.clone().count(), 2);
        assert!(reports.clone().all(|name| program.contains(name)), "{set:?}");
        let ports = controller["ports"].as_array().unwrap();
        let port = ports.iter().find(|port| port["name"] == "reports").unwrap();
        assert_eq!(port["containerPort"], 8082);
    }
    let command = "create secret generic neptune-worker-reports --from-literal=key=";
    assert!(text("docs/operations.md").contains(command));
}

#[test]
fn helm_lint_reports_nothing() {
    for values in
        ["transport=mqtt", "transport=eventbus", "transport=eventbus,workerReports.enabled=true"]
    {
        let folder = repository("build/helm/neptune");
        let lint =
            helm().args(["lint", "--strict", "--quiet", "--set", values]).arg(folder).output();
        let lint = lint.unwrap();
        let printed = String::from_utf8_lossy(&lint.stdout).into_owned();
        let stderr = without_notes(&String::from_utf8_lossy(&lint.stderr));
        assert_eq!((lint.status.success(), printed.trim(), &*stderr), (true, "", ""), "{values}");
    }
}

#[test]
fn registry_secret_is_mounted_where_the_agent_reads_it() {
    let objects = chart(&["agent.registrySecret=regcred"]);
    let pod = &object(&objects, "DaemonSet", "neptune-edge")["spec"]["template"]["spec"];
    let agent = &pod["containers"][0];
    let named = |list: &Value, name: &str| {
        let item = list.as_array().unwrap().iter().find(|item| item["name"] == name);
        item.unwrap_or_else(|| panic!("{name} is not in {list}")).clone()
    };
    let secret = json!({"secretName": "regcred", "optional": true, "defaultMode": 0o400});
    assert_eq!(named(&pod["volumes"], "registries")["secret"], secret);
    let mount = named(&agent["volumeMounts"], "registries");
    assert_eq!(mount["readOnly"], true);
    let variable = named(&agent["env"], "NEPTUNE_REGISTRY_CONFIG");
    let file = format!("{}/.dockerconfigjson", mount["mountPath"].as_str().unwrap());
    assert_eq!(variable["value"], *file);
}

#[test]
fn values_are_rendered_in_their_places() {
    let pod = "/spec/template/spec";
    for (value, kind, name, path, expected) in [
        (
            "controller.image.tag=v1",
            "Deployment",
            "neptune-cloud",
            "/containers/0/image",
            json!("neptune-cloud:v1"),
        ),
        (
            "controller.env.NEPTUNE_LOG_FILTER=debug",
            "Deployment",
            "neptune-cloud",
            "/containers/0/env/9/value",
            json!("debug"),
        ),
        (
            "controller.resources.limits.memory=1Gi",
            "Deployment",
            "neptune-cloud",
            "/containers/0/resources/limits/memory",
            json!("1Gi"),
        ),
        (
            "controller.nodeSelector.zone=a",
            "Deployment",
            "neptune-cloud",
            "/nodeSelector/zone",
            json!("a"),
        ),
        (
            "agent.image.tag=sha256:0f",
            "DaemonSet",
            "neptune-edge",
            "/containers/0/image",
            json!("neptune-edge@sha256:0f"),
        ),
        (
            "agent.image.repository=r:5000/e",
            "Deployment",
            "neptune-cloud",
            "/containers/0/env/4/value",
            json!("r:5000/e:0.2.0"),
        ),
        (
            "agent.env.NEPTUNE_DNS=10.0.0.1",
            "DaemonSet",
            "neptune-edge",
            "/containers/0/env/3/value",
            json!("10.0.0.1"),
        ),
        (
            "agent.directories={/opt/a}",
            "DaemonSet",
            "neptune-edge",
            "/containers/0/volumeMounts/2/mountPath",
            json!("/opt/a"),
        ),
        (
            "agent.directories={/opt/a}",
            "DaemonSet",
            "neptune-edge",
            "/volumes/2/hostPath/path",
            json!("/opt/a"),
        ),
        (
            "agent.tolerations[0].operator=Exists",
            "DaemonSet",
            "neptune-edge",
            "/tolerations",
            json!([{"operator": "Exists"}]),
        ),
        (
            "imagePullSecrets[0].name=r",
            "DaemonSet",
            "neptune-edge",
            "/imagePullSecrets/0/name",
            json!("r"),
        ),
        (
            "broker.image.repository=m",
            "Deployment",
            "neptune-mosquitto",
            "/containers/0/image",
            json!("m:2.1.2-alpine"),
        ),
    ] {
        let objects = chart(&[value]);
        let rendered = object(&objects, kind, name).pointer(&format!("{pod}{path}"));
        assert_eq!(rendered, Some(&expected), "{value}");
    }
}

#[test]
fn parts_can_be_changed_or_disabled() {
    let one = chart(&["controller.replicas=1"]);
    assert_eq!(object(&one, "Deployment", "neptune-cloud")["spec"]["replicas"], 1);
    let port = chart(&["broker.service.nodePort=31885"]);
    let service = object(&port, "Service", "neptune-mosquitto-nodes");
    assert_eq!(service["spec"]["ports"][0]["nodePort"], 31885);
    assert_eq!(variable(&port, "neptune-join", "NEPTUNE_BROKER_PORT"), Some(json!("31885")));
    let table = chart(&["frameworks.mine.image=r/mine"]);
    let table = &object(&table, "ConfigMap", "neptune-frameworks")["data"]["frameworks.yaml"];
    assert_eq!(table, "mine:\n  image: r/mine\n");
    let without = chart(&["agent.enabled=false"]);
    assert!(without.iter().all(|object| object["kind"] != "DaemonSet"));
    // An empty list, as in a values file.
    let own_network = chart(&["transport=eventbus", "eventbus.cloudcoreAddresses=null"]);
    let policy = object(&own_network, "NetworkPolicy", "neptune-cloud");
    assert_eq!(policy["spec"]["ingress"][0]["from"].as_array().unwrap().len(), 1);
}

/// The value of a variable of the first container of a Deployment.
fn variable(objects: &[Value], deployment: &str, name: &str) -> Option<Value> {
    let pod = &object(objects, "Deployment", deployment)["spec"]["template"]["spec"];
    let env = pod["containers"][0]["env"].as_array().unwrap();
    env.iter().find(|it| it["name"] == name).map(|it| it["value"].clone())
}

#[test]
fn addresses_for_nodes_are_known_to_broker_and_enroll() {
    let addresses = "NEPTUNE_BROKER_ADDRESS";
    assert_eq!(variable(&chart(&[]), "neptune-cloud", addresses), None);
    let named = chart(&["join.address={a.example,192.0.2.1}"]);
    assert_eq!(variable(&named, "neptune-cloud", addresses), Some(json!("a.example,192.0.2.1")));
    let service = object(&named, "Service", "neptune-join");
    assert_eq!(service["metadata"]["annotations"], json!({"neptune.io/address": "a.example"}));
    let balanced = chart(&[
        "join.address={a.example}",
        "join.service.type=LoadBalancer,join.service.port=443,join.service.nodePort=null",
        "broker.service.type=LoadBalancer,broker.service.port=443,broker.service.nodePort=null",
        "broker.url=mqtts://b.example:443",
    ]);
    assert_eq!(variable(&balanced, "neptune-cloud", addresses), Some(json!("a.example,b.example")));
    let url = variable(&balanced, "neptune-join", "NEPTUNE_BROKER_URL");
    assert_eq!(url, Some(json!("mqtts://b.example:443")));
    for service in ["neptune-join", "neptune-mosquitto-nodes"] {
        let spec = &object(&balanced, "Service", service)["spec"];
        assert_eq!(
            (&spec["type"], &spec["ports"][0]["port"]),
            (&json!("LoadBalancer"), &json!(443))
        );
        assert_eq!(spec["ports"][0].get("nodePort"), None);
    }
}

/// Argo CD renders a chart at each sync: what it renders may contain nothing random, and must not
/// replace what the controller wrote.
#[test]
fn chart_renders_the_same_bytes_each_time_and_no_secret_data() {
    let render = || {
        let chart = repository("build/helm/neptune");
        let output = helm().args(["template", "neptune"]).arg(chart).output().unwrap();
        assert!(output.status.success());
        output.stdout
    };
    assert_eq!(render(), render());
    let objects = chart(&[]);
    let secrets = objects.iter().filter(|object| object["kind"] == "Secret");
    assert!(secrets.clone().all(|it| it.get("data").is_none() && it.get("stringData").is_none()));
    assert_eq!(secrets.count(), 4);
}

#[test]
fn namespaces_of_a_role_bind_the_controller_there() {
    for (list, role) in
        [("trainingNamespaces", "neptune-training"), ("configNamespaces", "neptune-config")]
    {
        let bindings = |values: &[&str]| -> Vec<(String, String)> {
            let objects = chart(values);
            let bound = objects.iter().filter(|it| it["roleRef"]["name"] == role);
            let subject = json!([{"kind": "ServiceAccount", "name": "neptune-cloud",
                "namespace": "neptune-system"}]);
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            bound
                .inspect(|it| assert_eq!(it["subjects"], subject))
                .map(|it| (text(&it["kind"]), text(&it["metadata"]["namespace"])))
                .collect()
        };
        let bound = |kind: &str, namespace: &str| (kind.to_owned(), namespace.to_owned());
        assert_eq!(bindings(&[]), []);
        assert_eq!(
            bindings(&[&format!("{list}={{shop,plant}}")]),
            [bound("RoleBinding", "shop"), bound("RoleBinding", "plant")]
        );
        assert_eq!(bindings(&[&format!("{list}={{*}}")]), [bound("ClusterRoleBinding", "")]);
    }
}

#[test]
fn roles_of_users_are_not_aggregated_if_that_is_turned_off() {
    let labels =
        |values: &[&str]| Value::from(chart(values)).to_string().matches("aggregate-to-").count();
    assert_eq!((labels(&[]), labels(&["aggregateRoles=false"])), (5, 0));
}

#[test]
fn disabled_webhook_is_not_mentioned_anywhere() {
    for transport in ["transport=mqtt", "transport=eventbus"] {
        let with = Value::from(chart(&[transport])).to_string();
        assert!(with.to_lowercase().contains("webhook"));
        let without = Value::from(chart(&[transport, "webhook.enabled=false"])).to_string();
        assert!(!without.to_lowercase().contains("webhook"), "{without}");
    }
}

#[test]
fn another_namespace_replaces_the_default_everywhere() {
    for (transport, cloudcore) in [("mqtt", 0), ("eventbus", 1)] {
        let values =
            [&*format!("transport={transport}"), "eventbus.cloudcoreNamespace=their-kubeedge"];
        let made = deploy_tests::chart_in("elsewhere", &values);
        let text = Value::from(made.clone()).to_string();
        assert!(!text.contains("neptune-system"), "{text}");
        for theirs in ["\"namespace\":\"kubeedge\"", "metadata.name\":\"kubeedge\"", ".kubeedge:"] {
            assert!(!text.contains(theirs), "{theirs} in {text}");
        }
        let theirs = made.iter().filter(|o| o["metadata"]["namespace"] == "their-kubeedge");
        assert_eq!(theirs.count(), cloudcore);
    }
}

#[test]
fn invalid_values_are_refused_by_name() {
    let folder = repository("build/helm/neptune");
    for (value, message) in [
        ("transport=amqp", "transport: transport must be one of the following"),
        ("controler.replicas=1", "Additional property controler is not allowed"),
        ("controller.replicas=two", "controller.replicas: Invalid type"),
        ("controller.env.NEPTUNE_LEASE=5", "controller.env.NEPTUNE_LEASE: Invalid type"),
        ("agent.directories={code}", "agent.directories.0: Does not match pattern"),
        ("trainingNamespaces={Shop}", "trainingNamespaces.0: Does not match pattern"),
        ("configNamespaces={Shop}", "configNamespaces.0: Does not match pattern"),
        (
            "transport=eventbus,controller.replicas=2",
            "controller.replicas: with transport=eventbus it has to be 1",
        ),
    ] {
        let refused = helm().args(["template", "--set", value]).arg(&folder).output().unwrap();
        let stderr = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && stderr.contains(message), "{value}: {stderr}");
    }
}

#[tokio::test]
async fn upgrade_to_another_transport_keeps_the_controllers_fields() {
    let cluster = Installation::start().await;
    let chart = repository("build/helm/neptune");
    let chart = chart.to_str().unwrap();
    let every_list = "agent.directories={/opt/a},agent.registrySecret=r,imagePullSecrets[0].name=r,agent.env.NEPTUNE_DNS=10.0.0.1";
    let done = |(printed, stderr): (String, String)| {
        assert_eq!(stderr, "");
        printed
    };
    done(cluster.helm(&["install", "neptune", chart, "--dry-run=server", "--set", every_list]));
    assert_eq!(cluster.kubectl(&["get", "deployments,daemonsets", "-A"]).0, "");
    done(cluster.helm(&["install", "neptune", chart, "--set", every_list]));

    let webhook = "validatingwebhookconfiguration/neptune";
    let secrets = ["secret/neptune-webhook", "secret/neptune-controller-key"];
    let bundle = r#"[{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": "Zm9v"}]"#;
    done(cluster.kubectl(&["patch", webhook, "--type=json", "-p", bundle]));
    let key = r#"{"data": {"tls.key": "Zm9v"}}"#;
    for secret in secrets {
        done(cluster.kubectl(&["-n", "neptune-system", "patch", secret, "-p", key]));
    }
    done(cluster.helm(&["upgrade", "neptune", chart, "--set", "transport=eventbus"]));

    for (object, path, expected) in [
        (webhook, "{.webhooks[0].clientConfig.caBundle}", "Zm9v"),
        (secrets[0], r"{.data.tls\.key}", "Zm9v"),
        (secrets[1], r"{.data.tls\.key}", "Zm9v"),
        ("deployment/neptune-cloud", "{.spec.replicas}{.spec.strategy}", r#"1{"type":"Recreate"}"#),
    ] {
        let path = format!("jsonpath={path}");
        let got = cluster.kubectl(&["-n", "neptune-system", "get", object, "-o", &path]);
        assert_eq!(done(got), expected, "{object}");
    }
    let brokers = ["get", "all", "-A", "-l", "app.kubernetes.io/name=neptune-mosquitto"];
    assert_eq!(cluster.kubectl(&brokers).0, "", "the broker was removed");
    // What nodes that joined trust is kept, and used by the next installation.
    let authority =
        ["-n", "neptune-system", "get", "secret/neptune-ca", "-o", r"jsonpath={.data.tls\.key}"];
    done(cluster.kubectl(&["-n", "neptune-system", "patch", "secret/neptune-ca", "-p", key]));
    let _ = cluster.helm(&["uninstall", "neptune"]);
    assert_eq!(done(cluster.kubectl(&authority)), "Zm9v");
    done(cluster.helm(&["install", "neptune", chart]));
    assert_eq!(done(cluster.kubectl(&authority)), "Zm9v");
    let _ = cluster.helm(&["uninstall", "neptune"]);
    let left = cluster.kubectl(&["get", "crds", "-o", "name"]);
    assert_eq!(done(left).lines().count(), 8, "with the definitions, every object would go");
}
