//! Tests of workers with Secrets and `ConfigMap`s: which nodes get them, and what is sealed for whom.
#![allow(clippy::unwrap_used)]

use std::{cell::Cell, sync::Arc};

use neptune_api::{JointInferenceService, Placement, WorkerSpec};
use neptune_wire::{AgentFeature, EncodedContent, NodeName, ObjectKey, SealPublicKey};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{
    joint_inference_service::{
        cases::{cloud_program, edge_program, plan_of, task},
        facts::ServiceFacts,
        fixtures,
        resolved::PlacedService,
        validate::validate,
    },
    nodes::{offer::AgentOffer, sealing::SealKeyState},
    reason::Reason,
    steps::ObjectPlan,
    worker::config::{
        objects::{ConfigObject, ReadObject},
        references::{ConfigKind, ConfigName},
        seal::seal_requirements,
    },
};

const NODES: [&str; 3] = ["e1", "e2", "e3"];

fn node(name: &str) -> NodeName {
    name.parse().unwrap()
}

fn read(facts: &mut ServiceFacts, name: &str, object: ReadObject) {
    let name = ConfigName { kind: ConfigKind::Secret, name: name.to_owned() };
    facts.config.read.insert(name, object);
}

fn secret(version: &str) -> ReadObject {
    let secret = json!({
        "metadata": {
            "labels": {"neptune.io/edge": "allowed"}, "uid": "u", "resourceVersion": version,
        },
        "data": {"url": "cnRzcA=="},
    });
    ReadObject::Present(ConfigObject::from_secret(serde_json::from_value(secret).unwrap()).into())
}

fn refer(program: &mut WorkerSpec) {
    let env =
        json!([{"name": "URL", "valueFrom": {"secretKeyRef": {"name": "camera", "key": "url"}}}]);
    program.env = serde_json::from_value(env).unwrap();
}

fn key(number: u8) -> SealPublicKey {
    SealPublicKey::new([number; 32])
}

/// A service on three nodes, whose agents support Secrets and have trusted keys.
fn service() -> (JointInferenceService, ServiceFacts) {
    let (mut service, mut facts) = (fixtures::service(), fixtures::facts_with_agent());
    fixtures::select(&mut service, &mut facts, &NODES);
    service.spec.edge_worker.placement = Some(Placement::All);
    service.status = Some(fixtures::placed_on(&NODES));
    refer(edge_program(&mut service));
    let supports = [AgentFeature::Sealed].into();
    let offer = Arc::new(AgentOffer { supports, ..AgentOffer::default() });
    for (number, name) in (1..).zip(NODES) {
        facts.offers.insert(node(name), Arc::clone(&offer));
        facts.seal_keys.insert(node(name), SealKeyState::Trusted(key(number)));
    }
    read(&mut facts, "camera", secret("1"));
    (service, facts)
}

fn names(nodes: impl IntoIterator<Item = NodeName>) -> Vec<String> {
    nodes.into_iter().map(|it| it.to_string()).collect()
}

fn service_key() -> ObjectKey {
    "default/jointinferenceservices/helmet-detection-demo".parse().unwrap()
}

/// Seals a plan with numbered ciphertexts. Returns how many were made.
fn seal(plan: &mut ObjectPlan, known: &ObjectPlan, made: &Cell<u32>) -> u32 {
    let before = made.get();
    let known = |node: &NodeName| known.requirements.get(node).cloned();
    seal_requirements(
        &mut plan.requirements,
        &service_key(),
        &plan.seals,
        known,
        |key, scope, values| {
            made.set(made.get() + 1);
            assert_eq!(values["url"].expose(), b"rtsp");
            let scope = String::from_utf8(scope.associated_data()).unwrap();
            Some(format!("{} {key} {scope}", made.get()))
        },
    );
    made.get() - before
}

fn hash(plan: &ObjectPlan, name: &str) -> EncodedContent {
    plan.requirements[&node(name)][&service_key()].clone()
}

#[test]
fn each_node_gets_what_is_sealed_to_its_key() {
    let (service, facts) = service();
    let mut plan = plan_of(&service, &facts);
    let before = task(&plan, "e1");
    assert_eq!(before.workers[0].program.secrets[0].sealed, "");
    let made = Cell::new(0);
    assert_eq!(seal(&mut plan, &ObjectPlan::default(), &made), 3);
    for (number, name) in (1..).zip(NODES) {
        let task = task(&plan, name);
        let program = &task.workers[0].program;
        let [secret] = &program.secrets[..] else { unreachable!("it has one Secret") };
        assert_eq!(secret.seal_key, key(number).id());
        assert!(secret.sealed.contains(&key(number).to_string()));
        assert!(secret.sealed.contains(&format!("\"node\":\"{name}\"")), "{}", secret.sealed);
        assert_eq!((&*program.secret_env[0].name, &*program.secret_env[0].key), ("URL", "url"));
        assert!(!program.env.contains_key("URL"));
    }
    let cloud = task(&plan, "solar-corona-cloud");
    assert_eq!(cloud.workers[0].program.secrets, []);
}

