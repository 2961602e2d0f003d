//! Puts the parts of `neptune-cloud run` together and ends them in order.

use std::time::Duration;

use futures::channel::mpsc;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use neptune_link::LinkOptions;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::OnceCell,
};

use crate::{
    admission::Webhook,
    cli::{self, Run},
    controllers::{self, Context},
    downstream::Downstream,
    error::Error,
    kubeconfig,
    leader::Leadership,
    metrics::Metrics,
    serve::{self, Questions},
    stores::Stores,
    transport::{EventBus, EventBusSettings, Events, Mqtt, Transport},
    upstream,
};

/// How long the last messages may take when the program ends.
const GOODBYE: Duration = Duration::from_secs(2);

/// Runs until SIGTERM or SIGINT, or until another replica acts.
///
/// # Errors
/// What is wrong from the start: flags, kubeconfig, a taken address; and [`Error::Deposed`]. Neither the API server nor
/// the broker has to be there.
pub async fn run(flags: Run) -> Result<(), Error> {
    let listener = serve::bind(flags.listen).await?;
    let webhook = Webhook::prepare(&flags)?;
    let config = kubeconfig::config(flags.kubeconfig.as_deref(), None).await?;
    let client = kubeconfig::client(config)?;
    let metrics = Metrics::default();
    let (transport, events) = transport(&flags, &metrics).await?;
    let downstream = Downstream::new(transport.clone());
    let questions = Questions::new(downstream.clone(), metrics.registry());
    let (send_change, changes) = mpsc::unbounded();
    let only = flags.watch_namespace.as_deref();
    let stores = Stores::watch(&client, only, &flags.namespace, &send_change);
    let (context, mut wakes) = Context::new(
        client.clone(),
        stores.clone(),
        downstream,
        metrics.clone(),
        flags.fetch_image.clone(),
    );
    let elected = OnceCell::new();
    let act = async {
        let leadership = elected.get_or_init(|| leadership(&client, &flags)).await;
        let act = async {
            questions.set_stands_by(flags.leader_elect);
            tokio::select! {
                () = leadership.gained() => {}
                () = wakes.discard() => {}
            }
            questions.set_stands_by(false);
            metrics.set_leads(true);
            controllers::expect(&context);
            futures::join!(
                controllers::run(wakes.services, context.clone()),
                controllers::run(wakes.inference_models, context.clone()),
                controllers::run(wakes.models, context.clone()),
                controllers::run(wakes.datasets, context.clone()),
                transport.run(&client, &stores.nodes),
            );
        };
        tokio::select! {
            () = leadership.lost() => Err(Error::Deposed),
            () = act => Ok(()),
        }
    };
    let work = async {
        // Before the copies are whole, a model or an object that is not in them may well exist.
        stores.ready().await;
        tracing::info!("the API server's objects are here");
        // A replica that stands by keeps up with the objects and the nodes, and says nothing: the gate of
        // what is said opens with `expect`.
        let keep_up = async {
            futures::join!(
                controllers::dispatch(changes, context.clone()),
                upstream::listen(events, context.clone(), flags.topic_prefix.clone()),
            );
            Ok(())
        };
        futures::try_join!(act, keep_up).map(|_| ())
    };
    let admission = async {
        stores.ready().await;
        webhook.run(context.clone()).await;
    };
    tracing::info!(listen = %flags.listen, "neptune-cloud runs");
    let result = tokio::select! {
        result = work => result,
        () = admission => Ok(()),
        () = serve::serve(listener, questions.clone()) => Ok(()),
        () = stop_signal() => {
            tracing::info!("ending");
            Ok(())
        }
    };
    transport.close(GOODBYE).await;
    if let Some(leadership) = elected.into_inner() {
        leadership.resign().await;
    }
    result
}

async fn leadership(client: &Client, flags: &Run) -> Leadership {
    if !flags.leader_elect {
        return Leadership::alone();
    }
    // Controllers of different namespaces are no replicas of each other.
    let lease = match &flags.watch_namespace {
        Some(namespace) => format!("neptune-cloud-{namespace}"),
        None => "neptune-cloud".to_owned(),
    };
    Leadership::stand(client, &flags.namespace, &lease).await
}

async fn transport(flags: &Run, metrics: &Metrics) -> Result<(Transport, Events), Error> {
    match flags.transport {
        cli::Transport::Mqtt => {
            let why = "--transport mqtt needs the broker that the agents reach too";
            let missing = Error::FlagMissing { flag: "--mqtt-url", why };
            let url = flags.mqtt_url.clone().ok_or(missing)?;
            let options = LinkOptions {
                ca_file: flags.mqtt_ca_file.clone(),
                certificate_file: flags.mqtt_cert_file.clone(),
                key_file: flags.mqtt_key_file.clone(),
                password_file: flags.mqtt_password_file.clone(),
                allow_insecure: flags.insecure_broker,
                ..LinkOptions::new(url, client_id())
            };
            Ok(Mqtt::start(options, flags.topic_prefix.clone(), metrics.clone())?)
        }
        cli::Transport::EventBus => {
            if flags.mqtt_url.is_some() {
                tracing::warn!("--transport eventbus needs no broker: --mqtt-url is not used");
            }
            let bus = &flags.event_bus;
            let settings = EventBusSettings {
                router: bus.router_url.clone(),
                namespace: bus.rule_namespace.clone(),
                upstream: bus.upstream_url.clone(),
                prefix: flags.topic_prefix.clone(),
                token_file: bus.upstream_token_file.clone(),
            };
            EventBus::start(settings, bus.upstream_listen, metrics.clone()).await
        }
    }
}

/// Two controllers of one name would throw each other off the broker.
fn client_id() -> String {
    format!("neptune-cloud-{:x}-{:x}", Timestamp::now().as_microsecond(), std::process::id())
}

async fn stop_signal() {
    let mut terminate = signal(SignalKind::terminate()).expect("signals can be had");
    let mut interrupt = signal(SignalKind::interrupt()).expect("signals can be had");
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
