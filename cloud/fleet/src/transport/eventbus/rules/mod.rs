//! Reconciles `KubeEdge`'s Rules and `RuleEndpoints`: watches them and the nodes, and executes the
//! plan. The desired objects and the steps are decided by `plan`.

mod plan;
mod requested;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use futures::{FutureExt as _, StreamExt as _, stream::BoxStream};
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, PostParams, Preconditions},
    runtime::{
        WatchStreamExt as _,
        reflector::{self, Store, store::Writer},
        watcher::{self, watcher},
    },
};
use neptune_cloud_kinds::kubernetes::{labels::MANAGED_BY, nodes::is_edge_node};
use neptune_cloud_metrics::Outcome;
use serde_json::{Value, json};

use crate::{
    error::Error,
    transport::eventbus::{
        EventBus,
        rules::{
            plan::{
                DesiredRule, ExistingRule, FailedSteps, RuleKey, RuleKind, RulesStep,
                desired_rules, plan,
            },
            requested::Requested,
        },
    },
};

/// The label of the objects that are created here. With [`MANAGED_BY`] it marks objects of this
/// controller.
const COMPONENT: (&str, &str) = ("app.kubernetes.io/component", "eventbus");

/// The annotation of a Rule that names its node; a label is too short for some names.
const NODE: &str = "neptune.io/node";

/// The pause before a reconciliation, so that simultaneous changes cause one.
const DEBOUNCE: Duration = Duration::from_millis(200);

/// The pause after a failed request.
const RETRY: Duration = Duration::from_secs(5);

/// Number of failures without a success between them after which the rest waits for the next
/// attempt: the API server refuses everything, and each request may last until its timeout.
const MAX_FAILURES_IN_A_ROW: usize = 16;

/// The state of the Rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RulesState {
    /// The existing objects are not known; the message has the reason.
    Unlisted(String),
    /// Something is missing; the message names it. The other Rules are in place.
    Incomplete(String),
    /// All objects exist as desired.
    InPlace,
}

/// The objects of one kind.
#[derive(Clone)]
struct RuleObjects {
    kind: RuleKind,
    api: Api<DynamicObject>,
    resource: ApiResource,
    store: Store<DynamicObject>,
}

/// The watch of one kind.
struct RuleWatch {
    objects: RuleObjects,
    events: BoxStream<'static, watcher::Result<watcher::Event<DynamicObject>>>,
    /// Whether the objects were listed once. A later failure of the watch does not change the
    /// state.
    is_listed: bool,
    /// The last error of the watch.
    error: Option<String>,
}

impl RulesState {
    /// Whether the existing objects are known. Then messages are received, except from nodes whose
    /// Rule is missing.
    pub fn is_listed(&self) -> bool {
        !matches!(self, Self::Unlisted(_))
    }
}

impl Default for RulesState {
    fn default() -> Self {
        Self::Unlisted("waiting for the list of Rules and RuleEndpoints".to_owned())
    }
}