#[test]
fn values_are_sealed_again_only_if_the_content_differs() {
    let (service, mut facts) = service();
    let made = Cell::new(0);
    let mut first = plan_of(&service, &facts);
    seal(&mut first, &ObjectPlan::default(), &made);
    let mut again = plan_of(&service, &facts);
    assert_eq!(seal(&mut again, &first, &made), 0);
    assert!(hash(&again, "e1").is_shared_with(&hash(&first, "e1")));
    // A controller that starts knows nothing of the nodes: another ciphertext, and the same hash.
    let mut restarted = plan_of(&service, &facts);
    assert_eq!(seal(&mut restarted, &ObjectPlan::default(), &made), 3);
    assert!(hash(&restarted, "e1").is_same(&hash(&first, "e1")));
    assert_ne!(task(&restarted, "e1"), task(&first, "e1"));

    facts.seal_keys.insert(node("e1"), SealKeyState::Trusted(key(9)));
    let mut replaced = plan_of(&service, &facts);
    assert_eq!(seal(&mut replaced, &first, &made), 1, "the node has a new key");
    read(&mut facts, "camera", secret("2"));
    let mut rotated = plan_of(&service, &facts);
    assert_eq!(seal(&mut rotated, &replaced, &made), 3);
    assert_ne!(hash(&rotated, "e2").hash(), hash(&first, "e2").hash());
}

#[test]
fn node_without_a_trusted_key_keeps_what_it_has() {
    let (service, mut facts) = service();
    facts.seal_keys.insert(node("e1"), SealKeyState::Changed);
    facts.seal_keys.insert(node("e2"), SealKeyState::NotRecorded);
    let plan = plan_of(&service, &facts);
    assert_eq!(names(plan.requirements.keys().cloned()), ["e3", "solar-corona-cloud"]);
    assert_eq!(names(plan.kept.keys().cloned()), ["e1", "e2"]);
    assert_eq!(names(plan.seals.keys().cloned()), ["e3"]);
    let placed = PlacedService::from(validate(&service, &facts).unwrap());
    let findings: Vec<_> =
        placed.unmet.iter().filter_map(|(node, it)| it.finding(node, None)).collect();
    let [finding] = &findings[..] else { unreachable!("e2 waits for a write: {findings:?}") };
    let text = "the key of node e1 changed; check it and run: kubectl neptune trust e1";
    assert_eq!((finding.reason, &*finding.message), (Reason::NodeKeyUntrusted, text));
}

#[test]
fn old_agent_gets_no_worker_with_secrets() {
    let (service, mut facts) = service();
    facts.offers.insert(node("e1"), Arc::default());
    facts.offers.remove(&node("e2"));
    let plan = plan_of(&service, &facts);
    assert_eq!(names(plan.kept.keys().cloned()), ["e1", "e2"]);
    let placed = PlacedService::from(validate(&service, &facts).unwrap());
    let finding = placed.unmet[&node("e1")].finding(&node("e1"), None).unwrap();
    assert_eq!(finding.reason, Reason::AgentTooOld);
    assert_eq!(placed.unmet.len(), 1, "e2 has not reported");
}

/// What may be read of a Secret.
fn any_read() -> impl Strategy<Value = Option<ReadObject>> {
    let missing = Some(ReadObject::Missing);
    proptest::sample::select(vec![
        None,
        missing,
        Some(ReadObject::Forbidden),
        Some(ReadObject::Unknown),
        Some(secret("1")),
    ])
}

