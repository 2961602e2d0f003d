//! Tests of model servers with variables, volumes and Secrets, on a node and in a Pod.
#![allow(clippy::unwrap_used)]

use neptune_api::InferenceModel;
use neptune_wire::{AgentFeature, ModelServer, NodeName};
use serde_json::{Value, json};

use super::{
    fixtures, plan::plan, target::InferenceModelFacts, validate::validate, waves::with_rollout,
};
use crate::{
    reason::Reason,
    steps::ObjectPlan,
    worker::config::{
        fixtures as config,
        objects::ReadObject,
        references::{ConfigKind, ConfigName},
        seal::seal_requirements,
    },
};

const NODE: &str = "precision-5820";

fn node() -> NodeName {
    NODE.parse().unwrap()
}

/// A model with a server that has inputs of each kind.
fn model(mut model: InferenceModel) -> InferenceModel {
    let server = json!({
        "env": [
            {"name": "PLAIN", "value": "a"},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "one", "key": "two"}}},
        ],
        "envFrom": [{"prefix": "C_", "configMapRef": {"name": "two"}}],
        "volumes": [
            {"name": "cache", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
            {"name": "files", "secret": {"secretName": "one"}},
        ],
        "volumeMounts": [
            {"name": "cache", "mountPath": "/cache"},
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "files", "mountPath": "/files"},
        ],
    });
    model.spec.server = Some(serde_json::from_value(server).unwrap());
    model
}

fn facts() -> InferenceModelFacts {
    InferenceModelFacts {
        offers: config::offers(&node()),
        seal_keys: config::seal_keys(&node()),
        config: config::objects(),
        ..fixtures::facts()
    }
}

fn planned(model: &InferenceModel, facts: &InferenceModelFacts) -> ObjectPlan {
    plan(model, &validate(model, facts).unwrap(), "fetch:test")
}

fn server(plan: &ObjectPlan) -> ModelServer {
    let contents = plan.requirements.values().next().unwrap();
    *contents.values().next().unwrap().content().serving.unwrap()
}

#[test]
fn server_at_an_agent_gets_volumes_and_sealed_values() {
    let mut plan = planned(&model(fixtures::model()), &facts());
    let program = server(&plan).program;
    assert_eq!((&*program.env["PLAIN"], &*program.env["C_one"]), ("a", "two"));
    let variable = &program.secret_env[0];
    assert_eq!((&*variable.name, &*variable.secret, &*variable.key), ("TOKEN", "one", "two"));
    let paths: Vec<_> = program.mounts.iter().map(|mount| &*mount.path).collect();
    assert_eq!(paths, ["/cache", "/dev/shm", "/files"]);
    assert_eq!(program.secrets[0].sealed, "", "the plan has no random numbers");

    let key = "default/inferencemodels/facialexpression".parse().unwrap();
    seal_requirements(
        &mut plan.requirements,
        &key,
        &plan.seals,
        |_| None,
        |_, scope, values| {
            assert_eq!(values["two"].expose(), b"one");
            Some(String::from_utf8(scope.associated_data()).unwrap())
        },
    );
    let sealed = &server(&plan).program.secrets[0].sealed;
    for bound in [NODE, "uid-of-the-model", server(&plan).name.as_str(), "/files"] {
        assert!(sealed.contains(bound), "{bound} in {sealed}");
    }
}

#[test]
fn pod_of_a_server_has_the_fields_unchanged() {
    let model = model(fixtures::cloud_model());
    let objects = planned(&model, &fixtures::facts()).objects.unwrap();
    let pod = objects.deployment.spec.unwrap().template.spec.unwrap();
    let pod = serde_json::to_value(&pod).unwrap();
    let spec = serde_json::to_value(model.spec.server.as_ref().unwrap()).unwrap();
    let container = &pod["containers"][0];
    let named = |list: &Value, name: &str| {
        list.as_array().unwrap().iter().find(|it| it["name"] == name).unwrap().clone()
    };
    for name in ["PLAIN", "TOKEN"] {
        assert_eq!(named(&container["env"], name), named(&spec["env"], name));
    }
    assert_eq!(container["envFrom"], spec["envFrom"]);
    for name in ["cache", "shm", "files"] {
        assert_eq!(named(&pod["volumes"], name), named(&spec["volumes"], name));
        let mount = named(&container["volumeMounts"], name);
        assert_eq!(mount, named(&spec["volumeMounts"], name));
    }
    assert_eq!(pod["volumes"].as_array().unwrap().len(), 5, "with the model's and /tmp");
}

