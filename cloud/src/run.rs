//! Assembles the parts of `neptune-cloud run` and stops them in order.

use std::{pin::pin, sync::Arc, time::Duration};

use futures::channel::mpsc;
use k8s_openapi::jiff::Timestamp;
use kube::{Resource as _, ResourceExt as _};
use neptune_api::{JointInferenceService, TrainingModel};
use neptune_cloud_fleet::{
    EventBus, EventBusSettings, Fleet, Mqtt, Publisher, Transport, TransportEvents,
    token_key::TokenKey,
};
use neptune_cloud_kinds::{
    each_kind,
    kubernetes::{identity::ControllerIdentity, pod_policy::PodPolicy},
};
use neptune_cloud_metrics::{Cluster, Conditioned as _, Metrics, Objects, ResourceState};
use neptune_cloud_runtime::{
    self as runtime, Context,
    admission::{self, Webhook, WebhookSettings},
    cache::{Cached as _, Caches},
    health::{self, HealthState},
    join::{JoinSettings, maintain_joins},
    kubernetes::{
        kubeconfig, leader_election::Leadership, pod_settings::PodSettings,
        report_target::ReportTarget,
    },
    upstream::{self, NodeAnswers, Upstream},
    worker_reports::{self, WorkerReports},
};
use neptune_pinned_tls::Authority;
use neptune_program::stop_signal;
use tokio::{sync::OnceCell, task::JoinSet};

use crate::{
    cli::{self, Run, WorkerReportFlags},
    error::Error,
    fleet_authority,
};

/// How long a shutdown waits for queued messages to be sent.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs until SIGTERM or SIGINT, or until another replica leads.
///
/// # Errors
/// Invalid flags, an invalid kubeconfig, an address in use, and [`Error::LeadershipLost`]. An
/// unreachable API server or broker is not an error.
pub async fn run(flags: Run) -> Result<(), Error> {
    let mut stop = pin!(stop_signal().map_err(Error::Signals)?);
    let listener = health::bind(flags.listen)?;
    let webhook = Webhook::prepare(webhook_settings(&flags))?;
    let config = kubeconfig::config(flags.kubeconfig.as_deref(), None).await?;
    let client = kubeconfig::client(config)?;
    let metrics = Metrics::default();
    let authority = tokio::select! {
        authority = fleet_authority::load(&flags, &client) => authority?,
        () = &mut stop => return Ok(()),
    };
    let (transport, events) = transport(&flags, &metrics, authority.as_ref())?;
    let publisher = Publisher::new(transport.clone());
    let (send_change, mut changes) = mpsc::unbounded();
    let (send_report, reports) = mpsc::unbounded();
    let only = flags.watch_namespace.as_deref();
    let caches = Caches::watch(&client, only, &flags.namespace, &send_change);
    let (registry, refusals) = (metrics.registry(cluster(&caches)), metrics.refusals().clone());
    let exported = (metrics.clone(), registry);
    let health_state = HealthState::new(publisher.clone(), caches.clone(), exported);
    let fleet = fleet(&flags, &transport);
    let upstream = Upstream {
        caches: caches.clone(),
        fleet: fleet.clone(),
        publisher: publisher.clone(),
        metrics: metrics.clone(),
        answers: NodeAnswers::default(),
        changes: send_report,
        prefix: flags.topic_prefix.clone(),
    };
    let target = report_target(&flags)?;
    let worker_reports = match &target {
        None => None,
        Some(target) => {
            let listener = worker_reports::bind(flags.worker_reports.worker_report_listen)?;
            let (caches, fleet) = (caches.clone(), fleet.clone());
            let changes = upstream.changes.clone();
            let (health, target) = (health_state.clone(), target.clone());
            let receiver =
                WorkerReports::new(target, caches, fleet, changes, health, refusals.clone());
            Some((receiver, listener))
        }
    };
    let pods = pod_settings(&flags, target.clone());
    let writes = flags.status_writes_per_second;
    let context = Context::new(client, caches.clone(), fleet, publisher, metrics, pods, writes);
    let answers = upstream.answers.clone();
    let (elected, leading) = (OnceCell::new(), OnceCell::new());
    let work = async {
        // Before the caches are complete, objects and nodes that exist may be missing in them.
        caches.ready().await;
        runtime::synced(&mut changes);
        context.load_node_keys();
        tracing::info!("caches are synced");
        // A standby replica follows objects and nodes, and publishes nothing before its initial
        // sync. Separate tasks: planning delays neither messages nor changes.
        let mut follow = JoinSet::new();
        follow.spawn(runtime::dispatch(changes, reports, context.clone()));
        follow.spawn(upstream::listen(events, upstream));
        let rosters = context.clone();
        follow.spawn(async move { runtime::publish_rosters(&rosters).await });
        if let Some((receiver, listener)) = worker_reports {
            follow.spawn(receiver.serve(listener));
        }
        if let Some((target, file)) =
            target.zip(flags.worker_reports.worker_report_key_file.clone())
        {
            follow.spawn(worker_reports::follow_key(target, file, context.clone()));
        }
        let follow = async {
            follow.join_all().await;
            Ok(())
        };
        let joins = fleet_authority::join_settings(&flags, authority.as_ref());
        let answers = (&answers, joins);
        let lead = lead(&flags, (&context, answers), (&elected, &leading), &health_state);
        futures::try_join!(lead, follow).map(|_| ())
    };
    let admission = async {
        caches.ready().await;
        webhook.run(context.clone()).await;
    };
    tracing::info!(listen = %flags.listen, "neptune-cloud started");
    let result = tokio::select! {
        result = work => result,
        () = admission => Ok(()),
        () = health::serve(listener, health_state.clone(), refusals) => Ok(()),
        () = &mut stop => {
            tracing::info!("shutting down");
            Ok(())
        }
    };
    if leading.initialized() && result.is_ok() {
        runtime::flush_slices(&context).await;
    }
    transport.close(SHUTDOWN_TIMEOUT).await;
    if let Some(leadership) = elected.into_inner() {
        leadership.resign().await;
    }
    result
}