/// Reconciles the Rules and `RuleEndpoint`s of all nodes until the process ends.
pub async fn run(bus: &EventBus, client: &Client, nodes: &Store<Node>) {
    let namespace = bus.0.settings.namespace.as_str();
    let mut endpoints = RuleWatch::new(RuleKind::Endpoint, client, namespace);
    let mut rules = RuleWatch::new(RuleKind::Rule, client, namespace);
    let mut requested = Requested::default();
    let mut retry = None;
    loop {
        let timer = async {
            match retry {
                Some(pause) => tokio::time::sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = endpoints.next() => {}
            () = rules.next() => {}
            () = bus.0.rules_changed.notified() => {}
            () = timer => {}
        }
        tokio::time::sleep(DEBOUNCE).await;
        endpoints.drain_events();
        rules.drain_events();
        if !endpoints.is_listed || !rules.is_listed {
            let error = endpoints.error.clone().or_else(|| rules.error.clone());
            bus.set_rules_state(error.map_or_else(RulesState::default, RulesState::Unlisted));
            continue;
        }
        let objects = [endpoints.objects.clone(), rules.objects.clone()];
        let state = reconcile_rules(bus, &objects, nodes, &mut requested).await;
        retry = (state != RulesState::InPlace).then_some(RETRY);
        bus.set_rules_state(state);
    }
}

#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
async fn reconcile_rules(
    bus: &EventBus,
    [endpoints, rules]: &[RuleObjects; 2],
    nodes: &Store<Node>,
    requested: &mut Requested,
) -> RulesState {
    bus.count_nodes(nodes);
    let nodes = nodes.state();
    let edge = nodes.iter().filter(|node| is_edge_node(node.labels()));
    let key = bus.tokens().current().cloned();
    let names = edge.filter_map(|node| node.name_any().parse().ok());
    let desired_rules = desired_rules(&bus.0.settings, key.as_ref(), names);
    let cached = endpoints.existing().chain(rules.existing()).collect();
    let existing = requested.applied_to(cached, Instant::now());
    let plan = plan(&desired_rules, &existing);
    let (mut created, mut deleted) = (0, 0);
    let (mut failed, mut first_error, mut in_a_row) = (FailedSteps::default(), None, 0);
    for step in plan.steps {
        if failed.prevents(&step) {
            failed.add(&step);
            continue;
        }
        let key = step.key();
        let objects = if key.0 == RuleKind::Endpoint { endpoints } else { rules };
        let result = objects.execute(&step).await;
        bus.0.metrics.rule_changed(match &result {
            Ok(true) => Outcome::Ok,
            Ok(false) => Outcome::Conflict,
            Err(error) => error.class().into(),
        });
        if let Err(error) = result {
            failed.add(&step);
            first_error.get_or_insert(error.to_string());
            in_a_row += 1;
            if in_a_row >= MAX_FAILURES_IN_A_ROW {
                break;
            }
            continue;
        }
        in_a_row = 0;
        match step {
            RulesStep::Create { key, desired } => {
                created += 1;
                requested.on_created(key, desired, Instant::now());
            }
            RulesStep::Delete { key, uid } => {
                deleted += 1;
                requested.on_deleted(key, uid, Instant::now());
            }
        }
    }
    if created + deleted > 0 {
        tracing::info!(created, deleted, "KubeEdge Rules and RuleEndpoints updated");
    }
    let conflict = plan.conflicts.first().map(|(kind, name)| {
        format!(
            "{} {}/{name} is not managed by neptune-cloud and has a different spec; delete or rename it",
            kind.name(),
            bus.0.settings.namespace
        )
    });
    first_error.or(conflict).map_or(RulesState::InPlace, RulesState::Incomplete)
}

impl RuleWatch {
    fn new(kind: RuleKind, client: &Client, namespace: &str) -> Self {
        let gvk = GroupVersionKind::gvk("rules.kubeedge.io", "v1", kind.name());
        let resource = ApiResource::from_gvk(&gvk);
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
        let writer = Writer::new(resource.clone());
        let store = writer.as_reader();
        let events = watcher(api.clone(), watcher::Config::default())
            .modify(|object| object.managed_fields_mut().clear())
            .default_backoff();
        let events = reflector::reflector(writer, events).boxed();
        let objects = RuleObjects { kind, api, resource, store };
        Self { objects, events, is_listed: false, error: None }
    }

    /// Waits for a change.
    async fn next(&mut self) {
        match self.events.next().await {
            Some(event) => self.on_event(event),
            // The watch never ends.
            None => std::future::pending().await,
        }
    }

    /// Processes the events that have arrived meanwhile.
    fn drain_events(&mut self) {
        while let Some(Some(event)) = self.events.next().now_or_never() {
            self.on_event(event);
        }
    }

    fn on_event(&mut self, event: watcher::Result<watcher::Event<DynamicObject>>) {
        let plural = &self.objects.resource.plural;
        self.error = match event {
            Ok(watcher::Event::InitDone) => {
                self.is_listed = true;
                None
            }
            Ok(_) => None,
            Err(watcher::Error::InitialListFailed(kube::Error::Api(status)))
                if status.code == 404 =>
            {
                Some(format!(
                    "the API server has no {plural}; apply KubeEdge's CRDs (rules.kubeedge.io) and enable cloudcore's router"
                ))
            }
            Err(error) => {
                tracing::debug!(plural, %error, "watch failed; retrying");
                Some(format!("watch {plural}: {error}"))
            }
        };
    }
}

impl RuleObjects {
    fn existing(&self) -> impl Iterator<Item = (RuleKey, ExistingRule)> {
        self.store.state().into_iter().map(|object| {
            let labels = object.labels();
            let has = |(name, value): (&str, &str)| labels.get(name).is_some_and(|v| v == value);
            let existing = ExistingRule {
                spec: object.data.get("spec").cloned().unwrap_or_default(),
                is_managed: has(MANAGED_BY) && has(COMPONENT),
                uid: object.uid().unwrap_or_default(),
            };
            ((self.kind, object.name_any()), existing)
        })
    }

    /// Executes a step. Returns whether it was still needed.
    async fn execute(&self, step: &RulesStep) -> Result<bool, Error> {
        match step {
            RulesStep::Delete { key: (_, name), uid } => {
                let preconditions =
                    Preconditions { uid: Some(uid.clone()), resource_version: None };
                let params =
                    DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
                match self.api.delete(name, &params).await {
                    Ok(_) => Ok(true),
                    // It is deleted or replaced already; the watch will report it.
                    Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(false),
                    Err(error) => Err(self.failed("delete", name)(error)),
                }
            }
            RulesStep::Create { key: (_, name), desired } => {
                let object = self.object(name, desired);
                match self.api.create(&PostParams::default(), &object).await {
                    Ok(_) => Ok(true),
                    // It exists already; the watch will report it.
                    Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
                    Err(error) => Err(self.failed("create", name)(error)),
                }
            }
        }
    }

    fn failed(&self, verb: &str, name: &str) -> impl FnOnce(kube::Error) -> Error {
        let step = format!("{verb} {} {name}", self.resource.kind);
        move |source| Error::Rule { step, source }
    }

    fn object(&self, name: &str, desired: &DesiredRule) -> DynamicObject {
        let mut spec = Value::Object(desired.spec.clone());
        if self.kind == RuleKind::Endpoint {
            spec["properties"] = json!({});
        }
        let labels =
            [("app.kubernetes.io/part-of", "neptune"), MANAGED_BY, COMPONENT].map(owned).into();
        let annotations: BTreeMap<_, _> =
            desired.node.iter().map(|node| owned((NODE, node.as_str()))).collect();
        let metadata = ObjectMeta {
            labels: Some(labels),
            annotations: (!annotations.is_empty()).then_some(annotations),
            ..ObjectMeta::default()
        };
        let object = DynamicObject::new(name, &self.resource).data(json!({ "spec": spec }));
        DynamicObject {
            metadata: ObjectMeta { name: object.metadata.name.clone(), ..metadata },
            ..object
        }
    }
}

impl RuleKind {
    fn name(self) -> &'static str {
        match self {
            Self::Endpoint => "RuleEndpoint",
            Self::Rule => "Rule",
        }
    }
}

fn owned((name, value): (&str, &str)) -> (String, String) {
    (name.to_owned(), value.to_owned())
}