proptest! {
    /// The Secrets of the edge worker concern its nodes only, and those of the cloud worker its node.
    /// Each node gets the whole task, or keeps what it has.
    #[test]
    fn secrets_of_a_worker_concern_its_nodes_only(
        (edge, cloud) in (any_read(), any_read()),
        trusted in proptest::collection::vec(any::<bool>(), 3),
    ) {
        let (mut service, mut facts) = service();
        facts.config.read.clear();
        let is_ready = |read: &Option<ReadObject>| matches!(read, Some(ReadObject::Present(_)));
        let (edge_ready, cloud_ready) = (is_ready(&edge), is_ready(&cloud));
        if let Some(object) = edge {
            read(&mut facts, "camera", object);
        }
        let other = json!([{"name": "K", "valueFrom": {"secretKeyRef": {"name": "other", "key": "url"}}}]);
        cloud_program(&mut service).env = serde_json::from_value(other).unwrap();
        if let Some(object) = cloud {
            read(&mut facts, "other", object);
        }
        let cloud_node = node("solar-corona-cloud");
        facts.offers.insert(cloud_node.clone(), Arc::clone(&facts.offers[&node("e1")]));
        facts.seal_keys.insert(cloud_node.clone(), SealKeyState::Trusted(key(8)));
        for (name, is_trusted) in NODES.iter().zip(&trusted) {
            if !is_trusted {
                facts.seal_keys.insert(node(name), SealKeyState::Changed);
            }
        }
        let plan = plan_of(&service, &facts);
        let expected: Vec<_> = NODES
            .iter()
            .zip(&trusted)
            .filter(|(_, is_trusted)| edge_ready && **is_trusted)
            .map(|(name, _)| node(name))
            .chain(cloud_ready.then_some(cloud_node))
            .collect();
        prop_assert_eq!(plan.requirements.keys().cloned().collect::<Vec<_>>(), expected.clone());
        prop_assert_eq!(plan.seals.keys().cloned().collect::<Vec<_>>(), expected);
        prop_assert_eq!(plan.requirements.len() + plan.kept.len(), 4);
        let text = format!("{plan:?} {:?}", validate(&service, &facts));
        prop_assert!(!text.contains("rtsp") && !text.contains("cnRzcA"), "{}", text);
    }
}

#[test]
fn invalid_references_are_refused() {
    let problems = |fields: Value| -> Vec<String> {
        let (mut service, facts) = (fixtures::service(), fixtures::facts());
        let mut program = json!(edge_program(&mut service));
        program.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        *edge_program(&mut service) = serde_json::from_value(program).unwrap();
        let findings = validate(&service, &facts).err().unwrap_or_default();
        findings.into_iter().map(|finding| finding.message).collect()
    };
    let from = |source: Value| json!({"env": [{"name": "A", "valueFrom": source}]});
    let selector = json!({"name": "camera", "key": "url"});
    let volume = |items: Value| {
        let secret = json!({"secretName": "camera", "items": items});
        json!({"volumes": [{"name": "a", "secret": secret}]})
    };
    for (fields, problem) in [
        (from(json!({})), "must have exactly one of nodeLabel, secretKeyRef and configMapKeyRef"),
        (
            from(json!({"nodeLabel": "a", "secretKeyRef": selector})),
            "must have exactly one of nodeLabel, secretKeyRef and configMapKeyRef",
        ),
        (
            from(json!({"optional": true, "secretKeyRef": selector})),
            "has optional beside secretKeyRef or configMapKeyRef; move it there",
        ),
        (from(json!({"secretKeyRef": {"name": "a", "key": "../a"}})), "has the key \"../a\""),
        (
            from(json!({"secretKeyRef": {"name": "A b", "key": "a"}})),
            "must be the name of a Secret",
        ),
        (
            from(json!({"configMapKeyRef": {"name": "A b", "key": "a"}})),
            "must be the name of a ConfigMap",
        ),
        (json!({"envFrom": [{}]}), "must have exactly one of secretRef and configMapRef"),
        (
            json!({"envFrom": [{"prefix": "1", "secretRef": {"name": "a"}}]}),
            "prefix \"1\" must be letters",
        ),
        (volume(json!([{"key": "a", "path": "b/c"}])), "has the item \"a\" at \"b/c\""),
        (volume(json!([{"key": "a", "path": ".."}])), "has the item \"a\" at \"..\""),
        (
            volume(json!([{"key": "a", "path": "c"}, {"key": "b", "path": "c"}])),
            "has two items at \"c\"; remove one",
        ),
    ] {
        let problems = problems(fields.clone());
        assert_eq!(problems.len(), 1, "{fields}: {problems:?}");
        assert!(problems[0].contains(problem), "{fields}: {}", problems[0]);
    }
    let many: Vec<_> = (0..33).map(|_| json!({"secretRef": {"name": "a"}})).collect();
    assert!(problems(json!({ "envFrom": many }))[0].contains("has 33 entries"));
    let many: Vec<_> = (0..65)
        .map(|it| json!({"name": format!("A{it}"), "valueFrom": {"secretKeyRef": selector}}))
        .collect();
    assert!(problems(json!({ "env": many }))[0].contains("has 65 references"));
}