/// The nodes, with the settings of the flags.
fn fleet(flags: &Run, transport: &Transport) -> Fleet {
    let fleet = Fleet::new(transport.heartbeat_seconds());
    if flags.require_known_keys {
        fleet.lock().require_known_keys();
    }
    fleet.lock().set_slice_threshold(flags.nodes_in_status);
    fleet
}

/// The objects in the caches, of which the leader exports the state.
fn cluster(caches: &Caches) -> Cluster {
    let (services, trainings, resources) = (caches.clone(), caches.clone(), caches.clone());
    Cluster {
        services: Objects(Box::new(move || JointInferenceService::cache(&services).state())),
        trainings: Objects(Box::new(move || TrainingModel::cache(&trainings).state())),
        resources: Objects(Box::new(move || resource_states(&resources))),
    }
}

fn resource_states(caches: &Caches) -> Vec<ResourceState> {
    let mut states = Vec::new();
    each_kind!(K => {
        let objects = K::cache(caches).state();
        states.extend(objects.iter().filter_map(|object| {
            let (state, reason) = object.present_condition()?;
            let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
            Some(ResourceState { kind: K::kind(&()).into_owned(), namespace, name, state, reason })
        }));
    });
    states
}

fn webhook_settings(flags: &Run) -> WebhookSettings {
    WebhookSettings {
        listen: flags.webhook_listen,
        configuration: flags.webhook_configuration.clone(),
        url: flags.webhook_url.clone(),
        certificate_directory: flags.webhook_cert_dir.clone(),
        certificate_lifetime: flags.webhook_certificate_lifetime,
        namespace: flags.namespace.clone(),
        missing_references: match flags.missing_references {
            cli::MissingReferences::Warn => admission::MissingReferences::Warn,
            cli::MissingReferences::Deny => admission::MissingReferences::Deny,
        },
    }
}

/// Where cloud workers in Pods post their reports.
fn report_target(flags: &Run) -> Result<Option<ReportTarget>, Error> {
    let WorkerReportFlags { worker_report_url, worker_report_key_file, .. } = &flags.worker_reports;
    let Some((url, file)) = worker_report_url.as_ref().zip(worker_report_key_file.as_ref()) else {
        return Ok(None);
    };
    let key = TokenKey::read(worker_reports::KEY_FLAG, file)?;
    Ok(Some(ReportTarget::new(url.to_string(), flags.topic_prefix.clone(), key)))
}