fn read(facts: &mut InferenceModelFacts, object: ReadObject) {
    let name = ConfigName { kind: ConfigKind::Secret, name: "one".to_owned() };
    facts.config.read.insert(name, object);
}

#[test]
fn node_that_lacks_something_keeps_what_it_has() {
    let model = model(fixtures::model());
    let reason = |change: fn(&mut InferenceModelFacts)| {
        let mut facts = facts();
        change(&mut facts);
        let valid = validate(&model, &facts).unwrap();
        let plan = plan(&model, &valid, "fetch:test");
        assert!(plan.requirements.is_empty() && plan.kept.contains_key(&node()));
        valid.unmet[&node()].finding(&node(), None).map(|finding| finding.reason)
    };
    assert_eq!(reason(|it| read(it, ReadObject::Missing)), Some(Reason::SecretNotFound));
    assert_eq!(reason(|it| read(it, ReadObject::Forbidden)), Some(Reason::SecretForbidden));
    assert_eq!(reason(|it| read(it, ReadObject::Unknown)), None, "it is read again");
    assert_eq!(reason(|it| it.seal_keys.clear()), None, "the agent reports its key first");
    let old = reason(|facts| {
        for offer in facts.offers.values_mut() {
            std::sync::Arc::make_mut(offer).supports.remove(&AgentFeature::ServerValues);
        }
    });
    assert_eq!(old, Some(Reason::AgentTooOld), "it would start the server without them");
}

#[test]
fn plain_variables_need_no_newer_agent() {
    let mut model = fixtures::model();
    let server = json!({"env": [{"name": "PLAIN", "value": "a"}]});
    model.spec.server = Some(serde_json::from_value(server).unwrap());
    let plan = planned(&model, &fixtures::facts());
    assert_eq!(server_env(&plan, "PLAIN"), "a");
}

fn server_env(plan: &ObjectPlan, name: &str) -> String {
    server(plan).program.env[name].clone()
}

#[test]
fn invalid_inputs_are_named_with_their_field() {
    for (server, message) in [
        (
            json!({"env": [{"name": "SERVING_PORT", "value": "1"}]}),
            "spec.server.env: \"SERVING_PORT\" is set by Neptune; choose another name",
        ),
        (
            json!({"env": [{"name": "A", "valueFrom": {"nodeLabel": "line"}}]}),
            "spec.server.env: \"A\" is the value of a node label, which only workers get; use value, secretKeyRef or configMapKeyRef",
        ),
        (
            json!({"volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "c"}}]}),
            "spec.server.volumes: volume \"a\" is a persistentVolumeClaim, which only Pods have; use emptyDir or hostPath on the node of an agent",
        ),
    ] {
        let mut model = fixtures::model();
        model.spec.server = Some(serde_json::from_value(server).unwrap());
        let findings = validate(&model, &facts()).map(|_| ()).unwrap_err();
        let messages: Vec<_> = findings.iter().map(|finding| &*finding.message).collect();
        assert_eq!(messages, [message]);
    }
}

#[test]
fn changed_secret_is_no_wave_of_a_rollout() {
    let mut model = model(fixtures::model());
    model.spec.rollout = Some(Box::default());
    let revision = |facts: &InferenceModelFacts| {
        let valid = validate(&model, facts).unwrap();
        with_rollout(&model, valid, facts).rollout.map(|rollout| rollout.revision)
    };
    let mut changed = facts();
    for object in changed.config.read.values_mut() {
        let ReadObject::Present(object) = object else { continue };
        std::sync::Arc::make_mut(object).version = "another/2".to_owned();
    }
    assert_eq!(revision(&facts()), revision(&changed));
}