fn pod_settings(flags: &Run, reports: Option<ReportTarget>) -> PodSettings {
    PodSettings {
        fetch_image: flags.fetch_image.clone(),
        gateway_image: flags.gateway_image.clone(),
        aggregator_image: flags.aggregator_image.clone(),
        cluster_domain: flags.cluster_domain.clone(),
        policy: PodPolicy {
            host_paths: flags.allow_host_path.clone(),
            allow_control_plane: flags.allow_control_plane,
        },
        reports,
        controller: ControllerIdentity {
            namespace: flags.namespace.clone(),
            service_account: flags.service_account.clone(),
        },
        config_interval: Duration::from_secs(flags.config_interval_seconds.into()),
    }
}

/// Waits for leadership, and runs the controllers while this replica leads.
async fn lead(
    flags: &Run,
    (context, (answers, joins)): (&Context, (&NodeAnswers, Option<JoinSettings>)),
    (elected, leading): (&OnceCell<Leadership>, &OnceCell<()>),
    health_state: &HealthState,
) -> Result<(), Error> {
    let leadership = elected.get_or_init(|| async { leadership(context, flags) }).await;
    health_state.follow_election(leadership.problem());
    let act = async {
        health_state.set_standby(flags.leader_elect);
        leadership.gained().await;
        health_state.set_standby(false);
        context.metrics().set_leads(true);
        let only = flags.watch_namespace.clone();
        // Before anything is planned or a status is written.
        runtime::load_slices(context, only.as_deref()).await;
        leading.get_or_init(|| std::future::ready(())).await;
        let mut tasks = JoinSet::new();
        let (controllers, transport) = (context.clone(), context.clone());
        let (publisher, recorder) = (context.clone(), context.clone());
        let namespace = flags.namespace.clone();
        tasks.spawn(async move { runtime::run_all(&controllers).await });
        tasks.spawn(async move { runtime::publish_waiting(&publisher).await });
        tasks.spawn(async move { runtime::write_edge_nodes(&recorder, &namespace).await });
        let (writer, follower) = (context.clone(), context.clone());
        tasks.spawn(async move { runtime::write_slices(&writer).await });
        let (asker, answers, scope) = (context.clone(), answers.clone(), only.clone());
        tasks.spawn(async move {
            runtime::answer_log_requests(&asker, &answers, scope.as_deref()).await;
        });
        tasks.spawn(async move { runtime::follow_deletions(&follower, only.as_deref()).await });
        if let Some(joins) = joins {
            let keeper = context.clone();
            tasks.spawn(async move { maintain_joins(&keeper, &joins).await });
        }
        tasks.spawn(async move {
            let nodes = transport.caches().nodes.objects();
            transport.publisher().transport().run(transport.client(), nodes).await;
        });
        tasks.join_all().await;
    };
    tokio::select! {
        () = leadership.lost() => Err(Error::LeadershipLost),
        () = act => Ok(()),
    }
}

fn leadership(context: &Context, flags: &Run) -> Leadership {
    if flags.leader_elect {
        Leadership::campaign(context.client(), &flags.namespace, &context.caches().api_server)
    } else {
        Leadership::single()
    }
}

fn transport(
    flags: &Run,
    metrics: &Metrics,
    authority: Option<&Arc<Authority>>,
) -> Result<(Transport, TransportEvents), Error> {
    match flags.transport {
        cli::Transport::Mqtt => {
            let why = "--transport mqtt requires the address of the broker that the agents use";
            let missing = Error::FlagMissing { flag: "--mqtt-url", why };
            let url = flags.mqtt_url.clone().ok_or(missing)?;
            let options = flags.broker.link_options(url, client_id());
            let options = fleet_authority::with_identity(options, authority)?;
            Ok(Mqtt::start(options, flags.topic_prefix.clone(), metrics.clone())?)
        }
        cli::Transport::EventBus => {
            if flags.mqtt_url.is_some() {
                tracing::warn!("--mqtt-url is ignored with --transport eventbus");
            }
            let bus = &flags.event_bus;
            let settings = EventBusSettings {
                router: bus.router_url.clone(),
                namespace: bus.rule_namespace.clone(),
                upstream: bus.upstream_url.clone(),
                prefix: flags.topic_prefix.clone(),
                token_file: bus.upstream_token_file.clone(),
                fleet_rate: bus.fleet_rate,
            };
            Ok(EventBus::start(settings, bus.upstream_listen, metrics.clone())?)
        }
    }
}

/// A unique client ID: a broker disconnects a client when another one connects with its ID.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
fn client_id() -> String {
    format!("neptune-cloud-{:x}-{:x}", Timestamp::now().as_microsecond(), std::process::id())
}
